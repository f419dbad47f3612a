"""One `.gitignore`, matched in bounded time whatever it contains: names by a table, patterns without backtracking.

A star matches the shortest text up to what follows it and is never retried (an atomic group). This is linear, and
correct because what follows has a fixed length. Lines that no path can match, or beyond the limits, are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MOST_BYTES = 256 << 10
_MOST_RULES = 5000
_MOST_PATTERNS = 500  # with wildcards other than in `*.ending`
_LONGEST = 1024

_PLAIN = re.compile(r"[^*?\[\\]+")
_CLASSES = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "blank": r" \t", "xdigit": "0-9A-Fa-f", "word": r"\w", "punct": r"!-/:-@\[-`{-~",
}  # fmt: skip
_STAR = "*"


class GitIgnore:
    """The rules of one file; the last one that matches wins."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._negated: list[bool] = []
        self._tables = {False: _Table(), True: _Table()}
        for line in lines:
            if len(self._negated) >= _MOST_RULES:
                break
            self._add(line)

    def verdict(self, path: str, *, folder: bool) -> bool | None:
        """Whether a path relative to the file's folder is ignored; None when no rule matches."""
        last = self._tables[folder].last(path)
        return None if last < 0 else not self._negated[last]

    def _add(self, line: str) -> None:
        line = line.rstrip("\r\n")
        while line.endswith(" ") and not line.endswith("\\ "):
            line = line[:-1]
        if not line or line.startswith("#") or len(line) > _LONGEST:
            return
        negated = line.startswith("!")
        line = line[negated:]
        only_folders = line.endswith("/")
        line = line[:-1] if only_folders else line
        anchored = "/" in line
        line = line.removeprefix("/")
        if not line:
            return
        index = len(self._negated)
        self._negated.append(negated)
        for folder, table in self._tables.items():
            if folder or not only_folders:
                table.add(line, anchored, index)


class _Table:
    """The rules for files, or for folders."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._paths: dict[str, int] = {}
        self._endings: dict[int, dict[str, int]] = {}
        self._patterns: list[tuple[int, bool, re.Pattern[str]]] = []

    def add(self, pattern: str, anchored: bool, index: int) -> None:
        if _PLAIN.fullmatch(pattern):
            (self._paths if anchored else self._names)[pattern] = index
        elif not anchored and pattern.startswith("*") and _PLAIN.fullmatch(ending := pattern[1:]):
            self._endings.setdefault(len(ending), {})[ending] = index
        elif len(self._patterns) < _MOST_PATTERNS:
            regex = _translate(pattern)
            if regex is not None:
                self._patterns.append((index, anchored, re.compile(regex, re.DOTALL)))

    def last(self, path: str) -> int:
        name = path.rpartition("/")[2]
        best = max(self._names.get(name, -1), self._paths.get(path, -1))
        for length, endings in self._endings.items():
            best = max(best, endings.get(name[-length:], -1))
        for index, anchored, regex in reversed(self._patterns):
            if index < best:
                break
            if regex.fullmatch(path if anchored else name):
                return index
        return best


def _translate(pattern: str) -> str | None:
    """The regular expression for a pattern; None when nothing can match it."""
    groups: list[list[str]] = [[]]  # segments between `**`
    segments = pattern.split("/")
    for position, text in enumerate(segments):
        if text == "**":
            if groups[-1] or position == 0:
                groups.append([])
            continue
        segment = _segment(text)
        if segment is None:
            return None
        groups[-1].append(segment)
    first, *others = groups
    if not others:
        return "/".join(first)
    regex = "".join(f"{segment}/" for segment in first)
    for group in others[:-1]:
        regex += f"(?>(?:[^/]+/)*?{'/'.join(group)}/)"
    return regex + (f"(?:[^/]+/)*{'/'.join(others[-1])}" if others[-1] else ".+")


def _segment(text: str) -> str | None:
    pieces: list[str] = [""]
    for part in _parts(text):
        if part is None:
            return None
        if part == _STAR:
            pieces.append("")
        else:
            pieces[-1] += part
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle if piece) + f"[^/]*{last}"


def _parts(text: str) -> Iterator[str | None]:
    """Regular expressions that match one character each, or `_STAR`; None if nothing can match."""
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "*":
            yield _STAR
        elif letter == "?":
            yield "[^/]"
        elif letter == "\\":
            yield re.escape(text[at]) if at < len(text) else None
            at += 1
        elif letter == "[":
            found = _class(text, at)
            if found is None:
                yield None
                return
            expression, at = found
            yield expression
        else:
            yield re.escape(letter)


def _class(text: str, at: int) -> tuple[str, int] | None:
    """Translate `[…]`, starting after its bracket; returns the expression and the end."""
    negated = text[at : at + 1] in ("!", "^") and bool(text[at : at + 1])
    at += negated
    inside = ""
    first = True
    while at < len(text):
        if text[at] == "]" and not first:
            return (f"(?![/])[{'^' if negated else ''}{inside}]" if inside else "(?!)"), at + 1
        first = False
        if named := re.compile(r"\[:([a-z]+):\]").match(text, at):
            if named[1] not in _CLASSES:
                return None
            inside += _CLASSES[named[1]]
            at = named.end()
            continue
        low, at = _member(text, at)
        if text[at : at + 1] == "-" and at + 1 < len(text) and text[at + 1] != "]":
            high, at = _member(text, at + 1)
            if low <= high:
                inside += f"{re.escape(low)}-{re.escape(high)}"
        else:
            inside += re.escape(low)
    return None


def _member(text: str, at: int) -> tuple[str, int]:
    if text[at] == "\\" and at + 1 < len(text):
        return text[at + 1], at + 2
    return text[at], at + 1
