"""What a run of the tests says of an edit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fulgur.edit.checks import Found
from fulgur.edit.checks.tests import NO_TEST, TestRun, copy_with, in_turn, interpreter, judged, read_run, together
from fulgur.edit.checks.trial import Trial
from fulgur.edit.checks.verdict import verdict

PASSED = TestRun()
ONE = TestRun(frozenset({"t.py::a"}), output="boom")
TWO = TestRun(frozenset({"t.py::a", "t.py::b"}), output="boom")
BROKEN = TestRun(broken="pytest exited with 4", output="conftest")
SLOW = TestRun(missing="they took over 30 s")


@pytest.mark.parametrize(
    ("after", "before", "problems", "note"),
    [
        (PASSED, None, 0, ""),
        (ONE, PASSED, 1, ""),
        (ONE, ONE, 0, "1 of these tests failed before the edit too"),
        (TWO, ONE, 1, "1 of these tests failed before the edit too"),
        (ONE, TWO, 0, "2 of these tests failed before the edit too"),
        (BROKEN, PASSED, 1, ""),
        (BROKEN, ONE, 1, "1 of these tests failed before the edit too"),
        (BROKEN, BROKEN, 0, "tests not run: pytest could not run before the edit either: pytest exited with 4"),
        (ONE, BROKEN, 0, "tests not run: pytest could not run before the edit either: pytest exited with 4"),
        (SLOW, None, 0, "tests not run: they took over 30 s"),
        (ONE, SLOW, 1, "it is unknown whether these tests passed before the edit (they took over 30 s)"),
        (ONE, None, 1, "it is unknown whether these tests passed before the edit"),
    ],
)
def test_verdicts(after: TestRun, before: TestRun | None, problems: int, note: str) -> None:
    found = judged(after, before)
    assert (len(found.problems), found.note) == (problems, note)


@pytest.mark.parametrize(
    ("code", "output", "timed_out", "failed", "broken", "missing"),
    [
        (0, "3 passed", False, set(), "", ""),
        (1, "FAILED t.py::a - assert 1", False, {"t.py::a"}, "", ""),
        (2, "ERROR t.py - ImportError", False, {"t.py"}, "", ""),
        (4, "ImportError while loading conftest", False, set(), "pytest exited with 4", ""),
        (3, "INTERNALERROR", False, set(), "pytest exited with 3", ""),
        (139, "Segmentation fault", False, set(), "pytest exited with 139", ""),
        (5, "no tests ran", False, set(), "", "pytest found no test in them"),
        (127, "No such file", False, set(), "", "the project's Python cannot be started"),
        (None, "", True, set(), "", "they took over 30 s"),
        (1, "No module named pytest", False, set(), "", "there is no pytest in the project's environment"),
    ],
)
def test_exit_codes(
    code: int | None, output: str, timed_out: bool, failed: set[str], broken: str, missing: str
) -> None:
    assert read_run(code, output, timed_out=timed_out) == TestRun(frozenset(failed), broken, missing, output=output)


def test_the_nearest_tests_run_first_and_some_is_not_all() -> None:
    names = [f"t{number}.py" for number in range(10)]
    assert in_turn(names) == [names[:8], names[8:]] and in_turn([]) == []
    assert together([PASSED, TestRun(missing=NO_TEST)]) == PASSED
    assert together([SLOW, SLOW]).missing
    partly = together([PASSED, SLOW])
    found = judged(partly, None)
    assert not found.passed and found.note == "not all tests that cover it ran: they took over 30 s"
    assert together([ONE, PASSED]).failed == ONE.failed


FULL = Found(members=True)


@pytest.mark.parametrize(
    ("found", "trial", "line"),
    [
        (
            FULL,
            Trial(passed=True, ran=2),
            "✓ parses, names, attributes and parameters exist, no new failures in 2 test files",
        ),
        (Found(), None, "Checked: parses, names exist · not checked: attributes, parameters, tests (--write does)"),
        (
            FULL,
            Trial(note="tests not run: too slow"),
            "Checked: parses, names, attributes and parameters exist · tests not run: too slow",
        ),
        (
            Found(members=True, unchecked="it took over 3 s"),
            Trial(passed=True, ran=1),
            "Checked: parses, names exist, no new failures in 1 test file · "
            "not all attributes and parameters checked: it took over 3 s",
        ),
    ],
    ids=["everything", "a proposal", "no tests", "members"],
)
def test_a_check_mark_means_everything(found: Found, trial: Trial | None, line: str) -> None:
    assert verdict(found, trial).line == line
    assert verdict(found, trial).holds == line.startswith("✓")


def test_a_copy_has_the_files_as_they_were(workspace: Path, tmp_path: Path) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub/kept.py").write_text("1")
    (workspace / "changed.py").write_text("after")
    (workspace / "new.py").write_text("new")
    assert copy_with(workspace, {"changed.py": b"before", "new.py": None, "gone.py": b"gone"}, tmp_path / "copy")
    found = {
        path.relative_to(tmp_path / "copy").as_posix(): path.read_text() for path in (tmp_path / "copy").rglob("*.py")
    }
    assert found == {"sub/kept.py": "1", "changed.py": "before", "gone.py": "gone"}


def test_the_project_s_own_environment_runs_its_tests(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    ours = Path(sys.executable).parent
    found = interpreter(workspace)
    assert found is None or Path(found).parent != ours or sys.prefix == sys.base_prefix
    own = workspace / "venv/bin/python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert interpreter(workspace) == str(own)
