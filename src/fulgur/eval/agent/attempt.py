"""Run one task with `fulgur exec` in a separate process, as a user would: the same sandbox, guards and tools."""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fulgur.errors import FulgurError, UsageError
from fulgur.eval.agent.tasks import Task, lay_out, verdict
from fulgur.protocol import agent as events
from fulgur.protocol.agent import AgentEvent
from fulgur.sandbox import start

_GRACE = 30.0  # seconds for a stopped agent to exit by itself


class Result(msgspec.Struct, kw_only=True):
    """The result of a task. `problem` says why it is not resolved."""

    name: str
    kind: str
    about: str
    resolved: bool = False
    problem: str = ""
    ended: str = ""  # done, failed, stopped
    seconds: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None  # None: the price of some answer is unknown
    calls: int = 0
    tool_errors: int = 0
    files: int = 0
    models: list[str] = []  # those that answered
    session: str = ""


@dataclass(frozen=True)
class Runner:
    """How the agent is started."""

    model: str | None
    config: Sequence[str] = ()  # `-c` of exec
    environment: Mapping[str, str] | None = None  # more variables
    seconds: float = 600.0


def add_runner_arguments(parser: argparse.ArgumentParser, seconds: float) -> None:
    """The flags that say how the agent is started."""
    parser.add_argument("-m", "--model", help="the model, as in `fulgur exec -m`")
    parser.add_argument("-c", "--config", metavar="KEY=VALUE", action="append", default=[], help="as in `fulgur exec`")
    parser.add_argument(
        "--timeout", type=float, default=seconds, metavar="S", help=f"seconds for a task (default {seconds:g})"
    )


def runner_from(args: argparse.Namespace) -> Runner:
    """The runner that these flags describe."""
    if args.timeout <= 0:
        raise UsageError(f"--timeout must be above 0 seconds, not {args.timeout:g}")
    return Runner(args.model, args.config, None, args.timeout)


def attempt(task: Task, runner: Runner) -> Result:
    """Set up the task, let the agent work on it, and judge the result."""
    with tempfile.TemporaryDirectory(prefix="fulgur-eval-", ignore_cleanup_errors=True) as place:
        folder = Path(place).resolve() / "work" / task.name
        lay_out(task, folder)
        result = Result(name=task.name, kind=task.kind, about=task.about)
        said = work(task.prompt, folder, runner, result)
        result.problem = verdict(task, folder, Path(place).resolve())
        result.resolved = not result.problem
        if result.problem and said:
            result.problem += f" (the agent said: {said})"
    return result


def work(prompt: str, folder: Path, runner: Runner, result: Result, *, resume: bool = False) -> str:
    """Run the agent in a folder and record what it does; returns why it failed, or an empty text.

    `resume`: continue the same session."""
    began = time.perf_counter()
    command = start.python("fulgur", "exec", "--json", "-C", str(folder), "--timeout", f"{runner.seconds:g}")
    command += ["-m", runner.model] if runner.model else []
    command += ["--resume", result.session] if resume else []
    for setting in runner.config:
        command += ["-c", setting]
    tally = Tally(result)
    with tempfile.TemporaryFile() as errors:
        process = start.popen(
            [*command, "--", prompt], folder.parent, start.environment(runner.environment),
            stdout=start.PIPE, stderr=errors,
        )  # fmt: skip
        timer = threading.Timer(runner.seconds + _GRACE, process.kill)
        timer.start()
        try:
            for line in process.stdout or ():
                tally.see(events.decode(line))
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
        result.seconds = round(result.seconds + time.perf_counter() - began, 2)
        errors.seek(0)
        said = " ".join(errors.read().decode(errors="replace").split())
    if not result.session:  # a wrong model or setting: no task would get further
        raise FulgurError(f"the agent did not start: {said[-500:]}")
    return tally.failure or (said[-300:] if code else "")


class Tally:
    """Accumulates the result from the events of a turn."""

    def __init__(self, result: Result) -> None:
        self.failure = ""
        self._result = result
        self._files: set[str] = set()

    def see(self, event: AgentEvent) -> None:
        result = self._result
        match event:
            case events.SessionStarted():
                result.session = event.session_id
            case events.UsageReported():
                result.cached_tokens += event.cached_tokens
                self._answered(event, [event.model])
            case events.MemberFinished():
                self._answered(event, event.models)
            case events.ToolFinished():
                result.calls += 1
                result.tool_errors += _misused(event)
            case events.FileChanged():
                self._files.add(event.path)
                result.files = len(self._files)
            case events.TurnDone() | events.TurnStopped():
                result.ended = "done" if isinstance(event, events.TurnDone) else "stopped"
            case events.TurnFailed():
                result.ended, self.failure = "failed", event.message

    def _answered(self, event: events.UsageReported | events.MemberFinished, models: Sequence[str]) -> None:
        result = self._result
        known = result.cost if result.models else 0.0
        result.cost = None if known is None or event.cost is None else round(known + event.cost, 6)
        result.input_tokens += event.input_tokens
        result.output_tokens += event.output_tokens
        result.models += [model for model in models if model not in result.models]


def _misused(event: events.ToolFinished) -> bool:
    """Whether the tool could not carry out a call. A command that ran and failed does not count: tests fail, searches
    find nothing."""
    ran = event.name in ("shell", "shell_job") and "[exit code" in event.output
    return not event.ok and not ran
