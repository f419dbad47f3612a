"""Sends events to every listening screen; events sent before the first one listens are kept for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fulgur.protocol.agent import AgentEvent


class Broadcast:
    """One sender, any number of subscriptions."""

    def __init__(self) -> None:
        self._queues: list[asyncio.Queue[AgentEvent | None]] = []
        self._early: list[AgentEvent] = []
        self._closed = False

    def send(self, event: AgentEvent) -> None:
        """Send an event to all subscriptions."""
        if not self._queues:
            self._early.append(event)
        for queue in self._queues:
            queue.put_nowait(event)

    def subscribe(self) -> AsyncIterator[AgentEvent]:
        """Iterate over all events from now on (the first subscriber: from the start) until `close`."""
        queue: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        for event in self._early:
            queue.put_nowait(event)
        self._early = []
        if self._closed:
            queue.put_nowait(None)
        self._queues.append(queue)
        return self._read(queue)

    def close(self) -> None:
        """End every subscription once it has delivered what was sent."""
        self._closed = True
        for queue in self._queues:
            queue.put_nowait(None)

    async def _read(self, queue: asyncio.Queue[AgentEvent | None]) -> AsyncIterator[AgentEvent]:
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._queues.remove(queue)
