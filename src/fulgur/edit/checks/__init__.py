"""Checks before an edit is written: it parses, and the names, members and imports it adds exist.

`check` is the entry point; only problems that the edit introduces count. `covering.py` finds the tests, `trial.py` runs
them, and `verdict.py` sums up the results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.edit.checks.members.problem import Problem

if TYPE_CHECKING:
    from fulgur.edit.checks.members.process import MemberCheck

PARSES, NAMES, MEMBERS, TESTS = "parses", "names exist", "names, attributes and parameters exist", "tests"


@dataclass
class Found:
    """The problems found. `members`: attributes and parameters were checked too; `unchecked` says why not all."""

    parses: list[str] = field(default_factory=list)
    names: list[Problem] = field(default_factory=list)
    members: bool = False
    unchecked: str = ""


def check(path: Path, before: str, after: str, members: MemberCheck | None = None) -> Found:
    """The problems that a new text introduces (line feeds only); `members` checks attributes and parameters too.

    Nothing is checked when neither text parses."""
    from fulgur.edit.checks.imports import unknown_imports
    from fulgur.edit.checks.members.introduced import added_lines
    from fulgur.edit.checks.names import new_problems
    from fulgur.edit.checks.syntax import syntax_problems

    found = Found(parses=syntax_problems(path.name, after))
    if found.parses:
        return found if not syntax_problems(path.name, before) else Found()
    if path.suffix in (".py", ".pyi"):
        found.names = new_problems(before, after)
        if members is not None and path.suffix == ".py":
            checked = members.check(path, before, after)
            found.names = sorted([*found.names, *checked.problems], key=lambda problem: problem.line)
            found.members, found.unchecked = True, checked.unchecked
    else:
        found.names = unknown_imports(after, path, added_lines(before, after))
    return found
