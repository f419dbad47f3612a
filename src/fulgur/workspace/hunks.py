"""Split file changes into hunks, runs of changed lines that the user may accept or reject."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace.files import Change, diff_of
from fulgur.workspace.textfile import TextFile

_CONTEXT = 3
_Run = tuple[int, int, int, int]  # lines [a, b) of the old file become lines [c, d) of the new one


@dataclass(frozen=True)
class Hunk:
    """One run of changed lines. `run` is None for a file that is added, removed or not text: it is one hunk."""

    change: int
    """Which of the changes it belongs to."""
    run: _Run | None
    diff: str
    """This hunk alone as a unified diff."""


def hunks_of(changes: Sequence[Change], show: Callable[[Path], str]) -> list[Hunk]:
    """The hunks of all changes, in the order of their diffs. `show` gives the display name of a file."""
    found = []
    for number, change in enumerate(changes):
        if change.before == change.after:
            continue
        name = show(change.path)
        texts = _texts(change, name)
        runs = [] if texts is None else _runs(*texts)
        if texts is None or not runs:
            found.append(Hunk(number, None, diff_of(name, change.before, change.after).diff))
            continue
        found += [Hunk(number, run, _diff(name, *texts, runs, place)) for place, run in enumerate(runs)]
    return found


def without(changes: Sequence[Change], hunks: Sequence[Hunk], rejected: Collection[int]) -> list[Change]:
    """The changes without the rejected hunks, which are given by their indices in `hunks`."""
    left = []
    for number, change in enumerate(changes):
        own = [(place in rejected, hunk) for place, hunk in enumerate(hunks) if hunk.change == number]
        if all(is_rejected for is_rejected, _ in own):
            continue
        name = str(change.path)
        texts = _texts(change, name)
        if texts is not None:
            old, new = texts
            for is_rejected, hunk in reversed(own):  # from the end, so that earlier positions stay valid
                if is_rejected and hunk.run is not None:
                    a, b, c, d = hunk.run
                    new.lines[c:d], new.endings[c:d] = old.lines[a:b], old.endings[a:b]
            # Only the last line may have no ending, and another line may be the last now.
            new.endings[:-1] = [ending or new.newline for ending in new.endings[:-1]]
            change = replace(change, after=new.encode(name))
        left.append(change)
    return left


def _texts(change: Change, name: str) -> tuple[TextFile, TextFile] | None:
    if change.before is None or change.after is None:
        return None
    try:
        return TextFile.decode(change.before, name), TextFile.decode(change.after, name)
    except FulgurError:
        return None


def _runs(old: TextFile, new: TextFile) -> list[_Run]:
    """The runs of the unified diff: both use the same matcher on the same lines."""
    matcher = difflib.SequenceMatcher(None, old.lines, new.lines)
    return [(a, b, c, d) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]


def _diff(name: str, old: TextFile, new: TextFile, runs: Sequence[_Run], place: int) -> str:
    a, b, c, d = runs[place]
    first = max(a - _CONTEXT, runs[place - 1][1] if place else 0)
    last = min(b + _CONTEXT, runs[place + 1][0] if place + 1 < len(runs) else len(old.lines))
    lines = [
        *(f" {line}" for line in old.lines[first:a]),
        *(f"-{line}" for line in old.lines[a:b]),
        *(f"+{line}" for line in new.lines[c:d]),
        *(f" {line}" for line in old.lines[b:last]),
    ]
    before, after = (a - first) + (b - a) + (last - b), (a - first) + (d - c) + (last - b)
    head = f"@@ -{first + 1},{before} +{c - (a - first) + 1},{after} @@"
    return "\n".join([f"--- a/{name}", f"+++ b/{name}", head, *lines, ""])
