"""Variants to choose from, side by side if the terminal is wide enough."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fulgur.protocol.agent import VariantInfo
from fulgur.ui.foreign import code, one_row
from fulgur.ui.tui.blocks import count, duration
from fulgur.ui.tui.theme import BLANK, Row, Span, paint
from fulgur.ui.tui.wrap import break_row, cells, cut

_NARROWEST = 46  # columns per variant
_GAP = 3
_MOST_LINES = 40  # of a diff; the variant's session has all of it

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")

Line = list[Span]


def variant_rows(variants: Sequence[VariantInfo], width: int) -> list[Row]:
    """All variants, the best first, from left to right and then below."""
    beside = max(1, min(len(variants), (width + _GAP) // (_NARROWEST + _GAP)))
    column = (width + _GAP) // beside - _GAP
    rows: list[Row] = []
    seen: set[str] = set()
    for start in range(0, len(variants), beside):
        blocks = []
        for variant in variants[start : start + beside]:
            blocks.append(_block(variant, column, repeated=variant.diff in seen))
            seen.add(variant.diff)
        for number in range(max(map(len, blocks))):
            spans: Line = []
            for block in blocks:
                line = block[number] if number < len(block) else []
                spans += [*line, ("", " " * (column + _GAP - sum(cells(text) for _, text in line)))]
            last = spans.pop()  # no trailing blanks in a row
            rows.append(paint(spans if last[0] == "" else [*spans, last]))
        rows.append(BLANK)
    return rows[:-1]


def _block(variant: VariantInfo, width: int, *, repeated: bool) -> list[Line]:
    """The lines of one variant; `repeated`: an earlier one has the same change, as its reasons say."""
    mark: Span = ("good", "✓ ") if variant.proven else ("dim", "· ") if variant.passes else ("bad", "✗ ")
    head = f"variant {variant.number}: {'; '.join(one_row(reason) for reason in variant.reasons)}"
    lines: list[Line] = [[mark]]
    while split := break_row(head, width - 2):
        lines[-1].append(("", split[0]))
        head = split[1]
        lines.append([("", "  ")])
    lines[-1].append(("", head))
    numbers = f"{duration(variant.seconds)}, {count(variant.output_tokens)} tokens"
    lines.append([("dim", _fitting(f"  {' · '.join([*filter(None, [', '.join(variant.models)]), numbers])}", width))])
    changed = [] if repeated else list(_changed(variant.diff))
    for meaning, text in changed[:_MOST_LINES]:
        lines.append([(meaning, _fitting(f"  {text}", width))])
    if len(changed) > _MOST_LINES:
        lines.append([("dim", f"  … {len(changed) - _MOST_LINES} more lines")])
    return lines


def _changed(diff: str) -> Iterator[Span]:
    """The lines of a unified diff. Count a hunk's lines by its header, so that no line of a file passes for another
    kind."""
    old = new = 0
    path = ""
    for line in code(diff).split("\n"):
        if old <= 0 and new <= 0:
            if match := _HUNK.match(line):
                old, new = (int(size) if size else 1 for size in match.groups())
            elif line.startswith("--- "):
                path = line[4:]
            elif line.startswith("+++ "):
                yield "accent", path.removeprefix("a/") if line[4:] == "/dev/null" else line[4:].removeprefix("b/")
            elif line:
                yield "dim", line  # a binary file
            continue
        old, new = old - (line[:1] in ("-", " ")), new - (line[:1] in ("+", " "))
        yield {"+": "added", "-": "removed"}.get(line[:1], "dim"), line


def _fitting(text: str, width: int) -> str:
    return text[: cut(text, width)]
