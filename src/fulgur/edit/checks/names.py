"""Whether the names that Python code reads have a value: the one place that answers this.

Two questions: is a name bound anywhere it is looked for (by the compiler's own symbol table), and is it bound before it
is read (in the order in which a module, a class body or a function runs)?
"""

from __future__ import annotations

import ast
import builtins
import symtable
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fulgur.edit.checks.early import early_reads
from fulgur.edit.checks.members.introduced import added_lines
from fulgur.edit.checks.members.problem import Problem

_MODULE = "__file__ __name__ __doc__ __path__ __class__ __spec__ __package__ __loader__ __builtins__ __annotations__"
ALWAYS = frozenset({*dir(builtins), *_MODULE.split()})


@dataclass(frozen=True)
class Reads:
    """Reads without a value: (scope, name) of those bound nowhere; (scope, name, line) of those too early."""

    unbound: frozenset[tuple[str, str]] = frozenset()
    early: frozenset[tuple[str, str, int]] = frozenset()


def new_problems(before: str, after: str) -> list[Problem]:
    """Names that the new text of a file reads without a value, where the old text did not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the code itself is warned for
        return _new_problems(before, after)


def _new_problems(before: str, after: str) -> list[Problem]:
    new, old = valueless(after), valueless(before)
    if new is None or old is None:
        return []
    counts = Counter(name for _, name in old.unbound)
    counts.subtract(name for _, name in new.unbound)
    fresh = {name for name, left in counts.items() if left < 0} & {name for _, name in new.unbound - old.unbound}
    elsewhere = bindings(before) | bindings(after)
    found = []
    for name, line in _places(after, fresh, added_lines(before, after)).items():
        lost = name in elsewhere
        text = f"it uses `{name}` where it has no value" if lost else f"Undefined name `{name}`"
        found.append(Problem(line, name, text, certain=lost))
    known = {(scope, name) for scope, name, _ in old.early}
    for scope, name, line in sorted(new.early, key=lambda read: read[2]):
        if (scope, name) not in known:
            found.append(Problem(line, name, f"it uses `{name}` before it has a value", certain=True))
    return sorted(found, key=lambda problem: problem.line)


def valueless(text: str) -> Reads | None:
    """All reads without a value; None where that cannot be told (syntax errors, star imports)."""
    try:
        tree, top = ast.parse(text), symtable.symtable(text, "text", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return None
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return None
    scopes = list(_scopes(top, ""))
    given = set(_bound(top)) | ALWAYS
    for _, table in scopes:  # `global x` in a function binds x in the module
        given |= {s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
    unbound = {
        (scope, symbol.get_name())
        for scope, table in scopes
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or table is top)
        # In a function called `top` symtable takes every name for a global one.
        and symbol.get_name() not in given | set(_bound(table))
    }  # fmt: skip
    if "__getattr__" not in given:  # which may serve what others import
        unbound |= {("__all__", name) for name in _exported(tree) if name not in given}
    return Reads(frozenset(unbound), frozenset(early_reads(tree, given - ALWAYS)))


def _exported(tree: ast.Module) -> Iterator[str]:
    """The names in `__all__`."""
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            continue
        if isinstance(value := getattr(statement, "value", None), (ast.List, ast.Tuple)):
            yield from (e.value for e in value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str))


def _places(text: str, names: set[str], lines: set[int]) -> dict[str, int]:
    """A line for each name: the first of these lines that reads it, else the first that does."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "value", None)
        if isinstance(name, str) and name in names and isinstance(node, (ast.Name, ast.Constant)):
            best = found.get(name, node.lineno)
            found[name] = min(best, node.lineno, key=lambda line: (line not in lines, line))
    return found


def bindings(text: str) -> set[str]:
    """Every name that some scope of the text gives a value."""
    try:
        return {name for _, table in _scopes(symtable.symtable(text, "text", "exec"), "") for name in _bound(table)}
    except (SyntaxError, ValueError, RecursionError):
        return set()


def _scopes(table: symtable.SymbolTable, path: str) -> Iterator[tuple[str, symtable.SymbolTable]]:
    yield path, table
    for child in table.get_children():
        yield from _scopes(child, f"{path}.{child.get_name()}")


def _bound(table: symtable.SymbolTable) -> Iterator[str]:
    """Names this scope itself gives a value: assigned, imported, parameters, functions and classes."""
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter() or symbol.is_namespace():
            yield symbol.get_name()
