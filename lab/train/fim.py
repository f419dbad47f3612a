"""Where the cursor could be: spans of a file to hide, so that the model learns to write what belongs between two texts.

Some spans follow the syntax tree (statements, blocks, arguments, values); the others are what an editor asks for: the
rest of a line, a piece inside a line, whole lines, and sometimes any stretch of characters.
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

LONGEST = 1_200  # characters of a hidden span
LONGEST_BLOCK = 8  # lines of a run of statements
SEVERAL = 5  # lines that a completion of several lines writes
AT_WORDS = 0.7  # fraction of cursors inside a line that are before a word or a sign
WHOLE = 0.4  # fraction of single lines that are hidden from their first character on
SHORTEST_LINE = 6  # characters of a line with real content
DULL = 0.25  # fraction of prose and shorter lines that is taken anyway: people seldom complete these
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Lines:
    """The start offsets of a text's lines, to convert the parser's byte columns into characters."""

    text: str
    starts: list[int]

    @classmethod
    def of(cls, text: str) -> Lines:
        starts = [0]
        starts += [i + 1 for i, character in enumerate(text) if character == "\n"]
        return cls(text, starts)

    def offset(self, line: int, column: int) -> int:
        start = self.starts[line - 1]
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        row = self.text[start:end]
        return start + (column if row.isascii() else len(row.encode()[:column].decode(errors="ignore")))


@dataclass(frozen=True)
class Syntax:
    """Spans of a file that follow its syntax tree, each list sorted; empty if the text does not parse."""

    nodes: list[tuple[int, int]]  # statements, bodies, calls, values, arguments
    blocks: list[tuple[int, int]]  # one to four statements in a row, to the end of the last line
    several: list[tuple[int, int]]  # those of them with two to five lines inside a function or class
    prose: frozenset[int] = frozenset()  # numbers of the lines inside multi-line strings, from 0


def syntax_spans(text: str, lines: Lines) -> Syntax:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Syntax([], [], [])
    spans, runs, several = set(), set(), set()
    prose: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno != node.end_lineno:
            prose.update(range(node.lineno - 1, node.end_lineno or 0))
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and not isinstance(node, ast.Module):
            first, last = body[0], body[-1]
            spans.add((first.lineno, first.col_offset, last.end_lineno or 0, last.end_col_offset or 0))
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list) or (isinstance(node, ast.Module) and name == "body" and len(block) > 400):
                continue
            for i, first in enumerate(block):
                for last in block[i : i + 4]:
                    count = (last.end_lineno or 0) - first.lineno + 1
                    if count <= LONGEST_BLOCK:
                        runs.add((first.lineno, first.col_offset, last.end_lineno or 0))
                        if 2 <= count <= SEVERAL and not isinstance(node, ast.Module):
                            several.add((first.lineno, first.col_offset, last.end_lineno or 0))
        if isinstance(
            node,
            ast.stmt
            | ast.Call
            | ast.Subscript
            | ast.BinOp
            | ast.BoolOp
            | ast.Compare
            | ast.Dict
            | ast.List
            | ast.Attribute
            | ast.arg
            | ast.keyword
            | ast.JoinedStr,
        ):
            spans.add((node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0))
    nodes = ((lines.offset(a, b), lines.offset(c, d)) for a, b, c, d in spans if c)
    blocks, whole = (
        [(lines.offset(a, b), line_end(text, lines, c)) for a, b, c in each if c] for each in (runs, several)
    )
    found = (nodes, blocks, whole)
    fitting = [sorted(span for span in each if 2 <= span[1] - span[0] <= LONGEST) for each in found]
    return Syntax(fitting[0], fitting[1], fitting[2], frozenset(prose))


def line_end(text: str, lines: Lines, number: int) -> int:
    """The offset where the text of a line (counted from 1) ends, without trailing white space."""
    start = lines.starts[number - 1]
    stop = lines.starts[number] - 1 if number < len(lines.starts) else len(text)
    return start + len(text[start:stop].rstrip())


@dataclass(frozen=True)
class Kinds:
    """How often each kind of span is hidden; the remainder is any stretch of characters."""

    rest: float  # the rest of a line
    several: float  # two to five lines of statements
    block: float  # some statements in a row
    node: float  # one node of the syntax tree
    piece: float  # a piece inside a line
    lines: float  # several lines, whatever they contain


def choose_span(
    text: str, begin: int, end: int, lines: Lines, syntax: Syntax, rng: random.Random, kinds: Kinds
) -> tuple[int, int]:
    """Choose a span to hide inside text[begin:end], more often late in it: a prompt has more before the cursor than
    after."""
    kind, structured = rng.random(), kinds.several + kinds.block + kinds.node
    if kind < structured:
        spans = syntax.blocks if kind < kinds.several + kinds.block else syntax.nodes
        found = _inside(syntax.several if kind < kinds.several else spans, begin, end, rng)
        if found is not None:
            return found
        kind = rng.uniform(structured, 1)
    kind -= structured
    first, last = bisect_left(lines.starts, begin), bisect_right(lines.starts, end - 1) - 1
    if first > last:
        return _stretch(begin, end, rng)
    for _ in range(8):  # look for a line with content
        number = later(first, last, rng)
        start = lines.starts[number]
        stop = lines.starts[number + 1] - 1 if number + 1 < len(lines.starts) else len(text)
        stop = min(stop, end)
        line = text[start:stop].strip()
        dull = len(line) < SHORTEST_LINE or line.startswith("#") or number in syntax.prose
        if line and (not dull or rng.random() < DULL):
            break
    else:
        return _stretch(begin, end, rng)
    indented = start + len(text[start:stop]) - len(text[start:stop].lstrip())
    if kind < kinds.rest:
        return (indented if rng.random() < WHOLE else cursor(text, indented, stop, rng)), stop
    if kind < kinds.rest + kinds.piece:
        a = cursor(text, indented, stop, rng)
        return a, rng.randint(a + 1, stop)
    if kind < kinds.rest + kinds.piece + kinds.lines:  # from the indentation or from inside the first line
        count = min(rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 12)), last - number)
        a = indented if rng.random() < 0.7 else cursor(text, indented, stop, rng)
        final = number + count
        b = lines.starts[final + 1] - 1 if final + 1 < len(lines.starts) else len(text)
        return a, max(min(b, end, a + LONGEST), a + 1)
    return _stretch(begin, end, rng)


def later(first: int, last: int, rng: random.Random) -> int:
    """A number of the range, on average twice as far from its beginning as from its end."""
    return max(rng.randint(first, last), rng.randint(first, last))


def _inside(spans: list[tuple[int, int]], begin: int, end: int, rng: random.Random) -> tuple[int, int] | None:
    low, high = bisect_left(spans, (begin, 0)), bisect_right(spans, (end, 0))
    for _ in range(4):
        if low < high:
            span = spans[later(low, high - 1, rng)]
            if span[1] <= end:
                return span
    return None


def cursor(text: str, start: int, stop: int, rng: random.Random) -> int:
    """Where a completion begins in a line: mostly before a word or a sign, where people pause; else anywhere."""
    if rng.random() < AT_WORDS:
        places = [match.start() for match in _WORDS.finditer(text, start, stop)]
        if places:
            return rng.choice(places)
    return rng.randint(start, stop - 1)


def _stretch(begin: int, end: int, rng: random.Random) -> tuple[int, int]:
    a = rng.randint(begin, end - 1)
    return a, min(end, a + 1 + int(rng.random() ** 2 * 600))
