"""Bounds a command's output to what a model should read: the beginning and the end, and how much was left out."""

from __future__ import annotations

import codecs
import re

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b\x0c\x0e-\x1a]"
)
_REDRAWN = re.compile(r"[^\n]*\r(?!\n)")


def plain(text: str) -> str:
    """Strip colours, cursor movements and overwritten states of progress bars."""
    return _REDRAWN.sub("", _ESCAPES.sub("", text)).replace("\r\n", "\n").replace("\r", "")


class BoundedOutput:
    """Takes bytes as they come; keeps the first and the last part, and never splits a character when decoding."""

    def __init__(self, limit: int = 24_000) -> None:
        self._half = limit // 2
        self._head = ""
        self._tail = ""
        self._left_out = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """Add bytes; return their text, for a screen."""
        text = self._decoder.decode(data)
        rest = text
        if len(self._head) < self._half:
            room = self._half - len(self._head)
            self._head += rest[:room]
            rest = rest[room:]
        self._tail += rest
        if len(self._tail) > 2 * self._half:
            cut = len(self._tail) - self._half
            self._left_out += cut
            self._tail = self._tail[cut:]
        return text

    def text(self) -> str:
        """The kept text, with a line that says how much is missing."""
        tail, left_out = self._tail, self._left_out
        if len(tail) > self._half:
            cut = len(tail) - self._half
            left_out += cut
            tail = tail[cut:]
        if not left_out:
            return plain(self._head + tail)
        return f"{plain(self._head)}\n[… {left_out} characters left out …]\n{plain(tail)}"
