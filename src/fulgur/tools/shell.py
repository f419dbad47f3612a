"""The shell tool: one persistent shell in the foreground, and background commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from fulgur.errors import FulgurError
from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.choose import Unconfined
from fulgur.sandbox.policy import Policy
from fulgur.tools.base import Arguments, Report, Tool, ToolResult
from fulgur.tools.jobs import Jobs
from fulgur.tools.shell_process import CommandResult, ShellProcess

_LONGEST = 3600.0


class ShellArguments(Arguments, frozen=True):
    """Arguments of `shell`."""

    command: Annotated[str, Meta(description="bash; the folder and variables stay from call to call", min_length=1)]
    timeout: Annotated[float, Meta(description="seconds until it is stopped", gt=0, le=_LONGEST)] = 120.0
    background: Annotated[bool, Meta(description="let it go on; look at it with shell_job")] = False
    unsandboxed: Annotated[bool, Meta(description="ask the person to let it run without the sandbox")] = False
    reason: Annotated[str, Meta(description="why it needs to be unsandboxed, for the person who is asked")] = ""


class Shell:
    """The session's shells. A person has allowed whatever runs `unconfined`, that is, outside the sandbox."""

    def __init__(self, sandbox: Sandbox | FulgurError, policy: Policy, environment: dict[str, str]) -> None:
        self._sandbox = sandbox
        self._policy = policy
        self._environment = environment
        self._main: ShellProcess | None = None
        self.jobs = Jobs()

    async def run(self, args: ShellArguments, report: Report, *, unconfined: bool = False) -> ToolResult:
        """Run one command, in the sandbox unless a person said otherwise."""
        if args.background:
            return await self.jobs.begin(self._beside(self._new(unconfined)), args.command, unconfined=unconfined)
        if unconfined and not isinstance(self._sandbox, Unconfined):
            return await self._once(self._new(True), args, report)
        result = await self._foreground().run(args.command, args.timeout, report)
        return ToolResult(result.exit_code == 0, _told(result, args.timeout))

    @property
    def folder(self) -> Path:
        """The folder in which the next command runs."""
        return self._main.folder if self._main is not None else self._policy.workspace

    async def run_read_only(self, args: ShellArguments, report: Report, variables: Mapping[str, str]) -> ToolResult:
        """Run a command without asking, in a separate sandboxed shell. No function or variable of an earlier command
        and no program inside the workspace can replace the programs it names."""
        if isinstance(self._sandbox, FulgurError):
            raise self._sandbox
        environment = {
            name: value
            for name, value in {**self._environment, **variables}.items()
            if name not in ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS") and not name.startswith("BASH_FUNC_")
        }
        folders = [Path(part) for part in environment.get("PATH", os.defpath).split(os.pathsep)]
        writable = (self._policy.workspace, *self._policy.writable)
        environment["PATH"] = os.pathsep.join(
            str(folder)
            for folder in folders
            if folder.is_absolute() and not any(folder.resolve().is_relative_to(root) for root in writable)
        )
        return await self._once(ShellProcess(self._sandbox, self._policy, environment), args, report)

    def inside(self, folder: Path) -> Shell:
        """A shell with the same sandbox around a copy of the workspace, for checks. The workspace stays visible, since
        its environment may be what runs them."""
        roots = (*self._policy.extra_roots, self._policy.workspace)
        return Shell(self._sandbox, replace(self._policy, workspace=folder, extra_roots=roots), self._environment)

    async def run_separately(self, args: ShellArguments) -> CommandResult:
        """Run a command in a separate sandboxed shell, for checks that must not disturb the session's shell."""
        shell = self._new(False)
        try:
            return await shell.run(args.command, args.timeout)
        finally:
            shell.close()

    def close(self) -> list[str]:
        """End everything; return the background commands that were still running."""
        ran = self.jobs.close()
        if self._main is not None:
            self._main.close()
            self._main = None
        return ran

    def tools(self) -> list[Tool]:  # type: ignore[type-arg]
        """The tools shell and shell_job."""
        return [
            Tool(
                "shell",
                "Run a bash command in the workspace, in a terminal. What it may touch is limited by the sandbox.",
                ShellArguments,
                self.run,
                lambda a: f"$ {a.command}",
                mutates=True,
                parallel=False,
                kind="execute",
            ),
            self.jobs.tool(),
        ]

    def _foreground(self) -> ShellProcess:
        if self._main is None:
            self._main = self._new(False)
        return self._main

    def _new(self, unconfined: bool) -> ShellProcess:
        sandbox = Unconfined() if unconfined else self._sandbox
        if isinstance(sandbox, FulgurError):
            raise sandbox
        return ShellProcess(sandbox, self._policy, self._environment)

    def _beside(self, shell: ShellProcess) -> ShellProcess:
        """Move the shell to the folder of the foreground shell."""
        shell.folder = self.folder
        return shell

    async def _once(self, shell: ShellProcess, args: ShellArguments, report: Report) -> ToolResult:
        """Run one command in a separate shell."""
        try:
            result = await self._beside(shell).run(args.command, args.timeout, report)
        finally:
            shell.close()
        return ToolResult(result.exit_code == 0, _told(result, args.timeout))


def _told(result: CommandResult, timeout: float) -> str:
    """The output and how it ended, as the model reads it."""
    notes = []
    if result.timed_out:
        notes.append(f"[stopped after {timeout:g} s; use `timeout` or `background` for long commands]")
    elif result.exit_code:
        notes.append(f"[exit code {result.exit_code}]")
    if result.shell_ended:
        notes.append("[the shell ended with it; the next command gets a new one]")
    body = result.output.rstrip("\n")
    return "\n".join([*([body] if body else []), *notes]) or "[no output]"
