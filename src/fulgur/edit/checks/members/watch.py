"""Watch for what jedi does not report: that some expression on the way to a result could not be inferred at all.

It also stops an inference that takes too long, because jedi has no time limit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from jedi.inference import recursion, syntax_tree

_EXPRESSIONS = {
    "name", "atom_expr", "power", "atom", "or_test", "and_test", "ternary", "arith_expr", "term", "await", "yield_expr",
    "testlist_star_expr", "subscript", "comparison", "factor", "expr", "shift_expr",
}  # fmt: skip
_ANYTHING = {"Any", "Incomplete", "MaybeNone"}


class TookTooLong(BaseException):
    """The deadline has passed. Not an Exception, so that no `except Exception` on the way catches it."""


@dataclass
class Watch:
    """`unknown` is set when an expression had no value; `deadline` is a time of `time.monotonic`."""

    unknown: bool = False
    deadline: float = float("inf")

    def install(self) -> None:
        """Watch every expression that jedi infers from now on; call once per process."""
        recursion.recursion_limit = 8
        recursion.total_function_execution_limit = 60
        node_of, name_of = syntax_tree.infer_node, syntax_tree.tree_name_to_values

        def infer_node(context: Any, element: Any) -> Any:
            if time.monotonic() > self.deadline:
                raise TookTooLong
            values = node_of(context, element)
            if element.type == "name" and (
                element.value == "Self" or (element.value in _ANYTHING and _in_union(element))
            ):
                self.unknown = True  # jedi resolves Self to the declaring class, and drops Any from `str | Any`
            elif not values and element.type in _EXPRESSIONS and _counts(context):
                self.unknown = True
            return values

        def tree_name_to_values(state: Any, context: Any, name: Any) -> Any:
            values = name_of(state, context, name)
            if not values and _counts(context):
                self.unknown = True
            return values

        syntax_tree.infer_node, syntax_tree.tree_name_to_values = infer_node, tree_name_to_values


def _counts(context: Any) -> bool:
    """Whether an unknown expression matters: not in stubs, nor in modules such as typing and functools."""
    module = context.get_root_context()
    return not module.is_stub() and module.py__name__() not in ("typing", "functools", "abc", "types")


def _in_union(name: Any) -> bool:
    parent = name.parent
    if parent.type == "subscriptlist":
        return str(parent.parent.parent.get_code()).strip().startswith(("Union", "typing.Union"))
    return bool(parent.type == "expr")
