"""One request to the engine process, as its caller sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from fulgur.engine.events import Event, Finished, SteerOutcome
from fulgur.engine.params import GenerateRequest
from fulgur.engine.wire import Message
from fulgur.errors import FulgurError


class Generation:
    """An async iterator over the events of a request. It ends when all its sequences have finished.

    An error is raised after all events that arrived before it. A kept request may be steered after its end: iterate
    again then. One consumer at a time.
    """

    def __init__(self, request_id: str, request: GenerateRequest, send: Callable[[Message], None]) -> None:
        self.request_id = request_id
        self.request = request
        self._send = send
        self._running = set(range(1 if request.prefill_only else request.n))
        self._events: list[Event] = []
        self._next = 0
        self._error: FulgurError | None = None
        self._resumed = False  # a steer of a finished, kept request is under way
        self._wake: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more will come (unless a kept request is steered)."""
        return self._error is not None or not (self._running or self._resumed)

    def cancel(self) -> None:
        """End it within one step; a `Finished` with reason "cancelled" follows. A kept request is released."""
        if self._error is None and (self.request.keep or not self.done):
            self._send(("cancel", self.request_id))

    def steer(self, tokens: list[int]) -> None:
        """Append tokens to what it holds and continue from there; a `SteerOutcome` event says so, or why not."""
        if self._error is None and (self.request.keep or not self.done):
            self._resumed = self.done
            self._send(("steer", self.request_id, list(tokens)))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._next == len(self._events) and not await self._more():
            raise StopAsyncIteration
        event = self._events[self._next]
        self._next += 1
        return event

    async def batches(self) -> AsyncIterator[list[Event]]:
        """The same events in batches: each holds all that have arrived since the last one."""
        while True:
            if self._next == len(self._events) and not await self._more():
                return
            events, self._events, self._next = self._events[self._next :], [], 0
            yield events

    def deliver(self, events: list[Event]) -> None:
        """Take in events from the engine."""
        for event in events:
            if isinstance(event, Finished):
                self._running.discard(event.index)
            elif isinstance(event, SteerOutcome):
                self._resumed = False
                if event.message is None:
                    self._running.add(event.index)
        self._events.extend(events)
        self._awake()

    def fail(self, error: FulgurError) -> None:
        self._error = error
        self._awake()

    async def _more(self) -> bool:
        """Wait for an event that has not been taken yet; False at the end."""
        self._events, self._next = [], 0
        while not self._events:
            if self._error is not None:
                raise self._error
            if self.done:
                return False
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return True

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
