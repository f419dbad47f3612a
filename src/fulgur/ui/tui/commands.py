"""Slash commands: one table; each calls one method of the agent and reports what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fulgur.agent.crew.roles import find_roles
from fulgur.config.keys import POLICIES, SANDBOXES
from fulgur.errors import FulgurError, UsageError
from fulgur.ui.tui import prompts, session_commands, settings_commands
from fulgur.ui.tui.blocks import prompt_rows, table
from fulgur.ui.tui.complete import Choice
from fulgur.ui.tui.theme import BLANK

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
    from fulgur.config.named import NamedText
    from fulgur.ui.tui.app import Tui

Handler = Callable[["Tui", "Agent", str], Awaitable[None]]


@dataclass(frozen=True)
class Command:
    """One slash command."""

    name: str
    help: str
    run: Handler
    argument: str = ""
    is_turn: bool = False
    """It begins a turn, which shows what was typed, and is given the whole line."""


async def _agents(tui: Tui, agent: Agent, argument: str) -> None:
    roles = await asyncio.to_thread(find_roles, agent.settings)
    if not roles:
        tui.say(
            f"no roles; {agent.settings.home}/agents/NAME.md defines one, .fulgur/agents/NAME.md in a trusted project"
        )
        return
    tui.show(
        table(
            [(role.name, f"{role.model or 'any model'}  {role.description}") for role in roles.values()],
            tui.screen.width,
        )
    )


async def _tell(tui: Tui, agent: Agent, argument: str) -> None:
    name, _, text = argument.partition(" ")
    if not text.strip():
        raise UsageError(
            "/tell needs a subagent's name and a text", hint=f"Running: {', '.join(agent.members) or 'none'}"
        )
    agent.tell(name, text.strip())


async def _program(tui: Tui, agent: Agent, line: str) -> None:
    tui.in_background(agent.program(line), line)


async def _init(tui: Tui, agent: Agent, line: str) -> None:
    _send_prompt(tui, agent, line, prompts.init_prompt())


async def _review(tui: Tui, agent: Agent, line: str) -> None:
    _send_prompt(tui, agent, line, prompts.review_prompt(line.partition(" ")[2].strip()))


def _send_prompt(tui: Tui, agent: Agent, line: str, prompt: str) -> None:
    from fulgur.agent.crew.programs import need_words

    need_words(agent, line.partition(" ")[0])
    tui.expanded[prompt] = line
    agent.queue(prompt)


async def _help(tui: Tui, agent: Agent | None, argument: str) -> None:
    width = tui.screen.width
    rows = table([(f"{c.name} {c.argument}".rstrip(), c.help) for c in COMMANDS.values()], width)
    tui.show([*rows, BLANK, *table(_KEYS, width)])


async def _quit(tui: Tui, agent: Agent | None, argument: str) -> None:
    tui.quit(0)


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("/model", "choose the model of the next turns, or list them", settings_commands.model, "[NAME]"),
        Command("/status", "which model answers, context, sandbox, config sources", settings_commands.status),
        Command("/fast", "ask for the fast service tier", settings_commands.fast, "on|off"),
        Command("/profile", "apply a profile of the config", settings_commands.profile, "[NAME]"),
        Command("/todo", "the model's plan and its progress", session_commands.todo),
        Command(
            "/jobs", "background commands; show the output of one, or stop it", session_commands.jobs, "[[stop] NAME]"
        ),
        Command("/diff", "every change of this session", session_commands.show_diff),
        Command("/undo", "restore the files to before the last turn that changed any", session_commands.undo),
        Command("/resume", "continue a stored session, or list them", session_commands.resume, "[NUMBER|ID]"),
        Command("/rewind", "go back to before a turn: files and conversation", session_commands.rewind, "[TURN]"),
        Command("/new", "start a new session; this one is kept", session_commands.new),
        Command("/clear", "the same, with an empty screen", session_commands.clear),
        Command("/fork", "continue in a copy of this session", session_commands.fork),
        Command("/plan", "a read-only model writes a task list, for you to edit", _program, "WISH", is_turn=True),
        Command("/tasks", "run a task list (TASKS.md)", _program, "[FILE]", is_turn=True),
        Command("/variants", "several solutions, checked and ranked", _program, "[N] TASK", is_turn=True),
        Command("/take", "take one of the variants", _program, "NUMBER", is_turn=True),
        Command("/agents", "the roles of subagents", _agents),
        Command("/tell", "redirect one running subagent, or all", _tell, "NAME|all TEXT"),
        Command("/compact", "replace old messages with a summary now", session_commands.compact),
        Command(
            "/review",
            "look for bugs in the working tree, a commit or a branch",
            _review,
            "[COMMIT|branch NAME]",
            is_turn=True,
        ),
        Command("/init", "write an AGENTS.md for this project", _init, is_turn=True),
        Command(
            "/permissions",
            "sandbox, approvals and what is always allowed; or change one",
            settings_commands.permissions,
            "[MODE]",
        ),
        Command("/hooks", "commands that run on events", settings_commands.hooks),
        Command("/skills", "instructions that the model can read when needed", settings_commands.skills),
        Command("/mcp", "MCP servers and their tools", settings_commands.mcp),
        Command("/export", "write the session as Markdown", session_commands.export, "[FILE]"),
        Command("/copy", "copy the last answer to the clipboard", session_commands.copy_answer),
        Command("/help", "commands and keys", _help),
        Command("/quit", "quit; the session stays on disk", _quit),
    )
}

_WITHOUT_AGENT: dict[str, Callable[[Tui, str], Awaitable[None]]] = {
    "/model": settings_commands.another_model,
    "/help": lambda tui, argument: _help(tui, None, argument),
    "/quit": lambda tui, argument: _quit(tui, None, argument),
}

_KEYS = [
    ("Enter", "send; while it answers: redirect it at once"),
    ("Tab", "complete; while it answers: queue for after it"),
    ("Esc", "stop; the answer so far is kept"),
    ("Ctrl-J, Alt-Enter, \\ Enter", "new line"),
    ("Up, Down", "history; Up with nothing typed takes back a queued prompt"),
    ("Ctrl-R", "search the history"),
    ("Ctrl-G", "write in your editor ($VISUAL, $EDITOR)"),
    ("!command", "run a command yourself; the model sees its output"),
    ("@", "name a file"),
    ("Ctrl-C", "stop; twice: quit"),
    ("Ctrl-D", "quit"),
    ("Ctrl-T", 'with model = "auto": give the turn, or the next one, to the other model'),
    ("Ctrl-L", "redraw the screen"),
]


def command_choices(own: dict[str, NamedText]) -> list[Choice]:
    """The rows of the menu after `/`; a person's own command cannot shadow a built-in one."""
    added = [
        Choice(name, text.head.get("description", str(text.path))) for name, text in own.items() if name not in COMMANDS
    ]
    return [Choice(command.name, command.help) for command in COMMANDS.values()] + added


