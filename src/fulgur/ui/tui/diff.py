"""Unified diffs as coloured rows with line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fulgur.ui.tui.highlight import Highlighter, language_of
from fulgur.ui.tui.theme import Span, paint, printable

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")


def diff_rows(diff: str, *, limit: int | None = None) -> list[str]:
    """The rows of a unified diff over one or more files; with `limit`, the rest is counted in the last row."""
    rows = list(_rows(diff))
    if limit is not None and len(rows) > limit + 1:
        left = len(rows) - limit
        rows = [*rows[:limit], paint([("dim", f"       … {left} more rows, /diff shows all")])]
    return rows


def file_header(path: str, kind: str, added: int, removed: int) -> str:
    """One row that says what happened to a file."""
    verb = {"added": "Added", "deleted": "Deleted"}.get(kind, "Edited")
    counts: list[Span] = []
    if added:
        counts.append(("added", f" +{added}"))
    if removed:
        counts.append(("removed", f" −{removed}"))
    return paint([("accent", "• "), ("bold", f"{verb} {printable(path)} "), *counts])


def _rows(diff: str) -> Iterator[str]:
    old = new = 0
    path = ""
    code = Highlighter("")
    in_hunk = False
    for line in printable(diff).splitlines():
        if hunk := _HUNK.match(line):
            if in_hunk:
                yield paint([("hunk", f"     ⋮ {hunk.group(3)}".rstrip())])
            old, new, in_hunk = int(hunk.group(1)), int(hunk.group(2)), True
            code = Highlighter(language_of(path))
        elif line.startswith("+++ ") and not _is_content(line, in_hunk):
            path = line[4:].removeprefix("b/")
        elif line.startswith("--- ") or not in_hunk:
            in_hunk = False
        elif line.startswith("+"):
            yield paint([("dim", f"{new:5} "), ("added", f"+ {line[1:]}")])
            new += 1
        elif line.startswith("-"):
            yield paint([("dim", f"{old:5} "), ("removed", f"- {line[1:]}")])
            old += 1
        elif line.startswith("\\"):
            yield paint([("dim", f"        {line[2:].lower()}")])
        else:
            yield paint([("dim", f"{new:5} "), ("", "  "), *code.line(line[1:])])
            old, new = old + 1, new + 1


def _is_content(line: str, in_hunk: bool) -> bool:
    return in_hunk and not line.startswith("+++ b/") and not line.startswith("+++ /dev/null")
