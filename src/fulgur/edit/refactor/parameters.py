"""Change the parameters of a function together with the calls of it in the file."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.docstrings import described_at
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.rename import check_name, use_edit, with_subclasses
from fulgur.edit.refactor.scopes import Names, functions_named
from fulgur.edit.refactor.source import Edit, Function, Source, apply_edits
from fulgur.text.edit_format import Call


def find_function(src: Source, name: str, at: tuple[int, int] | None) -> Function:
    """The one function of this name; with several, the one at `at`."""
    found = functions_named(src, name)
    if len(found) > 1 and at is not None:
        found = [f for f in found if src.whole_lines(f)[0] < at[1] and src.whole_lines(f)[1] > at[0]] or found
    if not found:
        raise RefactorError(f"there is no function {name} in this file")
    if len(found) > 1:
        lines = ", ".join(str(f.lineno) for f in found)
        raise RefactorError(
            f"several functions are called {name} (lines {lines})", hint="Say which one, as Class.name."
        )
    return found[0]


def calls_of(src: Source, function: Function) -> list[ast.Call]:
    """The calls of a function by name; of a method on self, cls, super() or the class."""
    owner = src.parents.get(function)
    method = isinstance(owner, ast.ClassDef)
    names = Names(src)
    binder = next((scope for node, scope in names.scopes.items() if node is owner), names.module)
    family = with_subclasses(src, owner) if isinstance(owner, ast.ClassDef) else []
    direct = {use.start for use in names.of(function.name, binder)} if not method else set()
    found = []
    for node in src.all(ast.Call):
        target = node.func
        if isinstance(target, ast.Name) and src.start(target) in direct and target.id == function.name:
            found.append(node)
        elif method and isinstance(target, ast.Attribute) and target.attr == function.name:
            value = target.value
            base = value.func if isinstance(value, ast.Call) else value
            around = next((a for a in src.ancestors(node) if isinstance(a, ast.ClassDef)), None)
            inside = isinstance(base, ast.Name) and base.id in ("self", "cls", "super") and around in family
            if inside or (isinstance(base, ast.Name) and base.id == getattr(owner, "name", "")):
                found.append(node)
    return found


def positional(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args]


def bound_offset(src: Source, function: Function) -> int:
    """1 when the instance or the class fills the first parameter, else 0."""
    if not isinstance(src.parents.get(function), ast.ClassDef):
        return 0
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    return 0 if static else 1


def closing(src: Source, start: int) -> int:
    """The parenthesis that closes the one at `start` (strings and comments inside are skipped)."""
    depth, position, text = 0, start, src.text
    while position < len(text):
        letter = text[position]
        if letter == "#":
            position = text.index("\n", position)
        elif letter in "\"'":
            quote = letter * 3 if text.startswith(letter * 3, position) else letter
            position += len(quote)
            while not text.startswith(quote, position):
                position += 2 if text[position] == "\\" else 1
            position += len(quote) - 1
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    raise RefactorError("a parenthesis is not closed")


def append_item(src: Source, opening: int, item: str) -> Edit:
    """Add one element at the end of a parenthesised list, in the list's own layout."""
    close = closing(src, opening)
    inner = src.text[opening + 1 : close]
    stripped = inner.rstrip()
    if "#" in inner[len(stripped) :] or re.search(r"#[^\n\"']*$", stripped):
        raise RefactorError(f"line {src.line_of(close)}: a comment is where the argument would go")
    end = opening + 1 + len(stripped)
    if not stripped:
        return Edit(opening + 1, close, item)
    if "\n" in inner[len(stripped) :]:
        line = src.text[src.line_start(src.line_of(end - 1)) : end]
        indent = line[: len(line) - len(line.lstrip())]
        return Edit(end, end, f"{'' if stripped.endswith(',') else ','}\n{indent}{item},")
    return Edit(end, end, f" {item}" if stripped.endswith(",") else f", {item}")


def head_opening(src: Source, function: Function) -> int:
    name = src.text.index(function.name, src.text.index("def", src.start(function)) + 3)
    return src.text.index("(", name + len(function.name))


def call_opening(src: Source, call: ast.Call) -> int:
    return src.text.index("(", src.end(call.func))


def head_edits(src: Source, function: Function, call: Call) -> list[Edit]:
    """The edits of the function itself for a change of parameters, without those of its calls."""
    args = call.args[1:]
    if call.name == "add_parameter":
        return [_added(src, function, args[0], args[1] if len(args) == 2 else None)]
    if call.name == "remove_parameter":
        return [_removed(src, function, args[0])]
    if call.name == "rename_parameter":
        return _renamed(src, function, args[0], args[1])
    if call.name == "keyword_only":
        return [_star_before(src, function, args)]
    if function.args.vararg or function.args.posonlyargs:
        raise RefactorError(f"{function.name} has positional-only or star parameters")
    return []


