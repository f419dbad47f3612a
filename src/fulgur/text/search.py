"""Finds the likeliest line, where greedy decoding finds the likeliest next token.

After a greedy line, the most promising alternatives along it are followed to their ends in parallel, and the best line
wins: the most probable one, minus penalties for what speaks against it in its place. Two probabilities count: that of
the line, by the model that knows what follows, and that of the line and the next lines, by the model that reads the
file from its top.
"""

from __future__ import annotations

import builtins
import heapq
import itertools
import keyword
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

BRANCHES = 8
ALTERNATIVES = 8  # at each token
# What a doubt subtracts from a log-probability (chosen on held-out lines, docs/model.md).
_DOUBT, _UNKNOWN_NAME = 2.0, 1.0
FORWARD = 0.5  # weight of reading from the top, relative to 1 (chosen on one set, confirmed on another: docs/model.md)
_STRING = re.compile(r"(\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')")
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*(?!\w*\s*=[^=])")  # a name that is read, not an attribute
_BINDING = re.compile(r"([\w, ]+?)\s*(?::[^=\n]+)?=(?!=)|(?:for|as|def|class|import)\s+([\w, ]+)")
_BLOCK = re.compile(r"\s*(?:if|elif|else|for|while|with|try|except|finally|def|class|async)\b")


@dataclass(frozen=True)
class Step:
    """A token of a greedy line, and others that could have stood there, with their log-probabilities."""

    token: int
    log_probability: float
    others: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Branch:
    """A beginning of a line: its tokens, what they spell beyond the given text, and whether the line ends there."""

    tokens: tuple[int, ...]
    text: str
    log_probability: float
    ended: bool


@dataclass(frozen=True)
class Candidate:
    text: str
    log_probability: float


def branches(
    steps: Sequence[Step], begins: str, decode: Callable[[Sequence[int]], str], stops: Collection[int]
) -> list[Branch]:
    """The most probable beginnings that depart from a greedy line; each starts with `begins`."""
    found: list[tuple[float, int, int]] = []
    before = 0.0
    for at, step in enumerate(steps):
        found += [(before + one, at, token) for token, one in step.others if token != step.token]
        before += step.log_probability
    branched: list[Branch] = []
    for log_probability, at, token in heapq.nlargest(BRANCHES, found):
        head = [step.token for step in steps[:at]]
        tokens = head if token in stops else [*head, token]
        spelled = decode(tokens)
        if not spelled.startswith(begins) or "\ufffd" in spelled:
            continue
        text, end, _ = spelled[len(begins) :].partition("\n")
        branched.append(Branch(tuple(tokens), text, log_probability, token in stops or bool(end)))
    return branched


def beyond(tokens: Sequence[int], given: Sequence[int]) -> int:
    """How many of an answer's tokens go beyond a repetition of the given text; only these count."""
    same = 0
    while same < min(len(tokens), len(given)) and tokens[same] == given[same]:
        same += 1
    return len(tokens) - same


def best(
    candidates: Sequence[Candidate], before: str, after: str, path: str, forward: Mapping[str, float] | None = None
) -> Candidate:
    """The most probable line after penalties; a text reached in several ways has the sum of their probabilities.

    `forward`: by line, the log-probability of it and of the next lines, read from the top of the file.
    """
    lines: dict[str, float] = {}
    for candidate in candidates:
        known = lines.get(candidate.text, -math.inf)
        high, low = max(known, candidate.log_probability), min(known, candidate.log_probability)
        lines[candidate.text] = high + math.log1p(math.exp(low - high))
    place = _Place.of(before, after) if path.endswith((".py", ".pyi")) else None

    def value(text: str) -> float:
        read = FORWARD * forward[text] if forward else 0.0
        return lines[text] + read - (place.doubts(text) if place is not None else 0.0)

    text = max(lines, key=value)
    return Candidate(text, lines[text])


@dataclass(frozen=True)
class _Place:
    """The surroundings of the end of a line of Python."""

    start: str  # of the line
    below: list[str]  # lines that follow it, as far as its block goes
    known: frozenset[str]  # words of the text around it
    missing: frozenset[str]  # names that are read below and bound nowhere

    @classmethod
    def of(cls, before: str, after: str) -> _Place:
        start = before.rpartition("\n")[2]
        below = [line for line in after.split("\n")[1:] if line.strip()]
        inside = itertools.takewhile(lambda line: _indent(line) >= _indent(start), below)
        above = set(_WORD.findall(before))
        code = "\n".join(_code(line) for line in inside)
        read = {name for name in _NAME.findall(code) if not (keyword.iskeyword(name) or hasattr(builtins, name))}
        bound = {name for found in _BINDING.findall(code) for name in _WORD.findall(" ".join(found))}
        return cls(start, below, frozenset(above | set(_WORD.findall(after))), frozenset(read - bound - above))

    def doubts(self, text: str) -> float:
        """The penalty for the line if it ends with this text."""
        line = self.start + text
        plain = _code(line)
        opened = sum(plain.count(sign) for sign in "([{") - sum(plain.count(sign) for sign in ")]}")
        following = self.below[0] if self.below else ""
        deeper = bool(following) and _indent(following) > _indent(line)
        block = plain.endswith(":") and opened == 0 and (_BLOCK.match(plain) is not None)
        against = [
            deeper and opened <= 0 and not plain.endswith((":", ",", "\\", "=")),  # nothing opens what follows
            block and not deeper,  # the block that it opens does not follow
            '"' in plain or "'" in plain,  # a string that does not end
            len(line.strip()) > 8 and line.strip() == following.strip(),  # it repeats the next line
            plain.strip() == "try:" and not self._caught(_indent(line)),
            bool(self.missing) and not self.missing & set(_WORD.findall(text)),
        ]
        names = _NAME.findall(_code(text))
        unknown = any(not (n in self.known or keyword.iskeyword(n) or hasattr(builtins, n)) for n in names)
        return _DOUBT * sum(against) + _UNKNOWN_NAME * unknown

    def _caught(self, indent: int) -> bool:
        behind = (line for line in self.below if _indent(line) <= indent)
        return next(behind, "").lstrip().startswith(("except", "finally"))


def _code(line: str) -> str:
    """A line without its strings and its comment."""
    return _STRING.sub(" ", line).split("#")[0].rstrip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
