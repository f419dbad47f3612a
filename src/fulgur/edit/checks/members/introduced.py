"""Find what an edit introduces: attributes, calls and imports of the new text that the old one did not have there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fulgur.workspace.diff import changed_runs

_QUIET_COMMENT = re.compile(r"#.*(type:\s*ignore|noqa|pylint:|pyright:)")
_BY_CONDITION = {"version_info", "platform", "TYPE_CHECKING", "PY2", "PY3", "hasattr", "name", "implementation"}
_CATCHING = {"AttributeError", "ImportError", "ModuleNotFoundError", "TypeError", "Exception", "BaseException"}
_NARROWING = {"isinstance", "issubclass", "hasattr", "callable", "type", "cast", "getattr", "setattr", "vars"}


@dataclass(frozen=True)
class Attribute:
    """`value.name`; `root` is the variable at the start of the value, empty when there is none."""

    line: int
    column: int
    value: str
    name: str
    root: str
    shifting: bool
    """Its root is tested for its type, or bound in ways that leave its type open, in the same function."""


@dataclass(frozen=True)
class Call:
    """`called(…)`; `column` is that of the opening parenthesis."""

    line: int
    column: int
    called: str
    keywords: tuple[tuple[str, int], ...]
    """Keyword arguments with their lines."""
    positional: int | None
    """How many positional arguments there are; None when a `*` hides it."""
    shifting: bool


@dataclass(frozen=True)
class Import:
    """`import module`, or with a name `from module import name`; `level` dots."""

    line: int
    column: int
    module: str
    name: str
    level: int


Item = Attribute | Call | Import


def introduced(before: str, after: str) -> list[Item]:
    """Items on new lines that the old text of the same function does not contain."""
    lines = added_lines(before, after)
    try:
        known = {_key(item, scope) for item, scope in _items(before)}
    except SyntaxError:
        known = set()
    return [item for item, scope in _items(after) if item.line in lines and _key(item, scope) not in known]


def added_lines(before: str, after: str) -> set[int]:
    """Numbers (from 1) of the lines of `after` that are not in `before`."""
    runs = changed_runs(before.splitlines(), after.splitlines())
    return {number + 1 for _, _, start, end in runs for number in range(start, end)}


def _key(item: Item, scope: str) -> tuple[object, ...]:
    if isinstance(item, Attribute):
        return (scope, item.value, item.name)
    if isinstance(item, Call):
        return (scope, item.called, tuple(name for name, _ in item.keywords), item.positional)
    return (scope, item.module, item.name, item.level)


def _items(source: str) -> Iterator[tuple[Item, str]]:
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    yield from finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.found: list[tuple[Item, str]] = []
        self._lines = source.splitlines() or [""]
        self._bytes = [line.encode() for line in self._lines]
        self._scope: list[str] = []
        self._shifting: list[set[str]] = [set()]
        self._silent = 0

    def _add(self, item: Item) -> None:
        if not self._silent and not _QUIET_COMMENT.search(self._lines[item.line - 1]):
            self.found.append((item, ".".join(self._scope)))

    def _column(self, line: int, offset: int) -> int:
        """Convert ast's byte offset to jedi's character column."""
        return len(self._bytes[line - 1][:offset].decode(errors="replace"))

    # Each of these opens a scope.
    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._scope.append(node.name)
        self._shifting.append(self._shifting[-1] | _shifting_names(node))
        for child in ast.iter_child_nodes(node):
            if child not in node.decorator_list:
                self.visit(child)
        self._shifting.pop()
        self._scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter

    def visit_Module(self, node: ast.Module) -> None:
        self._shifting[-1] = _shifting_names(node)
        self.generic_visit(node)

    # Where something missing is expected.
    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        caught = {word for handler in node.handlers for word in _words(handler.type)}
        expected = bool(caught & _CATCHING) or any(handler.type is None for handler in node.handlers)
        self._silent += expected
        for statement in node.body:
            self.visit(statement)
        self._silent -= expected
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    visit_TryStar = visit_Try

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        words = {word for item in node.items for word in _words(item.context_expr)}
        expected = bool(words & {"suppress", "raises", "assertRaises"})
        self._silent += expected
        self.generic_visit(node)
        self._silent -= expected

    visit_AsyncWith = visit_With

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        expected = bool(_words(node.test) & _BY_CONDITION)
        self._silent += expected
        self.generic_visit(node)
        self._silent -= expected

    visit_IfExp = visit_If

    # What is introduced.
    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or node.end_lineno is None or node.end_col_offset is None:
            return
        column = self._column(node.end_lineno, node.end_col_offset) - len(node.attr)
        root = _root(node)
        value = ast.unparse(node.value)
        self._add(Attribute(node.end_lineno, column, value, node.attr, root, root in self._shifting[-1]))

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        bracket = self._bracket(node)
        if bracket is None:
            return
        keywords = tuple((word.arg, word.lineno) for word in node.keywords if word.arg is not None)
        positional = None if any(isinstance(part, ast.Starred) for part in node.args) else len(node.args)
        shifting = _root(node.func) in self._shifting[-1]
        self._add(Call(*bracket, ast.unparse(node.func), keywords, positional, shifting))

    def _bracket(self, node: ast.Call) -> tuple[int, int] | None:
        """The position of the call's own `(`: after the function, and after the `)` of a parenthesised function."""
        line, offset = node.func.end_lineno or 0, node.func.end_col_offset or 0
        while line <= len(self._bytes):
            rest = self._bytes[line - 1][offset:].split(b"#")[0]
            for position, byte in enumerate(rest):
                if byte == ord("("):
                    return line, self._column(line, offset + position)
                if chr(byte) not in " \t\\)":
                    return None
            line, offset = line + 1, 0
        return None

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            column = self._column(alias.lineno, alias.col_offset) + alias.name.rfind(".") + 1
            self._add(Import(alias.lineno, column, alias.name, "", 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name != "*":
                column = self._column(alias.lineno, alias.col_offset)
                self._add(Import(alias.lineno, column, node.module or "", alias.name, node.level))


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript | ast.Await):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _words(node: ast.AST | None) -> set[str]:
    if node is None:
        return set()
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names | {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}


def _shifting_names(scope: ast.AST) -> set[str]:
    """Names whose type is tested or matched somewhere in the scope, or that `global`, `nonlocal` or `del` affects."""
    found: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in _NARROWING:
                found |= {_root(argument) for argument in node.args}
        elif isinstance(node, ast.Match):
            found |= _words(node.subject)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
        elif isinstance(node, ast.Delete):
            found |= {_root(target) for target in node.targets}
    return found - {"", "self", "cls"} if isinstance(scope, ast.ClassDef | ast.Module) else found - {""}
