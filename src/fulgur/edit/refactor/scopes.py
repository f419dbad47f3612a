"""Resolve every name in a file to its binding by Python's scoping rules, with the position of each use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fulgur.edit.refactor.source import FUNCTIONS, Source

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(eq=False)
class Scope:
    """A module, class, function, lambda or comprehension."""

    node: ast.AST
    parent: Scope | None
    bound: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    def resolve(self, name: str) -> Scope | None:
        """The scope that binds this name as seen from here; None: a builtin, or not bound in this file."""
        if name in self.globals:
            return self.module()
        scope: Scope | None = self
        first = True
        while scope is not None:
            if name in scope.globals:
                return self.module()
            visible = first or not scope.is_class
            if visible and name in scope.bound and not (first and name in scope.nonlocals):
                return scope
            first, scope = False, scope.parent
        return None

    def module(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


@dataclass(frozen=True)
class Use:
    """One occurrence of a name. `start` is -1 when its position is unknown."""

    name: str
    start: int
    scope: Scope
    kind: str  # "name", "definition", "parameter", "import", "from", "handler", "declaration"
    line: int


class Names(ast.NodeVisitor):
    """Collects scopes and uses in one walk; uses are resolved afterwards, when all bindings are known."""

    def __init__(self, src: Source) -> None:
        self.src = src
        self.scope = Scope(src.tree, None)
        self.module = self.scope
        self.uses: list[Use] = []
        self.scopes: dict[ast.AST, Scope] = {src.tree: self.scope}
        self.visit(src.tree)

    def of(self, name: str, binder: Scope) -> list[Use]:
        """All uses of a name that refer to the binding in this scope."""
        return [use for use in self.uses if use.name == name and use.scope.resolve(name) is binder]

    def _bind(self, name: str) -> None:
        self.scope.bound.add(name)

    def _use(self, name: str, start: int, kind: str, line: int) -> None:
        if self.src.text[start : start + len(name)] != name:
            start = -1
        self.uses.append(Use(name, start, self.scope, kind, line))

    def _inside(self, node: ast.AST, children: Iterable[ast.AST]) -> None:
        outer = self.scope
        self.scope = self.scopes.setdefault(node, Scope(node, outer))
        for child in children:
            self.visit(child)
        self.scope = outer

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        before = len(self.uses)
        self.generic_visit(node)
        if node in self.src.hidden:
            self.uses[before:] = [replace(use, start=-1) for use in self.uses[before:]]

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id)
        self._use(node.id, self.src.start(node), "name", node.lineno)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._bind(node.name)
        word = re.compile(rf"def\s+({re.escape(node.name)})\b").search(self.src.text, self.src.start(node))
        self._use(node.name, word.start(1) if word else -1, "definition", node.lineno)
        for part in [*node.decorator_list, *self._outside(node.args), *([node.returns] if node.returns else [])]:
            self.visit(part)
        self._inside(node, [*self._parameters(node.args), *node.body])

    visit_FunctionDef = _function
    visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in self._outside(node.args):
            self.visit(part)
        self._inside(node, [*self._parameters(node.args), node.body])

    @staticmethod
    def _parameters(args: ast.arguments) -> list[ast.arg]:
        named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        return [*named, *[star for star in (args.vararg, args.kwarg) if star]]

    def _outside(self, args: ast.arguments) -> list[ast.AST]:
        """Defaults and annotations, which belong to the scope around the function."""
        annotations = [arg.annotation for arg in self._parameters(args) if arg.annotation]
        return [*args.defaults, *[value for value in args.kw_defaults if value], *annotations]

    def visit_arg(self, node: ast.arg) -> None:
        self._bind(node.arg)
        self._use(node.arg, self.src.start(node), "parameter", node.lineno)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name)
        word = re.compile(rf"class\s+({re.escape(node.name)})\b").search(self.src.text, self.src.start(node))
        self._use(node.name, word.start(1) if word else -1, "definition", node.lineno)
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        self._inside(node, node.body)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inner: list[ast.AST] = []
        for index, generator in enumerate(node.generators):
            inner += [generator.target, *([generator.iter] if index else []), *generator.ifs]
        self._inside(node, [*inner, *results])

    visit_ListComp = _comprehension
    visit_SetComp = _comprehension
    visit_DictComp = _comprehension
    visit_GeneratorExp = _comprehension

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        scope = self.scope
        while isinstance(scope.node, COMPREHENSIONS) and scope.parent is not None:
            scope = scope.parent
        scope.bound.add(node.target.id)
        self._use(node.target.id, self.src.start(node.target), "name", node.lineno)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bind(node.name)
            begin = self.src.end(node.type) if node.type else self.src.start(node)
            word = re.compile(rf"\bas\s+({re.escape(node.name)})\b").search(self.src.text, begin)
            self._use(node.name, word.start(1) if word else -1, "handler", node.lineno)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        name = (node.asname or node.name).split(".")[0]
        self._bind(name)
        parent = self.src.parents.get(node)
        if node.asname:
            self._use(name, self.src.end(node) - len(name), "name", node.lineno)
        else:
            kind = "from" if isinstance(parent, ast.ImportFrom) else "import"
            self._use(name, self.src.start(node), kind, node.lineno)

    def _declared(self, node: ast.Global | ast.Nonlocal) -> None:
        target = self.scope.globals if isinstance(node, ast.Global) else self.scope.nonlocals
        target.update(node.names)
        text, base = self.src.segment(node), self.src.start(node)
        for name in node.names:
            found = re.search(rf"\b{re.escape(name)}\b", text[len("global") :])
            start = base + len("global") + found.start() if found else -1
            self._use(name, start, "declaration", node.lineno)

    visit_Global = _declared
    visit_Nonlocal = _declared

    def _captured(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name)
            self._use(node.name, self.src.end(node) - len(node.name), "name", node.lineno)
        self.generic_visit(node)

    visit_MatchAs = _captured
    visit_MatchStar = _captured

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self._bind(node.rest)
            self.uses.append(Use(node.rest, -1, self.scope, "name", node.lineno))
        self.generic_visit(node)


def functions_named(src: Source, name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods of this name (`Class.method` narrows), outermost first."""
    owner, _, last = name.rpartition(".")
    found = [node for node in ast.walk(src.tree) if isinstance(node, FUNCTIONS) and node.name == last]
    if owner:
        found = [n for n in found if isinstance(p := src.parents.get(n), ast.ClassDef) and p.name == owner]
    return found
