"""Checks between an edit and the word `done`: it parses, what it names exists, the tests that touch it pass.

What fails is shown, and fed back to the model once.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from fulgur.agent.loop.context import TurnContext
from fulgur.agent.workbench import Workbench
from fulgur.config.settings import Settings
from fulgur.edit.checks.imports import unknown_imports
from fulgur.edit.checks.members.introduced import added_lines
from fulgur.edit.checks.members.problem import Problem
from fulgur.edit.checks.names import undefined_names
from fulgur.edit.checks.syntax import syntax_problems
from fulgur.edit.checks.tests import MOST_SECONDS, pytest_command, touching_tests
from fulgur.errors import FulgurError
from fulgur.protocol.agent import GuardReported, Warned
from fulgur.tools.shell import ShellArguments
from fulgur.workspace.files import FileDiff
from fulgur.workspace.textfile import TextFile

PARSES, NAMES, TESTS = "parses", "names exist", "tests"


@dataclass
class Static:
    """What reading one changed file found; `unchecked` says what there was no time for."""

    parses: list[str] = field(default_factory=list)
    names: list[Problem] = field(default_factory=list)
    unchecked: str = ""


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
        for check, problems in found.items():
            if problems is None:
                continue
            self.report(check, problems, fed_back=bool(problems) and read)
            told += problems
        if not told:
            return ""
        return "A check of your changes found this. Mend it, or say why it is right:\n" + "\n".join(told)

    def report(self, check: str, problems: list[str], *, fed_back: bool) -> None:
        """Show what a check found, or that it passed."""
        self._context.emit(
            GuardReported(turn=self._context.turn, check=check, problems=tuple(problems), fed_back=fed_back)
        )

    async def static(self, path: str, before: str, after: str) -> Static:
        """Read one file as it was and as it would be."""
        return await asyncio.to_thread(self._static, path, before, after)

    def say_unchecked(self, path: str, static: Static) -> None:
        """A check that was cut short says so."""
        if static.unchecked:
            message = f"attributes and parameters in {path} were not all checked: {static.unchecked}"
            self._context.emit(Warned(message=message))

    async def _all_static(self, changed: Mapping[str, FileDiff]) -> dict[str, list[str] | None]:
        parses: list[str] = []
        names: list[str] = []
        for path, diff in changed.items():
            try:
                after = TextFile.decode(self._bench.files.read(self._bench.files.locate(path)), path).text
                before = TextFile.decode(diff.before or b"", path).text
            except FulgurError:
                continue
            found = await self.static(path, before, after)
            parses += [f"{path}, {problem}" for problem in found.parses]
            names += [f"{path}, {problem}" for problem in found.names]
            self.say_unchecked(path, found)
        return {PARSES: parses, NAMES: names}

    def _static(self, path: str, before: str, after: str) -> Static:
        found = Static(parses=syntax_problems(path, after))
        if found.parses:
            return found
        lines = added_lines(before, after)
        real = self._bench.files.locate(path)
        if path.endswith(".py"):
            checked = self._bench.members.check(real, before, after)
            found.names = sorted([*undefined_names(after, real, lines), *checked.problems], key=lambda p: p.line)
            found.unchecked = checked.unchecked
        else:
            found.names = unknown_imports(after, real, lines)
        return found

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
