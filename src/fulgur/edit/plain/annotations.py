"""Rules for types of parameters and results, as users word them."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.place import Place, annotation, code, defaults_of
from fulgur.text.edit_format import Call


def returns(match: re.Match[str], place: Place) -> Call | None:
    kind = annotation(match[1])
    if kind == "type" and re.search(r"returns? type$", match[0]):
        return None  # "add the return type"
    return Call("annotate_return", (kind,)) if kind is not None and place.function is not None else None


def annotate(match: re.Match[str], place: Place) -> Call | None:
    name, kind = match[1], annotation(match[2])
    return Call("annotate", (name, kind)) if kind is not None and name in place.parameters() else None


def hint_with_default(match: re.Match[str], place: Place) -> Call | None:
    """`name: type = default` for a parameter that has this default."""
    value = defaults_of(place).get(match[1])
    if value is None or code(match[3]) is None or ast.dump(value) != ast.dump(ast.parse(match[3], mode="eval").body):
        return None
    return annotate(match, place)


def hints(match: re.Match[str], place: Place) -> Call | None:
    kind = annotation(match[2])
    given = [part.split(":") for part in match[1].split(",")]
    good = all(name.strip() in place.parameters() and annotation(text.strip()) for name, text in given)
    return Call("add_type_hints", (f"{match[1]} -> {kind}",)) if good and kind else None


def typed(match: re.Match[str], place: Place) -> Call | None:
    """`a: int, b is str, returns bool`: every name must be a parameter of the function."""
    if place.function is None:
        return None
    given, result = [], ""
    for part in re.split(
        r",\s*(?:and )?(?![^\[(]*[\])])|\s+(?=->)|\s+and\s+(?=->|returns?\b|it returns\b|[A-Za-z_]\w*(?: is|:))",
        match["hints"],
    ):
        text = part.strip().strip("`")
        if found := re.fullmatch(r"(?:-> ?|returns?:? (?:an? )?(?:type )?(?:is |as )?|it returns (?:an? )?)(.+)", text):
            result = annotation(found[1]) or ""
            if not result:
                return None
        elif found := re.fullmatch(r"(\w+)(?:: ?| is (?:an? )?| as (?:an? )?)(.+)", text):
            if found[1] not in place.parameters() or annotation(found[2]) is None:
                return None
            given.append(f"{found[1]}: {found[2]}")
        else:
            return None
    if not given:
        return Call("annotate_return", (result,)) if result else None
    return Call("add_type_hints", (f"{', '.join(given)}{f' -> {result}' if result else ''}",))


def result_type(match: re.Match[str], place: Place) -> Call | None:
    kind = annotation(match["hints"])
    return Call("annotate_return", (kind,)) if kind and place.function is not None else None


def same_type(match: re.Match[str], place: Place) -> Call | None:
    """`hint dt as datetime and the return too`"""
    kind = annotation(match["kind"])
    known = match["name"] in place.parameters() and place.function is not None
    return Call("add_type_hints", (f"{match['name']}: {kind} -> {kind}",)) if kind and known else None


def parameter_type(match: re.Match[str], place: Place) -> Call | None:
    kind = annotation(match["kind"])
    return Call("annotate", (match["name"], kind)) if kind and match["name"] in place.parameters() else None
