"""Checks between an edit and the word `done`: it parses, what it names exists, the tests that touch it pass.

What fails is shown, and fed back to the model once.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Mapping

from fulgur.agent.loop.context import TurnContext
from fulgur.agent.workbench import Workbench
from fulgur.config.settings import Settings
from fulgur.edit.checks import NAMES, PARSES, TESTS, check
from fulgur.edit.checks.members.process import MemberCheck
from fulgur.edit.checks.tests import MOST_SECONDS, pytest_command, touching_tests
from fulgur.errors import FulgurError
from fulgur.protocol.agent import GuardReported, Warned
from fulgur.tools.shell import ShellArguments
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
            found[TESTS] = await self._tests(list(present))
        told: list[str] = []
        for name, problems in found.items():
            if problems is None:
                continue
            self.report(name, problems, fed_back=bool(problems) and read)
            told += problems
        if not told:
            return ""
        return "A check of your changes found this. Mend it, or say why it is right:\n" + "\n".join(told)

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

    async def _tests(self, changed: list[str]) -> list[str] | None:
        """Failures of the tests that touch these files; None when there are none to run, or they take too long."""
        workspace = self._bench.policy.workspace
        tests = await asyncio.to_thread(touching_tests, workspace, changed)
        if not tests:
            return None
        command = f"cd {shlex.quote(str(workspace))} && {pytest_command(workspace, tests)}"
        try:
            result = await self._bench.shell.aside(ShellArguments(command=command, timeout=MOST_SECONDS))
        except FulgurError:
            return None
        # pytest: 0 passed, 1 failed; anything else (no pytest, nothing collected, time-out) says nothing of the edit.
        if result.exit_code != 1 or result.timed_out or "No module named pytest" in result.output:
            return [] if result.exit_code == 0 else None
        return [f"{', '.join(tests)}:\n{result.output[-4000:].strip()}"]


def warm_guards(settings: Settings, bench: Workbench) -> None:
    """Start what the checks need, if they are on."""
    if settings.flag("features.guards"):
        with contextlib.suppress(FulgurError, OSError):  # said when there is something to check
            bench.members.warm()
