"""`which file owns X?` answered from the symbol index and the text of the files, without a model."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace import beneath
from fulgur.workspace.ignore import walk
from fulgur.workspace.symbols import Symbol, SymbolIndex
from fulgur.workspace.words import code_words

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")
# Words of a question that say nothing about what is looked for.
_COMMON = frozenset(
    """
    a an and are at be by can code class constant contains could defined definition define defines did
    do does done file files find for from function functions get give handle handled handles has have
    how i if implement implemented implements in into is it its live lives located made make makes me
    method module of on or our own owned owns place project responsible set should show tell that the
    their there these thing this to type use used uses using we what when where which who whose why will
    with would you
    """.split()  # noqa: SIM905 (a list of 90 literals is no easier to read)
)
_KIND_WEIGHT = {
    "class": 1.2,
    "struct": 1.2,
    "interface": 1.2,
    "trait": 1.2,
    "type": 1.1,
    "method": 0.9,
    "constant": 0.8,
}
_MOST_TEXT_FILES = 20_000
_LARGEST_TEXT = 512 << 10


@dataclass(frozen=True)
class Found:
    """One place, best first; `why` is the definition, or the line of text."""

    path: str
    line: int
    kind: str
    what: str
    score: float


def answer(question: str, index: SymbolIndex, limit: int = 10) -> list[Found]:
    """The places a question is about: definitions by name, then by words, then files whose text has the words."""
    names = set(code_words(question))
    words = _words(question)
    found = _definitions(index, names, words)
    if not any(place.score >= 50 for place in found):
        found += _text(index.workspace, names | words, {place.path for place in found if place.score >= 20})
    best: dict[tuple[str, int], Found] = {}
    for place in found:
        key = (place.path, place.line)
        known = best.get(key)
        if known is None:
            best[key] = place
        else:  # a definition says more of a line than its text does
            said = known if place.kind == "text" else place
            best[key] = replace(said, score=max(known.score, place.score))
    chosen = sorted(best.values(), key=lambda place: (-place.score, place.path, place.line))[:limit]
    return [replace(place, path=beneath.shown(place.path)) for place in chosen]


def _words(question: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Za-z][A-Za-z0-9]+", question) if word.lower() not in _COMMON}


def _definitions(index: SymbolIndex, names: set[str], words: set[str]) -> list[Found]:
    lowered = {name.lower() for name in names}
    frequency: Counter[str] = Counter()
    parts_of: dict[str, frozenset[str]] = {}
    for symbols in index.files.values():
        for symbol in symbols:
            if symbol.name not in parts_of:
                parts_of[symbol.name] = frozenset(_stem(part) for part in _PARTS.findall(symbol.name))
            frequency.update(parts_of[symbol.name])
    stems = {_stem(word) for word in words}
    total = max(sum(len(symbols) for symbols in index.files.values()), 1)
    rarity = {stem: math.log(1 + total / (1 + frequency[stem])) for stem in stems}
    found = []
    for path, symbols in index.files.items():
        path_parts = {_stem(part) for part in _PARTS.findall(path)}
        test = "test" in path_parts or "tests" in path_parts
        for symbol in symbols:
            around = path_parts | {_stem(part) for part in _PARTS.findall(symbol.owner)}
            score = _score(symbol, names, lowered, stems, rarity, parts_of[symbol.name], around)
            if score > 0:
                score *= _KIND_WEIGHT.get(symbol.kind, 1.0) * (0.6 if test else 1.0)
                found.append(Found(path, symbol.line, symbol.kind, symbol.qualified, score))
    return found


def _score(
    symbol: Symbol,
    names: set[str],
    lowered: set[str],
    stems: set[str],
    rarity: dict[str, float],
    parts: frozenset[str],
    around: set[str],
) -> float:
    if symbol.name in names or symbol.qualified in names:
        return 100.0 + (20.0 if symbol.qualified in names and symbol.owner else 0.0)
    if symbol.name.lower() in lowered:
        return 80.0
    shared = stems & parts
    if not shared:
        return 0.0
    covered = sum(rarity[stem] for stem in shared)
    # A name made of the question's words only, and a class or path that has the others, are strong signs.
    exact = 2.0 if shared == parts else 1.0
    beside = sum(rarity[stem] for stem in (stems & around) - shared)
    return min(49.0, (covered * exact + beside) * 2.0 * len(shared) / len(parts))


def _stem(word: str) -> str:
    """`Caches`, `caching` and `cache` are one word."""
    word = word.lower()
    for ending in ("ations", "ation", "ings", "ing", "ies", "ers", "er", "es", "ed", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _text(workspace: Path, words: set[str], known: set[str]) -> list[Found]:
    """Files that have most of the words in their text, at the line with the most of them."""
    if not words:
        return []
    stems = {_stem(word) for word in words}
    pattern = re.compile("|".join(re.escape(stem) for stem in sorted(stems, key=len, reverse=True)), re.IGNORECASE)
    found = []
    for entry in walk(workspace, limit=_MOST_TEXT_FILES):
        if entry.stat(follow_symlinks=False).st_size > _LARGEST_TEXT:
            continue
        try:
            data = beneath.read(workspace, Path(entry.path), _LARGEST_TEXT)
        except (OSError, FulgurError):
            continue
        if b"\0" in data[:4096]:
            continue
        text = data.decode("utf-8", errors="replace")
        present = {match.lower() for match in pattern.findall(text)}
        if not present:
            continue
        number, line = _best_line(text, pattern)
        path = str(Path(entry.path).relative_to(workspace))
        share = len(present) / len(stems)
        found.append(
            Found(path, number, "text", line.strip()[:120], 15.0 * share * share + (1.0 if path in known else 0.0))
        )
    return found


def _best_line(text: str, pattern: re.Pattern[str]) -> tuple[int, str]:
    best, number, chosen = 0, 1, ""
    for index, line in enumerate(text.splitlines(), 1):
        count = len({match.lower() for match in pattern.findall(line)})
        if count > best:
            best, number, chosen = count, index, line
    return number, chosen
