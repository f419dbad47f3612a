"""Finds where a run of lines lies in a file: exactly, then with ever more tolerance, and never by guessing."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_PUNCTUATION = str.maketrans(
    {"‘": "'", "’": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "–": "-", "—": "-", "−": "-", "‐": "-", "‑": "-"}
    | {"\u00a0": " ", "\u2002": " ", "\u2003": " ", "\u2009": " ", "\u202f": " ", "…": "..."}
)


def _plain(line: str) -> str:
    return unicodedata.normalize("NFKC", line.translate(_PUNCTUATION)).strip()


# Each level, with what the model is told when it was needed.
LEVELS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("", lambda line: line),
    ("ignoring spaces at line ends", str.rstrip),
    ("ignoring indentation", str.strip),
    ("ignoring typographic punctuation", _plain),
)
_SIMILAR = 0.92


@dataclass(frozen=True)
class Match:
    """`start` is the first line; `how` is empty for an exact match; `count` is how many places fitted equally well."""

    start: int
    how: str
    count: int = 1


def find_lines(lines: Sequence[str], wanted: Sequence[str], start: int = 0, *, at_end: bool = False) -> Match | None:
    """The first place at or after `start` where `wanted` fits, at the strictest level that fits at all."""
    last = len(lines) - len(wanted)
    if last < 0:
        return None
    for how, shape in LEVELS:
        have, want = [shape(line) for line in lines], [shape(line) for line in wanted]
        places = [i for i in range(start, last + 1) if have[i : i + len(want)] == want]
        if at_end and last in places:
            return Match(last, how)
        if places:
            return Match(places[0], how, len(places))
    return _most_similar(lines, wanted, start)


def _most_similar(lines: Sequence[str], wanted: Sequence[str], start: int) -> Match | None:
    """A place that is nearly the same, if there is exactly one."""
    if len(wanted) < 3:
        return None
    text = "\n".join(line.strip() for line in wanted)
    stripped = [line.strip() for line in lines]
    letters = difflib.SequenceMatcher(None, "", text, autojunk=False)  # keeps its analysis of `text`
    found: list[tuple[float, int]] = []
    for place in range(start, len(lines) - len(wanted) + 1):
        there = "\n".join(stripped[place : place + len(wanted)])
        letters.set_seq1(there)
        if letters.real_quick_ratio() >= _SIMILAR and letters.quick_ratio() >= _SIMILAR:
            ratio = difflib.SequenceMatcher(None, text, there, autojunk=False).ratio()
            if ratio >= _SIMILAR:
                found.append((ratio, place))
    if len(found) != 1:
        return None
    return Match(found[0][1], f"by similarity ({found[0][0]:.0%})")


def nearest_line(lines: Sequence[str], wanted: Sequence[str]) -> str | None:
    """For an error message: the file's line most similar to the first meaningful line wanted, with its number."""
    telling = next((line.strip() for line in wanted if len(line.strip()) > 3), None)
    if telling is None:
        return None
    close = difflib.get_close_matches(telling, [line.strip() for line in lines], n=1, cutoff=0.6)
    if not close:
        return None
    number = next(i for i, line in enumerate(lines) if line.strip() == close[0])
    return f"line {number + 1}: {lines[number].strip()}"


def shift_indentation(added: list[str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Shift added lines to the file's indentation; `pairs` are lines of the file with the patch lines they matched."""
    known: dict[str, str] = {}
    for file_line, patch_line in pairs:
        if patch_line.strip():
            known.setdefault(_indentation(patch_line), _indentation(file_line))
    if all(have == want for want, have in known.items()):
        return added
    shifted = []
    for line in added:
        own = _indentation(line)
        # Use the deepest known indentation that this line's starts with; keep what goes beyond it.
        base = max((want for want in known if own.startswith(want)), key=len, default=None)
        shifted.append(line if base is None or not line.strip() else known[base] + line[len(base) :])
    return shifted


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
