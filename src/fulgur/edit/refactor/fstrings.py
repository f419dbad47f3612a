"""Exact positions of expressions inside f-strings. Before Python 3.12 the parser reports wrong positions in strings
that are concatenated, span several lines or are nested."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Iterator

EXACT = sys.version_info >= (3, 12)  # the parser's own positions are right
_PLAIN = re.compile(
    r"(?P<prefix>[A-Za-z]+)(?P<quote>[\"'])(?!(?P=quote))(?P<body>(?:(?!(?P=quote))[^\\\n])*)(?P=quote)"
)
_OPENING = {"(": ")", "[": "]", "{": "}"}


class Placer:
    """Corrects the positions of nodes inside the f-strings of a text; `starts` are the offsets of its lines."""

    def __init__(self, text: str, lines: list[str], starts: list[int]) -> None:
        self.text, self.lines, self.starts = text, lines, starts

    def place(self, node: ast.JoinedStr) -> bool:
        """Correct the positions inside an f-string; False: they cannot be determined."""
        if EXACT:
            return True
        values = list(_values(node))
        if not values:
            return True
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        try:
            fields = list(_fields(self.text, start, end))
        except (tokenize.TokenError, ValueError, IndexError, SyntaxError):
            return False
        if len(fields) != len(values):
            return False
        return all(self._place(value, *field) for field, value in zip(fields, values, strict=True))

    def _place(self, value: ast.expr, first: int, last: int) -> bool:
        piece = f"({self.text[first:last]})"
        try:
            twin = ast.parse(piece, mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            return False
        pairs = list(zip(ast.walk(value), ast.walk(twin), strict=False))
        if any(type(one) is not type(two) for one, two in pairs):
            return False
        alone = Placer(piece, piece.split("\n"), [0, *(match.end() for match in re.finditer("\n", piece))])
        for one, two in pairs:
            if hasattr(two, "lineno"):
                self._move(one, two, alone, first - 1)
        return all(self.place(nested) for nested in _outermost(value))

    def _move(self, one: ast.AST, two: ast.AST, alone: Placer, base: int) -> None:
        """Copy the position of a node that was parsed separately, relative to offset `base` of the text."""
        for line, column in (("lineno", "col_offset"), ("end_lineno", "end_col_offset")):
            at = base + alone._offset(getattr(two, line), getattr(two, column))
            row = bisect_right(self.starts, at) - 1
            before = self.lines[row][: at - self.starts[row]]
            setattr(one, line, row + 1)
            setattr(one, column, len(before if before.isascii() else before.encode()))

    def _offset(self, line: int, column: int) -> int:
        """Character offset of a line and a column in UTF-8 bytes."""
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self.starts[line - 1] + column


def _outermost(value: ast.AST) -> Iterator[ast.JoinedStr]:
    """The f-strings in an expression, without those nested in another."""
    if isinstance(value, ast.JoinedStr):
        yield value
        return
    for child in ast.iter_child_nodes(value):
        yield from _outermost(child)


def _values(node: ast.JoinedStr) -> Iterator[ast.expr]:
    """The expressions of an f-string in source order, including those in format specs."""
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            yield part.value
            if isinstance(part.format_spec, ast.JoinedStr):
                yield from _values(part.format_spec)


def _fields(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The spans of the expressions in the f-strings between two offsets; strings may be concatenated."""
    piece = text[start:end]
    if plain := _PLAIN.fullmatch(piece):
        inside = start + plain.start("body")
        yield from _in_body(text, inside, start + plain.end("body"), raw="r" in plain["prefix"].lower())
        return
    starts = [0]
    for line in piece.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    # In parentheses, so that concatenated strings may continue on the next line.
    for token in tokenize.generate_tokens(io.StringIO(f"(\n{piece}\n)").readline):
        if token.type != tokenize.STRING:
            continue
        prefix = re.match(r"[A-Za-z]*", token.string)
        letters = prefix[0].lower() if prefix else ""
        if "f" not in letters:
            continue
        begin = start + starts[token.start[0] - 2] + token.start[1]
        quote = 3 if token.string[len(letters) : len(letters) + 3] in ('"""', "'''") else 1
        inside = begin + len(letters) + quote
        yield from _in_body(text, inside, begin + len(token.string) - quote, raw="r" in letters)


def _in_body(text: str, at: int, end: int, *, raw: bool, spec: bool = False) -> Iterator[tuple[int, int]]:
    while at < end:
        if not raw and text.startswith("\\N{", at):
            at = text.index("}", at) + 1
        elif text[at] == "{" and text.startswith("{{", at) and not spec:
            at += 2
        elif text[at] == "{":
            first, at = at + 1, _expression_end(text, at + 1, end)
            yield first, _without_debug(text, first, at)
            if text[at] == "!":
                at += 2
            if text[at] == ":":
                close = _spec_end(text, at + 1, end)
                yield from _in_body(text, at + 1, close, raw=raw, spec=True)
                at = close
            at += 1
        else:
            at += 1


def _expression_end(text: str, at: int, end: int) -> int:
    """The end of a field's expression: the first `}`, `:` or `!` outside brackets and strings."""
    open_: list[str] = []
    while at < end:
        letter = text[at]
        if letter in "\"'":
            quote = letter * 3 if text.startswith(letter * 3, at) else letter
            at = text.index(quote, at + len(quote)) + len(quote)
            continue
        if open_ and letter == open_[-1]:
            open_.pop()
        elif letter in _OPENING:
            open_.append(_OPENING[letter])
        elif not open_ and (letter in "}:" or (letter == "!" and text[at + 1] != "=")):
            return at
        at += 1
    raise ValueError("a field is not closed")


def _without_debug(text: str, first: int, last: int) -> int:
    """The end of `x` in `{x=}`."""
    match = re.search(r"(?<![=!<>:])=\s*$", text[first:last])
    return first + match.start() if match else last


def _spec_end(text: str, at: int, end: int) -> int:
    depth = 0
    while at < end:
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            if not depth:
                return at
            depth -= 1
        at += 1
    raise ValueError("a format is not closed")
