"""Rules for what names are set to: values, versions, switches, list items, constants and extracted variables."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.plain.parameters import known_value, parameter_default
from fulgur.edit.plain.place import Place, assigned, code, defaults_of, filled, unquoted
from fulgur.edit.refactor.verify import words
from fulgur.text.edit_format import Call


def _names(value: str) -> set[str]:
    """The names that an expression needs, without those that it binds itself."""
    nodes = list(ast.walk(ast.parse(value, mode="eval")))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes if isinstance(node, ast.Name)} - own


def set_value(match: re.Match[str], place: Place) -> Call | None:
    name, value = match[1], code(match[2])
    if value is None or name.removeprefix("self.") not in assigned(place):
        return None
    if _names(value) - {*words(place.file), *dir(builtins)}:
        return None  # "x = y is enough" is code too
    if value.isidentifier() and value not in {*words(place.file), *dir(builtins)}:
        return None  # another name, not a value
    if name in place.parameters() and name not in words(value):
        return None  # the default of the parameter is meant
    if filled(name, place.region):
        return None  # the code that fills it would have to go too
    return Call("set_value", (name, value))


def version(match: re.Match[str], place: Place) -> Call | None:
    found = re.search(r"^(__version__|VERSION|version)\s*=\s*([\"'])", place.region, re.MULTILINE)
    return Call("set_value", (found[1], f"{found[2]}{unquoted(match[1])}{found[2]}")) if found else None


def switched(match: re.Match[str], place: Place) -> Call | None:
    on = match["how"].lower() in ("on", "enable", "true")
    name, value = match["name"], str(on)
    if re.search(rf"^{re.escape(name)}\s*(?::[^=\n]+)?=\s*{not on}\b", place.region, re.MULTILINE):
        return Call("set_value", (name, value))
    return Call("change_default", (name, value)) if name in defaults_of(place) else None


def add_to(match: re.Match[str], place: Place) -> Call | None:
    value, name = match[1], match[2]
    if not re.search(rf"^\s*(?:self\.)?{re.escape(name)}\b[^=\n]*=\s*[\[{{(]", place.region, re.MULTILINE):
        return None
    pair = re.fullmatch(r"([\"'][^\"']+[\"']|\w+): ?(.+)", value)
    if pair and code(pair[1]) and code(pair[2]):
        return Call("add_entry", (name, pair[1], pair[2]))
    return Call("add_item", (name, value)) if code(value) else None


def constant(match: re.Match[str], place: Place) -> Call | None:
    value = match[1].strip("`")
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return None
    return Call("extract_constant", (value, match[2]))


def variable(match: re.Match[str], place: Place) -> Call | None:
    value = code(match[1])
    return Call("extract_variable", (match[2], value)) if value and place.has(value) else None


def value_or_default(match: re.Match[str], place: Place) -> Call | None:
    """`NAME to VALUE`: the default of a parameter, or a plain assignment in the region."""
    if (found := parameter_default(match, place)) is not None:
        return found
    name, value = match["name"], known_value(match["value"], place)
    pattern = rf"^\s*(?:self\.)?{re.escape(name)}(?: ?:[^=\n]+)?\s*=[^=]"
    if filled(name, place.region) or name not in assigned(place):
        return None  # a keyword argument on its own line looks like an assignment
    if value is None or name in place.parameters() or len(re.findall(pattern, place.region, re.MULTILINE)) != 1:
        return None
    old = match.groupdict().get("old")
    if old is not None and not re.search(
        pattern[:-4] + rf"\s*{re.escape(old)}\s*(?:#.*)?$", place.region, re.MULTILINE
    ):
        return None
    return Call("set_value", (name, value))


def literal_constant(match: re.Match[str], place: Place) -> Call | None:
    """A literal, or a local variable that is one, as a constant of the module."""
    value, name = match["value"].strip("`"), match["name"]
    if re.search(r"\bclass const", match[0], re.IGNORECASE):
        return None  # a constant of the class, not of the module
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


def new_version(match: re.Match[str], place: Place) -> Call | None:
    found = re.search(r"^(__version__|VERSION|version)\s*=\s*([\"'])", place.region, re.MULTILINE)
    return Call("set_value", (found[1], f"{found[2]}{match['value'] or match['other']}{found[2]}")) if found else None


def turned(match: re.Match[str], place: Place) -> Call | None:
    on = match["how"].lower() in ("on", "enabled", "true")
    name = match["name"]
    if re.search(rf"^\s*(?:self\.)?{re.escape(name)}\s*(?::[^=\n]+)?=\s*{not on}\b", place.region, re.MULTILINE):
        return Call("set_value", (name, str(on)))
    known = defaults_of(place).get(name)
    return (
        Call("change_default", (name, str(on))) if isinstance(known, ast.Constant) and known.value is (not on) else None
    )


def item(match: re.Match[str], place: Place) -> Call | None:
    value, name = code(match["value"]), match["name"]
    listed = re.search(
        rf"^\s*(?:self\.)?{re.escape(name)}\b[^=\n]*=\s*(?:frozenset\(|set\()?[\[{{(]", place.region, re.MULTILINE
    )
    return Call("add_item", (name, value)) if value and listed else None
