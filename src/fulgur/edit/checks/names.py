"""Find names that Python code reads without a value; the only place that decides this.

Two checks: is a name bound in any scope where it is looked up (by the compiler's own symbol table), and is it bound
before it is read (in the order in which a module, a class body or a function runs)?
"""

from __future__ import annotations

import ast
import builtins
import itertools
import warnings
from collections import Counter
from dataclasses import dataclass

from fulgur.edit.checks.early import early_reads
from fulgur.edit.checks.members.introduced import added_lines
from fulgur.edit.checks.members.problem import Problem
from fulgur.edit.checks.statements import Parts, facts, parts, postponed

_MODULE = "__file__ __name__ __doc__ __path__ __class__ __spec__ __package__ __loader__ __builtins__ __annotations__"
ALWAYS = frozenset({*dir(builtins), *_MODULE.split()})


@dataclass(frozen=True)
class Reads:
    """Reads without a value: (scope, name) where it is bound nowhere, (scope, name, line) where it is bound later."""

    unbound: frozenset[tuple[str, str]] = frozenset()
    early: frozenset[tuple[str, str, int]] = frozenset()


def new_problems(before: str, after: str) -> list[Problem]:
    """Names that the new text of a file reads without a value, where the old text did not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's warnings about the code itself
        return _new_problems(before, after)


def _new_problems(before: str, after: str) -> list[Problem]:
    new, old = valueless(after), valueless(before)
    if new is None or old is None:
        return []
    counts = Counter(name for _, name in old.unbound)
    counts.subtract(name for _, name in new.unbound)
    fresh = {name for name, left in counts.items() if left < 0} & {name for _, name in new.unbound - old.unbound}
    found = []
    elsewhere = bindings(before) | bindings(after) if fresh else set()
    for name, line in (_places(after, fresh, added_lines(before, after)) if fresh else {}).items():
        lost = name in elsewhere
        text = f"`{name}` is used where it is not defined" if lost else f"Undefined name `{name}`"
        found.append(Problem(line, name, text, certain=lost))
    known = {(scope, name) for scope, name, _ in old.early}
    for scope, name, line in sorted(new.early, key=lambda read: read[2]):
        if (scope, name) not in known:
            found.append(Problem(line, name, f"`{name}` is used before it is defined", certain=True))
    return sorted(found, key=lambda problem: problem.line)


def valueless(text: str) -> Reads | None:
    """All reads without a value; None where that is unknown (syntax errors, star imports)."""
    return _together(parts(text))


def valueless_as_a_whole(text: str) -> Reads | None:
    """`valueless` computed on the whole text, without cached parts: the reference that the fast path must match."""
    return _together((text,))


def _together(found: Parts | None) -> Reads | None:
    """Combine the facts of a module's parts."""
    if found is None:
        return None
    try:
        later = postponed(found)
        said = [facts(part, later) for part in found]
    except (SyntaxError, ValueError, RecursionError):
        return None
    if any(one.star for one in said):
        return None
    given = ALWAYS.union(*(one.bound for one in said), *(one.from_functions for one in said))
    unbound = {(scope, name) for one in said for scope, name in one.reads if name not in given}
    if "__getattr__" not in given:  # which may supply names that others import
        unbound |= {("__all__", name) for one in said for name in one.exported if name not in given}
    above = [0, *itertools.accumulate(one.lines for one in said)]
    order = zip(above, (one.order for one in said), strict=False)
    return Reads(frozenset(unbound), frozenset(early_reads(order, given - ALWAYS)))


def _places(text: str, names: set[str], lines: set[int]) -> dict[str, int]:
    """A line for each name: the first of `lines` that reads it, else the first line that does."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "value", None)
        if isinstance(name, str) and name in names and isinstance(node, (ast.Name, ast.Constant)):
            best = found.get(name, node.lineno)
            found[name] = min(best, node.lineno, key=lambda line: (line not in lines, line))
    return found


def bindings(text: str) -> set[str]:
    """Every name that some scope of the text binds."""
    try:
        return set().union(*(facts(part, False).bound_anywhere for part in parts(text) or ()))
    except (SyntaxError, ValueError, RecursionError):
        return set()
