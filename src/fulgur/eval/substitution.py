"""A baseline for the next edit: repeat the last change of a few words wherever they occur in the same context.

The adjacent tokens anchor the changed words, so `x.load(a)` → `x.read(a)` is repeated in `y.load(b)`, but not in
`load = 1`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fulgur.text.edit_format import RecentEdit

_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")
_MOST_TOKENS = 12  # changed tokens; more is a rewrite, not a substitution


@dataclass(frozen=True)
class Substitution:
    """`old` becomes `new` between `left` and `right`; all are tokens, spaces included."""

    left: tuple[str, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    right: tuple[str, ...]

    def applied(self, line: str) -> str:
        """The line with the substitution applied everywhere it fits."""
        tokens = _TOKEN.findall(line)
        wanted = (*self.left, *self.old, *self.right)
        out: list[str] = []
        at = 0
        while at < len(tokens):
            end = at + len(self.old)
            begin = at - len(self.left)
            if begin >= 0 and tuple(tokens[begin : end + len(self.right)]) == wanted:
                out += self.new
                if not self.old:
                    out.append(tokens[at])
                    at += 1
                at = max(at, end)
            else:
                out.append(tokens[at])
                at += 1
        return "".join(out)


def substitution(before: str, after: str) -> Substitution | None:
    """The change between two versions of a line, if it is a few words in one place; else None."""
    old, new = _TOKEN.findall(before.strip()), _TOKEN.findall(after.strip())
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    left, right = old[:head], old[len(old) - tail :]
    if max(len(gone), len(come)) > _MOST_TOKENS or not (gone or come):
        return None
    # A pure addition needs more context: nothing else identifies its place.
    near = 1 if any(re.fullmatch(r"[^\W\d]\w{2,}|\d{2,}", token) for token in gone) else 3
    anchors = [token for token in (*left[-near:], *right[:near]) if token.strip()]
    if not anchors or (near == 3 and not any(re.search(r"\w", token) for token in anchors)):
        return None
    return Substitution(tuple(left[-near:]), tuple(gone), tuple(come), tuple(right[:near]))


def substituted(text: str, recent: Sequence[RecentEdit], changed: Collection[int]) -> str:
    """The text with the last change repeated on all other lines that it fits; `changed` lines (from 1) stay."""
    found: list[Substitution] = []
    for edit in recent:
        before, after = edit.before.splitlines(), edit.after.splitlines()
        if len(before) == len(after):
            pairs = [(one, two) for one, two in zip(before, after, strict=True) if one != two]
            found += [s for one, two in pairs if (s := substitution(one, two)) is not None]
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if index + 1 in changed:
            continue
        for one in dict.fromkeys(found):
            indent = line[: len(line) - len(line.lstrip())]
            lines[index] = line = indent + one.applied(line.lstrip())
    return "\n".join(lines)
