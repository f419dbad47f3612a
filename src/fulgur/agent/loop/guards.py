"""Checks between an edit and the word `done`: it parses, what it names exists, the tests that touch it pass.

What fails is shown, and fed back to the model once.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fulgur.agent.loop.context import TurnContext
from fulgur.agent.session.history import CHECKED
from fulgur.agent.workbench import Workbench
from fulgur.config.settings import Settings
from fulgur.edit.checks import NAMES, PARSES, TESTS, check
from fulgur.edit.checks.members.process import MemberCheck
from fulgur.edit.checks.tests import (
    MOST_SECONDS,
    TestRun,
    copy_as_before,
    interpreter,
    judged,
    pytest_command,
    read_run,
    touching_tests,
)
from fulgur.errors import FulgurError
from fulgur.protocol.agent import GuardReported, Warned
from fulgur.tools.shell import Shell, ShellArguments
from fulgur.workspace.files import FileDiff
from fulgur.workspace.textfile import TextFile


class Guards:
    """The checks of one turn."""

    def __init__(self, context: TurnContext, bench: Workbench) -> None:
        self._context = context
        self._bench = bench

    @property
    def on(self) -> bool:
        """Whether anything is checked."""
        return self._context.settings.flag("features.guards")

    def warm(self) -> None:
        """Get ready while the model writes."""
        warm_guards(self._context.settings, self._bench)

    async def check(self, changed: Mapping[str, FileDiff], *, read: bool = True) -> str:
        """Check the files; what the model is told to mend, empty when all is well. `read` False: only the tests."""
        if not self.on:
            return ""
        present = {path: diff for path, diff in changed.items() if diff.kind != "deleted"}
        found: dict[str, list[str] | None] = await self._all_static(present) if read else {}
        if not found.get(PARSES) and self._context.settings.flag("features.quick_tests"):
            found[TESTS] = await self._tests(changed)
        told: list[str] = []
        for name, problems in found.items():
            if problems is None:
                continue
            self.report(name, problems, fed_back=bool(problems) and read)
            told += problems
        if not told:
            return ""
        return f"{CHECKED} Mend it, or say why it is right:\n" + "\n".join(told)

    def report(self, check: str, problems: list[str], *, fed_back: bool) -> None:
        """Show what a check found, or that it passed."""
        self._context.emit(
            GuardReported(turn=self._context.turn, check=check, problems=tuple(problems), fed_back=fed_back)
        )

    @property
    def members(self) -> MemberCheck:
        """What judges attributes and parameters."""
        return self._bench.members

    async def _all_static(self, changed: Mapping[str, FileDiff]) -> dict[str, list[str] | None]:
        parses: list[str] = []
        names: list[str] = []
        for path, diff in changed.items():
            try:
                after = TextFile.decode(self._bench.files.read(self._bench.files.locate(path)), path).plain
                before = TextFile.decode(diff.before or b"", path).plain
            except FulgurError:
                continue
            real = self._bench.files.locate(path)
            found = await asyncio.to_thread(check, real, before, after, self.members)
            parses += [f"{path}, {problem}" for problem in found.parses]
            names += [f"{path}, {problem}" for problem in found.names]
            if found.unchecked:
                message = f"attributes and parameters in {path} were not all checked: {found.unchecked}"
                self._context.emit(Warned(message=message))
        return {PARSES: parses, NAMES: names}

    async def _tests(self, changed: Mapping[str, FileDiff]) -> list[str] | None:
        """New failures of the tests that touch these files; None when none could be run, which is said."""
        workspace = self._bench.policy.workspace
        present = [path for path, diff in changed.items() if diff.kind != "deleted"]
        tests = await asyncio.to_thread(touching_tests, workspace, present)
        if not tests:
            return None
        python = interpreter(workspace)
        if python is None:
            self._note("tests not run: the project has no Python environment of its own")
            return None
        after = await self._pytest(self._bench.shell, python, workspace, tests)
        before = None
        if not after.clean and not after.missing:
            before = await self._baseline(python, tests, {path: diff.before for path, diff in changed.items()})
        problems, note = judged(after, before)
        self._note(note)
        return None if after.missing else problems

    async def _baseline(self, python: str, tests: list[str], before: Mapping[str, bytes | None]) -> TestRun:
        """The same tests on a copy of the workspace as it was before the edit."""
        with tempfile.TemporaryDirectory(prefix="fulgur-before-") as place:
            folder = Path(place).resolve()
            if not await asyncio.to_thread(copy_as_before, self._bench.policy.workspace, before, folder):
                return TestRun(missing="the workspace is too large to copy")
            there = [test for test in tests if (folder / test).exists()]
            if not there:
                return TestRun()  # the edit brought the tests
            return await self._pytest(self._bench.shell.inside(folder), python, folder, there)

    async def _pytest(self, shell: Shell, python: str, folder: Path, tests: list[str]) -> TestRun:
        command = pytest_command(python, folder, tests)
        try:
            result = await shell.aside(ShellArguments(command=command, timeout=MOST_SECONDS))
        except FulgurError as error:
            return TestRun(missing=error.message)
        return read_run(result.exit_code, result.output, timed_out=result.timed_out)

    def _note(self, message: str) -> None:
        if message:
            self._context.emit(Warned(message=message))


def warm_guards(settings: Settings, bench: Workbench) -> None:
    """Start what the checks need, if they are on."""
    if settings.flag("features.guards"):
        with contextlib.suppress(FulgurError, OSError):  # said when there is something to check
            bench.members.warm()
