"""Values, defaults, arguments, messages and tests, in the words that people use for them."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.plain.example import makes
from fulgur.edit.plain.guards import condition
from fulgur.edit.plain.names import bound
from fulgur.edit.plain.place import Place, Rule, assigned, code, defaults_of, filled, payload
from fulgur.edit.plain.rules import decorate, imports
from fulgur.edit.refactor.local.exact import places_of
from fulgur.edit.refactor.local.functions import defaults, parameters
from fulgur.edit.refactor.source import FUNCTIONS, Function
from fulgur.edit.refactor.verify import words
from fulgur.text.edit_format import Call


def _value(text: str, place: Place) -> str | None:
    """A value as it is written in code, all of whose names are known; English is not one."""
    found = code(text)
    if found is None or re.fullmatch(r"[a-z_]+", found):
        return None
    names = {node.id for node in ast.walk(ast.parse(found)) if isinstance(node, ast.Name)}
    return found if names <= {*words(place.file), *dir(builtins)} else None


def parameter_default(match: re.Match[str], place: Place) -> Call | None:
    """Another default, or the first one for a parameter that has none."""
    name, value = match["name"], _value(match["value"], place)
    function = _taking(name, place)
    if value is None or function is None or name in words(value):
        return None
    old = match.groupdict().get("old")
    known = defaults(function).get(name)
    if old is not None and (
        known is None or code(old) is None or ast.unparse(known) != ast.unparse(ast.parse(old, mode="eval").body)
    ):
        return None
    if known is None and re.match(r"(?i)bump|increase|decrease|raise|lower|reduce|update", match[0]):
        return None  # there is nothing yet that could go up or down
    where = (f"@{function.name}",) if place.function is None else ()
    if where and any(word.lower() == name.lower() != word for word in bound(place)):
        return None  # or the constant
    return Call("change_default" if known is not None else "add_default", (*where, name, value))


def _taking(name: str, place: Place) -> Function | None:
    """The function of the region that has this parameter; in a class the only one."""
    tree = place.tree
    functions = (
        [place.function] if place.function else [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS)] if tree else []
    )
    found = [function for function in functions if name in [arg.arg for arg in parameters(function)]]
    return found[0] if len(found) == 1 else None


def value_or_default(match: re.Match[str], place: Place) -> Call | None:
    """`NAME to VALUE`: the default of a parameter, or a plain assignment in the region."""
    if (found := parameter_default(match, place)) is not None:
        return found
    name, value = match["name"], _value(match["value"], place)
    pattern = rf"^\s*(?:self\.)?{re.escape(name)}(?: ?:[^=\n]+)?\s*=[^=]"
    if filled(name, place.region) or name not in assigned(place):
        return None  # an argument on a line of its own looks like an assignment
    if value is None or name in place.parameters() or len(re.findall(pattern, place.region, re.MULTILINE)) != 1:
        return None
    old = match.groupdict().get("old")
    if old is not None and not re.search(
        pattern[:-4] + rf"\s*{re.escape(old)}\s*(?:#.*)?$", place.region, re.MULTILINE
    ):
        return None
    return Call("set_value", (name, value))


def optional(match: re.Match[str], place: Place) -> Call | None:
    """`make NAME optional`: None when it is left out."""
    name = match["name"]
    required = name in place.parameters() and name not in defaults_of(place)
    return Call("add_default", (name, "None")) if required else None


def keyword_only(match: re.Match[str], place: Place) -> Call | None:
    chosen = tuple(part for part in re.split(r"\s*(?:,|\band\b|&)\s*", match["names"].replace("`", "")) if part)
    if place.function is None or not set(chosen) <= set(place.parameters()):
        return None
    owner = place.function.name
    return Call("keyword_only", (owner, *chosen))


def message(match: re.Match[str], place: Place) -> Call | None:
    text = payload(match["value"]) if match["value"][:1] in "\"'`" else None
    return Call("set_message", (text,)) if text else None


def returned(match: re.Match[str], place: Place) -> Call | None:
    """`return EXPRESSION`, in a function with one return: the value that it returns instead."""
    new = code(match["value"])
    if new is None or place.function is None or (re.fullmatch(r"[a-z]+", new) and new not in bound(place)):
        return None
    found = [node for node in ast.walk(place.function) if isinstance(node, ast.Return)]
    if len(found) != 1 or found[0].value is None or not re.search(r"[^\w.]", new):
        return None
    old = ast.unparse(found[0].value)
    if isinstance(found[0].value, ast.Name):
        assigned = re.search(
            rf"^\s*{re.escape(old)} = (.+)\n\s*return {re.escape(old)}\s*$", place.region, re.MULTILINE
        )
        if not assigned:
            return None
        same = code(assigned[1]) is not None and ast.dump(ast.parse(assigned[1])) == ast.dump(ast.parse(new))
        return Call("return_directly", (old,)) if same else None
    names = {n.id for n in ast.walk(ast.parse(new)) if isinstance(n, ast.Name)}
    alike = names & {n.id for n in ast.walk(found[0].value) if isinstance(n, ast.Name)}
    return Call("change_return", (new, old)) if alike and place.has(f"return {old}") and new != old else None


def ternary_return(match: re.Match[str], place: Place) -> Call | None:
    """`return A if TEST else B`, where an if returns these."""
    wanted = code(match["value"])
    if wanted is None or not isinstance(ast.parse(wanted, mode="eval").body, ast.IfExp):
        return None
    return Call("use_ternary") if makes(place, "use_ternary", f"return {wanted}") else None


def constant(match: re.Match[str], place: Place) -> Call | None:
    """A literal, or a local variable that is one, as a constant of the module."""
    value, name = match["value"].strip("`"), match["name"]
    if re.search(r"\bclass const", match[0], re.IGNORECASE):
        return None  # of the class, and not of the module
    last = value.split()[-1] if value.split() else ""
    for text in (value, last):
        try:
            ast.literal_eval(text)
        except (ValueError, SyntaxError):
            continue
        if text == value or re.fullmatch(
            r"(?:the |magic |number |value |string |literal |[a-z]+ )+", value[: -len(text)]
        ):
            return Call("extract_constant", (text, name)) if place.has(text) else None
    plain = re.sub(r"^(?:the|local|variable|dict|list|table|mapping|this) ", "", value)
    set_once = re.findall(rf"^\s+{re.escape(plain)} = ", place.region, re.MULTILINE) if plain.isidentifier() else []
    return Call("extract_constant", (plain, name)) if len(set_once) == 1 else None


def pass_keyword(match: re.Match[str], place: Place) -> Call | None:
    """`open with encoding="utf-8"`"""
    value, called = match["value"].strip("`"), match.groupdict().get("called") or "open"
    known = {*bound(place), *place.parameters(), "True", "False", "None"}
    if re.fullmatch(r"[A-Za-z][\w-]*", value) and value not in known:
        value = f'"{value}"'
    if (
        " = " not in match[0]
        and "=" not in match[0]
        and match["name"] not in ("encoding", "errors", "newline", "timeout")
    ):
        return None  # "a generator expression in join" is no argument
    calls = re.findall(rf"(?<!\w){re.escape(called)}\(", place.region)
    return Call("add_keyword", (called, match["name"], value)) if code(value) and len(calls) == 1 else None


def parameter_with(match: re.Match[str], place: Place) -> Call | None:
    """`add a timeout argument defaulting to None`"""
    value = _value(match["value"], place)
    known = place.function is not None and value is not None and match["name"] not in place.parameters()
    return Call("new_parameter", (f"{match['name']}={value}",)) if known else None


def base(match: re.Match[str], place: Place) -> Call | None:
    node = place.symbol
    if not isinstance(node, ast.ClassDef):
        return None
    bases = [ast.unparse(one) for one in node.bases]
    new = match.groupdict().get("new")
    if new is None:
        return Call("change_base", (node.name, "", "object")) if bases == ["object"] else None
    if match["also"] or match["more"] or bases in ([], ["object"]):
        return Call("add_base", (node.name, new))
    return None


def logged(match: re.Match[str], place: Place) -> Call | None:
    """The file's logger instead of print."""
    found = match.groupdict()
    if "print(" not in place.region:
        return None
    name, level = found["logger"] or found.get("logger2") or "", found["level"] or found.get("level2")
    return Call(
        "log_prints", (name if name != "log" or "log." in place.file else "logger", *((level,) if level else ()))
    )


