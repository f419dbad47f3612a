"""The tool loop: ask the model, run its calls, send the outputs, until it has nothing more to call."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fulgur.agent.loop import compaction
from fulgur.agent.loop.answer import Answer
from fulgur.agent.loop.calls import Calls
from fulgur.agent.loop.context import TurnContext
from fulgur.agent.loop.images import Named, images_named
from fulgur.agent.loop.request import request_body
from fulgur.agent.loop.retry import Patience
from fulgur.agent.route.relay import HandOver
from fulgur.agent.session.history import (
    CHARACTERS_PER_TOKEN,
    IN_FORM,
    NOT_IN_FORM,
    Item,
    estimate_tokens,
    item_text,
    message,
)
from fulgur.client.stream import ResponseStream
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.agent import Compacted, Compacting, TurnSteered, Warned
from fulgur.protocol.errors import ApiError

MOST_STEPS = 200
_MOST_MALFORMED = 5
_SHOWN_SECONDS = 0.1  # between two progress events of a summary


class ToolLoop:
    """One turn by tool calls (or, without tools, one plain answer).

    `check` runs the guards over the changed files and returns what the model should fix, or "". `at_end` does the same
    with the turn-end hooks; its argument says whether they ran before. `attach` sends the images that a steer names.
    """

    def __init__(
        self,
        context: TurnContext,
        calls: Calls,
        check: Callable[[], Awaitable[str]],
        at_end: Callable[[bool], Awaitable[str]],
        attach: Callable[[str], Awaitable[None]],
        format: dict[str, Any] | None = None,
    ) -> None:
        self._context = context
        self._calls = calls
        self._check = check
        self._at_end = at_end
        self._attach = attach
        self._format = format
        self._answer: Answer | None = None
        self._steers: list[str] = []
        self._stopped = False
        self._formatting = False
        self._begun = False

    async def run(self) -> None:
        """Work until the model is done; FulgurError when it cannot go on."""
        checks = 1 if self._context.drift is None else 2  # the second one shows whether the model can fix its own edit
        hooked = False
        for _ in range(MOST_STEPS):
            if self._context.drift is not None and (why := self._context.drift()):
                raise HandOver(why)
            await self._take_steers()
            calls = await self._step()
            if self._stopped:
                return
            if calls:
                await self._calls.run(self._context.turn, calls, self._context.state.add_items)
                if self._calls.malformed_in_a_row >= _MOST_MALFORMED:
                    made = f"the model made {_MOST_MALFORMED} malformed calls in a row"
                    raise FulgurError(made, hint="Try another model.")
                continue
            if self._steers:
                continue
            problems = await self._check() if self._calls.changed and checks > 0 else ""
            checks -= 1
            if not problems and not self._formatting:
                problems, hooked = await self._at_end(hooked), True
            if not problems:
                if self._format is not None:
                    await self._in_form()
                return
            self._context.state.add_items([message("user", problems)])
        raise FulgurError(f"stopped after {MOST_STEPS} steps", hint="Say `go on` to let it continue.")

    def steer(self, text: str) -> None:
        """Steer at the next token while the model writes; before its next answer while tools run."""
        if self._answer is not None:
            named = images_named(text) if "vision" in self._context.link.info.abilities else Named()
            # A running answer takes only text: for images it is cut, and what was said before them stays.
            self._answer.steer(text, cut=bool(named.asked or named.pasted))
        else:
            self._steers.append(text)

    async def stop(self) -> bool:
        """End the running answer; False if tools run instead, which the caller cancels."""
        self._stopped = True
        if self._answer is None:
            return False
        await self._answer.stop()
        return True

    @property
    def unsaid(self) -> list[str]:
        """Steers that no answer took up before the turn ended."""
        return self._steers

    async def summarise(self) -> None:
        """Compact the conversation now."""
        context = self._context
        state, info = context.state, context.link.info
        before, items = self._would_be(), state.history.visible()
        room = int(info.context * 0.7) - estimate_tokens([message("developer", context.instructions)])
        question = [*compaction.shortened(items, room), message("user", compaction.REQUEST)]
        summary = ""
        context.progress.forget_server()  # the server holds only a lane's latest response
        try:
            stream = await context.link.connection.create(request_body(context, question, tools=[]))
            try:
                summary = await self._read_summary(stream, before)
            except asyncio.CancelledError:
                await stream.cancel()
                raise
        except FulgurError as error:
            context.emit(
                Warned(
                    message=f"the model could not summarise: {error.message}",
                    hint="Kept the person's messages, the changed files and the plan.",
                )
            )
        # Start from everything ever said, not from an earlier record of it: a second compaction loses no more than the
        # first.
        said, changed, plan = state.history.everything(), state.recent_files(), state.plan
        starts = [compaction.beginning(said, text, changed, plan, info.context) for text in (summary.strip(), "")]
        start = next((start for start in starts if estimate_tokens(start) < estimate_tokens(items)), None)
        if start is None:
            raise FulgurError("nothing to compact yet: a summary would be longer than the conversation")
        state.compacted(start)
        progress = context.progress
        progress.context_used, progress.covered = self._size(), len(state.history.visible())
        context.emit(Compacted(before_tokens=before, after_tokens=progress.context_used))

    async def _read_summary(self, stream: ResponseStream, reads: int) -> str:
        """Read the summary and report progress now and then: reading and writing it takes a while."""
        told, written = 0.0, 0
        self._context.emit(Compacting(reads_tokens=reads))
        async for event in stream:
            if isinstance(event, ev.OutputTextDelta | ev.ReasoningTextDelta | ev.ReasoningSummaryTextDelta):
                written += len(event.delta)
                if time.monotonic() - told > _SHOWN_SECONDS:
                    told = time.monotonic()
                    written_tokens = int(written / CHARACTERS_PER_TOKEN)
                    self._context.emit(Compacting(reads_tokens=reads, written_tokens=written_tokens))
        return (await stream.final()).output_text

    async def _in_form(self) -> None:
        """Ask for the result again in the wanted format. A grammar and tool calls exclude each other, so this comes
        last."""
        self._formatting = True
        for attempt in (IN_FORM, NOT_IN_FORM):
            self._context.state.add_items([message("user", attempt)])
            await self._step()
            if self._stopped or self._is_json():
                return
        raise FulgurError("the model's answer is not valid JSON")

    def _is_json(self) -> bool:
        try:
            json.loads(item_text(self._context.state.history.visible()[-1]))
        except ValueError:
            return False
        return True

    async def _step(self) -> list[Item]:
        """Get one answer; compact first if the request would not fit, and once more if the server says it did not."""
        if self._would_be() > self._limit():
            await self.summarise()
        compacted = False
        patience = Patience(self._context)
        while True:
            try:
                return await self._ask()
            except FulgurError as error:
                if isinstance(error, ApiError) and error.code == "context_length_exceeded" and not compacted:
                    compacted = True
                    await self.summarise()
                elif self._stopped:
                    raise
                else:
                    await patience.again(error, begun=self._begun)

    async def _ask(self) -> list[Item]:
        context, progress = self._context, self._context.progress
        history = context.state.history
        items = history.visible()
        tools = [] if self._formatting else list(self._calls.tools.values())
        chained = progress.response_id is not None and context.link.connection.is_fulgur
        body = request_body(
            context,
            items[progress.covered :] if chained else items,
            tools=tools,
            format=self._format if self._formatting else None,
        )
        if chained:
            body["previous_response_id"] = progress.response_id
        progress.response_id = None
        self._answer = answer = Answer(context)
        try:
            calls = await answer.run(body)
            progress.response_id = answer.response_id
        finally:
            self._answer = None
            self._begun = answer.begun
            self._steers += answer.late_steers
            progress.answering_model = answer.model or progress.answering_model
            # An answer that was cut off may come without usage: then estimate what was said.
            progress.context_used = answer.context_used or self._would_be()
            progress.covered = len(history.visible())
            if answer.cost:
                progress.cost = (progress.cost or 0.0) + answer.cost
        return calls

    async def _take_steers(self) -> None:
        while self._steers:  # more may arrive while images are read
            text = self._steers.pop(0)
            self._context.state.add_items([message("user", text)], kind="steer")
            self._context.emit(TurnSteered(turn=self._context.turn, text=text))
            await self._attach(text)

    def _limit(self) -> int:
        settings, info = self._context.settings, self._context.link.info
        return settings.integer("model_auto_compact_token_limit") or int(info.context * 0.8)

    def _size(self) -> int:
        visible = self._context.state.history.visible()
        return estimate_tokens([message("developer", self._context.instructions), *visible])

    def _would_be(self) -> int:
        """The server's last count, plus an estimate of what was added since."""
        progress = self._context.progress
        if not progress.context_used:
            return self._size()
        return progress.context_used + estimate_tokens(self._context.state.history.visible()[progress.covered :])
