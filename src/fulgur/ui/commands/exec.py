"""`fulgur exec PROMPT`: one turn without a screen, for scripts and CI."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
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
from fulgur.ui.foreign import note, one_row, out, out_json, whole_text

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
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
        "--resume", metavar="SESSION", nargs="?", const="last", help="continue a session (default: the last one)"
    )
    parser.add_argument("--fork", metavar="SESSION", help="continue in a copy of a session")
    parser.add_argument("-s", "--sandbox", metavar="MODE", help="the same as -c sandbox_mode=MODE")
    parser.add_argument("--variants", metavar="N", type=int, help="make N solutions and take the best that passes")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="stop after this long, with exit code 1")
    parser.add_argument("--list", action="store_true", help="list the sessions of this folder and exit")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 if the turn was done, 1 if it failed, 130 if it was interrupted."""
    if args.sandbox:
        args.config.append(f"sandbox_mode={args.sandbox}")
    settings = settings_from(args)
    if settings.sources[("approval_policy",)] == "default":
        settings = settings.with_changes(overrides=["approval_policy=never"])  # nobody is there to answer
    if args.list:
        return _list(settings)
    if args.variants is not None and args.output_schema:
        raise UsageError("--variants and --output-schema cannot be used together")
    if args.resume and args.fork:
        raise UsageError("--resume and --fork cannot be used together")
    if args.timeout is not None and args.timeout <= 0:
        raise UsageError(f"--timeout {args.timeout:g}: must be a number of seconds above 0")
    if args.variants is not None:
        from fulgur.agent.crew.variants import check_count

        check_count(args.variants)
    if args.output_last_message is not None and not args.output_last_message.absolute().parent.is_dir():
        # Report it before the work, not after.
        raise UsageError(f"{args.output_last_message}: its folder does not exist")
    if args.resume and args.prompt is None:
        _resume_last(args, settings)
    answer_format = _format(args.output_schema)
    return asyncio.run(_work(args, settings, _prompt(args), answer_format))


def _resume_last(args: argparse.Namespace, settings: Settings) -> None:
    """`--resume "go on"`: the value is the prompt if no session id starts with it."""
    from fulgur.agent.session.log import summaries

    known = [summary.session_id for summary in summaries(settings.home)]
    if args.resume != "last" and not any(session.startswith(args.resume) for session in known):
        args.resume, args.prompt = "last", args.resume


def _prompt(args: argparse.Namespace) -> str:
    """The argument, followed by piped input if both are given."""
    given = "" if args.prompt in (None, "-") else whole_text(args.prompt).strip()
    piped = "" if sys.stdin.isatty() else _piped()
    if given and piped.strip():
        return f"{given}\n\n{piped}"
    if text := given or piped.strip():
        return text
    raise UsageError("no prompt", hint="fulgur exec 'fix the failing test', or pipe it in")