def add_parameter(src: Source, name: str, parameter: str, value: str | None, at: tuple[int, int] | None) -> str:
    """Add `param`, `param=default` or `param: type = default`; with a value every call passes it by keyword."""
    function = find_function(src, name, at)
    edits = [_added(src, function, parameter, value)]
    if value is not None:
        edits += add_at_calls(src, calls_of(src, function), parameter_name(parameter), value)
    return apply_edits(src.text, edits)


def parameter_name(parameter: str) -> str:
    """`mode` of `mode: str = "r"`"""
    return re.split(r"[:=]", parameter)[0].strip()


def _added(src: Source, function: Function, parameter: str, value: str | None) -> Edit:
    name, word = function.name, parameter_name(parameter)
    check_name(word)
    if any(isinstance(node, ast.arg) and node.arg == word for node in ast.walk(function.args)):
        raise RefactorError(f"{name} already has a parameter {word}")
    args = function.args
    if args.kwarg is not None:
        raise RefactorError(f"{name} takes **{args.kwarg.arg}", hint="Add the parameter by hand.")
    required = "=" not in parameter
    if required and value is None:
        raise RefactorError(f"{word} needs a default or a value for the callers")
    text = parameter
    if required and args.defaults and not (args.vararg or args.kwonlyargs):
        text = f"*, {parameter}"  # after parameters with defaults, only a keyword-only one can be required
    return append_item(src, head_opening(src, function), text)


def add_at_calls(src: Source, calls: list[ast.Call], word: str, value: str) -> list[Edit]:
    """Pass `word=value` in every one of these calls."""
    for call in calls:
        if len(call.args) == 1 and not call.keywords and isinstance(call.args[0], ast.GeneratorExp):
            raise RefactorError(
                f"the call on line {call.lineno} passes a bare generator", hint="Put it in parentheses."
            )
    return [append_item(src, call_opening(src, call), f"{word}={value}") for call in calls]


def element_removal(src: Source, elements: list[tuple[int, int]], index: int) -> Edit:
    """Remove one element and its comma from a parenthesised list."""
    start, end = elements[index]
    if index + 1 < len(elements):
        return Edit(start, elements[index + 1][0], "")
    if index > 0:
        return Edit(elements[index - 1][1], end, "")
    trailing = re.match(r"\s*,", src.text[end:])
    return Edit(start, end + (trailing.end() if trailing else 0), "")


def parameter_spans(src: Source, function: Function) -> list[tuple[str, tuple[int, int]]]:
    """Name and text span (annotation and default included) of each parameter, in order; refuses star parameters."""
    args = function.args
    if args.vararg or args.kwarg or args.posonlyargs or args.kwonlyargs:
        raise RefactorError(
            f"{function.name} has star or keyword-only parameters", hint="Change its signature by hand."
        )
    values = [None] * (len(args.args) - len(args.defaults)) + list(args.defaults)
    spans = []
    for arg, default in zip(args.args, values, strict=True):
        spans.append((arg.arg, (src.start(arg), src.end(default) if default is not None else src.end(arg))))
    return spans


def remove_parameter(src: Source, name: str, parameter: str, at: tuple[int, int] | None) -> str:
    """Remove a parameter that the body does not use from the head and from every call."""
    function = find_function(src, name, at)
    edits = [_removed(src, function, parameter)]
    edits += remove_at_calls(src, calls_of(src, function), parameter, passed_at(src, function, parameter))
    return apply_edits(src.text, edits)


def passed_at(src: Source, function: Function, parameter: str) -> int:
    """The position at which a caller passes a parameter."""
    words = [word for word, _ in parameter_spans(src, function)]
    return words.index(parameter) - bound_offset(src, function)


def _removed(src: Source, function: Function, parameter: str) -> Edit:
    name, spans = function.name, parameter_spans(src, function)
    words = [word for word, _ in spans]
    if parameter not in words:
        raise RefactorError(f"{name} has no parameter {parameter}")
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == parameter:
            raise RefactorError(
                f"{parameter} is still used in {name} on line {node.lineno}", hint="Remove its uses first."
            )
    return element_removal(src, [span for _, span in spans], words.index(parameter))


def remove_at_calls(src: Source, calls: list[ast.Call], parameter: str, place: int) -> list[Edit]:
    """Remove the argument for a parameter, the `place`-th by position, from these calls."""
    edits = []
    for call in calls:
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
            raise RefactorError(
                f"the call on line {call.lineno} passes * or **", hint="Change that call by hand first."
            )
        elements = [src.span(arg) for arg in call.args] + [src.span(k) for k in call.keywords]
        passed = [i for i, k in enumerate(call.keywords, len(call.args)) if k.arg == parameter]
        if place < len(call.args):
            edits.append(element_removal(src, elements, place))
        elif passed:
            edits.append(element_removal(src, elements, passed[0]))
    return edits


