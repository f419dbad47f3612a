"""Batches events for Redis: those of all runs that come during one call are sent with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fulgur.server.live.base import LiveAway


@dataclass
class Batch:
    """Events of one run, in order."""

    run: str
    attempt: int
    first: int
    events: list[bytes]
    kept: asyncio.Future[int | None]


Write = Callable[[list[Batch]], Awaitable[list[int | None]]]


class Outbox:
    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: dict[str, Batch] = {}
        self._task: asyncio.Task[None] | None = None

    async def put(self, run: str, attempt: int, first: int, events: Sequence[bytes]) -> int | None:
        """Wait until the events are written; return what `write` says of them, or raise its LiveAway."""
        batch = self._waiting.get(run)
        if batch is None or batch.attempt != attempt or batch.first + len(batch.events) != first:
            if batch is not None:  # another attempt, or a gap: what waits stays a batch of its own
                self._waiting[f"{run} {batch.first} {batch.attempt}"] = self._waiting.pop(run)
            batch = self._waiting[run] = Batch(run, attempt, first, [], asyncio.get_running_loop().create_future())
        batch.events += events
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())
        return await asyncio.shield(batch.kept)

    async def empty(self) -> None:
        """Wait until everything has been written."""
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def _send(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # so that other runs can add what they have at this moment
            batches, self._waiting = list(self._waiting.values()), {}
            try:
                results = await self._write(batches)
            except LiveAway as error:
                for batch in batches:
                    batch.kept.set_exception(error)
                continue
            for batch, kept in zip(batches, results, strict=True):
                batch.kept.set_result(kept)
