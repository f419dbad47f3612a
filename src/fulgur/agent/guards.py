"""Checks between an edit and the word `done`: it parses, what it names exists, the tests that touch it pass.

What fails is shown, and fed back to the model once.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping

from fulgur.agent.context import TurnContext
from fulgur.agent.guard_names import undefined_names, unknown_members
from fulgur.agent.guard_syntax import syntax_problems
from fulgur.agent.guard_tests import MOST_SECONDS, pytest_command, touching_tests
from fulgur.agent.modules import Modules
from fulgur.agent.workbench import Workbench
from fulgur.errors import FulgurError
from fulgur.protocol.agent import GuardReported
from fulgur.tools.files import FileDiff
from fulgur.tools.shell import ShellArguments
from fulgur.tools.textfile import TextFile

_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class Guards:
    """The checks of one turn."""

    def __init__(self, context: TurnContext, bench: Workbench) -> None:
        self._context = context
        self._bench = bench

    async def check(self, changed: Mapping[str, FileDiff]) -> str:
        """Check the files; what the model is told to mend, empty when all is well."""
        if not self._context.settings.flag("features.guards"):
            return ""
        present = {path: diff for path, diff in changed.items() if diff.kind != "deleted"}
        found = await asyncio.to_thread(self._static, present)
        if not found.get("parses") and self._context.settings.flag("features.quick_tests"):
            found["tests"] = await self._tests(list(present))
        told: list[str] = []
        for check, problems in found.items():
            if problems is None:
                continue
            self._context.emit(
                GuardReported(turn=self._context.turn, check=check, problems=tuple(problems), fed_back=bool(problems))
            )
            told += problems
        if not told:
            return ""
        return "A check of your changes found this. Mend it, or say why it is right:\n" + "\n".join(told)

    def _static(self, changed: Mapping[str, FileDiff]) -> dict[str, list[str] | None]:
        parses: list[str] = []
        names: list[str] = []
        modules = Modules(self._bench.policy.workspace)
        for path, diff in changed.items():
            real = self._bench.files.locate(path)
            try:
                source = TextFile.decode(self._bench.files.read(real), path).text
            except FulgurError:
                continue
            problems = syntax_problems(path, source)
            parses += [f"{path}, {problem}" for problem in problems]
            if path.endswith(".py") and not problems:
                lines = added_lines(diff.diff)
                found = [*undefined_names(source, real, lines), *unknown_members(source, lines, modules)]
                names += [f"{path}, {problem}" for problem in found]
        return {"parses": parses, "names exist": names}

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


def added_lines(diff: str) -> set[int]:
    """The numbers of the lines a unified diff adds."""
    added: set[int] = set()
    number = 0
    for line in diff.splitlines():
        if match := _HUNK.match(line):
            number = int(match[1])
        elif line.startswith("+") and not line.startswith("+++"):
            added.add(number)
            number += 1
        elif not line.startswith("-"):
            number += 1
    return added
