"""Colours by meaning. Only the terminal's own sixteen are used, so that light and dark themes both look right."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

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
    "marker": "2",
    "bullet": "36",
    "reasoning": "2;3",
    "keyword": "35",
    "string": "32",
    "comment": "2;3",
    "number": "33",
    "name": "34",
    "added": "32",
    "removed": "31",
    "hunk": "2;36",
}

# The live area is drawn by prompt_toolkit, which has its own style language.
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


def colours_wanted() -> bool:
    """False when the user asked for none (https://no-color.org) or the terminal has none."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM", "") != "dumb"


_COLOUR = colours_wanted()


def paint(spans: Sequence[Span]) -> str:
    """Spans as one string with escape codes."""
    if not _COLOUR:
        return "".join(text for _, text in spans)
    parts = []
    for meaning, text in spans:
        code = SGR[meaning]
        parts.append(f"\x1b[{code}m{text}{RESET}" if code and text else text)
    return "".join(parts)


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def printable(text: str) -> str:
    """Model and tool output may hold escape codes; they must not reach the terminal."""
    if text.isprintable():
        return text
    text = _ESCAPES.sub("", text)
    return "".join(c if c.isprintable() or c == "\n" else ("    " if c == "\t" else _visible(c)) for c in text)


def _visible(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return "" if char == "\r" else chr(0x2400 + code)
    return "␡" if code == 0x7F else f"\\u{code:04x}" if code <= 0xFFFF else char