def _piped() -> str:
    """Read all of stdin; a diff may contain bytes that are not UTF-8, which become replacement characters."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    return sys.stdin.read()


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
        raise UsageError(f"{path}: a JSON schema must be an object")
    return {"type": "json_schema", "name": "output", "schema": schema, "strict": True}


def _misfit(text: str, schema: dict[str, Any]) -> str:
    """What is wrong with an answer that should follow a schema; empty if it does."""
    import fastjsonschema

    try:
        fastjsonschema.validate(schema, json.loads(text))
    except fastjsonschema.JsonSchemaException as error:  # from the answer, or from the schema itself
        return str(error)
    except ValueError as error:
        return f"it is not JSON: {error}"
    return ""


async def _work(args: argparse.Namespace, settings: Settings, prompt: str, answer_format: dict[str, Any] | None) -> int:
    from fulgur.agent.agent import Agent
    from fulgur.protocol import agent as events

    agent = await Agent.open(settings, session=args.resume, fork=args.fork, interactive=False, format=answer_format)
    printer = _Printer(args.json, settings.flag("hide_agent_reasoning"), only_last=answer_format is not None)
    code = 1
    if args.variants is not None:
        try:
            async with asyncio.timeout(args.timeout):
                return await _best_of(agent, args.variants, prompt, printer, args.output_last_message)
        except TimeoutError:
            note(f"fulgur: stopped after {args.timeout:g} s; nothing was changed")
            return 1
        except asyncio.CancelledError:
            return 130
        finally:
            await agent.close()
    try:
        agent.submit(prompt)
        with _interruptible_output():
            async with asyncio.timeout(args.timeout):
                async for event in agent.events():
                    printer.show(event)
                    if isinstance(event, events.TURN_ENDS):
                        code = _end(event, args.output_last_message, answer_format)
                        if isinstance(event, events.TurnStopped) or not agent.state.queued:
                            break
    except TimeoutError:
        printer.close_line()
        note(f"fulgur: stopped after {args.timeout:g} s; `fulgur exec --resume {agent.state.log.id} …` continues")
    except asyncio.CancelledError:
        code = 130  # the session file has everything that was said
    finally:
        await agent.close()
    return code


async def _best_of(agent: Agent, count: int, prompt: str, printer: _Printer, output: Path | None) -> int:
    """Make several solutions; take the best one if its checks pass."""
    from fulgur.agent.crew.programs import make_variants, take_variant

    async def show() -> None:
        async for event in listening:
            printer.show(event)

    listening, variants = agent.events(), None
    showing = asyncio.create_task(show())
    try:
        variants = await make_variants(agent, count, prompt)
        best = variants.ranked[0] if variants.ranked else None
        if best is None or not best.passes:
            note("fulgur: no variant passes its checks; nothing was changed")
            return 1
        text = best.member.outcome.text
        if not await take_variant(agent, variants, best.number):
            return 1
        if output is not None:
            output.write_text(text + ("" if text.endswith("\n") else "\n"), encoding="utf-8")
        return 0
    finally:
        await asyncio.sleep(0)  # let the last events be shown
        showing.cancel()
        if variants is not None:
            variants.close()


@contextlib.contextmanager
def _interruptible_output() -> Iterator[None]:
    """Let an interrupt through when the reader of our output has stopped reading. A write then blocks, and with it the
    loop that should handle the interrupt. On an interrupt, discard this and later output; the session has it all."""
    cancel = signal.getsignal(signal.SIGINT)  # asyncio's handler: it cancels the main task
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
    with contextlib.suppress(OSError, ValueError):  # not backed by a file, or closed
        number = stream.fileno()
        if not select.select([], [number], [], 0)[1]:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def _end(event: AgentEvent, output: Path | None, answer_format: dict[str, Any] | None) -> int:
    from fulgur.protocol import agent as events

    if isinstance(event, events.TurnDone):
        if output is not None:
            output.write_text(event.text + ("" if event.text.endswith("\n") else "\n"), encoding="utf-8")
        if answer_format is not None and (wrong := _misfit(event.text, answer_format["schema"])):
            note(f"fulgur: the answer does not follow the schema: {wrong}")
            return 1
        return 0
    return 130 if isinstance(event, events.TurnStopped) else 1


class _Printer:
    """Prints events as JSON lines, or for people: the answer to stdout, everything else to stderr.

    With `only_last`, stdout gets only the last answer, so that a program can read it.
    """

    def __init__(self, as_json: bool, hide_reasoning: bool, *, only_last: bool) -> None:
        self._as_json = as_json
        self._only_last = only_last
        self._hide_reasoning = hide_reasoning
        self._open = False

    def show(self, event: AgentEvent) -> None:
        from msgspec import structs

        from fulgur.protocol import agent as events

        if isinstance(event, events.ThinkingDelta) and self._hide_reasoning:
            return
        if self._as_json:
            if isinstance(event, events.FileChanged):
                event = structs.replace(event, old=None, new=None)  # the line has the diff; whole files are for editors
            out_json(events.encode(event).decode())
            return
        match event:
            case events.MessageDelta() if self._only_last:
                pass
            case events.MessageDelta():
                self._open = not event.text.endswith("\n")
                out(event.text, end="")
            case events.TurnStarted():
                self._note(event.reason)
            case events.Routed():
                self._note(f"→ {event.side}: {event.model}, {event.why}")
            case events.RouteCosts() if len(event.parts) > 1:
                from fulgur.ui.tui.blocks import costs

                self._note(costs(event.parts))
            case events.MemberStarted():
                self._note(f"• {event.member} ({event.model}): {one_row(event.task)[:200]}")
            case events.MemberFinished():
                not_merged = f", not merged: {', '.join(event.conflicts)}" if event.conflicts else ""
                self._note(f"  {event.member}: {event.how}, answered by {', '.join(event.models)}{not_merged}")
            case events.VariantsRanked():
                for variant in event.variants:
                    mark = "✓" if variant.proven else "·" if variant.passes else "✗"
                    self._note(f"{mark} variant {variant.number}: {'; '.join(variant.reasons)}")
            case events.ToolStarted():
                self._note(f"• {one_row(event.title)}")
            case events.ToolFinished() if not event.ok and event.output.strip():
                self._note(f"  failed: {event.output.strip().splitlines()[-1][:200]}")
            case events.FileChanged():
                self._note(f"  {event.kind} {event.path} (+{event.added} -{event.removed})")
            case events.GuardReported() if event.problems:
                again = " (given back to the model)" if event.fed_back else ""
                self._note(f"  check `{event.check}`{again}: " + "; ".join(event.problems)[:500])
            case events.GuardReported() if event.unchecked:
                self._note(f"  {event.unchecked}")
            case events.UsageReported() if event.draft_tokens:
                self._note(
                    f"  {event.output_tokens} tokens, {event.tokens_per_second:,.0f} tok/s with "
                    f"{event.accepted_tokens} of {event.draft_tokens} drafted, raw {event.raw_tokens_per_second:,.0f}"
                )
            case events.Warned():
                self._note(f"warning: {event.message}" + (f" ({event.hint})" if event.hint else ""))
            case events.TurnFailed():
                self._note(f"fulgur: {event.message}" + (f"\n  {event.hint}" if event.hint else ""))
            case events.TurnDone() if self._only_last:
                out(event.text)
            case events.TurnDone() | events.TurnStopped():
                self.close_line()

    def _note(self, text: str) -> None:
        self.close_line()
        note(text)

    def close_line(self) -> None:
        """End the current line, so that what follows starts on a new one."""
        if self._open:
            out()
            self._open = False


def _list(settings: Settings) -> int:
    from time import localtime, strftime

    from fulgur.agent.session.log import summaries

    for summary in summaries(settings.home, settings.workspace):
        when = strftime("%Y-%m-%d %H:%M", localtime(summary.updated))
        turns = f"{summary.turns:>3} turn{' ' if summary.turns == 1 else 's'}"
        first = " ".join(summary.first_prompt.split())[:60]
        undo = "" if summary.undo else "  (can no longer be undone)"
        out(f"{summary.session_id}  {when}  {turns}  {summary.model}  {first}{undo}")
    return 0
