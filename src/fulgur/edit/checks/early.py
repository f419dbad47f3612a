"""Reads of a name before the code that binds it has run: a NameError when the module is imported or the function runs.

Only what is certain is reported: a binding in any branch, in a loop or in a handler counts as made.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator

Read = tuple[str, str, int]
_DEFERRED = (ast.Lambda, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)


def early_reads(tree: ast.Module, given: Collection[str]) -> Iterator[Read]:
    """(scope, name, line) of each; `given` are the module's names."""
    future = {a.name for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__" for a in s.names}
    postponed = "annotations" in future or sys.version_info >= (3, 14)
    elsewhere = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    order = _Order("", (set(given) & _binds(tree.body)) - elsewhere, set(), postponed)
    order.run(tree.body)
    yield from order.found


def _binds(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that these statements bind in their own scope."""
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            found.add(node.name)
            waiting += node.decorator_list
            continue
        if isinstance(node, (*_DEFERRED, *_COMPREHENSIONS)):
            found |= {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
        waiting += ast.iter_child_nodes(node)
    return found


class _Order:
    """Runs the statements of one scope in their order; `later` are its names, `made` those bound so far."""

    def __init__(self, scope: str, later: set[str], made: set[str], postponed: bool) -> None:
        self.scope = scope
        self.later = later
        self.made = made
        self.postponed = postponed
        self.found: list[Read] = []

    def run(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id in self.later and node.id not in self.made:
                self.found.append((self.scope, node.id, node.lineno))
            elif not isinstance(node.ctx, ast.Load):
                self.made.add(node.id)
        elif isinstance(node, _FUNCTIONS):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self.run([*node.decorator_list, *node.bases, *node.keywords])
            # A class body runs now: what it does not bind itself is looked for outside.
            inner = _Order(f"{self.scope}.{node.name}", self.later - _binds(node.body), self.made, self.postponed)
            inner.run(node.body)
            self.found += inner.found
            self.made.add(node.name)
        elif isinstance(node, _DEFERRED):
            self.run([*node.args.defaults, *node.args.kw_defaults] if isinstance(node, ast.Lambda) else [])
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.run([node.iter] if not isinstance(node, ast.While) else [])
            self.made |= _binds([node])
            self.run([*([node.test] if isinstance(node, ast.While) else []), *node.body, *node.orelse])
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            self.run([node.value])
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                self.visit(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
            self.run(targets)
        elif isinstance(node, ast.AnnAssign):
            self.run([node.value, *([] if self.postponed else [node.annotation])])
            if node.value is not None:
                self.visit(node.target)
        else:
            if isinstance(node, (*_COMPREHENSIONS, ast.Try, ast.TryStar, ast.Match, ast.alias)):
                self.made |= _binds([node]) | _stored(node)
            self.run(ast.iter_child_nodes(node))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        args = node.args
        parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        stars = [star for star in (args.vararg, args.kwarg) if star]
        self.run([*node.decorator_list, *args.defaults, *args.kw_defaults])
        if not self.postponed:
            self.run([*(arg.annotation for arg in (*parameters, *stars)), node.returns])
        self.made.add(node.name)
        taken = {arg.arg for arg in (*parameters, *stars)}
        outside = {n for s in ast.walk(node) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names}
        inner = _Order(f"{self.scope}.{node.name}", _binds(node.body) - taken - outside, set(), True)
        inner.run(node.body)
        self.found += inner.found


def _stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
