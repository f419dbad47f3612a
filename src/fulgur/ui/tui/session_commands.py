"""Slash commands about the session: its changes, its copies, rewinding, and exporting."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fulgur.agent.session.export import to_markdown
from fulgur.errors import FulgurError, UsageError
from fulgur.tools.jobs import described as described_job
from fulgur.ui.tui.blocks import plan_rows
from fulgur.ui.tui.diff import diff_rows
from fulgur.ui.tui.theme import paint
from fulgur.workspace import folders

_JOB_ROWS = 40  # of a background command's output

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
    from fulgur.protocol.session import SessionSummary
    from fulgur.ui.tui.app import Tui


async def show_diff(tui: Tui, agent: Agent, argument: str) -> None:
    diff = await asyncio.to_thread(agent.diff)
    if not diff.strip():
        tui.say("no change of this session is left")
        return
    tui.show(diff_rows(diff, names=True))


async def todo(tui: Tui, agent: Agent, argument: str) -> None:
    if not tui.transcript.plan:
        tui.say("no plan is open; a model writes one for a task with several steps")
        return
    tui.show(plan_rows(tui.transcript.plan, tui.screen.width))


async def jobs(tui: Tui, agent: Agent, argument: str) -> None:
    words = argument.split()
    known = {job.name: job for job in tui.transcript.jobs}
    if not words:
        tui.show([paint([("", f"  {described_job(job)}")]) for job in known.values()])
        told = "/jobs NAME shows its output, /jobs stop NAME stops it"
        tui.say(told if known else "nothing is running in the background")
        return
    if words[0] == "stop" and len(words) == 2:
        names = [job.name for job in known.values() if job.running] if words[1] == "all" else [words[1]]
        for name in names:
            await agent.job(name, stop=True)
        return
    if len(words) > 1:
        raise UsageError(f"/jobs {argument}?", hint="/jobs, /jobs NAME, /jobs stop NAME, or /jobs stop all")
    said = (await agent.job(words[0])).rstrip("\n").split("\n")
    left = len(said) - _JOB_ROWS
    if left > 0:
        tui.say(f"{left} earlier lines")
    tui.show([paint([("dim", "  │ "), ("", line)]) for line in said[-_JOB_ROWS:]])


async def undo(tui: Tui, agent: Agent, argument: str) -> None:
    await agent.undo()


async def resume(tui: Tui, agent: Agent, argument: str) -> None:
    sessions = await asyncio.to_thread(agent.sessions)
    if not argument:
        if not sessions:
            tui.say("no stored session of this folder")
            return
        tui.show([paint([("accent", f"{n:4} "), ("", described(s))]) for n, s in enumerate(sessions[:20], 1)])
        tui.say("/resume NUMBER or /resume ID continues one")
        return
    if argument.isdigit() and 1 <= int(argument) <= len(sessions):
        argument = sessions[int(argument) - 1].session_id
    await agent.resume(argument)


def described(session: SessionSummary) -> str:
    when = time.strftime("%d %b %H:%M", time.localtime(session.updated))
    prompt = " ".join(session.first_prompt.split())[:48]
    undo = "" if session.undo else "  (can no longer be undone)"
    turns = "turn " if session.turns == 1 else "turns"
    return f"{when}  {session.turns:3} {turns}  {prompt}  {session.session_id}{undo}"


async def new(tui: Tui, agent: Agent, argument: str) -> None:
    before = agent.status()
    await agent.new()
    if before.turns:
        tui.say(f"a new session; /resume {before.session_id} goes back")


async def clear(tui: Tui, agent: Agent, argument: str) -> None:
    await new(tui, agent, argument)
    tui.screen.forget()


async def rewind(tui: Tui, agent: Agent, argument: str) -> None:
    turns = [entry for entry in agent.transcript() if entry.kind == "user"]
    if not argument:
        if not turns:
            tui.say("this session has no turns yet")
            return
        tui.show([paint([("accent", f"{t.turn:4} "), ("", " ".join(t.text.split())[:90])]) for t in turns[-20:]])
        tui.say("/rewind TURN goes back to before it: files and conversation")
        return
    if not argument.isdigit():
        raise UsageError(f"/rewind {argument}?", hint="Give the number of a turn; /rewind lists them.")
    before = agent.status().session_id
    tui.replays = False
    try:
        prompt = await agent.rewind(int(argument))
    finally:
        tui.replays = True
    tui.say(f"back to before turn {argument}; {before} stays as it was, and its prompt is in the input")
    tui.draft.put_back(prompt)


async def fork(tui: Tui, agent: Agent, argument: str) -> None:
    before = agent.status().session_id
    tui.replays = False  # the screen already shows it
    try:
        copy = await agent.fork()
    except FulgurError:
        tui.replays = True
        raise
    tui.say(f"this is now {copy}, a copy from here; {before} stays as it is")


async def compact(tui: Tui, agent: Agent, argument: str) -> None:
    try:
        await agent.compact()
    finally:
        tui.compacting = None


async def export(tui: Tui, agent: Agent, argument: str) -> None:
    status = agent.status()
    path = folders.expanded(argument) if argument else agent.settings.home / "exports" / f"{status.session_id}.md"
    if not path.is_absolute():
        path = agent.workspace / path
    if path.exists() and argument:
        raise UsageError(f"{path} already exists", hint="Name another file.")
    text = to_markdown(agent.transcript(), f"fulgur {status.session_id}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FulgurError(f"{path} cannot be written: {error.strerror}") from None
    tui.say(f"written to {path}")


async def copy_answer(tui: Tui, agent: Agent, argument: str) -> None:
    answers = [entry.text for entry in agent.transcript() if entry.kind == "assistant" and entry.text.strip()]
    if not answers:
        tui.say("there is no answer yet")
        return
    tui.screen.copy(answers[-1].strip("\n"))
    tui.say("copied the last answer to the clipboard, if this terminal lets programs do that (OSC 52)")
