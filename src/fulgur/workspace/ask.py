"""Answer `which file owns X?` from the symbol index and the text of the files, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace import beneath
from fulgur.workspace.ignore import walk
from fulgur.workspace.plain_words import alternatives, asked_words, parts
from fulgur.workspace.rank import Candidate, Terms, candidates, ranked
from fulgur.workspace.symbols import SymbolIndex
from fulgur.workspace.words import code_words

_EXACT, _NEARLY = 100.0, 80.0  # an exact name, and one that matches except for case
_MOST_FILES = 20_000
_LARGEST = 512 << 10


@dataclass(frozen=True)
class Found:
    """A place that answers a question; `what` is the definition, or the line of text."""

    path: str
    line: int
    kind: str
    what: str
    score: float


def answer(question: str, index: SymbolIndex, limit: int = 10) -> list[Found]:
    """The places a question is about, best first: definitions by name, else by the words in and around them."""
    found = _named(index, set(code_words(question)))
    if not found:
        found = _about(index, asked_words(question))
    best: dict[tuple[str, str], Found] = {}
    for place in sorted(found, key=lambda place: (-place.score, place.path, place.line)):
        best.setdefault((place.path, place.what), place)  # of several with one name (overloads), the best match
    chosen = list(best.values())[:limit]
    return [replace(place, path=beneath.shown(place.path)) for place in chosen]


def _named(index: SymbolIndex, names: set[str]) -> list[Found]:
    """Definitions whose names are among the words of the question that look like code."""
    lowered = {name.lower() for name in names}
    found = []
    for path, symbols in index.files.items():
        factor = 0.6 if "test" in parts(path) else 1.0
        for symbol in symbols:
            score = 0.0
            if symbol.name in names or symbol.qualified in names:
                score = _EXACT + (20.0 if symbol.qualified in names and symbol.owner else 0.0)
            elif symbol.name.lower() in lowered:
                score = _NEARLY
            if score:
                found.append(Found(path, symbol.line, symbol.kind, symbol.qualified, score * factor))
    return found


def _about(index: SymbolIndex, words: list[str]) -> list[Found]:
    """Definitions and paragraphs that match the words of the question."""
    if not words:
        return []
    terms = Terms([alternatives(word) for word in words])
    having = [found for path, text in _texts(index, terms) for found in _in_file(index, path, text, terms)]
    total = sum(map(len, index.files.values()))
    return [Found(c.path, c.line, c.kind, c.what, score) for score, c in ranked(having, terms, total)]


def _in_file(index: SymbolIndex, path: str, text: str, terms: Terms) -> Iterator[Candidate]:
    return candidates(path, text, index.files.get(path, []), terms)


def _texts(index: SymbolIndex, terms: Terms) -> Iterator[tuple[str, str]]:
    """The files with one of the words in their text or their path."""
    for entry in walk(index.workspace, limit=_MOST_FILES):
        path = str(Path(entry.path).relative_to(index.workspace))
        try:
            if entry.stat(follow_symlinks=False).st_size > _LARGEST:
                continue
            data = beneath.read(index.workspace, Path(entry.path), _LARGEST)
        except (OSError, FulgurError):
            continue
        text = data.decode("utf-8", errors="replace")
        if b"\0" not in data[:4096] and terms.anywhere.search(f"{path}\n{text}".lower()):
            yield path, text
