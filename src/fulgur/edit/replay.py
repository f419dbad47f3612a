"""Replay a change on the other lines of a file, if one of the exact refactorings makes that change."""

from __future__ import annotations

import re
from collections.abc import Collection

from fulgur.edit.refactor import RefactorError, apply_local
from fulgur.text.edit_format import Call

# The tokens that a refactoring removes: at least one must be gone, and only lines that contain one are tried.
REFACTORINGS: dict[str, tuple[str, ...]] = {
    "use_fstring": ("format", "%", "+"),
    "optional_union": ("Optional", "Union"),
    "modern_super": ("super",),
    "is_none": ("==", "!="),
    "not_in": ("not",),
    "use_isinstance": ("type",),
    "use_literal": ("list", "dict", "tuple", "set"),
    "drop_keys": ("keys",),
    "use_in": ("or",),
    "chain_comparison": ("and",),
    "augmented_assignment": ("=",),
}
_TOKEN = re.compile(r"\w+|[=!<>]=|[^\w\s]")


def replayed(text: str, before: str, after: str, changed: Collection[int]) -> str:
    """The text after the refactoring that turns the line `before` into `after`; unchanged if there is none.

    `changed` lines (from 1) stay as they are.
    """
    old, new = _TOKEN.findall(before), _TOKEN.findall(after)
    for name, signs in REFACTORINGS.items():
        gone = [sign for sign in signs if old.count(sign) > new.count(sign)]
        if not gone or _refactored(before, name) != after.rstrip():
            continue
        lines = text.split("\n")
        for at, line in enumerate(lines):
            if at + 1 not in changed and any(sign in line for sign in gone):
                lines[at] = _refactored(line, name)
        return "\n".join(lines)
    return text


def _refactored(line: str, name: str) -> str:
    """A line after a refactoring, if it is a whole statement or the head of one; otherwise unchanged."""
    body = " pass" if line.rstrip().endswith(":") else ""
    try:
        found = apply_local(line.rstrip() + body + "\n", Call(name, ())).rstrip("\n")
    except RefactorError:
        return line
    return found.removesuffix(body) if "\n" not in found else line
