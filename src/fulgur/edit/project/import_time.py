"""Decide which code does not run when its module is imported: what `TYPE_CHECKING` or `__name__` rules out."""

from __future__ import annotations

import ast

from fulgur.edit.refactor.source import Source


def at_import(test: ast.expr) -> bool | None:
    """The value of a condition while its module is imported; None when it is unknown.

    `TYPE_CHECKING` and `__name__ == "__main__"` are false then."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = at_import(test.operand)
        return None if value is None else not value
    if isinstance(test, ast.BoolOp):
        decisive = isinstance(test.op, ast.Or)
        values = [at_import(value) for value in test.values]
        if decisive in values:
            return decisive
        return None if None in values else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        sides = {getattr(side, "id", getattr(side, "value", None)) for side in (test.left, *test.comparators)}
        return isinstance(test.ops[0], ast.NotEq) if sides == {"__name__", "__main__"} else None
    return False if "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", "")) else None


def skipped_at_import(source: Source, node: ast.AST) -> bool:
    """Whether a condition around a node keeps it from running while the module is imported."""
    below = node
    for above in source.ancestors(node):
        if isinstance(above, ast.If) and below is not above.test and at_import(above.test) is (below in above.orelse):
            return True
        if isinstance(above, ast.BoolOp):
            before = [at_import(value) for value in above.values[: above.values.index(below)]]  # type: ignore[arg-type]
            if isinstance(above.op, ast.Or) in before:
                return True
        below = above
    return False
