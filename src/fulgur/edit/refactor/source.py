"""One parsed Python file: positions as character offsets, parents, nodes by type, and edits that touch nothing else."""

from __future__ import annotations

import ast
import functools
import warnings
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from fulgur.edit.refactor.fstrings import Placer

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = ("body", "orelse", "finalbody")

NodeT = TypeVar("NodeT", bound=ast.AST)


@dataclass(frozen=True, order=True)
class Edit:
    """Replace text[start:end] by `text`."""

    start: int
    end: int
    text: str


class Unusable(Exception):
    """This file or place cannot be edited; the message says why."""


def apply_edits(text: str, edits: Iterable[Edit], base: int = 0) -> str:
    """`text` (which begins at offset `base` of the file) with the edits applied; they must not overlap."""
    parts: list[str] = []
    position = base
    for edit in sorted(edits):
        if edit.start < position:
            raise Unusable("edits overlap")
        parts.append(text[position - base : edit.start - base])
        parts.append(edit.text)
        position = edit.end
    parts.append(text[position - base :])
    return "".join(parts)


def parse(text: str) -> ast.Module:
    """`ast.parse` without its warnings; every failure is raised as Unusable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise Unusable(f"line {error.lineno}: {error.msg}" if error.lineno else error.msg) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unusable(str(error)) from None


def parse_region(region: str) -> ast.Module:
    """Parse whole lines cut out of a file, whatever their indentation."""
    return parse(f"if 1:\n{region}" if region[:1] in (" ", "\t") else region)


class Source:
    """A parsed file. Nodes inside f-strings are in `inner`, not in `nodes`: only names are changed there."""

    def __init__(self, text: str, path: str = "file.py") -> None:
        if "\r" in text or "\f" in text or "\0" in text:
            raise Unusable("the file contains carriage returns, form feeds or null characters")
        self.text = text
        self.path = path
        self.wrapper: ast.If | None = None  # of indented lines, see `Piece`
        self.tree = parse(text)
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.ascii = text.isascii()
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self.inner: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self.hidden: list[ast.JoinedStr] = []  # f-strings whose parts have unknown positions
        placer = Placer(text, self.lines, self.starts)
        stack: list[tuple[ast.AST, bool]] = [(self.tree, False)]
        while stack:
            node, inside = stack.pop()
            (self.inner if inside else self.nodes)[type(node)].append(node)
            if isinstance(node, ast.JoinedStr) and not inside:
                inside = placer.place(node)
                if not inside:
                    self.hidden.append(node)
                    continue
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                stack.append((child, inside))

    def of(self, kind: type[NodeT]) -> list[NodeT]:
        """All nodes of exactly this type, outside f-strings."""
        return self.nodes.get(kind, [])  # type: ignore[return-value]

    def all(self, kind: type[NodeT]) -> list[NodeT]:
        """All nodes of exactly this type, including those inside f-strings."""
        return [*self.nodes.get(kind, []), *self.inner.get(kind, [])]  # type: ignore[list-item]

    def functions(self) -> list[Function]:
        return [*self.of(ast.FunctionDef), *self.of(ast.AsyncFunctionDef)]

    def offset(self, line: int, column: int) -> int:
        """Character offset of a 1-based line and a column in UTF-8 bytes, as ast counts."""
        if not self.ascii:
            text = self.lines[line - 1]
            if not text.isascii():
                column = len(text.encode()[:column].decode(errors="ignore"))
        return self.starts[line - 1] + column

    def start(self, node: ast.AST) -> int:
        return self.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.start(node), self.end(node)

    def segment(self, node: ast.AST) -> str:
        return self.text[self.start(node) : self.end(node)]

    def line_of(self, offset: int) -> int:
        """The 1-based line that contains this offset."""
        return bisect_right(self.starts, offset)

    def first_line(self, node: ast.AST) -> int:
        """First line of a statement, its decorators included."""
        decorators = getattr(node, "decorator_list", None)
        line: int = node.lineno  # type: ignore[attr-defined]
        return min(line, decorators[0].lineno) if decorators else line

    def line_start(self, line: int) -> int:
        return self.starts[line - 1]

    def line_end(self, line: int) -> int:
        """Offset after the newline of this line."""
        return min(self.starts[line], len(self.text))

    def whole_lines(self, node: ast.AST) -> tuple[int, int]:
        """The lines of a statement, decorators and final newline included."""
        return self.line_start(self.first_line(node)), self.line_end(node.end_lineno)  # type: ignore[attr-defined]

    def indent(self, node: ast.AST) -> str:
        """The white space before a statement."""
        return self.text[self.line_start(node.lineno) : self.start(node)]  # type: ignore[attr-defined]

    def alone_on_lines(self, node: ast.stmt) -> bool:
        """Whether no other statement shares a line with this one."""
        before = self.text[self.line_start(self.first_line(node)) : self.start(node)]
        end = self.end(node)
        after = self.text[end : self.line_end(node.end_lineno or node.lineno)].strip()
        decorated = bool(getattr(node, "decorator_list", None))
        return (decorated or not before.strip()) and (not after or after.startswith("#"))

    def trailing_comment(self, node: ast.AST) -> bool:
        return "#" in self.text[self.end(node) : self.line_end(node.end_lineno)]  # type: ignore[attr-defined]

    def has_comment(self, node: ast.AST) -> bool:
        """Whether there is a `#` anywhere on the lines of this node (also in strings: better to skip such a place)."""
        first = self.line_start(node.lineno)  # type: ignore[attr-defined]
        return "#" in self.text[first : self.line_end(node.end_lineno)]  # type: ignore[attr-defined]

    def one_line(self, node: ast.AST) -> bool:
        return bool(node.lineno == node.end_lineno)  # type: ignore[attr-defined]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that contains this node (or the node itself)."""
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self.parents.get(current)
        if current is None:
            raise Unusable("no statement")
        return current

    def function_of(self, node: ast.AST) -> Function | None:
        """The innermost function that contains this node, not counting the node itself."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, FUNCTIONS):
                return ancestor
        return None

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose body directly contains this function."""
        parent = self.parents.get(node)
        return parent if isinstance(parent, ast.ClassDef) else None

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements this one is in."""
        parent = self.parents.get(statement)
        for field in BLOCKS:
            block = getattr(parent, field, None)
            if isinstance(block, list) and statement in block:
                return block
        raise Unusable("no block")

    def docstring(self, node: ast.AST) -> ast.Expr | None:
        """The docstring statement of a function, class or module."""
        body = getattr(node, "body", None)
        value = body[0].value if body and isinstance(body[0], ast.Expr) else None
        if body and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return body[0]  # type: ignore[no-any-return]
        return None

    def body_start(self, function: Function) -> ast.stmt:
        """The first statement after the docstring; the body must be on its own lines."""
        body = function.body[1:] if self.docstring(function) else function.body
        if not body or body[0].lineno == function.lineno or not self.alone_on_lines(body[0]):
            raise Unusable("the body of the function is not on its own lines")
        return body[0]

    @functools.cached_property
    def unit(self) -> str:
        """One level of indentation: the most frequent step from a block's head to its body, else what the first
        statement's own indentation allows, else four spaces."""
        steps: Counter[str] = Counter()
        for child, parent in self.parents.items():
            if not isinstance(child, ast.stmt) or not isinstance(parent, ast.stmt) or parent is self.wrapper:
                continue
            if child.lineno > parent.lineno:
                outer, inner = self.indent(parent), self.indent(child)
                if inner.startswith(outer) and not inner.strip() and inner != outer:
                    steps[inner[len(outer) :]] += 1
        margin = self.indent(self.wrapper.body[0]) if self.wrapper is not None else ""
        usual = "\t" if margin.startswith("\t") else "    " if len(margin) % 4 == 0 else "  "
        return min(steps, key=lambda step: (-steps[step], len(step)), default=usual)

    def reindent(self, start: int, end: int, levels: int) -> str:
        """Whole lines moved right by a level, or left (-1); lines inside strings must not be among them."""
        moved = []
        for line in self.text[start:end].split("\n"):
            if not line.strip():
                moved.append(line)
            elif levels > 0:
                moved.append(self.unit * levels + line)
            elif not line.startswith(self.unit * -levels):
                raise Unusable("its lines cannot be dedented")
            else:
                moved.append(line[len(self.unit) * -levels :])
        return "\n".join(moved)

    def movable(self, statements: Iterable[ast.AST]) -> bool:
        """Whether no string inside spans several lines: reindenting would change its value."""
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.lineno != node.end_lineno:
                    return False
        return True


def names_in(node: ast.AST) -> set[str]:
    """Every identifier used in a tree, except attributes."""
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` for a chain of names, else None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
