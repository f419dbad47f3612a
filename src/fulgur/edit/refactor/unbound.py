"""Names a change leaves without a value: read in a scope where nothing binds them any more, though they were bound."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

ALWAYS = frozenset({*dir(builtins), "__file__", "__name__", "__doc__", "__path__", "__class__", "__spec__"})


def newly_unbound(before: str, after: str) -> list[str]:
    """Names that the new text of a file reads in a scope without a value, where the old text did not.

    A name the old text binds nowhere is left to others: it may be an import that is still to be written.
    """
    old, new = unbound(before), unbound(after)
    if old is None or new is None:
        return []
    known = {name for table in tables(symtable.symtable(before, "before", "exec")) for name in bound(table)}
    return sorted({name for _, name in new - old} & known)


def unbound(text: str) -> set[tuple[str, str]] | None:
    """(scope, name) of all reads without a binding; None where that cannot be told (syntax errors, star imports)."""
    try:
        tree, top = ast.parse(text), symtable.symtable(text, "text", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return None
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return None
    found = list(tables(top))
    given = set(bound(top)) | ALWAYS
    for table in found:  # `global x` in a function binds x in the module
        given |= {s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
    return {
        (table.get_name(), symbol.get_name())
        for table in found
        for symbol in table.get_symbols()
        if symbol.is_referenced() and symbol.is_global() and symbol.get_name() not in given
    } | {
        ("", symbol.get_name())
        for symbol in top.get_symbols()
        if symbol.is_referenced() and not symbol.is_assigned() and symbol.get_name() not in given
    }


def tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from tables(child)


def bound(table: symtable.SymbolTable) -> Iterator[str]:
    """Names this scope itself gives a value: assigned, imported, parameters, functions and classes."""
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter() or symbol.is_namespace():
            yield symbol.get_name()
