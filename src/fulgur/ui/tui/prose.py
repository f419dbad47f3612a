"""Streamed Markdown as terminal rows: a row is closed as soon as nothing that follows can change it.

The text stays exactly as it came (copying it gives the Markdown back); only colours are added.
"""

from __future__ import annotations

import re

from fulgur.ui.foreign import shown
from fulgur.ui.tui.highlight import Highlighter
from fulgur.ui.tui.theme import Row, Span, paint
from fulgur.ui.tui.wrap import break_row, cells, cut

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)\s*([\w+#.-]*)")
_BULLET = re.compile(r"^(\s*)([-*+]|\d{1,3}[.)])( +)")
_INLINE = re.compile(r"(`+|\*\*)")
_CODE_ROWS = 3  # a code line longer than this many rows is cut before it ends


class Prose:
    """Feed text, get closed rows; `tail` is the row still growing."""

    def __init__(self, width: int, meaning: str = "") -> None:
        self.width = max(width, 10)
        self._meaning = meaning
        self._fence: str | None = None
        self._code: Highlighter | None = None
        self._line = ""  # what is not closed of the current line
        self._indent = 0  # hanging indent of the rows after the first
        self._first = True  # the row under way is the first of its line
        self._marks: set[str] = set()  # inline styles open at the start of the row

    def feed(self, text: str) -> list[Row]:
        """Rows that are closed now, painted."""
        rows: list[Row] = []
        *lines, rest = shown(text).split("\n")
        for line in lines:
            self._line += line
            rows += self._close_full_rows()
            rows.append(self._close_line())
        self._line += rest
        rows += self._close_full_rows()
        return rows

    def finish(self) -> list[Row]:
        """Close the row under way, if there is one."""
        return [self._close_line()] if self._line.strip() else []

    @property
    def tail(self) -> str:
        """The growing row, painted."""
        if not self._line:
            return ""
        if self._code is not None and not _FENCE.match(self._line):
            return paint(self._code.line(self._line, closed=False))
        return paint(self._prose_row(self._line, set(self._marks)))

    def _close_full_rows(self) -> list[Row]:
        rows: list[Row] = []
        if self._code is not None:
            limit = self.width * _CODE_ROWS
            while cells(self._line) > limit:
                end = cut(self._line, self.width)
                rows.append(paint(self._code.line(self._line[:end], closed=False)))
                self._line = self._line[end:]
            return rows
        if self._first and (bullet := _BULLET.match(self._line)):
            self._indent = min(len(bullet.group()), self.width // 2)
        while split := break_row(self._line, self.width - (0 if self._first else self._indent)):
            row, self._line = split
            rows.append(paint(self._prose_row(row, self._marks)))
            self._first = False
        return rows

    def _close_line(self) -> Row:
        line, self._line = self._line, ""
        fence = _FENCE.match(line) if self._first else None
        if self._code is not None:
            if fence and self._fence and fence.group(1).startswith(self._fence) and not fence.group(2):
                self._code = self._fence = None
                return paint([("dim", line)])
            return paint(self._code.line(line))
        if fence:
            self._fence, self._code = fence.group(1), Highlighter(fence.group(2))
            return paint([("dim", line)])
        row = paint(self._prose_row(line.rstrip(" "), self._marks))
        self._first, self._indent, self._marks = True, 0, set()
        return row

    def _prose_row(self, text: str, marks: set[str]) -> list[Span]:
        """Spans of one row; `marks` goes in as what is open before it and is left as what is open after it."""
        if self._first and text.startswith("#") and text.lstrip("#").startswith(" "):
            return [("heading", text)]
        spans: list[Span] = [] if self._first or not self._indent else [("", " " * self._indent)]
        if self._first and not marks and (bullet := _BULLET.match(text)):
            spans.append(("bullet", bullet.group()))
            text = text[bullet.end() :]
        for piece in _INLINE.split(text):
            if not piece:
                continue
            if piece.startswith("`") or (piece == "**" and not any(m.startswith("`") for m in marks)):
                marks.symmetric_difference_update({piece})
                spans.append(("marker", piece))
            elif any(m.startswith("`") for m in marks):
                spans.append(("code", piece))
            else:
                spans.append(("strong" if marks else self._meaning, piece))
        return spans