def argument_choices(tui: Tui, name: str) -> Sequence[Choice]:
    """The choices for a command's argument, as far as they are known without waiting."""
    match name:
        case "/fast":
            return [Choice("on"), Choice("off")]
        case "/model":
            return [Choice(offer.name, settings_commands.about(offer)) for offer in tui.offers]
        case "/jobs":
            return [Choice(job.name, job.command) for job in tui.transcript.jobs]
        case "/tell":
            return [Choice(name) for name in (*tui.transcript.members, "all")] if tui.transcript.members else []
        case "/profile":
            return [Choice(profile) for profile in tui.settings.profiles]
        case "/permissions":
            return [Choice(name) for name in (*SANDBOXES, *POLICIES)]
        case "/resume":
            return [Choice(s.session_id, session_commands.described(s)) for s in tui.stored_sessions()]
    return []


def needs_nobody(text: str) -> bool:
    """Whether a line works while no model answers: above all, choosing another one."""
    return text.split(" ", 1)[0] in _WITHOUT_AGENT


async def run_without_agent(tui: Tui, text: str) -> None:
    """Run such a command after the configured model could not be reached."""
    name, _, argument = text.strip().partition(" ")
    tui.transcript.add("prompt", prompt_rows(text, tui.screen.width))
    await _WITHOUT_AGENT[name](tui, argument.strip())


def is_turn(tui: Tui, text: str) -> bool:
    """Whether a line begins a turn, which shows what was typed."""
    name = text.strip().partition(" ")[0]
    return COMMANDS[name].is_turn if name in COMMANDS else name in tui.own_commands


async def run_line(tui: Tui, agent: Agent, text: str) -> None:
    """Run a line: a leading slash makes it a command, a leading exclamation mark goes to the shell."""
    if not text.startswith("!"):
        await run_command(tui, agent, text)
        return
    try:
        if not text[1:].strip():
            raise UsageError("! and nothing after it", hint="!command runs a command yourself, such as !git status")
        await agent.run_own(text[1:].strip())
    except FulgurError as error:
        tui.complain(error.message, error.hint or "")


async def run_command(tui: Tui, agent: Agent, text: str) -> None:
    """Run one slash command; errors are shown, never raised."""
    name, _, argument = text.strip().partition(" ")
    try:
        if name not in COMMANDS and (own := tui.own_commands.get(name)):
            prompt = prompts.own_prompt(own, argument.strip())
            tui.expanded[prompt] = text.strip()
            agent.queue(prompt)
            return
        if name not in COMMANDS:
            import difflib  # keep it out of the first screen's start-up

            close = difflib.get_close_matches(name, [*COMMANDS, *tui.own_commands], n=2)
            meant = f"Did you mean {' or '.join(close)}? " if close else ""
            raise UsageError(
                f"there is no {name}", hint=f"{meant}/help lists the commands; a message cannot begin with /."
            )
        command = COMMANDS[name]
        await command.run(tui, agent, text.strip() if command.is_turn else argument.strip())
    except FulgurError as error:
        if is_turn(tui, text):  # the turn that would show it never began
            tui.transcript.add("prompt", prompt_rows(text, tui.screen.width))
        tui.complain(error.message, error.hint or "")
