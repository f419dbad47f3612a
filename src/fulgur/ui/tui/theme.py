"""Colours by meaning. Only the terminal's own sixteen are used, so that light and dark themes both look right."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NewType

from fulgur.ui.foreign import shown

RESET = "\x1b[0m"

# meaning -> SGR parameters
SGR: dict[str, str] = {
    "": "",
    "dim": "2",
    "bold": "1",
    "italic": "3",
    "user": "1;36",
    "accent": "36",
    "good": "32",
    "bad": "31",
    "warn": "33",
    "heading": "1;34",
    "code": "36",
    "strong": "1",
    "link": "4",
    "bullet": "36",
    "reasoning": "2;3",
    "keyword": "35",
    "string": "33",  # not green: in a diff a docstring must not look like an added line
    "comment": "2;3",
    "number": "36",
    "name": "34",
    "added": "32",
    "removed": "31",
    "hunk": "2;36",
}

# prompt_toolkit draws the live area and has its own style language.
LIVE: dict[str, str] = {
    "dim": "dim",
    "user": "bold ansicyan",
    "accent": "ansicyan",
    "good": "ansigreen",
    "bad": "ansired",
    "warn": "ansiyellow",
    "strong": "bold",
    "chosen": "bold ansicyan",
    "queued": "ansiyellow",
}

Span = tuple[str, str]  # (meaning, text)

Row = NewType("Row", str)
"""One row as the terminal gets it. Only `paint` makes one, so no text of others gets there around it."""


def colours_wanted() -> bool:
    """False if the user wants none (https://no-color.org) or the terminal has none."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM", "") != "dumb"


_COLOUR = colours_wanted()


def paint(spans: Sequence[Span]) -> Row:
    """Render spans as one row. Only these escape codes reach the terminal, whatever the text contains."""
    if not _COLOUR:
        return Row("".join(_one_line(text) for _, text in spans))
    parts = []
    for meaning, text in spans:
        code, text = SGR[meaning], _one_line(text)
        parts.append(f"\x1b[{code}m{text}{RESET}" if code and text else text)
    return Row("".join(parts))


def _one_line(text: str) -> str:
    return shown(text).replace("\n", "<U+000A>")


BLANK = Row("")
