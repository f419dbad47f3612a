"""Background commands: the model starts them; the model or the person looks at them and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from fulgur.errors import FulgurError
from fulgur.protocol.agent import JobState
from fulgur.tools.base import Arguments, Report, Tool, ToolResult
from fulgur.tools.output import BoundedOutput
from fulgur.tools.shell_process import CommandResult, ShellProcess

_MOST_RUNNING = 8
_MOST_ENDED = 8  # whose output has not been read yet
_SECONDS = 86_400.0
_KILL_SECONDS = 5.0


class JobArguments(Arguments, frozen=True):
    """Arguments of `shell_job`."""

    job: Annotated[str, Meta(description="the name that shell gave; left out: list them all")] = ""
    input: Annotated[str, Meta(description="text to type, with \\n for Enter")] = ""
    wait: Annotated[float, Meta(description="seconds to wait for its end", ge=0, le=600)] = 1.0
    kill: Annotated[bool, Meta(description="end it")] = False


@dataclass
class _Job:
    name: str
    command: str
    shell: ShellProcess
    task: asyncio.Task[CommandResult]
    output: BoundedOutput
    unconfined: bool
    began: float = field(default_factory=time.time)

    def state(self) -> JobState:
        code = None
        if self.task.done() and not self.task.cancelled() and self.task.exception() is None:
            code = self.task.result().exit_code
        return JobState(
            name=self.name, command=self.command, began=self.began, running=not self.task.done(), exit_code=code
        )


class Jobs:
    """The jobs of one session. `changed` is called when one starts or ends."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._jobs: dict[str, _Job] = {}
        self._count = 0

    def states(self) -> tuple[JobState, ...]:
        """The running jobs, and the ended ones whose output the model has not read."""
        return tuple(job.state() for job in self._jobs.values())

    async def begin(self, shell: ShellProcess, command: str, *, unconfined: bool) -> ToolResult:
        """Start a job, and wait a moment for its first output."""
        ended = [name for name, job in self._jobs.items() if job.task.done()]
        if len(self._jobs) - len(ended) >= _MOST_RUNNING:
            raise FulgurError(f"{_MOST_RUNNING} jobs are already running", hint="End one with shell_job.")
        for name in ended[: max(0, len(ended) - _MOST_ENDED)]:
            del self._jobs[name]
        self._count += 1
        name = f"job{self._count}"
        output = BoundedOutput()
        work = shell.run(command, _SECONDS, lambda text: _keep(output, text))
        task = asyncio.create_task(work)
        self._jobs[name] = _Job(name, command, shell, task, output, unconfined)
        task.add_done_callback(lambda _: self._has_ended(name))
        self.changed()
        return await self.look(JobArguments(job=name, wait=0.5), lambda text: None)

    async def look(self, args: JobArguments, report: Report) -> ToolResult:
        """Look at a job, type into it, or end it; an ended job is forgotten afterwards."""
        if not args.job:
            return ToolResult(True, "\n".join(map(described, self.states())) or "[no job]")
        job = self._named(args.job)
        if args.input:
            if job.unconfined:
                # The person allowed this command, not whatever is typed into it later.
                raise FulgurError("cannot type into a command that runs outside the sandbox")
            job.shell.type(args.input)
        if args.kill:
            job.task.cancel()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(args.wait or None if args.kill else args.wait):
                await asyncio.shield(asyncio.gather(job.task, return_exceptions=True))
        if not job.task.done():
            return ToolResult(True, f"{job.output.text()}\n[{job.name} is running]")
        self._jobs.pop(job.name, None)
        self.changed()
        if not job.task.cancelled() and (error := job.task.exception()) is not None:
            raise error  # it could not be started
        return ToolResult(True, f"{job.output.text()}\n[{job.name} ended: {_how(job.state())}]")

    def output(self, name: str) -> str:
        """What a job has printed so far, for the person; this does not forget the job."""
        return self._named(name).output.text()

    async def stop(self, name: str) -> None:
        """End a job for the person; its output stays for the model."""
        job = self._named(name)
        job.task.cancel()
        await asyncio.wait([job.task], timeout=_KILL_SECONDS)

    def close(self) -> list[str]:
        """End all jobs without a report; return the commands that were still running."""
        self.changed = lambda: None
        ran = [job.command for job in self._jobs.values() if not job.task.done()]
        for job in self._jobs.values():
            job.task.cancel()
            job.shell.close()
        self._jobs.clear()
        return ran

    def tool(self) -> Tool[JobArguments]:
        """`shell_job`."""
        return Tool(
            "shell_job",
            "Look at a command that runs in the background, type into it, or end it; without a name, list them.",
            JobArguments,
            self.look,
            _title,
            mutates=True,
            asks=lambda a: "text typed into a running command may itself be a command" if a.input else "",
            kind="execute",
        )

    def _named(self, name: str) -> _Job:
        if name not in self._jobs:
            raise FulgurError(f"no job named {name}", hint=f"Jobs: {', '.join(self._jobs) or 'none'}")
        return self._jobs[name]

    def _has_ended(self, name: str) -> None:
        if job := self._jobs.get(name):
            job.shell.close()
            self.changed()


def described(job: JobState) -> str:
    """Describe a job in one line."""
    state = f"running for {time.time() - job.began:.0f} s" if job.running else f"ended: {_how(job)}"
    return f"{job.name}  {state}  $ {job.command}"


def _title(args: JobArguments) -> str:
    typed = f" < {args.input}" if args.input else ""
    return f"job {args.job}{typed}{' (kill)' if args.kill else ''}" if args.job else "jobs"


def _how(job: JobState) -> str:
    return "killed" if job.exit_code is None else f"exit code {job.exit_code}"


def _keep(output: BoundedOutput, text: str) -> None:
    output.feed(text.encode())
