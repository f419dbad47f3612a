"""`fulgur exec PROMPT`: one turn without a screen, for scripts and CI."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from fulgur.errors import UsageError
from fulgur.ui.flags import add_config_flags, settings_from
from fulgur.ui.foreign import note, one_row, out, out_json

if TYPE_CHECKING:
    from fulgur.config.settings import Settings
    from fulgur.protocol.agent import AgentEvent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of exec."""
    parser.add_argument("prompt", nargs="?", help="what to do; `-` or nothing: read from stdin")
    add_config_flags(parser)
    parser.add_argument("--json", action="store_true", help="every event as one line of JSON on stdout")
    parser.add_argument("--output-schema", metavar="FILE", type=Path, help="JSON schema the last answer must follow")
    parser.add_argument("-o", "--output-last-message", metavar="FILE", type=Path, help="write the last answer to FILE")
    parser.add_argument(
        "--resume", metavar="SESSION", nargs="?", const="last", help="go on with a session (default: last)"
    )
    parser.add_argument("--fork", metavar="SESSION", help="go on with a copy of a session")
    parser.add_argument("-s", "--sandbox", metavar="MODE", help="the same as -c sandbox_mode=MODE")
    parser.add_argument("--list", action="store_true", help="list the sessions of this folder and end")


def run(args: argparse.Namespace) -> int:
    """0 the turn was done, 1 it failed, 130 it was interrupted."""
    if args.sandbox:
        args.config.append(f"sandbox_mode={args.sandbox}")
    settings = settings_from(args)
    if settings.sources[("approval_policy",)] == "default":
        settings = settings.with_changes(overrides=["approval_policy=never"])  # there is nobody to ask
    if args.list:
        return _list(settings)
    if args.resume and args.fork:
        raise UsageError("--resume and --fork exclude each other")
    prompt = _prompt(args)
    return asyncio.run(_work(args, settings, prompt))


def _prompt(args: argparse.Namespace) -> str:
    """The argument, with piped input behind it when both are given."""
    given = "" if args.prompt in (None, "-") else args.prompt
    piped = "" if sys.stdin.isatty() else sys.stdin.read()
    if not given and not piped.strip() and args.resume and not sys.stdin.isatty():
        raise UsageError("no prompt: nothing came from stdin")
    if given and piped.strip():
        return f"{given}\n\n{piped}"
    if text := given or piped.strip():
        return text
    raise UsageError("no prompt", hint="fulgur exec 'fix the failing test', or pipe it in")


def _format(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise UsageError(f"{path}: a JSON schema is an object")
    return {"type": "json_schema", "name": "output", "schema": schema, "strict": True}


async def _work(args: argparse.Namespace, settings: Settings, prompt: str) -> int:
    from fulgur.agent.agent import Agent
    from fulgur.protocol import agent as events

    agent = await Agent.open(
        settings, session=args.resume, fork=args.fork, interactive=False, format=_format(args.output_schema)
    )
    printer = _Printer(args.json, settings.flag("hide_agent_reasoning"))
    code = 1
    try:
        agent.submit(prompt)
        with _interruptible_output():
            async for event in agent.events():
                printer.show(event)
                if isinstance(event, events.TURN_ENDS):
                    code = _end(event, args.output_last_message)
                    if isinstance(event, events.TurnStopped) or not agent.state.queued:
                        break
    except asyncio.CancelledError:
        code = 130  # the session file has everything that was said
    finally:
        await agent.close()
    return code


@contextlib.contextmanager
def _interruptible_output() -> Iterator[None]:
    """Whoever reads our output may have stopped: then a write blocks, and with it the loop that would hear of an
    interrupt. An interrupt lets the write, and what is still to be written, go nowhere; the session has it all."""
    cancel = signal.getsignal(signal.SIGINT)  # of asyncio: it cancels the main task
    if not callable(cancel) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        for stream in (sys.stdout, sys.stderr):
            _let_go_if_full(stream)
        cancel(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, cancel)


def _let_go_if_full(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # no file behind it, or closed
        number = stream.fileno()
        if not select.select([], [number], [], 0)[1]:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def _end(event: AgentEvent, output: Path | None) -> int:
    from fulgur.protocol import agent as events

    if isinstance(event, events.TurnDone):
        if output is not None:
            output.write_text(event.text + ("" if event.text.endswith("\n") else "\n"), encoding="utf-8")
        return 0
    return 130 if isinstance(event, events.TurnStopped) else 1


class _Printer:
    """Events as JSON lines, or for people: the answer on stdout, everything else on stderr."""

    def __init__(self, as_json: bool, hide_reasoning: bool) -> None:
        self._as_json = as_json
        self._hide_reasoning = hide_reasoning
        self._open = False

    def show(self, event: AgentEvent) -> None:
        from fulgur.protocol import agent as events

        if isinstance(event, events.ThinkingDelta) and self._hide_reasoning:
            return
        if self._as_json:
            out_json(events.encode(event).decode())
            return
        match event:
            case events.MessageDelta():
                self._open = not event.text.endswith("\n")
                out(event.text, end="")
            case events.TurnStarted():
                self._note(event.reason)
            case events.ToolStarted():
                self._note(f"• {one_row(event.title)}")
            case events.ToolFinished() if not event.ok:
                self._note(f"  failed: {event.output.strip().splitlines()[-1][:200] if event.output.strip() else ''}")
            case events.FileChanged():
                self._note(f"  {event.kind} {event.path} (+{event.added} -{event.removed})")
            case events.GuardReported() if event.problems:
                again = " (given back to the model)" if event.fed_back else ""
                self._note(f"  check `{event.check}`{again}: " + "; ".join(event.problems)[:500])
            case events.UsageReported() if event.draft_tokens:
                self._note(
                    f"  {event.output_tokens} tokens, {event.tokens_per_second:,.0f} tok/s with "
                    f"{event.accepted_tokens} of {event.draft_tokens} drafted, raw {event.raw_tokens_per_second:,.0f}"
                )
            case events.Warned():
                self._note(f"warning: {event.message}" + (f" ({event.hint})" if event.hint else ""))
            case events.TurnFailed():
                self._note(f"fulgur: {event.message}" + (f"\n  {event.hint}" if event.hint else ""))
            case events.TurnDone() | events.TurnStopped():
                self._close_line()

    def _note(self, text: str) -> None:
        self._close_line()
        note(text)

    def _close_line(self) -> None:
        if self._open:
            out()
            self._open = False


def _list(settings: Settings) -> int:
    from time import localtime, strftime

    from fulgur.agent.session.log import summaries

    for summary in summaries(settings.home, settings.workspace):
        when = strftime("%Y-%m-%d %H:%M", localtime(summary.updated))
        first = " ".join(summary.first_prompt.split())[:60]
        undo = "" if summary.undo else "  (no undo any more)"
        out(f"{summary.session_id}  {when}  {summary.turns:>3} turns  {summary.model}  {first}{undo}")
    return 0
