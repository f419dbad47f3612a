"""Instructions in several parts: "rename ret to result and return it directly". Every part has to be spelt out.

Each part is read against the text that the previous parts produce, so that it may refer to their results.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fulgur.edit.plain.names import bound
from fulgur.edit.plain.place import Place, code
from fulgur.edit.refactor import OVER_PROJECT, RefactorError, apply_call
from fulgur.text.edit_format import Call

Reader = Callable[[str, Place], Call | None]
Span = tuple[int, int]
_AND = re.compile(r",? and (?:then |also |please )?|, (?:then|also) |; ?|\. (?=[a-z])|, (?=\w+ )")
_MOST = 4


@dataclass(frozen=True)
class Steps(Call):
    """Several calls in order, each with the words that it was read from."""

    parts: tuple[tuple[str, Call], ...] = ()


def in_steps(said: str, file: str, span: Span, reader: Reader) -> Steps | None:
    """The calls of an instruction, if the reader understands all its parts; else None."""
    for texts in _halves(said):
        if parts := _read(list(texts), file, span, reader):
            return Steps("steps", (), tuple(parts))
    return None


def renamed_together(said: str, file: str, span: Span, reader: Reader) -> Steps | None:
    """`k, v -> key, value`: two renames; otherwise it would be read as one replacement."""
    texts = _renames(said, Place(file[slice(*span)], file))
    parts = _read(texts, file, span, reader) if texts else []
    return Steps("steps", (), tuple(parts)) if parts else None


_SHORT = re.compile(r"(?P<a>\w+), ?(?P<b>\w+) ?(?:->|=>|→) ?(?P<c>\w+), ?(?P<d>\w+)")
_PAIRS = re.compile(
    r"(?:rename )?(?P<a>\w+)(?: ?(?:->|=>|→) ?| to )(?P<c>\w+)(?:, ?| and |, and )(?P<b>\w+)"
    r"(?: ?(?:->|=>|→) ?| to )(?P<d>\w+)"
)
_LONG = re.compile(
    r"(?:rename|change) (?:the )?(?:\w+s )?(?P<a>\w+)(?:, ?| and | & )(?P<b>\w+) (?:to|->|=>|→|into) (?P<c>\w+)"
    r"(?:, ?| and | & )(?P<d>\w+)",
    re.IGNORECASE,
)


def _renames(said: str, place: Place) -> list[str]:
    """`rename a, b to c and d`, `a, b -> c, d`, `a -> c, b -> d`; the short forms only for names the region binds."""
    text = said.rstrip(".")
    match, short = _LONG.fullmatch(text), _SHORT.fullmatch(text) or _PAIRS.fullmatch(text)
    if match is None and short is not None and {short["a"], short["b"]} <= bound(place):
        match = short
    return [f"rename {match['a']} to {match['c']}", f"rename {match['b']} to {match['d']}"] if match else []


def _halves(said: str) -> Iterator[list[str]]:
    for match in _AND.finditer(said):
        left, right = said[: match.start()].strip(), said[match.end() :].strip()
        if left and right and said[: match.start()].count('"') % 2 == 0 and said[: match.start()].count("`") % 2 == 0:
            yield [left, right]


def _read(texts: list[str], file: str, span: Span, reader: Reader, depth: int = 1) -> list[tuple[str, Call]]:
    left, right = texts
    call = reader(left, Place(file[slice(*span)], file))
    if call is None or isinstance(call, Steps) or call.name in OVER_PROJECT:
        return []
    if (joined := _parameter_used(call, right, file[slice(*span)])) is not None:
        return (
            [(" and ".join(texts), joined)] if joined.name == "extract_parameter" else [(left, call), (right, joined)]
        )
    try:
        after = apply_call(file, call, span)
    except RefactorError:
        return []
    moved = shifted(file, after, span)
    place = Place(after[slice(*moved)], after)
    verb = left.split()[0]
    for text in (right, f"{verb} {right}"):
        if (
            (second := reader(text, place)) is not None
            and not isinstance(second, Steps)
            and _works(second, after, moved)
        ):
            return [(left, call), (text, second)] if second.name not in OVER_PROJECT else []
    if depth < _MOST:
        for more in _halves(right):
            if found := _read(more, after, moved, reader, depth + 1):
                return [(left, call), *found]
    return []


def _works(call: Call, text: str, span: Span) -> bool:
    try:
        return call.name not in OVER_PROJECT and apply_call(text, call, span) != text
    except RefactorError:
        return False


def _parameter_used(call: Call, right: str, region: str) -> Call | None:
    """`… and pass it to open`, `… and use it instead of 'r'`, after a part that adds a parameter."""
    if call.name != "new_parameter":
        return None
    match = re.fullmatch(r"(\w+)(?:: ?[^=]+)? ?= ?(.+)", call.args[0])
    name, value = (match[1], match[2]) if match else ("", "")
    if not name:
        return None
    if found := re.fullmatch(
        rf"pass (?:it|that|{name}) (?:on |along |through )?(?:in)?to (?:the )?`?([\w.]+)`?(?:\(\))?(?: call)?", right
    ):
        calls = re.findall(rf"(?<![\w.]){re.escape(found[1])}\(|\.{re.escape(found[1])}\(", region)
        return Call("add_keyword", (found[1], name, name)) if len(calls) == 1 else None
    if found := re.fullmatch(
        rf"(?:store|save|keep|assign|set) (?:it|that|{name})(?: (?:on|in|as|to|under) (?:self|self\.(\w+)|an "
        rf"attribute))?",
        right,
    ):
        return Call("store_parameter", (name, found[1] or name))
    found = re.fullmatch(
        rf"use (?:it|that|{name}) (?:there )?(?:instead|in place|rather than)(?: of)? (?:the )?(?:hard-? ?coded )?(.+)",
        right,
    )
    if found and same_value(found[1], value):
        return Call("extract_parameter", (value, name))
    return None


def same_value(one: str, two: str) -> bool:
    """Whether two texts mean the same literal; a few characters have names, such as "the dash" for '-'."""
    signs = {"dash": "-", "hyphen": "-", "comma": ",", "space": " ", "underscore": "_", "dot": ".", "colon": ":"}
    try:
        return bool(ast.literal_eval(code(one) or "") == ast.literal_eval(two))
    except (ValueError, SyntaxError):
        pass
    try:
        return bool(one.strip().lower() in signs and signs[one.strip().lower()] == ast.literal_eval(two))
    except (ValueError, SyntaxError):
        return False


def shifted(before: str, after: str, span: Span) -> Span:
    """Where a span of whole lines of one text lies in the text after an edit."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    first, last = before[: span[0]].count("\n"), before[: span[1]].count("\n")
    last += not before[: span[1]].endswith("\n")
    begin, end = first, last
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if b <= first and a < first:
            begin += (d - c) - (b - a)
        if a < last:
            end += (d - c) - (b - a)
    return len("".join(new[:begin])), len("".join(new[:end]))
