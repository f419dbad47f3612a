"""Rank definitions for a question in plain words, by the words in their names, comments and code.

The ranking is BM25 over fields, as in search engines. A word has more weight if few definitions contain it, less for
each repetition, and more in a name than in a comment, and there more than in code. A definition with most of the
question's words ranks above one that repeats a single word, and a short one above a long one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fulgur.workspace.plain_words import parts, stem
from fulgur.workspace.symbols import Symbol

# The weight of a word by its field: the name, a part of a word in it (`wrap` in `textwrap`), the name of the enclosing
# class, the path; the first sentence of the comment, the rest of it, the file's own description, the code.
_NAME, _PIECE, _OWNER, _PATH = 4.0, 2.0, 1.5, 1.0
_SUMMARY, _COMMENT, _MODULE, _CODE = 3.0, 1.0, 0.5, 0.5
_OFTEN = 3  # further occurrences are ignored
_SATURATION = 3.0
_COVERAGE = 1.2
_WORDS_USUAL = 80.0  # in a typical definition
_WHOLE_NAME = 1.4
_KINDS = {"class": 1.1, "struct": 1.1, "interface": 1.1, "trait": 1.1, "constant": 0.7, "text": 0.5}
_TESTS = 0.5
_NEWS = 0.4  # change logs, and copies of the README in package metadata
_NEWS_FILES = re.compile(
    r"(?:^|/)(?:change[sl]|history|news|release|pkg-info)[^/]*$|\.(?:egg|dist)-info/", re.IGNORECASE
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DOCSTRING = re.compile(r'[rRuU]?("""|\'\'\')(.*?)\1', re.DOTALL)
_SENTENCE = re.compile(r"[.:](?:\s|$)|\n\s*\n")
_REMARK = re.compile(r"\s*(?://+|#|/?\*+|--)")
_IMPORT = re.compile(r"\s*(?:import|from|use|using|#include)\b")
_MOST_REMARKS = 30

Term = Mapping[str, float]
Counts = dict[str, int]


