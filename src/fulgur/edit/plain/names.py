"""Rules for renames: of the target itself ("rename to load"), or as a complaint ("f is a bad name, use file")."""

from __future__ import annotations

import ast
import builtins
import keyword
import re

from fulgur.edit.plain.place import Place, Rule
from fulgur.edit.refactor.verify import identifiers, words
from fulgur.text.edit_format import Call

WHAT = r"(?:variable|var|name|parameter|param|argument|arg|function|func|fn|method|class|attribute|attr|field|constant)"
_WORSE = r"(?:\w+ ){0,3}?"


def bound(place: Place) -> set[str]:
    """The names that the region binds: parameters, variables, functions, classes, and attributes that it sets."""
    found: set[str] = set()
    for node in ast.walk(place.tree) if place.tree is not None else ():
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found


def _new_name(name: str, place: Place) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name not in identifiers(place.file)


def rename(match: re.Match[str], place: Place) -> Call | None:
    old, new = match[1], match[2]
    last = old.rpartition(".")[2]
    if last not in words(place.file) or not new.isidentifier() or last == new or keyword.iskeyword(last):
        return None
    if place.tree is not None and place.has(last) and last not in identifiers(place.file):
        return None  # a word in a comment or a string
    if hasattr(builtins, last) and "." not in old and not re.search(rf"\b{last}\b *[,:=)]|def {last}\b", place.region):
        return None  # another exception or function is meant, not a rename
    return Call("rename", (old, new))


def visibility(match: re.Match[str], place: Place) -> Call | None:
    old = match[1]
    new = old.lstrip("_") if match[2].lower() == "public" else f"_{old}"
    known = old in words(place.file) and (match[2].lower() == "public") == old.startswith("_")
    known = known and not (old in place.parameters() and f"self.{old}" in place.region)
    return Call("rename", (old, new)) if known and new else None


def itself(match: re.Match[str], place: Place) -> Call | None:
    """Rename the function or class that the target is."""
    new, node = match["new"], place.symbol
    whole = re.match(r"\s*(?:@|(?:async )?def |class )", place.region)
    kind = (match.groupdict().get("kind") or "").lower()
    if kind.startswith("class") != isinstance(node, ast.ClassDef) and kind:
        return None
    if kind and kind not in ("class", "function", "func", "fn", "method", "name"):
        return None  # it is unclear which of its variables
    if not whole or node is None or not (kind or place.part) or not _new_name(new, place):
        return None
    if not re.search(r"\b(?:to|as|into|it|this|that|called|named)\b|[-=]>|→", match[0]) and "_" not in new:
        return None  # "rename everything" gives no new name
    owner = _owner(place, getattr(node, "name", ""))
    return Call("rename", (f"{owner}.{node.name}" if owner else node.name, new))


def _owner(place: Place, name: str) -> str:
    """The class of a method, if the file defines more than one method of this name; else empty."""
    if not place.region[:1].isspace():
        return ""
    at = place.file.find(place.region)
    heads = re.findall(r"^class (\w+)", place.file[: max(at, 0)], re.MULTILINE)
    same = re.findall(rf"^\s+(?:async )?def {re.escape(name)}\b", place.file, re.MULTILINE)
    return heads[-1] if heads and len(same) > 1 else ""


def complaint(match: re.Match[str], place: Place) -> Call | None:
    """Rename a name that the region binds to a new one that nothing has."""
    old, new = match["old"], match["new"]
    return Call("rename", (old, new)) if old in bound(place) and _new_name(new, place) else None


def spelled(match: re.Match[str], place: Place) -> Call | None:
    """Rename a word of the file to any other identifier."""
    old, new = match["old"], match["new"]
    return Call("rename", (old, new)) if old in words(place.file) and new.isidentifier() and old != new else None


def change(match: re.Match[str], place: Place) -> Call | None:
    """`change tax to tax_rate`: only if the new name is recognisable as a name."""
    old, new = match["old"], match["new"]
    alike = old.lower() in new.lower() or new.lower() in old.lower() or "_" in new
    return complaint(match, place) if alike else None


