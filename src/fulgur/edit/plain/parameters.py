"""Rules for parameters and arguments: new ones, removed ones, defaults, arguments passed by name."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.plain.names import bound
from fulgur.edit.plain.place import Place, code, defaults_of, without_texts
from fulgur.edit.refactor.local.functions import defaults, parameters
from fulgur.edit.refactor.source import FUNCTIONS, Function
from fulgur.edit.refactor.verify import words
from fulgur.text.edit_format import Call


def default(match: re.Match[str], place: Place) -> Call | None:
    name, value = match[1], code(match[2])
    if value is None or set(re.findall(r"[A-Za-z_]\w*", without_texts(value))) - {*words(place.file), *dir(builtins)}:
        return None
    return Call("change_default", (name, value)) if name in defaults_of(place) else None


def new_parameter(match: re.Match[str], place: Place) -> Call | None:
    text = match[1].strip("`")
    try:
        ast.parse(f"def f(*, {text}): pass")
    except SyntaxError:
        return None
    return Call("new_parameter", (text,)) if place.function is not None else None


def remove_parameter(match: re.Match[str], place: Place) -> Call | None:
    name = next(filter(None, match.groups()))
    known = place.function is not None and name in place.parameters()
    return Call("remove_parameter", (place.function.name, name)) if known and place.function else None


def known_value(text: str, place: Place) -> str | None:
    """A value in code whose names are all known; None for English words."""
    found = code(text)
    if found is None or re.fullmatch(r"[a-z_]+", found):
        return None
    names = {node.id for node in ast.walk(ast.parse(found)) if isinstance(node, ast.Name)}
    return found if names <= {*words(place.file), *dir(builtins)} else None


def parameter_default(match: re.Match[str], place: Place) -> Call | None:
    """Change the default of a parameter, or add one if there is none."""
    name, value = match["name"], known_value(match["value"], place)
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
        return None  # there is no value yet to increase or decrease
    where = (f"@{function.name}",) if place.function is None else ()
    if where and any(word.lower() == name.lower() != word for word in bound(place)):
        return None  # the constant may be meant
    return Call("change_default" if known is not None else "add_default", (*where, name, value))


def _taking(name: str, place: Place) -> Function | None:
    """The only function of the region that has this parameter."""
    tree = place.tree
    functions = (
        [place.function] if place.function else [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS)] if tree else []
    )
    found = [function for function in functions if name in [arg.arg for arg in parameters(function)]]
    return found[0] if len(found) == 1 else None


def optional(match: re.Match[str], place: Place) -> Call | None:
    """`make NAME optional`: the default becomes None."""
    name = match["name"]
    required = name in place.parameters() and name not in defaults_of(place)
    return Call("add_default", (name, "None")) if required else None


def keyword_only(match: re.Match[str], place: Place) -> Call | None:
    chosen = tuple(part for part in re.split(r"\s*(?:,|\band\b|&)\s*", match["names"].replace("`", "")) if part)
    if place.function is None or not set(chosen) <= set(place.parameters()):
        return None
    owner = place.function.name
    return Call("keyword_only", (owner, *chosen))


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
        return None  # "a generator expression in join" is not an argument
    calls = re.findall(rf"(?<!\w){re.escape(called)}\(", place.region)
    return Call("add_keyword", (called, match["name"], value)) if code(value) and len(calls) == 1 else None


def parameter_with(match: re.Match[str], place: Place) -> Call | None:
    """`add a timeout argument defaulting to None`"""
    value = known_value(match["value"], place)
    known = place.function is not None and value is not None and match["name"] not in place.parameters()
    return Call("new_parameter", (f"{match['name']}={value}",)) if known else None
