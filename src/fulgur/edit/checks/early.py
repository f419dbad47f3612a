"""Find reads of a name before it is bound: a NameError when the module is imported or the function runs.

Only certain errors are reported: a binding in any branch, loop or handler counts as executed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

Read = tuple[str, str, int]
"""Scope, name and line."""
_DEFERRED = (ast.Lambda, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)


@dataclass(frozen=True)
class Order:
    """The order in which a part of a module reads and binds names; lines count within the part."""

    certain: tuple[Read, ...]  # early reads inside its functions, whatever the rest of the module does
    reads: tuple[Read, ...]  # module-level reads of names that this part has not bound before
    bound: frozenset[str]  # names bound once the part has run
    binds: frozenset[str]  # names of the module that it binds
    declared: frozenset[str]  # `global` in one of its functions: bound at an unknown time
    module_global: bool  # `global` outside functions


def early_within(tree: ast.Module, text: str, postponed: bool) -> Order:
    """The order of one part; `postponed` annotations are not evaluated."""
    # Walking a long class dominates the cost here, and few contain these words.
    declares = "global" in text or "nonlocal" in text
    order = _Order("", None, frozenset(), set(), postponed or sys.version_info >= (3, 14), declares)
    order.run(tree.body)
    stated = [node for node in ast.walk(tree) if isinstance(node, ast.Global)] if "global" in text else []
    return Order(
        tuple(order.certain),
        tuple(order.found),
        frozenset(order.bound),
        frozenset(_binds(tree.body)),
        frozenset(name for node in stated for name in node.names),
        bool(stated) and any(isinstance(node, ast.Global) for node in _own(tree.body)),
    )


def early_reads(orders: Iterable[tuple[int, Order]], given: Collection[str]) -> Iterator[Read]:
    """All early reads in a module. `orders`: its parts, each with the number of lines above it; `given`: its names."""
    parts = list(orders)
    elsewhere = frozenset().union(*(order.declared for _, order in parts))
    later = (frozenset(given) & frozenset().union(*(order.binds for _, order in parts))) - elsewhere
    bound: set[str] = set()
    for above, order in parts:
        for scope, name, line in order.certain:
            yield scope, name, line + above
        for scope, name, line in order.reads:
            if name in later and name not in bound:
                yield scope, name, line + above
        bound |= order.bound


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes that run at module level: not those inside functions and classes."""
    for node in nodes:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _own(ast.iter_child_nodes(node))


def _binds(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that these statements bind in their own scope."""
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
    """Walks the statements of one scope in execution order.

    `later` are its names (None: not known yet), `bound` those bound so far, `hidden` those that a class body binds.
    """

    def __init__(
        self,
        scope: str,
        later: set[str] | None,
        hidden: frozenset[str],
        bound: set[str],
        postponed: bool,
        declares: bool,
    ) -> None:
        self.scope = scope
        self.later = later
        self.hidden = hidden
        self.bound = bound
        self.postponed = postponed
        self.declares = declares  # it may contain `global` or `nonlocal`
        self.found: list[Read] = []  # in this scope
        self.certain: list[Read] = []  # in nested functions

    def run(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                self.bound.add(node.id)
            elif (self.later is None or node.id in self.later) and not (
                node.id in self.bound or node.id in self.hidden
            ):
                self.found.append((self.scope, node.id, node.lineno))
        elif isinstance(node, _FUNCTIONS):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self.run([*node.decorator_list, *node.bases, *node.keywords])
            # A class body runs now; names that it does not bind are looked up outside.
            hidden = self.hidden | _binds(node.body)
            inner = _Order(f"{self.scope}.{node.name}", self.later, hidden, self.bound, self.postponed, self.declares)
            inner.run(node.body)
            self.found += inner.found
            self.certain += inner.certain
            self.bound.add(node.name)
        elif isinstance(node, _DEFERRED):
            self.run([*node.args.defaults, *node.args.kw_defaults] if isinstance(node, ast.Lambda) else [])
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.run([node.iter] if not isinstance(node, ast.While) else [])
            self.bound |= _binds([node])
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
                self.bound |= _binds([node]) | _stored(node)
            self.run(ast.iter_child_nodes(node))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        args = node.args
        parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        stars = [star for star in (args.vararg, args.kwarg) if star]
        self.run([*node.decorator_list, *args.defaults, *args.kw_defaults])
        if not self.postponed:
            self.run([*(arg.annotation for arg in (*parameters, *stars)), node.returns])
        self.bound.add(node.name)
        taken = {arg.arg for arg in (*parameters, *stars)}
        stated = (s for s in ast.walk(node) if isinstance(s, (ast.Global, ast.Nonlocal))) if self.declares else ()
        names = _binds(node.body) - taken - {name for statement in stated for name in statement.names}
        inner = _Order(f"{self.scope}.{node.name}", names, frozenset(), set(), True, self.declares)
        inner.run(node.body)
        self.certain += [*inner.found, *inner.certain]


def _stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