def attribute(match: re.Match[str], place: Place) -> Call | None:
    """`rename self.a to self.b`: in the class that is the target, else in the nearest class above."""
    old, new = match["old"], match["new"]
    known, taken = (re.search(rf"\bself\.{re.escape(name)}\b", place.file) for name in (old, new))
    if not known or taken or not new.isidentifier():
        return None
    owner = getattr(place.symbol, "name", "") if isinstance(place.symbol, ast.ClassDef) else ""
    if not owner and (heads := list(re.finditer(r"^class (\w+)", place.file, re.MULTILINE))):
        at = place.file.find(place.region) if place.region[:1].isspace() else place.file.index(known[0])
        owner = next((head[1] for head in reversed(heads) if head.start() < at), "")
    return Call("rename", (f"{owner}.{old}" if owner else old, new))


def private(match: re.Match[str], place: Place) -> Call | None:
    """`make it private`, for the function or class that is the target."""
    name = getattr(place.symbol, "name", "") if place.part else ""
    public = match["how"].lower() == "public"
    if not name or not re.match(r"\s*(?:@|(?:async )?def |class )", place.region) or name.startswith("_") != public:
        return None
    new = name.lstrip("_") if public else f"_{name}"
    return Call("rename", (name, new)) if _new_name(new, place) else None


Q = r"[`'\"]?"
OLD, NEW = rf"{Q}(?P<old>[A-Za-z_]\w*){Q}", rf"{Q}(?P<new>[A-Za-z_]\w*){Q}"
TO = r"(?:to|->|=>|→|into|as)"
RULES: list[tuple[str, Rule]] = [
    (
        rf"(rename|renaming|change the name of|call|name)( (it|this|that|[the|this|that] (?P<kind>{WHAT})))? "
        rf"[itself] ?({TO} )?[be] {NEW}",
        itself,
    ),
    (rf"[this|it|the] (?P<kind>{WHAT})? ?(should|must|could|needs to) be (called|named|renamed [to]) {NEW}", itself),
    (rf"(change|update|switch|fix) [the] (\w+ )?name [of|from] {OLD} {TO} {NEW}", complaint),
    (
        rf"[the] ({WHAT} )?{OLD} (is|isn'?t|sounds|looks) [not] [an?] {_WORSE}(name|{WHAT} name|"
        rf"identifier)[,.;:-]* ?[please] (use|call it|name it|make it|rename [it] (to)?|better:?|prefer) {NEW} "
        rf"[instead]",
        complaint,
    ),
    (
        rf"[the] ({WHAT} )?{OLD} (is|isn'?t|sounds|looks) [too|not|very] \w+( \w+)?[,.;:-]* ?[please|so] (call it|"
        rf"name it|rename [it] (to)?) {NEW} [instead]",
        complaint,
    ),
    (
        rf"[the] ({WHAT} )?{OLD} [^,;.]+[,;.:-]+( (but|so|please|just|keep|it|then|and)[,;]?)* (rename it to|call "
        rf"it|name it|"
        rf"rename to) {NEW}( instead)?",
        complaint,
    ),
    (
        rf"(avoid|no|don'?t use|do not use) [the] (\w+[- ]letter |short |bad |cryptic )*({WHAT} )?{OLD}( as [a|"
        rf"the] \w+ [name])?[,.;:]? (use|call it|prefer|better) {NEW} [instead]",
        complaint,
    ),
    (rf"use {NEW} (instead of|rather than|not) {OLD} as [the|a] (\w+ )?name", complaint),
    (
        rf"(give|find) {OLD} [a|some] (better|clearer|proper|longer|good|descriptive|real|more \w+) name[,;:]? "
        rf"(like |e\.?g\.? |say )?{NEW}",
        complaint,
    ),
    (rf"(call|name) [the] ({WHAT} )?{OLD} {NEW} [instead]", complaint),
    (rf"(call|name) {OLD} (something like |rather ){NEW}", complaint),
    (rf"(change|update|switch) [the] ({WHAT} )?{OLD} {TO} {NEW}", change),
    (rf"(rename|change) self\.(?P<old>\w+) {TO} (self\.)?(?P<new>\w+)", attribute),
    (rf"self\.(?P<old>\w+) ?{TO} ?self\.(?P<new>\w+)", attribute),
    (r"(make (it|this|that)|[this|it] should be) [a] (?P<how>private|public)( (function|method|class))?", private),
    (rf"(rename|renaming) [the|this|all] ({WHAT}s? )?(called |named ){OLD} {TO} {NEW}", spelled),
    (rf"(rename|renaming) [all|every] (uses|occurrences|usages) of {OLD} {TO} {NEW}", spelled),
    (rf"rename [the] {OLD}( {WHAT})?( in (this|the) \w+)?[,:]? {TO} {NEW}", spelled),
]
