"""Answers without tool calls: text, after reasoning if there is any."""

from __future__ import annotations

from fulgur.text.parts import TextDelta
from fulgur.text.scan import ThinkingScanner


class PlainSplitter(ThinkingScanner):
    """`<think>reasoning</think>text`"""

    def _text(self) -> bool:
        self._say(TextDelta, self._take(len(self._buffer)))
        return False
