"""Rules for classes: their members, their bases, and the methods that follow from their attributes."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.phrases import DROP, NAME
from fulgur.edit.plain.place import Place, Rule, code
from fulgur.edit.refactor.local.methods import attributes, compared, constructor
from fulgur.edit.refactor.source import FUNCTIONS, dotted
from fulgur.text.edit_format import Call


def member(match: re.Match[str], place: Place) -> Call | None:
    """`delete fetch`, where the target is a class: its method."""
    tree, name = place.tree, match["name"]
    owner = place.symbol if isinstance(place.symbol, ast.ClassDef) else None
    found = [n for n in owner.body if isinstance(n, FUNCTIONS) and n.name == name] if owner and tree else []
    return Call("delete_symbol", (f"{owner.name}.{name}",)) if owner and len(found) == 1 else None


def class_value(match: re.Match[str], place: Place) -> Call | None:
    owner, value = place.symbol, code(match["value"])
    known = isinstance(owner, ast.ClassDef) and value is not None
    return Call("add_member", (owner.name, match["name"], value)) if known and value else None  # type: ignore[union-attr]


def without_base(match: re.Match[str], place: Place) -> Call | None:
    owner = place.symbol
    bases = [ast.unparse(base) for base in owner.bases] if isinstance(owner, ast.ClassDef) else []
    known = isinstance(owner, ast.ClassDef) and match["base"] in bases and match["base"] != "object"
    return Call("remove_base", (owner.name, match["base"])) if known else None  # type: ignore[union-attr]


def special(match: re.Match[str], place: Place) -> Call | None:
    """`add a __repr__ showing name and size`: with the named attributes; without names, with those that follow from
    the constructor."""
    owner, method = place.symbol, match["method"].strip("`()").lower()
    if not isinstance(owner, ast.ClassDef):
        return None
    method = method if method.startswith("__") else f"__{method}__"
    known, said = attributes(owner), match.groupdict().get("names") or ""
    said = re.sub(r"^(?:the )?(?:attributes?|fields?|attrs?) |\b(?:its|the|self\.)\s*", "", said)
    names = [part.strip("` ") for part in re.split(r",? and |, ?| & ", said) if part.strip("` ")]
    found = []
    for name in names:
        fitting = [one for one in known if name in (one, one.lstrip("_"))]
        if len(fitting) != 1:
            return None
        found += fitting
    found = found or _usual(owner, method, known)
    return Call("add_method", (owner.name, method, *found)) if found else None


def _usual(owner: ast.ClassDef, method: str, known: list[str]) -> list[str]:
    """The default attributes of a method: all of them for slots, the compared ones for a hash, else those that the
    constructor takes. Empty if a base class may have more."""
    if method == "__slots__":
        return known
    if method == "__hash__":
        return [name for name in known if name in compared(owner)]
    if [base for base in owner.bases if dotted(base) not in ("object", "ABC", "abc.ABC")]:
        return []
    made = constructor(owner)
    if made is None:
        return known
    taken = [arg.arg for arg in [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]][1:]
    kept = [name for name in known if name.lstrip("_") in taken]
    return kept if len(kept) == len(taken) and not made.args.vararg and not made.args.kwarg else []


RULES: list[tuple[str, Rule]] = [
    (rf"({DROP}) {NAME}(\(\))?( method)?", member),
    (rf"(add|introduce|define|new) [an?|the] (class|new class) (attribute|variable|constant|field|attr|var) {NAME} ?= ?"
     r"(?P<value>.+)", class_value),
    (rf"({DROP}) [the] (?P<base>[A-Z]\w*)( (base|parent|superclass|mixin))?( class)?", without_base),
    (r"(no longer|don'?t|do not) (inherit|derive|subclass)( from)? (?P<base>[A-Z]\w*)", without_base),
    (r"(add|give (it|this|the class)|write|define|implement|needs|also define|also add|generate|create) [an?|the] "
     r"(simple |nice |proper |decent |basic )?(?P<method>`?(__)?(repr|eq|hash|slots)(__)?(\(\))?`?)( method)?"
     r"( (showing|with|using|that (shows|uses|includes|compares)|from|based on|including|comparing|for|of|over) "
     r"(?P<names>.+))?", special),
]  # fmt: skip
