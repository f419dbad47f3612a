"""One answer of the model, from the request to its last item: deltas become events, output becomes history.

What was said is never lost: after a steer, a stop or an error the text so far is kept as a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from fulgur.agent.loop.context import TurnContext
from fulgur.agent.loop.usage import tell_tier, usage_event
from fulgur.agent.session.history import Item, item_text, message
from fulgur.client.stream import ResponseStream
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.agent import MessageDelta, ThinkingDelta, TurnSteered, Waiting, Warned
from fulgur.protocol.errors import ApiError
from fulgur.protocol.response import Response

_STOP_SECONDS = 3.0


class Answer:
    """Runs one create and the successors that steering opens."""

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._link = context.link
        self._turn = context.turn
        self._emit = context.emit
        self._stream: ResponseStream | None = None
        self._open_text = ""
        self._steers: list[str] = []
        self._waiting_steers: list[str] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._cuts = False
        self._stopped = False
        self._waits = False
        self._started = 0.0
        self._first = 0.0
        self.model = ""
        self.response_id: str | None = None
        self.context_used = 0
        self.cost: float | None = None

    @property
    def late_steers(self) -> list[str]:
        """Steers that came too late for this answer; the caller sends them next."""
        return [*self._waiting_steers, *self._steers]

    @property
    def begun(self) -> bool:
        """Whether any part of the answer has arrived."""
        return self._first > 0

    async def run(self, body: dict[str, Any]) -> list[Item]:
        """Stream the answer to its end and return the tool calls to run next. FulgurError if the server or the model
        failed."""
        self._started = time.perf_counter()
        calls: list[Item] = []
        try:
            self._stream = await self._link.connection.create(body)
            for text in self._waiting_steers[:]:
                await self._send_steer(self._stream, text)
            if self._stopped:
                await self._stream.cancel()
            async for event in self._stream:
                calls = self._take(event, calls)
        finally:
            self._keep_open_text()  # when the stream broke off without an end
            self._stream = None
        return calls

    def steer(self, text: str, *, cut: bool = False) -> None:
        """Redirect the running answer at the next token; from here on the text is applied or in `late_steers`. With
        `cut`, cancel the answer instead, so that the caller sends the text next."""
        self._waiting_steers.append(text)
        self._cuts |= cut
        if self._stream is not None:
            task = asyncio.get_running_loop().create_task(self._send_steer(self._stream, text))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def stop(self) -> None:
        """End the answer now and keep what was said."""
        self._stopped = True
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(FulgurError, TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await stream.cancel()
            # A server that does not answer the cancel must not keep the person waiting.
            asyncio.get_running_loop().call_later(_STOP_SECONDS, stream.end)

    async def _send_steer(self, stream: ResponseStream, text: str) -> None:
        if self._cuts or not self._link.connection.is_fulgur:
            # Only Fulgur servers steer a running answer. Otherwise cancel it; the caller asks again with what was said
            # so far.
            await stream.cancel()
            return
        if text not in self._waiting_steers:
            return
        self._waiting_steers.remove(text)
        self._steers.append(text)
        try:
            await stream.steer(text)
        except FulgurError:  # it ended meanwhile: the text is sent next
            if text in self._steers:
                self._steers.remove(text)
                self._waiting_steers.append(text)

    def _take(self, event: ev.Event, calls: list[Item]) -> list[Item]:
        match event:
            case ev.OutputTextDelta():
                self._first = self._first or time.perf_counter()
                self._open_text += event.delta
                self._context.state.partial(event.delta)
                self._emit(MessageDelta(turn=self._turn, text=event.delta))
            case ev.ReasoningSummaryTextDelta() | ev.ReasoningTextDelta():
                self._first = self._first or time.perf_counter()
                self._emit(ThinkingDelta(turn=self._turn, text=event.delta))
            case ev.FunctionCallArgumentsDelta():
                self._first = self._first or time.perf_counter()
            case ev.ResponseCreated():
                if self._steers and self.response_id is not None:
                    self._steers_applied()
                self.response_id = event.response.id
                self._started, self._first = time.perf_counter(), 0.0
                return []
            case ev.ResponseQueued() | ev.ResponseInProgress():
                self._emit_place(event)
            case ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
                return self._finish(event.response)
            case ev.SteerPending():
                # The response calls tools first; the server inserts the steer before their outputs.
                self._steers_applied()
            case ev.SteerFailed():
                self._waiting_steers = [*self._steers, *self._waiting_steers]
                self._steers = []
                if event.error.code == "steering_not_supported" and self._stream is not None:
                    asyncio.get_running_loop().create_task(self._stream.cancel())
        return calls

    def _emit_place(self, event: ev.ResponseQueued | ev.ResponseInProgress) -> None:
        place = waiting(self._turn, event, waited=self._waits)
        if place is not None:
            self._waits = place.position > 0
            self._emit(place)

    def _steers_applied(self) -> None:
        for text in self._steers:
            self._context.state.add_items([message("user", text)], kind="steer")
            self._emit(TurnSteered(turn=self._turn, text=text))
        self._steers = []

    def _finish(self, response: Response) -> list[Item]:
        self.model = response.model or self._link.info.name
        self._context.state.answered(self.model, response.id)
        self._report_usage(response)
        tell_tier(self._context, response)
        items = [_clean(item) for item in response.output if _keeps(item)]
        said = "".join(item_text(item) for item in items if item.get("type") == "message")
        if self._open_text and not said:
            items.insert(0, message("assistant", self._open_text))
        self._open_text = ""
        self._context.state.add_items(items)
        if response.status == "failed":
            error = response.error or {}
            raise ApiError(
                500, str(error.get("code") or "server_error"), str(error.get("message") or "the request failed")
            )
        reason = (response.incomplete_details or {}).get("reason")
        if reason == "max_output_tokens":
            self._emit(
                Warned(message="the answer was cut off at the output-token limit", hint="model_max_output_tokens")
            )
        if reason == "content_filter":
            raise FulgurError("the answer was cut off by the server's content filter")
        return [item for item in items if item.get("type") == "function_call"]

    def _keep_open_text(self) -> None:
        if self._open_text:
            self._context.state.add_items([message("assistant", self._open_text)])
            self._open_text = ""

    def _report_usage(self, response: Response) -> None:
        usage = response.usage
        if usage is None:
            return
        event = usage_event(self._turn, self.model, usage, self._link.info, self._started, self._first)
        self.cost, self.context_used = event.cost, event.context_used
        self._emit(event)


def waiting(turn: int, event: ev.Event, *, waited: bool) -> Waiting | None:
    """Return the place in the server's queue, or that the wait is over."""
    if isinstance(event, ev.ResponseQueued) and isinstance(event.queue, ev.QueuePlace):
        return Waiting(turn=turn, position=event.queue.position, seconds=event.queue.expected_wait_seconds)
    return Waiting(turn=turn, position=0) if waited else None


def _keeps(item: Item) -> bool:
    """Keep messages even if they were cut off; a call that was cut off was never made."""
    return item.get("type") == "message" or item.get("status", "completed") == "completed"


def _clean(item: Item) -> Item:
    """Drop the fields that only the server that made the item understands."""
    drop = {"status", "logprobs", "id"} if item.get("type") != "reasoning" else set()
    return {key: value for key, value in item.items() if key not in drop}
