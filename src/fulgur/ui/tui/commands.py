"""Slash commands: one table; each calls one method of the agent and says what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError, UsageError
from fulgur.ui.tui.blocks import table
from fulgur.ui.tui.complete import Choice
from fulgur.ui.tui.diff import diff_rows
from fulgur.ui.tui.theme import BLANK, paint

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
    from fulgur.protocol.agent import SessionSummary
    from fulgur.ui.tui.app import Tui

Handler = Callable[["Tui", "Agent", str], Awaitable[None]]


@dataclass(frozen=True)
class Command:
    """One slash command."""

    name: str
    help: str
    run: Handler
    argument: str = ""


async def _model(tui: Tui, agent: Agent, argument: str) -> None:
    if argument:
        await agent.set_model(argument)
        status = agent.status()
        tui.meter.ask_for(status.model, status.context_limit)
        tui.say(f"the next turn is for {status.model}; {status.way_reason}")
        return
    tui.model_names = await agent.models()
    asked = agent.status().model
    names = tui.model_names or ["none"]
    tui.show([paint([("accent" if name == asked else "", f"  {name}")]) for name in names])


async def _status(tui: Tui, agent: Agent, argument: str) -> None:
    status = agent.status()
    answers = status.answering_model or f"{status.model} (asked for; nothing answered yet)"
    context = f"{status.context_used:,} of {status.context_limit:,} tokens" if status.context_limit else "not known yet"
    pairs = [
        ("model", answers),
        ("provider", f"{status.provider} at {status.base_url}" if status.base_url else status.provider),
        ("way", status.way_reason),
        ("abilities", ", ".join(status.abilities) or "none"),
        ("fast tier", "on" if status.fast else "off"),
        ("context", context),
        ("cost", f"${status.cost:.4f}" if status.cost is not None else "price not known"),
        ("sandbox", status.sandbox),
        ("approvals", status.approval_policy),
        ("remembered", ", ".join(f"`{prefix}`" for prefix in status.remembered) or "none"),
        ("rules", ", ".join(status.rules) or "no AGENTS.md"),
        ("workspace", status.workspace),
        ("session", f"{status.session_id}, {status.turns} turns, {status.session_path}"),
    ]
    if status.model and status.answering_model and status.answering_model != status.model:
        pairs.insert(1, ("asked for", status.model))
    rows = table(pairs, tui.screen.width)
    if status.config:
        rows += [BLANK, paint([("dim", "  config: key, value, source")])]
        rows += table([(key, f"{value}   ({source})") for key, value, source in status.config], tui.screen.width)
    for warning in status.warnings:
        rows.append(paint([("warn", f"  ! {warning}")]))
    tui.show(rows)


async def _fast(tui: Tui, agent: Agent, argument: str) -> None:
    if argument not in ("on", "off", ""):
        raise UsageError(f"/fast {argument}?", hint="/fast on, or /fast off")
    on = argument == "on" if argument else not agent.status().fast
    agent.set_fast(on)
    tui.say(f"fast tier {'on' if on else 'off'} from the next turn on")


async def _profile(tui: Tui, agent: Agent, argument: str) -> None:
    if not argument:
        names = ", ".join(tui.settings.profiles) or "none; add [profiles.NAME] to the config"
        tui.say(f"profile: {agent.settings.profile or 'none'}; there are: {names}")
        return
    await agent.set_profile(argument)
    status = agent.status()
    tui.meter.ask_for(status.model, status.context_limit)
    tui.say(f"profile {argument}: the next turn is for {status.model}")


async def _diff(tui: Tui, agent: Agent, argument: str) -> None:
    diff = await asyncio.to_thread(agent.diff)
    if not diff.strip():
        tui.say("no file was changed in this session")
        return
    tui.show(diff_rows(diff, names=True))


async def _undo(tui: Tui, agent: Agent, argument: str) -> None:
    await agent.undo()


async def _resume(tui: Tui, agent: Agent, argument: str) -> None:
    sessions = await asyncio.to_thread(agent.sessions)
    if not argument:
        if not sessions:
            tui.say("no stored session of this folder")
            return
        tui.show([paint([("accent", f"{n:4} "), ("", _describe(s))]) for n, s in enumerate(sessions[:20], 1)])
        tui.say("/resume NUMBER or /resume ID goes on with one")
        return
    if argument.isdigit() and 1 <= int(argument) <= len(sessions):
        argument = sessions[int(argument) - 1].session_id
    await agent.resume(argument)


def _describe(session: SessionSummary) -> str:
    when = time.strftime("%d %b %H:%M", time.localtime(session.updated))
    prompt = " ".join(session.first_prompt.split())[:48]
    undo = "" if session.undo else "  (no undo any more)"
    return f"{when}  {session.turns:3} turns  {prompt}  {session.session_id}{undo}"


async def _fork(tui: Tui, agent: Agent, argument: str) -> None:
    before = agent.status().session_id
    tui.replays = False  # the screen shows it already
    try:
        copy = await agent.fork()
    except FulgurError:
        tui.replays = True
        raise
    tui.say(f"this is now {copy}, a copy from here; {before} stays as it is")


async def _compact(tui: Tui, agent: Agent, argument: str) -> None:
    await agent.compact()


async def _help(tui: Tui, agent: Agent, argument: str) -> None:
    width = tui.screen.width
    rows = table([(f"{c.name} {c.argument}".rstrip(), c.help) for c in COMMANDS.values()], width)
    tui.show([*rows, BLANK, *table(_KEYS, width)])


async def _quit(tui: Tui, agent: Agent, argument: str) -> None:
    tui.quit(0)


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("/model", "choose the model of the next turns, or list them", _model, "[NAME]"),
        Command("/status", "what really answers, context, sandbox, config sources", _status),
        Command("/fast", "ask for the fast service tier", _fast, "on|off"),
        Command("/profile", "apply a profile of the config", _profile, "[NAME]"),
        Command("/diff", "every change of this session", _diff),
        Command("/undo", "put files back to before the last turn that changed any", _undo),
        Command("/resume", "go on with a stored session, or list them", _resume, "[NUMBER|ID]"),
        Command("/fork", "go on in a copy of this session", _fork),
        Command("/compact", "replace old items by a summary now", _compact),
        Command("/help", "commands and keys", _help),
        Command("/quit", "leave; the session stays on disk", _quit),
    )
}

_KEYS = [
    ("Enter", "send; while it answers: redirect it at once"),
    ("Tab", "complete; while it answers: queue for after it"),
    ("Esc", "stop, and keep what was said"),
    ("Ctrl-J, Alt-Enter, \\ Enter", "new line"),
    ("Up, Down", "history"),
    ("@", "name a file"),
    ("Ctrl-C", "stop; twice: leave"),
    ("Ctrl-D", "leave"),
    ("Ctrl-L", "draw the screen again"),
]


def command_choices() -> list[Choice]:
    """The rows of the menu after `/`."""
    return [Choice(command.name, command.help) for command in COMMANDS.values()]


def argument_choices(tui: Tui, name: str) -> Sequence[Choice]:
    """What can follow a command, as far as it is known without waiting."""
    match name:
        case "/fast":
            return [Choice("on"), Choice("off")]
        case "/model":
            return [Choice(model) for model in tui.model_names]
        case "/profile":
            return [Choice(profile) for profile in tui.settings.profiles]
    return []


async def run_command(tui: Tui, agent: Agent, text: str) -> None:
    """Run one line that begins with a slash; what is wrong with it is shown, never raised."""
    name, _, argument = text.strip().partition(" ")
    try:
        if name not in COMMANDS:
            close = [known for known in COMMANDS if known.startswith(name[:3])]
            raise UsageError(
                f"there is no {name}", hint=f"{', '.join(close) or '/help'}; a message cannot begin with /"
            )
        await COMMANDS[name].run(tui, agent, argument.strip())
    except FulgurError as error:
        tui.complain(error.message, error.hint or "")
