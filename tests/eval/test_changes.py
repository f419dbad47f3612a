"""Repeated changes between two releases, and what counts as right or wrong after the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.editor import Proposal
from fulgur.edit.next import Following
from fulgur.eval.changes import _BULLET, Repeated, _followed, _repeated
from fulgur.eval.projects import PACKAGES, Project

OLD = "a = load(1)\nb = 2\nc = load(3)\nd = load(4)\ne = load(5)\n"
NEW = "a = read(1)\nb = 2\nc = read(3)\nd = load(4)\ne = other(read(5), 1)\n"


@pytest.fixture
def task(tmp_path: Path) -> Repeated:
    package = PACKAGES["addict"]
    for name, text in (("then", OLD), ("now", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(text)
    [found] = _repeated(Project(package, tmp_path / "then"), Project(package, tmp_path / "now"))
    return found


@pytest.mark.parametrize(
    ("after", "right", "wrong"),
    [
        ("a = read(1)\nb = 2\nc = read(3)\nd = load(4)\ne = load(5)\n", True, False),
        ("a = read(1)\nb = 2\nc = read(3)\nd = load(4)\ne = read(5)\n", True, False),
        ("a = read(1)\nb = 2\nc = read(3)\nd = read(4)\ne = load(5)\n", False, True),
        ("a = read(1)\nb = 2\nc = open(3)\nd = load(4)\ne = load(5)\n", False, True),
        ("a = read(1)\nb = 2\n", False, True),
        (None, False, False),
    ],
    ids=["one", "another that the release wrote otherwise", "one that it left", "other words", "lines lost", "nothing"],
)
def test_what_follows_is_compared_with_the_release(task: Repeated, after: str | None, right: bool, wrong: bool) -> None:
    assert [number for number, _, _ in task.pairs] == [0, 2] and task.kept == {1, 3}

    def follow(following: Following) -> Proposal | None:
        return Proposal(following.document, after) if after is not None else None

    assert _followed(task, follow) == (right, wrong)


def test_lines_of_a_change_log() -> None:
    log = "1.2\n---\n* Fix the parser for empty lines.\n- add x\n* short\n* Added a timeout to load\n"
    assert _BULLET.findall(log) == ["Fix the parser for empty lines.", "Added a timeout to load"]