class Terms:
    """The words of a question, each with the stems that match it."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = terms
        self.stems = {word for term in terms for word in term}
        longest = sorted(self.stems, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(map(re.escape, longest))})[a-z]*")
        self.anywhere = re.compile("|".join(map(re.escape, longest)))

    def counts(self, text: str) -> Counts:
        """The number of occurrences of each stem in a text that went through `plain`."""
        found: Counts = {}
        for word in self._pattern.findall(text):
            if (short := stem(word)) in self.stems:
                found[short] = found.get(short, 0) + 1
        return found


def plain(text: str) -> str:
    """The text in lower case, with names split into words."""
    return _CAMEL.sub(" ", text).replace("_", " ").lower()


@dataclass(frozen=True)
class Candidate:
    """A definition, or a paragraph of text, with the weight of each word of the question.

    `named`: in the name, its owner and the path. `said`: in the comment and the code."""

    path: str
    line: int
    kind: str
    what: str
    words: int
    named: tuple[float, ...]
    said: tuple[float, ...]
    whole: bool = False
    """All of its name is in the question."""


def candidates(path: str, text: str, symbols: Sequence[Symbol], terms: Terms) -> Iterator[Candidate]:
    """The candidates of a file that match any word."""
    lines = text.splitlines()
    own = _own_lines(lines, symbols)
    place, module = dict.fromkeys(parts(path), 1), terms.counts(plain(_head(lines)))
    for symbol in symbols:
        mine = "\n".join(lines[number] for number in own[id(symbol)])
        summary, comment, code = _split(mine, _remarks(lines, symbol.line - 1))
        said = [
            (terms.counts(plain(summary)), _SUMMARY),
            (terms.counts(plain(comment)), _COMMENT),
            (terms.counts(plain(code)), _CODE),
            (module, _MODULE),
        ]
        name = parts(symbol.name)
        named = [
            (dict.fromkeys(name, 1), _NAME),
            (dict.fromkeys(parts(symbol.owner), 1), _OWNER),
            (place, _PATH),
            ({word: 1 for word in terms.stems if len(word) >= 4 and word in symbol.name.lower()}, _PIECE),
        ]
        by_name, by_text = (tuple(_weight(term, fields) for term in terms.terms) for fields in (named, said))
        if any(by_name) or any(by_text):
            words = len(mine) // 8
            whole = bool(name) and name <= terms.stems
            yield Candidate(path, symbol.line, symbol.kind, symbol.qualified, words, by_name, by_text, whole)
    yield from _paragraphs(path, lines, own[0], place, terms)


def ranked(found: Sequence[Candidate], terms: Terms, total: int) -> list[tuple[float, Candidate]]:
    """The candidates with their scores, best first; `total` is the number of definitions."""
    numbers = range(len(terms.terms))
    having = [sum(c.named[n] + c.said[n] > 0 for c in found) for n in numbers]
    rare = [math.log(1 + (max(total, len(found)) - n + 0.5) / (n + 0.5)) for n in having]
    every = sum(rare) or 1.0
    scores = []
    for candidate in found:
        length = 0.4 + 0.6 * candidate.words / _WORDS_USUAL
        weights = [candidate.named[n] + candidate.said[n] / max(length, 0.6) for n in numbers]
        score = sum(rare[n] * weights[n] / (weights[n] + _SATURATION) for n in numbers)
        score *= (sum(rare[n] for n in numbers if weights[n] > 0) / every) ** _COVERAGE
        score *= _KINDS.get(candidate.kind, 1.0) * (_WHOLE_NAME if candidate.whole else 1.0)
        score *= _TESTS if "test" in parts(candidate.path) else 1.0
        score *= _NEWS if candidate.kind == "text" and _NEWS_FILES.search(candidate.path) else 1.0
        scores.append((score, candidate))
    return sorted(scores, key=lambda pair: (-pair[0], pair[1].path, pair[1].line))


def _weight(term: Term, fields: Sequence[tuple[Counts, float]]) -> float:
    """The weight of one word of the question, or of its best synonym, in these fields."""
    best = 0.0
    for word, worth in term.items():
        best = max(best, worth * sum(factor * min(held.get(word, 0), _OFTEN) for held, factor in fields))
    return best


def _own_lines(lines: Sequence[str], symbols: Sequence[Symbol]) -> dict[int, list[int]]:
    """The lines of each definition without those of nested definitions; key 0 has the lines outside all of them."""
    owner = [0] * len(lines)
    own: dict[int, list[int]] = {0: []}
    for symbol in symbols:  # in order, so that nested ones come after the enclosing ones
        own[id(symbol)] = []
        for number in range(symbol.line - 1, min(symbol.last, len(lines))):
            owner[number] = id(symbol)
    for number, who in enumerate(owner):
        own[who].append(number)
    return own


def _split(text: str, above: str) -> tuple[str, str, str]:
    """The first sentence of a definition's comment, the rest of it, and the code."""
    match = _DOCSTRING.search(text)
    comment, code = above, text
    if match is not None and text[: match.start()].rstrip().endswith(":"):
        comment, code = match[2], text[: match.start()] + above + text[match.end() :]
    end = _SENTENCE.search(comment)
    return (comment[: end.end()], comment[end.end() :], code) if end else (comment, "", code)


def _remarks(lines: Sequence[str], start: int) -> str:
    """The comment directly above a definition."""
    first = start
    while first > 0 and start - first < _MOST_REMARKS and _REMARK.match(lines[first - 1]):
        first -= 1
    return "\n".join(lines[first:start])


def _head(lines: Sequence[str]) -> str:
    """The docstring or comment at the top of a file."""
    match = _DOCSTRING.match("\n".join(lines[:40]).lstrip())
    if match is not None:
        return match[2]
    return "\n".join(line for line in lines[:_MOST_REMARKS] if _REMARK.match(line))


def _paragraphs(
    path: str, lines: Sequence[str], numbers: Sequence[int], place: Counts, terms: Terms
) -> Iterator[Candidate]:
    """Paragraphs of text outside all definitions, each placed at its line with the most matching words."""
    block: list[int] = []
    for number in [*numbers, -1]:
        ends = number < 0 or not lines[number].strip() or (block and number != block[-1] + 1)
        if ends and block:
            text = "\n".join(lines[n] for n in block)
            said = tuple(_weight(term, [(terms.counts(plain(text)), _SUMMARY)]) for term in terms.terms)
            if any(said):
                best = max(block, key=lambda n: (len(terms.counts(plain(lines[n]))), -n))
                named = tuple(_weight(term, [(place, _PATH)]) for term in terms.terms)
                yield Candidate(path, best + 1, "text", lines[best].strip()[:120], len(text) // 6, named, said)
            block = []
        if number >= 0 and lines[number].strip() and not _IMPORT.match(lines[number]):
            block.append(number)
