"""Small mistakes that people make, put into working code: each is a span of the text and what stands there instead."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Mutation:
    """A mistake in one file. `start` and `end` count characters of the file as it was."""

    file: str
    kind: str
    line: int
    start: int
    end: int
    new: str


Change: TypeAlias = tuple[ast.AST, ast.AST, str]  # from the first node to the last: this text instead
Finder: TypeAlias = Callable[[ast.AST, "_Text"], Iterator[Change]]

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_EXCEPTIONS = {
    "ValueError": "TypeError", "TypeError": "ValueError", "KeyError": "IndexError", "IndexError": "KeyError",
    "AttributeError": "KeyError",
}  # fmt: skip


class _Text:
    """A file and where its nodes stand in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, first: ast.AST, last: ast.AST) -> tuple[int, int]:
        begin = self._at(first.lineno, first.col_offset)  # type: ignore[attr-defined]
        return begin, self._at(last.end_lineno, last.end_col_offset)  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node, node)
        return self.text[start:end]

    def _at(self, line: int, column: int) -> int:
        """A node's place in characters; the parser counts bytes."""
        before = self._lines[line - 1].encode()[:column]
        return self._starts[line - 1] + len(before.decode())


def mutations(file: str, text: str) -> list[Mutation]:
    """Every mistake that could be made in a file, in the order of its text; each leaves a file that parses."""
    source = _Text(text)
    found = []
    for node in ast.walk(source.tree):
        for kind, finder in KINDS.items():
            for first, last, new in finder(node, source):
                start, end = source.span(first, last)
                made = Mutation(file, kind, first.lineno, start, end, new)  # type: ignore[attr-defined]
                if text[start:end] != new and _parses(mutated(text, [made])):
                    found.append(made)
    return sorted(found, key=lambda made: (made.start, made.end, made.kind, made.new))


def mutated(text: str, made: list[Mutation]) -> str:
    """The text with these mistakes in it; they do not overlap."""
    for one in sorted(made, key=lambda one: one.start, reverse=True):
        text = text[: one.start] + one.new + text[one.end :]
    return text


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _comparison(node: ast.AST, source: _Text) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = node.left, node.comparators[0]
        if sign := _COMPARISONS.get(type(node.ops[0])):
            yield left, right, f"{source.of(left)} {sign} {source.of(right)}"


def _off_by_one(node: ast.AST, source: _Text) -> Iterator[Change]:
    """A number that something is counted, compared or moved by."""
    if isinstance(node, ast.Call) and source.of(node.func) in ("range", "enumerate"):
        parts = node.args
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Subscript):
        parts = [node.slice]
    else:
        return
    for part in parts:
        if isinstance(part, ast.Constant) and type(part.value) is int:
            yield part, part, str(part.value + 1)


def _wrong_default(node: ast.AST, source: _Text) -> Iterator[Change]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
        if isinstance(default, ast.Constant):
            value = default.value
            if isinstance(value, bool) or value is None:
                yield default, default, str(not value)
            elif isinstance(value, int):
                yield default, default, str(value + 1)
            elif isinstance(value, str):
                yield default, default, "None" if value == "" else '""'


def _swapped(node: ast.AST, source: _Text) -> Iterator[Change]:
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        first, second = node.args[:2]
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield first, second, f"{source.of(second)}, {source.of(first)}"


def _dropped(node: ast.AST, source: _Text) -> Iterator[Change]:
    """A value that is worked out and not handed on: no `return`, or no `await`."""
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant | ast.Name):
        yield node, node, source.of(node.value)
    if isinstance(node, ast.Await):
        yield node, node, source.of(node.value)


def _wrong_exception(node: ast.AST, source: _Text) -> Iterator[Change]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        caught: list[ast.expr] = [node.exc.func]
    elif isinstance(node, ast.ExceptHandler):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type] if node.type else []
    else:
        return
    for name in caught:
        if isinstance(name, ast.Name) and name.id in _EXCEPTIONS:
            yield name, name, _EXCEPTIONS[name.id]


def _missing_import(node: ast.AST, source: _Text) -> Iterator[Change]:
    """One name of an import that has others; or a whole line, which `pass` stands for."""
    if not isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "module", "") == "__future__":
        return
    for gone in node.names:
        left = [source.of(name) for name in node.names if name is not gone]
        if left:
            yield node.names[0], node.names[-1], ", ".join(left)
        else:
            yield node, node, "pass"


def _broken_slice(node: ast.AST, source: _Text) -> Iterator[Change]:
    if not isinstance(node, ast.Slice):
        return
    for bound in (node.lower, node.upper):
        if isinstance(bound, ast.Constant) and isinstance(bound.value, int):
            yield bound, bound, str(bound.value + 1)
        elif isinstance(bound, ast.UnaryOp) and isinstance(bound.operand, ast.Constant):
            yield bound, bound, ""
        elif bound is not None:
            yield bound, bound, f"{source.of(bound)} + 1"


def _and_or(node: ast.AST, source: _Text) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        left, right = node.values
        sign = "or" if isinstance(node.op, ast.And) else "and"
        between = source.text[source.span(left, left)[1] : source.span(right, right)[0]]
        if between.strip() in ("and", "or"):  # no parenthesis or comment in between
            yield left, right, f"{source.of(left)} {sign} {source.of(right)}"


KINDS: dict[str, Finder] = {
    "flipped comparison": _comparison,
    "off by one": _off_by_one,
    "wrong default": _wrong_default,
    "swapped arguments": _swapped,
    "dropped return or await": _dropped,
    "wrong exception": _wrong_exception,
    "missing import": _missing_import,
    "broken slice": _broken_slice,
    "and for or": _and_or,
}
