"""A unified diff for people, in colour on a terminal."""

from __future__ import annotations

import difflib
import os
import sys
from typing import TextIO

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_BOLD, _RESET = "\033[1m", "\033[0m"


def unified(before: str, after: str, name: str, *, colour: bool = False) -> str:
    """The unified diff of two texts; "" when they are equal."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = []
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        ended = line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        lines.append(painted(ended) if colour else ended)
    return "".join(lines)


def painted(line: str) -> str:
    text = line.rstrip("\n")
    if text.startswith(("+++", "---")):
        return f"{_BOLD}{text}{_RESET}\n"
    colour = _COLOURS.get(text[:1])
    return f"{colour}{text}{_RESET}\n" if colour else line


def wants_colour(stream: TextIO | None = None) -> bool:
    """Colour on a terminal, unless NO_COLOR says no."""
    out = stream or sys.stdout
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
