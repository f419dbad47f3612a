"""Finds the refactoring call that answers an example: tried on the example itself, and taken only if it gives the
target."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from fulgur.edit.refactor import LOCAL, RefactorError, apply_call, apply_local
from fulgur.edit.refactor.source import FUNCTIONS, Unusable, parse_region
from fulgur.text.edit_format import Call, format_call, parse_call

# operation -> the call's name and its arguments as slots; `=word` stands for itself.
PATTERNS: dict[str, str] = {
    "guard_none.raise": "guard_none param =raise exc",
    "guard_none.return": "guard_none param =return value",
    "raise_on_empty": "raise_if_empty param exc",
    "log_entry": "log_entry logger level",
    "add_assert": "add_assert cond",
    "wrap_try.return": "wrap_try call exc =return value",
    "wrap_try.raise": "wrap_try call exc =raise new",
    "wrap_try.log": "wrap_try call exc =log logger level",
    "wrap_try.pass": "wrap_try call exc =pass",
    "wrap_try.continue": "wrap_try call exc =continue",
    "wrap_body_try": "wrap_body exc value",
    "change_return": "change_return new old",
    "change_exception": "change_exception old new",
    "narrow_except": "narrow_except exc",
    "change_value": "set_value name new",
    "print_to_logger": "log_prints logger level",
    "string_quotes.double": "quotes =double",
    "string_quotes.single": "quotes =single",
    "annotate_parameter": "annotate param type",
    "annotate_return": "annotate_return type",
    "annotate_return.infer": "annotate_return =None",
    "add_type_hints": "add_type_hints +hints",
    "add_docstring": "add_docstring +doc",
    "add_docstring.text": "add_docstring text",
    "add_parameter": "new_parameter +plain",
    "add_parameter.typed": "new_parameter +typed",
    "add_decorator": "add_decorator decorator",
    "change_default": "change_default param new",
    "add_keyword_argument": "add_keyword call param value",
    "change_argument": "set_keyword call param new",
    "add_list_item": "add_item name item",
    "add_dict_entry": "add_entry name key value",
    "add_enum_member": "add_member name member value",
    "add_dataclass_field": "add_field name +field",
    "add_dataclass_field.default": "add_field name +field",
    "extract_variable": "extract_variable new expr",
    "inline_variable": "inline name",
    "add_import": "add_import line",
    "remove_import": "remove_import name",
    "add_await": "add_await call",
}


def pattern(op: str, variant: str) -> str | None:
    """The pattern of an operation's call; most that need no arguments are called by their own name."""
    found = PATTERNS.get(f"{op}.{variant}") or PATTERNS.get(op)
    return found or (op if op in LOCAL or op == "sort_imports" else None)


def candidates(op: str, variant: str, slots: dict[str, str], after: str) -> Iterator[Call]:
    """Yield the call without a function's name, then with it."""
    found = pattern(op, variant)
    if found is None:
        return
    name, *words = found.split(" ")
    more = made(slots, after) if "+" in found else {}
    given = [word[1:] if word[0] == "=" else more.get(word) or slots.get(word) for word in words]
    if all(given):
        args = tuple(word for word in given if word)
        yield Call(name, args)
        if name == "return_directly":
            yield Call(name, (slots["name"],))
        elif name == "raise_from" and (
            cause := re.search(r"\) from (\w+)$|raise \w+ from (\w+)$", after, re.MULTILINE)
        ):
            yield Call(name, (cause[1] or cause[2],))
        elif "func" in slots and LOCAL.get(name):
            yield Call(name, (f"@{slots['func']}", *args))


def made(slots: dict[str, str], after: str) -> dict[str, str]:
    """Arguments that are assembled from several slots or read from the target."""
    found: dict[str, str] = {}
    if "param" in slots and "value" in slots:
        found["+plain"] = f"{slots['param']}={slots['value']}"
        found["+typed"] = f"{slots['param']}: {slots.get('type')} = {slots['value']}"
    if "field" in slots:
        found["+field"] = f"{slots['field']}: {slots['type']}" + (f" = {slots['value']}" if "value" in slots else "")
    for node in ast.walk(parse_region(after)):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or node.name != slots.get("func"):
            continue
        found["+doc"] = " ".join((ast.get_docstring(node) or "").split())
        if isinstance(node, FUNCTIONS):
            args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            hints = ", ".join(f"{arg.arg}: {ast.unparse(arg.annotation)}" for arg in args if arg.annotation)
            found["+hints"] = hints + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
    return found


def carried_out(call: Call, region: str, below: str) -> str | None:
    """The region after a call; None if it is refused."""
    try:
        return apply_local(region, call, below) if call.name in LOCAL else apply_call(region, call)
    except (RefactorError, Unusable):
        return None


def refactored(
    op: str, variant: str, slots: dict[str, str], region: str, below: str, right: Callable[[str], bool]
) -> str | None:
    """The region after the refactoring that does this operation in the right place; None if it is refused."""
    results = (carried_out(call, region, below) for call in candidates(op, variant, slots, region))
    return next((result for result in results if result is not None and right(result)), None)


def readable(call: Call) -> Call | None:
    """The call as it is parsed back from its text; None if the text would not round-trip."""
    text = format_call(call)
    parsed = parse_call(text)
    return parsed if "\n" not in text and parsed is not None and format_call(parsed) == text else None