def rename_parameter(src: Source, name: str, old: str, new: str, at: tuple[int, int] | None) -> str:
    """Rename a parameter in the head, in the body, in the docstring and where calls pass it by keyword."""
    function = find_function(src, name, at)
    edits = {*_renamed(src, function, old, new), *rename_at_calls(src, calls_of(src, function), old, new)}
    return apply_edits(src.text, edits)


def _renamed(src: Source, function: Function, old: str, new: str) -> list[Edit]:
    check_name(new)
    names = Names(src)
    scope = names.scopes[function]
    if not any(isinstance(node, ast.arg) and node.arg == old for node in ast.walk(function.args)):
        raise RefactorError(f"{function.name} has no parameter {old}")
    uses = names.of(old, scope)
    if new in scope.bound or any(use.name == new and use.scope is scope for use in names.uses):
        raise RefactorError(f"{new} is already used in {function.name}")
    described = [Edit(start, start + len(old), new) for start in described_at(src, function, old)]
    return [*{use_edit(use, old, new) for use in uses}, *described]


def rename_at_calls(src: Source, calls: list[ast.Call], old: str, new: str) -> list[Edit]:
    """Rename the keyword by which these calls pass a parameter."""
    words = [word for call in calls for word in call.keywords if word.arg == old]
    return [Edit(src.start(word), src.start(word) + len(old), new) for word in words]


def use_keywords(src: Source, name: str, at: tuple[int, int] | None) -> str:
    """Pass every argument of every call by its name."""
    function = find_function(src, name, at)
    head_edits(src, function, Call("use_keywords", (name,)))
    edits = keywords_at_calls(src, calls_of(src, function), passed_by_position(src, function))
    if not edits:
        raise RefactorError(f"no call of {name} in this file passes arguments by position")
    return apply_edits(src.text, edits)


def passed_by_position(src: Source, function: Function) -> list[str]:
    """The parameters that a caller may fill by position, in order."""
    return [arg.arg for arg in function.args.args][bound_offset(src, function) :]


def keywords_at_calls(src: Source, calls: list[ast.Call], words: list[str]) -> list[Edit]:
    """Name every argument that these calls pass by position."""
    edits = []
    for call in calls:
        if any(isinstance(arg, ast.Starred) for arg in call.args):
            raise RefactorError(f"the call on line {call.lineno} passes *", hint="Change that call by hand first.")
        if len(call.args) > len(words):
            raise RefactorError(f"the call on line {call.lineno} passes too many arguments")
        edits += [Edit(src.start(arg), src.start(arg), f"{word}=") for word, arg in zip(words, call.args, strict=False)]
    return edits


def keyword_only(src: Source, name: str, chosen: tuple[str, ...], at: tuple[int, int] | None) -> str:
    """Make the last parameters keyword-only, and pass them by name in every call of the file."""
    function = find_function(src, name, at)
    edits = [_star_before(src, function, chosen)]
    edits += named_at_calls(src, calls_of(src, function), passed_by_position(src, function), chosen)
    return apply_edits(src.text, edits)


def _star_before(src: Source, function: Function, chosen: tuple[str, ...]) -> Edit:
    args = function.args
    words = [arg.arg for arg in args.args]
    if missing := [word for word in chosen if word not in words]:
        only = {arg.arg for arg in args.kwonlyargs}
        told = "is already keyword-only" if missing[0] in only else f"is not a parameter of {function.name}"
        raise RefactorError(f"{missing[0]} {told}")
    if args.vararg or args.kwonlyargs:
        raise RefactorError(
            f"{function.name} already has a star in its signature", hint="Change its signature by hand."
        )
    if set(words[-len(chosen) :]) != set(chosen):
        last = next(word for word in words[::-1] if word not in chosen)
        first = next(word for word in words if word in chosen)
        raise RefactorError(f"{last} comes after {first} and would be keyword-only too")
    start = src.start(args.args[-len(chosen)])
    return Edit(start, start, "*, ")


def named_at_calls(src: Source, calls: list[ast.Call], words: list[str], chosen: tuple[str, ...]) -> list[Edit]:
    """Name the arguments for these parameters where calls pass them by position."""
    edits = []
    for call in calls:
        if any(isinstance(arg, ast.Starred) for arg in call.args):
            raise RefactorError(f"the call on line {call.lineno} passes *", hint="Change that call by hand first.")
        pairs = zip(words, call.args, strict=False)
        edits += [Edit(src.start(arg), src.start(arg), f"{word}=") for word, arg in pairs if word in chosen]
    return edits
