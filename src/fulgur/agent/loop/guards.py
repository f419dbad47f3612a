"""Checks between an edit and the word `done`: it parses, the names it uses exist, the tests that cover it pass.

Failures are shown, and fed back to the model once.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fulgur.agent.loop.context import TurnContext
from fulgur.agent.session.history import CHECKED
from fulgur.agent.workbench import Workbench
from fulgur.config.settings import Settings
from fulgur.edit.checks import NAMES, PARSES, TESTS, check
from fulgur.edit.checks.covering import covering_tests
from fulgur.edit.checks.members.process import MemberCheck
from fulgur.edit.checks.tests import (
    MOST_SECONDS,
    NO_PYTHON,
    NONE_COVERS,
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
from fulgur.protocol.agent import GuardReported, GuardStarted, Warned
from fulgur.tools.shell import Shell, ShellArguments
from fulgur.workspace.files import FileDiff
from fulgur.workspace.textfile import TextFile


@dataclass(frozen=True)
class Report:
    """One check: what is wrong, or why it did not run (or not for everything)."""

    check: str
    problems: list[str] = field(default_factory=list)
    unchecked: str = ""


class Guards:
    """The checks of one turn."""

    def __init__(self, context: TurnContext, bench: Workbench) -> None:
        self._context = context
        self._bench = bench

    @property
    def on(self) -> bool:
        """Whether checks are enabled."""
        return self._context.settings.flag("features.guards")

    def warm(self) -> None:
        """Start what the checks need while the model writes."""
        warm_guards(self._context.settings, self._bench)

    async def check(self, changed: Mapping[str, FileDiff], *, read: bool = True) -> str:
        """Check the files; return what the model should fix, empty if all is well. With `read` False, run only the
        tests."""
        if not self.on:
            return ""
        present = {path: diff for path, diff in changed.items() if diff.kind != "deleted"}
        if read:
            self._begin(NAMES)
        found = await self._all_static(present) if read else []
        if not any(report.check == PARSES and report.problems for report in found):
            self._begin(TESTS)
            found.append(await self._tests(changed))
        told: list[str] = []
        for report in found:
            self.report(report.check, report.problems, report.unchecked, fed_back=bool(report.problems) and read)
            told += report.problems
        if not told:
            return ""
        return f"{CHECKED} Fix it, or say why it is right:\n" + "\n".join(told)

    def _begin(self, check: str) -> None:
        self._context.emit(GuardStarted(turn=self._context.turn, check=check))

    def report(self, check: str, problems: Sequence[str], unchecked: str = "", *, fed_back: bool) -> None:
        """Show what a check found, that it passed, or why it did not run."""
        self._context.emit(
            GuardReported(
                turn=self._context.turn,
                check=check,
                problems=tuple(problems),
                unchecked=unchecked,
                fed_back=fed_back,
            )
        )

    @property
    def members(self) -> MemberCheck:
        """The checker of attributes and parameters."""
        return self._bench.members

    async def _all_static(self, changed: Mapping[str, FileDiff]) -> list[Report]:
        parses: list[str] = []
        names: list[str] = []
        unchecked: list[str] = []
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
                unchecked.append(unjudged(path, found.unchecked))
        return [Report(PARSES, parses), Report(NAMES, names, "; ".join(unchecked))]

    async def _tests(self, changed: Mapping[str, FileDiff]) -> Report:
        """New failures of the tests that cover these files, or why nothing is known about them."""
        if not self._context.settings.flag("features.quick_tests"):
            return Report(TESTS, unchecked="tests not run: `features.quick_tests` is off")
        if why := self._unasked:
            return Report(TESTS, unchecked=f"tests not run: {why}")
        workspace = self._bench.policy.workspace
        tests = await asyncio.to_thread(covering_tests, workspace, list(changed))
        if not tests:
            return Report(TESTS, unchecked=NONE_COVERS)
        python = interpreter(workspace)
        if python is None:
            return Report(TESTS, unchecked=NO_PYTHON)
        parts = in_turn(tests)
        runs = await self._runs(self._bench.shell, python, workspace, parts)
        before = None
        if unclean := [part for part, run in zip(parts, runs, strict=True) if not (run.clean or run.missing)]:
            before = await self._baseline(python, unclean, {path: diff.before for path, diff in changed.items()})
        found = judged(together(runs), before)
        if found.problems or found.passed:
            self._note(found.note)
            return Report(TESTS, list(found.problems))
        return Report(TESTS, unchecked=found.note)

    @property
    def _unasked(self) -> str:
        """Why tests, which are commands of the project, may not run without approval; empty if they may."""
        settings = self._context.settings
        if settings.approval_policy == "untrusted":
            return "`approval_policy` is untrusted, and nobody was asked"
        if self._bench.policy.mode == "danger-full-access" and not settings.trusted:
            return "without a sandbox the project must be trusted (`fulgur config trust`)"
        return ""

    async def _runs(self, shell: Shell, python: str, folder: Path, parts: Sequence[list[str]]) -> list[TestRun]:
        """Run the parts one after the other, within the time limit of one run."""
        deadline = time.monotonic() + MOST_SECONDS
        return [
            await self._pytest(shell, python, folder, part, max(deadline - time.monotonic(), 1.0)) for part in parts
        ]

    async def _baseline(self, python: str, parts: list[list[str]], before: Mapping[str, bytes | None]) -> TestRun:
        """Run the same tests on a copy of the workspace as it was before the edit."""
        with tempfile.TemporaryDirectory(prefix="fulgur-before-") as place:
            folder = Path(place).resolve()
            if not await asyncio.to_thread(copy_with, self._bench.policy.workspace, before, folder):
                return TestRun(missing="the workspace is too large to copy")
            there = [[test for test in part if (folder / test).exists()] for part in parts]
            if not any(there):
                return TestRun()  # the edit added the tests
            return together(
                await self._runs(self._bench.shell.inside(folder), python, folder, list(filter(None, there)))
            )

    async def _pytest(self, shell: Shell, python: str, folder: Path, tests: list[str], seconds: float) -> TestRun:
        command = pytest_command(python, folder, tests)
        try:
            result = await shell.run_separately(ShellArguments(command=command, timeout=seconds))
        except FulgurError as error:
            return TestRun(missing=error.message)
        return read_run(result.exit_code, result.output, timed_out=result.timed_out)

    def _note(self, message: str) -> None:
        if message:
            self._context.emit(Warned(message=message))


def unjudged(path: str, why: str) -> str:
    """The note about members that were not checked."""
    return f"not all attributes and parameters in {path} were checked: {why}"


def warm_guards(settings: Settings, bench: Workbench) -> None:
    """Start what the checks need, if they are enabled."""
    if settings.flag("features.guards"):
        with contextlib.suppress(FulgurError, OSError):  # reported when there is something to check
            bench.members.warm()
