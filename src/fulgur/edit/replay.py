"""A change that one of the exact refactorings makes, made by it on the other lines of a file."""

from __future__ import annotations

import re
from collections.abc import Collection

from fulgur.edit.refactor import RefactorError, apply_local
from fulgur.text.edit_format import Call

# What a refactoring takes away: only lines that hold it are looked at, and one of these must have gone.
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
    """The text after the refactoring that made `after` of the line `before`; as it is if there is none.

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
    """A line that is a whole statement, or the head of one, after a refactoring; else as it is."""
    body = " pass" if line.rstrip().endswith(":") else ""
    try:
        found = apply_local(line.rstrip() + body + "\n", Call(name, ())).rstrip("\n")
    except RefactorError:
        return line
    return found.removesuffix(body) if "\n" not in found else line
