"""The edit path, for a model made for edits: locate the region, rewrite it, check it, show the diff, apply it.

The region serves as the draft of its own rewrite. The instruction comes last in the prompt, so a steer changes only the
prompt's end.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import msgspec

from fulgur.agent.loop.answer import waiting
from fulgur.agent.loop.calls import Calls
from fulgur.agent.loop.context import TurnContext
from fulgur.agent.loop.guards import Guards, unjudged
from fulgur.agent.loop.request import service_tier
from fulgur.agent.loop.usage import tell_tier, usage_event
from fulgur.agent.route.question import is_question, told_of
from fulgur.agent.session.history import message
from fulgur.client.stream import ResponseStream
from fulgur.edit.checks import NAMES, PARSES
from fulgur.edit.document import Document
from fulgur.edit.editor import AS_ASKED, NOTHING, Proposal, Refusal, Task, propose, task_at
from fulgur.edit.locate import Located, NoPlaceError, find_place
from fulgur.edit.model import LOGPROBS, parts_of, probability_of
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.agent import (
    Location,
    MessageDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnSteered,
    Warned,
)
from fulgur.protocol.errors import ApiError
from fulgur.text.edit_format import CALL, NOEDIT, Call
from fulgur.workspace.files import Change, Files
from fulgur.workspace.ignore import walk

_OTHER_TEMPERATURE = 0.6


class EditPath:
    """One turn by one rewrite; has the same interface as the tool loop."""

    def __init__(self, context: TurnContext, files: Files, calls: Calls, guards: Guards, recent: list[str]) -> None:
        self._context = context
        self._files = files
        self._calls = calls
        self._guards = guards
        self._recent = recent
        self._stream: ResponseStream | None = None
        self._steers: list[str] = []
        self._stopped = False
        self._cutting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Work on the prompt; FulgurError if there is no place to edit or no usable answer."""
        instruction = self._context.state.turn.text
        info, settings = self._context.link.info, self._context.settings
        if "chat" not in info.abilities and is_question(instruction):
            self._say(await asyncio.to_thread(told_of, instruction, settings.workspace, settings.home, info.name))
            return
        problem = ""
        place: Located | None = None
        while True:
            place = await asyncio.to_thread(self._locate, instruction, place)
            outcome = await self._attempt(place, problem)
            if self._stopped:
                return
            if self._steers:
                instruction, problem = self._take_steers(), ""
                continue
            if outcome and problem:
                hint = "Rephrase it, name a smaller part, or choose another model with /model or -m."
                raise FulgurError(f"the rewrite was not applied: {outcome}", hint=hint)
            if not outcome:
                break
            problem = outcome  # feed the problem back once
        if self._calls.changed and await self._guards.check(self._calls.changed, read=False):
            self._say("\nThe edit stays, though its tests fail: `/undo` takes it back.")

    def steer(self, text: str) -> None:
        """Cancel the rewrite and start another with the new instruction."""
        self._steers.append(text)
        if self._stream is not None:
            self._cutting = asyncio.get_running_loop().create_task(self._stream.cancel())

    async def stop(self) -> bool:
        """Cancel the rewrite; nothing is applied."""
        self._stopped = True
        if self._stream is None:
            return False
        await self._stream.cancel()
        return True

    @property
    def unsaid(self) -> list[str]:
        """Steers that no rewrite has taken up."""
        return self._steers

    async def summarise(self) -> None:
        """Refuse: nothing is carried from edit to edit, so there is nothing to compact."""
        raise FulgurError("nothing to compact: every edit starts from the file alone")

    def _locate(self, instruction: str, before: Located | None) -> Located:
        """The place to edit; a redirection that names none ("no, call it size") means the place `before` it."""
        settings, model = self._context.settings, self._context.link.info.name
        try:
            return find_place(instruction, settings.workspace, settings.home, self._recent if before is None else ())
        except FulgurError as error:
            if before is not None and isinstance(error, NoPlaceError):
                return Located(before.target, instruction, "the same place as before")
            if next(walk(settings.workspace, limit=1), None) is not None:
                raise
            hint = f"{model} edits existing code. Models that chat can write new files: /model lists them."
            raise FulgurError("there is no file to edit in this folder yet", hint=hint) from error

    async def _attempt(self, place: Located, problem: str) -> str:
        """Rewrite and apply; return what is wrong with the answer, or ""."""
        path = self._files.writable(str(place.target.path))
        document = Document.of(path, self._files.show(path), self._files.read(path))
        task = task_at(document, place.target, place.instruction, self._context.settings.workspace)
        title = f"rewrite {document.name}:{task.region.first_line}-{task.region.last_line} ({place.how})"
        said: str | Call | None = task.spelled_out()
        probability, rewritten = None, None
        if said is None:
            said, probability, rewritten = await self._rewrite(title, task, problem)
        if self._stopped or self._steers:
            self._end(rewritten, ok=True)
            return ""
        members, on = self._guards.members, self._guards.on
        result = await asyncio.to_thread(propose, task, said, members, probability=probability, checked=on)
        self._end(rewritten, ok=isinstance(result, Proposal))
        self._report_checks(result, again=bool(problem))
        if isinstance(result, Refusal):
            if result.check != NOTHING:
                return result.reason
            name = self._context.link.info.name
            # Raise, so that a script or a task list knows that nothing was done, and the prompt comes back.
            hint = f"`help` says what {name} can do; for more choose a larger model with /model or -m."
            raise FulgurError(f"no edit: {result.reason}", hint=hint)
        if result.understood:
            self._say(f"Understood: {result.understood}.\n")
        for note in result.notes:
            self._context.emit(Warned(message=note))
        left_out = await self._calls.apply(self._context.turn, title, self._changes(result))
        if left_out is None:
            self._say("The change was not allowed.")
        elif left_out:
            self._say("Edited what you accepted.")
        else:
            more = len(result.others)
            also = f" and {more} more file{'s' * (more > 1)}" if more else ""
            self._say(f"Edited {document.name}:{_first_changed(document.text, result.text)}{also}.")
        return ""

    def _changes(self, proposal: Proposal) -> list[Change]:
        """Return the proposal's changes, each verified to be writable."""
        return [replace(change, path=self._files.writable(str(change.path))) for change in proposal.changes()]

    def _report_checks(self, result: Proposal | Refusal, *, again: bool) -> None:
        """Show what each check found; the first refusal is fed back, the second one ends the turn."""
        refused = result.check if isinstance(result, Refusal) else ""
        fed_back = not again
        if refused == AS_ASKED and isinstance(result, Refusal):
            if fed_back and "chat" in self._context.link.info.abilities:
                self._guards.report(AS_ASKED, [result.reason], fed_back=True)
        elif self._guards.on and refused != NOTHING:
            found = result.found
            self._guards.report(PARSES, found.parses, fed_back=refused == PARSES and fed_back)
            if not found.parses:
                problems = [str(problem) for problem in found.names]
                left = ""
                if isinstance(result, Proposal) and found.unchecked:
                    left = unjudged(result.document.name, found.unchecked)
                self._guards.report(NAMES, problems, left, fed_back=refused == NAMES and fed_back)

    def _end(self, rewritten: ToolFinished | None, *, ok: bool) -> None:
        """Report how the rewrite ended: successfully only if it can be applied."""
        if rewritten is not None:
            self._context.emit(msgspec.structs.replace(rewritten, ok=rewritten.ok and ok))

    async def _rewrite(self, title: str, task: Task, problem: str) -> tuple[str, float | None, ToolFinished | None]:
        """Stream the model's answer; return it with its probability and its final event, which is sent once the answer
        has been judged. `problem` says what was wrong with the previous answer.

        A chat model is told the problem. An edit-only model would read it as part of the instruction, so it gets the
        same prompt again, but samples instead of taking the likeliest tokens, which were wrong.
        """
        context = self._context
        chats = "chat" in context.link.info.abilities
        if problem and chats:
            task = replace(task, instruction=f"{task.instruction} ({problem})")
        body: dict[str, Any] = {
            "model": context.link.info.name,
            "input": [task.item()],
            "temperature": _OTHER_TEMPERATURE if problem and not chats else 0,
            "store": False,
        }
        if tier := service_tier(context):
            body["service_tier"] = tier
        if "logprobs" in context.link.info.abilities:
            body["include"] = [LOGPROBS]
        call_id = f"edit-{context.turn}-{int(time.monotonic() * 1000)}"
        context.emit(
            ToolStarted(
                turn=context.turn,
                call_id=call_id,
                name="rewrite",
                title=title,
                kind="edit",
                places=(Location(task.document.name, task.region.first_line),),
            )
        )
        began, first, said, probability, whole = time.perf_counter(), 0.0, "", None, False
        try:
            self._stream = await context.link.connection.create(body)
            if self._stopped or self._steers:
                await self._stream.cancel()
            waits = False
            async for event in self._stream:
                if isinstance(event, ev.ResponseQueued | ev.ResponseInProgress):
                    if (place := waiting(context.turn, event, waited=waits)) is not None:
                        waits = place.position > 0
                        context.emit(place)
                elif isinstance(event, ev.OutputTextDelta):
                    first = first or time.perf_counter()
                    said += event.delta
                    context.emit(ToolOutput(turn=context.turn, call_id=call_id, text=_shown(event.delta)))
                elif isinstance(event, ev.TERMINAL):
                    self._report(event, began, first)
                    probability = probability_of(parts_of(msgspec.to_builtins(event.response)))
            whole = True
        finally:
            self._stream = None
            ended = ToolFinished(
                turn=context.turn,
                call_id=call_id,
                name="rewrite",
                ok=bool(said),
                output="" if CALL in said else _shown(said),  # a call's meaning is shown in words instead
                seconds=round(time.perf_counter() - began, 3),
            )
            if not whole:
                self._end(ended, ok=False)
            if (self._stopped or self._steers) and said:
                context.state.add_items([message("assistant", said)])
        return said, probability, ended

    def _report(self, event: ev.ResponseEvent, began: float, first: float) -> None:
        context, response = self._context, event.response
        context.progress.answering_model = response.model
        tell_tier(context, response)
        if response.usage is not None:
            told = usage_event(context.turn, response.model, response.usage, context.link.info, began, first)
            context.progress.context_used = told.context_used
            context.emit(told)
        reason = (response.incomplete_details or {}).get("reason")
        if response.status == "failed":
            error = response.error or {}
            raise ApiError(
                500, str(error.get("code") or "server_error"), str(error.get("message") or "the request failed")
            )
        if reason == "max_output_tokens":
            raise FulgurError("the rewrite was cut off; nothing was changed", hint="Name a smaller part.")

    def _take_steers(self) -> str:
        text = self._steers[-1]
        for steer in self._steers:
            self._context.state.add_items([message("user", steer)], kind="steer")
            self._context.emit(TurnSteered(turn=self._context.turn, text=steer))
        self._steers = []
        return text

    def _say(self, text: str) -> None:
        self._context.emit(MessageDelta(turn=self._context.turn, text=text))
        self._context.state.add_items([message("assistant", text)])


def _first_changed(before: str, after: str) -> int:
    """The first line in which two texts differ."""
    pairs = enumerate(zip_longest(before.split("\n"), after.split("\n")), 1)
    return next((number for number, (old, new) in pairs if old != new), 1)


def _shown(said: str) -> str:
    """Strip the markers that only `propose` reads."""
    return said.replace(CALL, "").replace(NOEDIT, "")