def looked_up(match: re.Match[str], place: Place) -> Call | None:
    """`conf.get(key)`, where the region looks this key of it up; `conf.get`, where it looks one up."""
    if (given := match.groupdict().get("given")) and not makes(place, "use_dict_get", f"{match['map']}.get{given}"):
        return None
    return Call("use_dict_get") if re.search(rf"\bin {re.escape(match['map'])}\b", place.region) else None


def membership(match: re.Match[str], place: Place) -> Call | None:
    """`x in (1, 2)`, in whatever brackets, where the region compares x with these one by one."""
    text = code(match["test"])
    node = ast.parse(text, mode="eval").body if text else None
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return None
    listed = node.comparators[0]
    if isinstance(listed, (ast.List, ast.Set)):
        node.comparators[0] = ast.Tuple(listed.elts, ast.Load())
    return Call("use_in") if makes(place, "use_in", ast.unparse(node)) else None


def other_test(match: re.Match[str], place: Place) -> Call | None:
    """`if NEW instead of OLD`: the test of an if or while, which stands there once; `len(x)` as people shorten it."""
    new, old = code(match["new"]), match["old"].strip("`").removeprefix("if ")
    if new is None:
        return None
    if re.match(r"(?:the )?len\b|(?:comparing |checking |testing )(?:the )?len", old):
        tests = re.findall(r"\blen\(([\w.]+)\) *(?:[=!]=|>|<) *[01]|\bif (?:not )?len\(([\w.]+)\)", place.region)
        names = ["".join(found) for found in tests]
        return Call("use_truthiness") if names == [new.removeprefix("not ")] else None
    if code(old) is None or len(places_of(place.region, f"if {old}")) != 1:
        return None
    return Call("replace_text", (f"if {old}", f"if {new}"))


