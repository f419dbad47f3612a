"""Streamed Markdown as terminal rows: a row is closed as soon as no later text can change it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fulgur.ui.foreign import shown
from fulgur.ui.tui import tables
from fulgur.ui.tui.highlight import Highlighter
from fulgur.ui.tui.inline import LOOK, Inline, Marks
from fulgur.ui.tui.theme import BLANK, Row, Span, paint
from fulgur.ui.tui.wrap import break_row, cells, cut

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)\s*([\w+#.-]*)[^`]*$")
_HEADING = re.compile(r"^ {0,3}#{1,6} +")
_BULLET = re.compile(r"^(\s*)([-*+]|\d{1,3}[.)])( +)(\[[ xX]\] +)?")
_QUOTE = re.compile(r"^ {0,3}(> ?)+")
_RULE = re.compile(r"^ {0,3}([-*_])( *\1){2,} *$")
_CODE_ROWS = 3  # a code line longer than this many rows is cut before it ends
_TABLE_LINES = 200  # longer tables are shown as written, without waiting for their end
_TABLE_TAIL = 4  # lines of a growing table that the live area shows


@dataclass(frozen=True)
class _Block:
    """How a line begins: how many raw characters, what is shown for them, and what the rows below begin with."""

    raw: int = 0
    first: tuple[Span, ...] = ()
    below: tuple[Span, ...] = ()
    meaning: str = ""


class Prose:
    """Feed text and get closed rows; `tail` is the part that still grows."""

    def __init__(self, width: int, meaning: str = "") -> None:
        self.width = max(width, 10)
        self._meaning = meaning
        self._fence = ""
        self._code: Highlighter | None = None
        self._table: list[str] = []
        self._line = ""  # the part of the current line that is not closed
        self._block: _Block | None = None  # that line's block, once a row of it is closed
        self._marks: Marks = ()  # those open where `_line` begins

    def feed(self, text: str) -> list[Row]:
        """Add text; return the rows that are closed now, painted."""
        rows: list[Row] = []
        *lines, rest = shown(text).split("\n")
        for line in lines:
            self._line += line
            rows += self._close_full_rows()
            rows += self._close_line()
        self._line += rest
        rows += self._close_full_rows()
        return rows

    def finish(self) -> list[Row]:
        """Close the current line and table, if any."""
        rows = self._close_line() if self._line.strip() else []
        return rows + self._close_table()

    @property
    def tail(self) -> str:
        """The part that still grows, painted."""
        held = [paint([("dim", line)]) for line in self._table[-_TABLE_TAIL:]]
        if self._code is not None and self._line and not _FENCE.match(self._line):
            held.append(paint(self._code.line(self._line, closed=False)))
        elif self._line:
            held.append(paint(self._spans(self._line)[0]))
        return "\n".join(held)

    # ---- lines ------------------------------------------------------------------------------------------------

    def _close_full_rows(self) -> list[Row]:
        rows: list[Row] = []
        if self._code is not None:
            while cells(self._line) > self.width * _CODE_ROWS:
                end = cut(self._line, self.width)
                rows.append(paint(self._code.line(self._line[:end], closed=False)))
                self._line = self._line[end:]
            return rows
        if self._block is None and tables.is_row(self._line):
            return rows
        while row := self._full_row(final=False):
            rows += [*self._close_table(), row]
        return rows

    def _close_line(self) -> list[Row]:
        line = self._line
        fence = _FENCE.match(line) if self._block is None else None
        if self._code is not None:
            self._line = ""
            if fence and fence.group(1).startswith(self._fence) and not fence.group(2):
                self._code = None
                return []
            return [paint(self._code.line(line))]
        if self._block is None and tables.is_row(line):
            self._line = ""
            self._table.append(line)
            return self._close_table() if len(self._table) > _TABLE_LINES else []
        rows = self._close_table()
        if fence:
            self._line, self._fence, self._code = "", fence.group(1), Highlighter(fence.group(2))
            return [*rows, paint([("dim", fence.group(2))])] if fence.group(2) else rows
        if self._block is None and _RULE.match(line):
            self._line = ""
            return [*rows, paint([("dim", "─" * min(self.width, 40))])]
        return rows + self._last_rows()

    def _last_rows(self) -> list[Row]:
        """Close the rest of a line that has ended."""
        rows: list[Row] = []
        self._line = self._line.rstrip(" ")
        while row := self._full_row(final=True):
            rows.append(row)
        spans, _, _ = self._spans(self._line, final=True)
        self._line, self._block, self._marks = "", None, ()
        return [*rows, paint(spans) if spans else BLANK]

    def _close_table(self) -> list[Row]:
        lines, self._table = self._table, []
        if not lines:
            return []
        drawn = tables.draw(lines, self.width, self._meaning) if len(lines) <= _TABLE_LINES else None
        return drawn or [row for line in lines for row in self._as_written(line)]

    def _as_written(self, line: str) -> list[Row]:
        rows = []
        while split := break_row(line, self.width):
            rows.append(paint([(self._meaning, split[0])]))
            line = split[1]
        return [*rows, paint([(self._meaning, line)])]

    # ---- rows -------------------------------------------------------------------------------------------------

    def _full_row(self, *, final: bool) -> Row | None:
        """Take the first row off the line, once later text can no longer change it."""
        _, inline, block = self._spans(self._line, final=final)
        lead = block.first if self._block is None else block.below
        certain = inline.text if inline.settled is None else inline.text[: inline.settled]
        split = break_row(certain, max(self.width - sum(cells(text) for _, text in lead), 5))
        if split is None:
            return None
        row = paint([*lead, *inline.before(len(split[0]))])
        at, self._marks = inline.cut(len(certain) - len(split[1]))
        self._line = self._line[(block.raw if self._block is None else 0) + at :]
        self._block = block
        return row

    def _spans(self, line: str, *, final: bool = False) -> tuple[list[Span], Inline, _Block]:
        """Parse a line, or the rest of one, as one row. Of a very long line, parse only what its next row can depend
        on."""
        block = self._block or _block(line, self._meaning)
        begun = self._block is not None
        rest = line if begun else line[block.raw :]
        limit = 4 * (self.width + LOOK)
        inline = Inline(rest[:limit], self._marks, final=final and len(rest) <= limit, meaning=block.meaning)
        return [*(block.below if begun else block.first), *inline.spans], inline, block


def _block(line: str, meaning: str) -> _Block:
    if heading := _HEADING.match(line):
        return _Block(heading.end(), meaning="heading")
    if bullet := _BULLET.match(line):
        space, mark, gap, box = bullet.groups()
        mark = mark if mark[0].isdigit() else "•"
        if box:
            mark, gap = ("☑" if "x" in box.lower() else "☐"), " "
        space = space[:20]
        return _Block(
            bullet.end(), (("bullet", f"{space}{mark}{gap}"),), (("", " " * len(f"{space}{mark}{gap}")),), meaning
        )
    if quote := _QUOTE.match(line):
        bar: Span = ("dim", "│ " * min(quote.group().count(">"), 4))
        return _Block(quote.end(), (bar,), (bar,), meaning)
    return _Block(meaning=meaning)
