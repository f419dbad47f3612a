"""An instruction that names its place changes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.editor import Proposal, locate, propose
from fulgur.edit.region import parse_target

FORMATS = """\
def parse(left, right, source):
    pattern = "({}|{})".format(left, right)
    other = "<{}>".format(left)
    if not source:
        raise ValueError("nothing in {}".format(source))
    return pattern, other
"""
SHOW = """\
class Shop:
    def __repr__(self):
        return "Shop({})".format(self.name)

    def title(self):
        return "The {}".format(self.name)
"""
TERNARY = """\
def size(a, b):
    if a:
        one = 1
    else:
        one = 2
    two = b
    return one, two
"""


@pytest.mark.parametrize(
    ("text", "instruction", "changed"),
    [
        (FORMATS, "use f-strings for the error messages", ["raise"]),
        (FORMATS, "use an f-string for the error message", ["raise"]),
        (FORMATS, "use an f-string for pattern", ["pattern ="]),
        (FORMATS, "use f-strings", ["pattern =", "other =", "raise"]),
        (FORMATS, "use f-strings in this function", ["pattern =", "other =", "raise"]),
        (SHOW, "use an f-string in __repr__", ["Shop("]),
    ],
)
def test_lines_that_are_not_named_stay(workspace: Path, text: str, instruction: str, changed: list[str]) -> None:
    found = _proposed(workspace, text, instruction)
    assert isinstance(found, Proposal)
    new = set(found.text.splitlines()) - set(text.splitlines())
    assert len(new) == len(changed) and all(any(part in line for line in new) for part in changed)
    assert all('f"' in line for line in new)


def test_the_only_place_that_fits_may_not_be_the_one_that_is_named(workspace: Path) -> None:
    found = _proposed(workspace, TERNARY, "use a ternary for two")
    assert not isinstance(found, Proposal) and "would change lines other than" in found.reason
    assert isinstance(_proposed(workspace, TERNARY, "use a ternary for one"), Proposal)


def _proposed(workspace: Path, text: str, instruction: str) -> object:
    (workspace / "app.py").write_text(text)
    task = locate(parse_target("app.py", workspace), instruction)
    call = task.spelled_out()
    assert call is not None
    return propose(task, call)
