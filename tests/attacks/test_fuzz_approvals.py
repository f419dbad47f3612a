"""What is shown is what runs: generated commands, asked about by the real approvals, drawn on a terminal screen."""

import asyncio
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyte
from approval_commands import HARMFUL, HARMLESS
from fuzzing import enough, rounds

from fulgur.agent.loop.approvals import Answered, Approvals
from fulgur.agent.loop.calls import Calls
from fulgur.agent.loop.hooks import Hooks
from fulgur.agent.loop.read_only import is_read_only
from fulgur.config.settings import load_settings
from fulgur.protocol.agent import AgentEvent, ApprovalAsked
from fulgur.sandbox.choose import Unconfined
from fulgur.sandbox.policy import Policy
from fulgur.tools.base import Report, ToolResult
from fulgur.tools.shell import Shell, ShellArguments
from fulgur.ui.foreign import hides
from fulgur.ui.tui.blocks import approval_rows, fits_one_row
from fulgur.ui.tui.live import LiveArea
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Files

PIECES = [
    *("make test", "curl x | sh", "rm -rf ~", "echo", "'a b'", "$(evil)", "日本語", "é", "→", "x" * 90, "; ", " && "),
    *(
        "\n",
        "\n\n",
        "\n" * 60,
        " ",
        "  ",
        " " * 12,
        " " * 400,
        "\t",
        "\t\t\t",
        "\r",
        "\r\n",
        "\x08" * 9,
        "\x7f",
        "\x0b",
    ),
    *(
        "\x1b[2K\r",
        "\x1b[1A",
        "\x1b[8m",
        "\x1b[0m",
        "\x1b]52;c;eA==\x07",
        "\x1b]0;t\x1b\\",
        "\x9b2J",
        "\x1b[6n",
        "\x00",
    ),
    *("\u3164", "\u115f", "\uffa0", "\u2800", "\u200b", "\u200d", "\u202e", "\u2066", "\u00a0", "\u3000", "\u2028"),
    *("\ufe0f", "\U000e0041", "\U000e0100", "\u0338", "a\u0301", "\ue000", "\u00ad", "\u061c", "\ufeff", "\u180e"),
    *("<U+200B>", "<U+0020×3>", "<", "<U+", "⏎ ", "… ", "? ", "│", "  y allow once", "\\u200b", "\\x1b", "#"),
]


def generated(random: random.Random) -> str:
    if random.random() < 0.2:
        base = random.choice(HARMFUL + HARMLESS)
    else:
        base = "".join(random.choice(PIECES) for _ in range(random.randint(1, 12)))
    if random.random() < 0.3:
        place = random.randint(0, len(base))
        base = base[:place] + random.choice(PIECES) + base[place:]
    return base or "x"


class Recorded(Shell):
    """A shell that notes what it is told to run."""

    ran: str | None = None

    async def run(self, args: ShellArguments, report: Report, *, unconfined: bool = False) -> ToolResult:
        self.ran = args.command
        return ToolResult(True, "")

    async def run_read_only(self, args: ShellArguments, report: Report, variables: Any) -> ToolResult:
        return await self.run(args, report)


def on_screen(rows: list[str], width: int) -> list[str]:
    """The rows as a terminal shows them."""
    screen = pyte.Screen(width, len(rows) + 2)
    pyte.Stream(screen).feed("\r\n".join(rows))
    return [line.rstrip() for line in screen.display][: len(rows)]


def question(asked: ApprovalAsked, width: int) -> list[str]:
    """What a person sees of an approval: the rows above the live area, or its one row there."""
    if not fits_one_row(asked.title, width):
        return on_screen(list(approval_rows(asked.title, width)), width)
    tui = SimpleNamespace(
        approvals=SimpleNamespace(current=asked, armed=True, refusing=False, choosing=False, stashed=""),
        screen=SimpleNamespace(width=width),
        draft=SimpleNamespace(text=""),
    )
    live = LiveArea.__new__(LiveArea)  # without a terminal
    live._tui = tui  # type: ignore[assignment]
    control = live._control(live._approval)
    text = "".join(part[1] for part in control.text())  # type: ignore[operator]
    return on_screen(text.split("\n")[:1], width)


def meant(lines: list[str]) -> str:
    """The text that a person who reads it character by character understands."""
    text = ""
    for number, line in enumerate(lines):
        mark, content = line[:2].ljust(2), line[2:]
        assert mark == ("? " if number == 0 else mark) and mark in ("? ", "⏎ ", "… ")
        text += ("\n" if mark == "⏎ " else "") + content
    return re.sub(r"<U\+([0-9A-F]{4,6})(?:×(\d+))?>", lambda named: chr(int(named[1], 16)) * int(named[2] or 1), text)


async def test_a_thousand_approvals(workspace: Path, home: Path) -> None:
    settings = load_settings(workspace, overrides=["approval_policy=untrusted"])
    policy = Policy.make("workspace-write", workspace, home)
    shell = Recorded(Unconfined(), policy, {})
    asked: list[ApprovalAsked] = []
    width = 80

    def emit(event: AgentEvent) -> None:
        if isinstance(event, ApprovalAsked):
            asked.append(event)
            asyncio.get_running_loop().call_soon(approvals.settle, event.approval_id, Answered("once"))

    async def before_change() -> None:
        return None

    approvals = Approvals(settings, policy, emit, True)
    files = Files(policy, BlobStore(home / "blobs"), home / "journal")
    hooks = Hooks(settings, shell, "", emit, 1)
    notes = (before_change, lambda diff: None, lambda plan: None)
    calls = Calls(shell.tools(), shell, files, approvals, hooks, emit, *notes)
    questions = 0
    for seed, generator in rounds(1200):
        command, width = generated(generator), generator.choice((40, 80, 81, 132))
        arguments = {"command": command, "unsandboxed": generator.random() < 0.5}
        asked.clear()
        shell.ran = None
        item = {"type": "function_call", "name": "shell", "call_id": "c", "arguments": json.dumps(arguments)}
        await calls.run(1, [item], lambda items: None)
        if not asked:
            harmless = is_read_only(command) and not arguments["unsandboxed"]
            assert harmless, f"seed {seed}: {command!r} was not asked about"
            continue
        questions += 1
        lines = question(asked[0], width)
        assert not any(hides(char) for line in lines for char in line), f"seed {seed}"
        assert meant(lines) == f"$ {shell.ran}", f"seed {seed}: {command!r}"
        assert asked[0].outside == arguments["unsandboxed"]
    enough(questions, 1000)
