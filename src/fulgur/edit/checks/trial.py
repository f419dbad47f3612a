"""Run the tests that cover an edit on a copy of the project, before anything is written.

They run in the sandbox, with the project's own Python. When one fails, the same tests run on a copy without the edit;
only tests that passed there count against the edit.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.edit.checks.covering import covering_tests
from fulgur.edit.checks.tests import (
    MOST_SECONDS,
    NO_PYTHON,
    NONE_COVERS,
    Judged,
    TestRun,
    copy_with,
    in_turn,
    interpreter,
    judged,
    pytest_command,
    read_run,
    together,
)
from fulgur.errors import FulgurError
from fulgur.sandbox import start
from fulgur.sandbox.choose import choose
from fulgur.sandbox.policy import Policy
from fulgur.sandbox.secrets import without_secrets
from fulgur.workspace.files import Change


@dataclass(frozen=True)
class Trial(Judged):
    """The tests' verdict on an edit, and how many test files ran."""

    ran: int = 0


def try_out(root: Path, changes: Sequence[Change], home: Path) -> Trial:
    """Run the tests that cover the changed files of the project at `root`."""
    root = root.resolve()
    changed = {change.path.resolve().relative_to(root).as_posix(): change for change in changes}
    tests = covering_tests(root, list(changed))
    if not tests:
        return Trial(note=NONE_COVERS)
    python = interpreter(root)
    if python is None:
        return Trial(note=NO_PYTHON)
    parts = in_turn(tests)
    runs = _runs(root, {name: change.after for name, change in changed.items()}, python, parts, home)
    if runs is None:
        return Trial(note="tests not run: the project is too large to copy")
    before = None
    if unclean := [part for part, run in zip(parts, runs, strict=False) if not (run.clean or run.missing)]:
        # On a fresh copy: tests may have changed the first one.
        again = _runs(root, {name: change.before for name, change in changed.items()}, python, unclean, home)
        before = together(again) if again is not None else None
    found = judged(together(runs), before)
    return Trial(found.problems, found.note, found.passed, sum(map(len, parts)) if found.passed else 0)


def _runs(
    root: Path, files: Mapping[str, bytes | None], python: str, parts: Sequence[Sequence[str]], home: Path
) -> list[TestRun] | None:
    """Copy the project with these files and run the parts one after another within one shared time limit.

    None: the project is too large to copy."""
    runs: list[TestRun] = []
    with tempfile.TemporaryDirectory(prefix="fulgur-trial-") as place:
        folder = Path(place).resolve()
        if not copy_with(root, files, folder):
            return None
        deadline = time.monotonic() + MOST_SECONDS
        for part in parts:
            runs.append(sandboxed_pytest(root, folder, python, part, home, max(deadline - time.monotonic(), 1.0)))
    return runs


def sandboxed_pytest(
    root: Path, folder: Path, python: str, tests: Sequence[str], home: Path, seconds: float
) -> TestRun:
    """Run tests of `folder`, which may be a copy of the project at `root`; only `folder` is writable."""
    try:
        done = sandboxed(pytest_command(python, folder, tests), folder, home, seconds, root)
    except FulgurError as error:
        return TestRun(missing=error.message)
    except start.TimeoutExpired:
        return read_run(None, "", timed_out=True)
    return read_run(done.returncode, (done.stdout + done.stderr).decode(errors="replace"), timed_out=False)


def sandboxed(command: str, folder: Path, home: Path, seconds: float, *visible: Path) -> start.CompletedProcess[bytes]:
    """Run a shell command that may write in `folder`; raises `TimeoutExpired`, or `FulgurError` without a sandbox.

    The `visible` paths stay visible: the project's environment may be needed to run its tests.
    """
    policy = Policy.make("workspace-write", folder, home, visible)
    sandbox = choose(policy)
    try:
        launch = sandbox.launch(["/bin/sh", "-c", command], policy, folder)
        try:
            environment = without_secrets(start.environment(launch.environment))
            return start.run(launch.argv, folder, seconds=seconds, env=environment, pass_fds=launch.pass_fds)
        finally:
            for descriptor in launch.pass_fds:
                os.close(descriptor)
    finally:
        sandbox.close()
