"""The verdict on a checked edit, in one line. ✓ has one meaning: every check ran and passed.

The files parse, the names in them exist, and all tests that cover the change ran, with no more failures than before.
When something was not checked, there is no ✓, and the line says what was skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.edit.checks import MEMBERS, NAMES, PARSES, Found
from fulgur.edit.checks.trial import Trial


@dataclass(frozen=True)
class Verdict:
    """`holds` is the ✓; `line` says the same in words."""

    holds: bool
    line: str


def verdict(found: Found, trial: Trial | None) -> Verdict:
    """The verdict on an edit that no check refused; `trial` None: its tests were not tried."""
    checked = [PARSES, MEMBERS if found.members and not found.unchecked else NAMES]
    unchecked = []
    if trial is None:
        unchecked.append("not checked: attributes, parameters, tests (--write does)")
    elif trial.passed:
        checked.append(f"no new failures in {trial.ran} test file{'s' * (trial.ran > 1)}")
    elif not trial.problems:
        unchecked.append(trial.note)
    if found.unchecked:
        unchecked.append(f"not all attributes and parameters checked: {found.unchecked}")
    holds = trial is not None and trial.passed and found.members and not unchecked
    return Verdict(
        holds, f"{'✓' if holds else 'Checked:'} {', '.join(checked)}{''.join(f' · {one}' for one in unchecked)}"
    )
