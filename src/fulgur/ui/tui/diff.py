"""Unified diffs as coloured rows with line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fulgur.ui.foreign import code, one_row
from fulgur.ui.tui.highlight import Highlighter, language_of
from fulgur.ui.tui.theme import BLANK, Row, Span, paint

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")


def diff_rows(diff: str, *, limit: int | None = None, names: bool = False) -> list[Row]:
    """The rows of a unified diff over one or more files; with `limit`, the last row counts the rest.

    With `names`, each file begins with a row that names it.
    """
    rows = list(_rows(diff, names))
    if limit is not None and len(rows) > limit + 1:
        left = len(rows) - limit
        rows = [*rows[:limit], paint([("dim", f"       … {left} more rows, /diff shows all")])]
    return rows


def file_header(path: str, kind: str, added: int, removed: int) -> Row:
    """One row that says what happened to a file."""
    verb = {"added": "Added", "deleted": "Deleted"}.get(kind, "Edited")
    counts: list[Span] = []
    if added:
        counts.append(("added", f" +{added}"))
    if removed:
        counts.append(("removed", f" −{removed}"))
    return paint([("accent", "• "), ("bold", f"{verb} {one_row(path)} "), *counts])


def _rows(diff: str, names: bool) -> Iterator[Row]:
    """Count a hunk's lines by its header, so that no line of a file passes for another file's header."""
    old = new = old_left = new_left = 0
    old_path = path = ""
    highlighter = Highlighter("")
    first = in_file = False
    for line in code(diff).split("\n"):
        if line.startswith("\\") and in_file:
            yield paint([("dim", f"        {line[2:].lower()}")])
        elif line.startswith("+") and new_left:
            yield paint([("dim", f"{new:5} "), ("added", f"+ {line[1:]}")])
            new, new_left = new + 1, new_left - 1
        elif line.startswith("-") and old_left:
            yield paint([("dim", f"{old:5} "), ("removed", f"- {line[1:]}")])
            old, old_left = old + 1, old_left - 1
        elif old_left and new_left:
            yield paint([("dim", f"{new:5} "), ("", "  "), *highlighter.line(line[1:])])
            old, new, old_left, new_left = old + 1, new + 1, old_left - 1, new_left - 1
        elif hunk := _HUNK.match(line):
            if in_file:
                yield paint([("hunk", f"     ⋮ {hunk.group(5)}".rstrip())])
            in_file = True
            old, new = int(hunk.group(1)), int(hunk.group(3))
            old_left, new_left = (int(hunk.group(n) or 1) if hunk.group(n) != "0" else 0 for n in (2, 4))
            highlighter = Highlighter(language_of(path))
        elif line.startswith("--- "):
            old_path, in_file = line[4:].removeprefix("a/"), False
        elif line.startswith("+++ "):
            path = line[4:].removeprefix("b/")
            if names:
                if first:
                    yield BLANK
                first = True
                yield paint([("bold", old_path if path == "/dev/null" else path)])
        elif line:
            yield paint([("dim", f"  {line}")])  # such as `Binary file … modified`
