"""A Python module as its top-level statements, so that the cost of a check depends on the change, not on the file.

The facts of a statement about names depend on its own text alone, and are cached (`facts`). `parts` splits a text into
statements; if it has seen a similar text, it parses only what lies between the unchanged statements.
"""

from __future__ import annotations
import __future__

import ast
import functools
import itertools
import re
import symtable
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from fulgur.edit.checks.early import Order, early_within

Parts = tuple[str, ...]
Result = TypeVar("Result")
_LONG = 8_000  # characters; longer statements are rare, and only the last few are cached
_STAR = re.compile(r"import[\s\\]*\*")
_recent: deque[Parts] = deque(maxlen=8)
_lock = threading.Lock()


def _kept(ask: Callable[[str, bool], Result]) -> Callable[[str, bool], Result]:
    """Cache the results for many short parts and for a few long ones."""
    short, long = functools.lru_cache(maxsize=4096)(ask), functools.lru_cache(maxsize=8)(ask)
    return functools.wraps(ask)(lambda part, later: (short if len(part) <= _LONG else long)(part, later))


@dataclass(frozen=True)
class Facts:
    """What one part says about names. Lines count from 1 within the part."""

    lines: int
    bound: frozenset[str]  # names it binds in the module
    bound_anywhere: frozenset[str]  # in any of its scopes
    from_functions: frozenset[str]  # `global x` in a function binds x in the module
    reads: frozenset[tuple[str, str]]  # (scope, name) of the names that its scopes read but do not bind
    exported: tuple[str, ...]  # the names in `__all__`
    star: bool  # `from … import *`: its names cannot be known
    order: Order


def parts(text: str) -> Parts | None:
    """The text split after its top-level statements; joined, the parts are the text. None: it does not parse."""
    with _lock:
        seen = list(_recent)
    best: tuple[int, int, int, Parts] | None = None
    for old in reversed(seen):
        head, tail, known = _unchanged(old, text)
        if best is None or known > best[2]:
            best = head, tail, known, old
    found = _between(*best[:2], best[3], text) if best is not None else None
    if found is None:
        found = _cut(text)
    if found is not None:
        with _lock:
            if found in _recent:
                _recent.remove(found)
            _recent.append(found)
    return found


def _unchanged(old: Parts, text: str) -> tuple[int, int, int]:
    """How many parts the text shares with an older one, at the beginning and at the end, and their size."""
    at = head = 0
    for part in old:
        if not text.startswith(part, at) or not (part.endswith("\n") or at + len(part) == len(text)):
            break
        at += len(part)
        head += 1
    end, tail = len(text), 0
    for part in reversed(old[head:]):
        start = end - len(part)
        if start < at or not text.endswith(part, 0, end) or (start > at and text[start - 1] != "\n"):
            break
        end = start
        tail += 1
    return head, tail, at + len(text) - end


def _between(head: int, tail: int, old: Parts, text: str) -> Parts | None:
    """The parts of a text that begins and ends with parts of an older one.

    New lines may belong to the statement before them (`else:`), which is then parsed again.
    """
    for spare in (0, 1):
        begin, ending = old[: max(head - spare, 0)], old[len(old) - tail :]
        start, end = sum(map(len, begin)), len(text) - sum(map(len, ending))
        if (middle := _cut(text[start:end])) is not None:
            return (*begin, *middle, *ending)
    return None


def _cut(text: str) -> Parts | None:
    """The text split after its statements; the rest after the last one is a part too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if "\r" in text or "\f" in text:
        return (text,)
    lines = text.split("\n")
    found, first = [], 0
    for statement, following in itertools.pairwise([*tree.body, None]):
        assert statement is not None
        last = statement.end_lineno or statement.lineno
        if following is not None and following.lineno <= last:
            continue  # two on one line stay together
        found.append("\n".join(lines[first:last]) + ("\n" if last < len(lines) else ""))
        first = last
    rest = "\n".join(lines[first:])
    return (*found, rest) if rest else tuple(found)


def postponed(found: Parts) -> bool:
    """Whether annotations are not evaluated."""
    return any("__future__" in part and "annotations" in _futures(part) for part in found)


@functools.lru_cache(maxsize=64)
def _futures(part: str) -> frozenset[str]:
    """The features that a part imports from `__future__`."""
    body = ast.parse(part).body
    return frozenset(
        a.name for s in body if isinstance(s, ast.ImportFrom) and s.module == "__future__" for a in s.names
    )


@_kept
def compiles(part: str, later_annotations: bool) -> bool:
    """Whether the compiler accepts a part; `ast.parse` alone accepts `f(a=1, a=2)` and a return outside a function."""
    flags = __future__.annotations.compiler_flag if later_annotations else 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(part, "text", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def declares_global(part: str) -> bool:
    """Whether it has a `global` outside functions, which must come before the module's other uses of the name."""
    return "global" in part and facts(part, False).order.module_global


@_kept
def facts(part: str, later_annotations: bool) -> Facts:
    """The facts of a part; raises the parser's error where it does not parse by itself."""
    future = "from __future__ import annotations\n" if later_annotations and "__future__" not in part else ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree, top = ast.parse(part), symtable.symtable(future + part, "text", "exec")
    scopes = list(_scopes(top, ""))
    anywhere: set[str] = set()
    reads: set[tuple[str, str]] = set()
    given: set[str] = set()
    for scope, table in scopes:
        bound = set(_bound(table))
        anywhere |= bound
        for symbol in table.get_symbols():
            name = symbol.get_name()
            # In a function called `top`, symtable reports every name as global, even its locals.
            if symbol.is_referenced() and (symbol.is_global() or table is top) and name not in bound:
                reads.add((scope, name))
            if symbol.is_declared_global() and symbol.is_assigned():
                given.add(name)
    return Facts(
        part.count("\n"),
        frozenset(_bound(top)),
        frozenset(anywhere),
        frozenset(given),
        frozenset(reads),
        tuple(_exported(tree)),
        _STAR.search(part) is not None and any(_is_star(node) for node in ast.walk(tree)),
        early_within(tree, part, later_annotations),
    )


def _is_star(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _exported(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            continue
        if isinstance(value := getattr(statement, "value", None), (ast.List, ast.Tuple)):
            yield from (e.value for e in value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str))


def _scopes(table: symtable.SymbolTable, path: str) -> Iterator[tuple[str, symtable.SymbolTable]]:
    yield path, table
    for child in table.get_children():
        yield from _scopes(child, f"{path}.{child.get_name()}")


def _bound(table: symtable.SymbolTable) -> Iterator[str]:
    """The names that this scope itself binds: assignments, imports, parameters, functions and classes."""
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter() or symbol.is_namespace():
            yield symbol.get_name()
