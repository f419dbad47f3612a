"""Markdown tables as aligned rows. A table is drawn once its last line has come, since every line may widen a
column."""

from __future__ import annotations

import re

from fulgur.ui.tui.inline import Inline
from fulgur.ui.tui.theme import Row, Span, paint
from fulgur.ui.tui.wrap import break_row, cells

_RULE = re.compile(r"^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")
_CELL = re.compile(r"(?<!\\)\|")
_NARROWEST = 6  # cells; a table that needs narrower columns is shown as written


def is_row(line: str) -> bool:
    """Whether a line can belong to a table."""
    return line.lstrip().startswith("|")


def draw(lines: list[str], width: int, meaning: str = "") -> list[Row] | None:
    """The rows of a table; None if the lines are not one, or do not fit."""
    if len(lines) < 2 or not _RULE.match(lines[1]):
        return None
    head, *body = ([_inline(cell, meaning) for cell in split(line)] for line in (lines[0], *lines[2:]))
    columns = len(head)
    body = [[*row[:columns], *([Inline("", final=True)] * (columns - len(row)))] for row in body]
    widths = _widths([head, *body], width - 3 * (columns - 1))
    if widths is None:
        return None
    right = [cell.endswith(":") and not cell.startswith(":") for cell in split(lines[1])]
    right += [False] * (columns - len(right))
    rows = _row(head, widths, right, "strong")
    rows.append(paint([("dim", "─┼─".join("─" * size for size in widths))]))
    for row in body:
        rows += _row(row, widths, right, "")
    return rows


def split(line: str) -> list[str]:
    """The cells of a line."""
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [cell.strip() for cell in _CELL.split(inner)]


def _inline(cell: str, meaning: str) -> Inline:
    return Inline(cell, final=True, meaning=meaning)


def _widths(rows: list[list[Inline]], room: int) -> list[int] | None:
    """Columns as wide as their widest cell; if that is too wide, the widest columns shrink and their cells are
    folded."""
    widths = [max(1, *(cells(row[i].text) for row in rows)) for i in range(len(rows[0]))]
    while sum(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            return None
        widths[widest] -= 1
    return widths


def _row(row: list[Inline], widths: list[int], right: list[bool], meaning: str) -> list[Row]:
    folded = [_fold(cell, size) for cell, size in zip(row, widths, strict=True)]
    rows = []
    for n in range(max(len(parts) for parts in folded)):
        spans: list[Span] = []
        for i, (parts, size) in enumerate(zip(folded, widths, strict=True)):
            part = parts[n] if n < len(parts) else []
            gap = " " * (size - sum(cells(text) for _, text in part))
            part = [(kind or meaning, text) for kind, text in part]
            spans += [("dim", " │ ")] if i else []
            spans += [("", gap), *part] if right[i] else part
            if not right[i] and i < len(row) - 1:
                spans.append(("", gap))
        rows.append(paint(spans))
    return rows


def _fold(cell: Inline, width: int) -> list[list[Span]]:
    rows: list[list[Span]] = []
    rest, used = cell.text, 0
    spans = cell.spans
    while pieces := break_row(rest, width):
        rows.append(_slice(spans, used, used + len(pieces[0])))
        used += len(rest) - len(pieces[1])
        rest = pieces[1]
    rows.append(_slice(spans, used, used + len(rest)))
    return rows


def _slice(spans: list[Span], start: int, end: int) -> list[Span]:
    found, at = [], 0
    for meaning, text in spans:
        piece = text[max(start - at, 0) : max(end - at, 0)]
        if piece:
            found.append((meaning, piece))
        at += len(text)
    return found
