"""Which lines of two texts differ, and the unified diff of the two."""

from __future__ import annotations

from collections.abc import Sequence

_AROUND = 50  # equal lines around a difference that are aligned again, as repeated lines may match otherwise


def unified(before: str, after: str, name: str, *, new: bool = False) -> str:
    """The unified diff of two texts, of a `new` file against /dev/null; "" when they are equal. Only a line feed ends a
    line."""
    import difflib  # slow to import, and most importers of this module never compare

    lines = []
    for line in difflib.unified_diff(_lines(before), _lines(after), "/dev/null" if new else f"a/{name}", f"b/{name}"):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def changed_runs(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Each run of lines that differs, as (a, b, c, d): `old[a:b]` became `new[c:d]`.

    Most changes are small parts of long files. Aligning whole files takes a hundred times as long as comparing them
    line by line, so only the part around the differences is aligned.
    """
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    tail = next((at for at in range(shorter - head) if old[-1 - at] != new[-1 - at]), shorter - head)
    if len(old) == len(new):
        differ = [at for at in range(head, len(old) - tail) if old[at] != new[at]]
        if len(differ) * 8 <= len(old) - tail - head or len(differ) <= 1:
            return _runs(differ)
    import difflib

    head, tail = max(head - _AROUND, 0), max(tail - _AROUND, 0)
    matcher = difflib.SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    return [(a + head, b + head, c + head, d + head) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]


def _runs(lines: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Group adjacent lines into runs."""
    found: list[tuple[int, int, int, int]] = []
    for line in lines:
        if found and found[-1][1] == line:
            found[-1] = (found[-1][0], line + 1, found[-1][0], line + 1)
        else:
            found.append((line, line + 1, line, line + 1))
    return found