def other_exception(match: re.Match[str], place: Place) -> Call | None:
    """`change OLD to NEW`, of exceptions that the region raises or catches once."""
    old, new = match["old"], match["new"]
    if len(re.findall(rf"\braise {re.escape(old)}\b", place.region)) == 1:
        return Call("change_exception", (old, new))
    handlers = len(re.findall(rf"^\s*except\b.*\b{re.escape(old)}\b", place.region, re.MULTILINE))
    return (
        Call("replace_text", (f"except {old}", f"except {new}"))
        if handlers == 1 and place.has(f"except {old}")
        else None
    )


def raises(match: re.Match[str], place: Place) -> Call | None:
    """`should raise KIND`, where one exception is raised."""
    found = re.findall(r"^\s*raise ([A-Za-z_][\w.]*)", place.region, re.MULTILINE)
    return Call("change_exception", (found[0], match["kind"])) if len(found) == 1 else None


def asserted(match: re.Match[str], place: Place) -> Call | None:
    test = condition(match["test"], place)
    return Call("add_assert", (test,)) if test and place.function is not None else None


def decorated(match: re.Match[str], place: Place) -> Call | None:
    return decorate(re.fullmatch(r"(.+)", match["with"].lstrip("@")), place)  # type: ignore[arg-type]


def caught(call: str) -> Rule:
    def rule(match: re.Match[str], place: Place) -> Call | None:
        kind = match["kind"]
        if call == "uncatch" and not re.search(rf"^\s*except \(.*\b{re.escape(kind)}\b", place.region, re.MULTILINE):
            return None  # it is all that is caught
        return Call(call, (kind,)) if kind.rpartition(".")[2][:1].isupper() and "except" in place.region else None

    return rule


def item(match: re.Match[str], place: Place) -> Call | None:
    value, name = code(match["value"]), match["name"]
    listed = re.search(
        rf"^\s*(?:self\.)?{re.escape(name)}\b[^=\n]*=\s*(?:frozenset\(|set\()?[\[{{(]", place.region, re.MULTILINE
    )
    return Call("add_item", (name, value)) if value and listed else None


def documented(match: re.Match[str], place: Place) -> Call | None:
    text = payload(match["text"])
    return Call("add_docstring", (text,)) if text and len(text.split()) > 1 and place.symbol is not None else None


def named(match: re.Match[str]) -> re.Match[str]:
    """The same match with the name in one place."""
    found = re.fullmatch(r"(?P<name>\w+)(?P<around>)", match["name"] or match["n2"])
    assert found is not None
    return found


def version(match: re.Match[str], place: Place) -> Call | None:
    found = re.search(r"^(__version__|VERSION|version)\s*=\s*([\"'])", place.region, re.MULTILINE)
    return Call("set_value", (found[1], f"{found[2]}{match['value'] or match['other']}{found[2]}")) if found else None


def switched(match: re.Match[str], place: Place) -> Call | None:
    on = match["how"].lower() in ("on", "enabled", "true")
    name = match["name"]
    if re.search(rf"^\s*(?:self\.)?{re.escape(name)}\s*(?::[^=\n]+)?=\s*{not on}\b", place.region, re.MULTILINE):
        return Call("set_value", (name, str(on)))
    known = defaults_of(place).get(name)
    return (
        Call("change_default", (name, str(on))) if isinstance(known, ast.Constant) and known.value is (not on) else None
    )


def imported(line: str, place: Place) -> Call | None:
    found = re.fullmatch(r"(.+)", line)
    return imports(found, place) if found is not None else None
