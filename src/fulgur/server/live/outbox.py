"""Events on their way to Redis: those of all runs that come while a call is under way leave with the next one."""

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
        """Until the events are written; what `write` says of them, or the LiveAway that it raises."""
        batch = self._waiting.get(run)
        if batch is None or batch.attempt != attempt or batch.first + len(batch.events) != first:
            if batch is not None:  # another attempt, or a gap: what waits leaves by itself
                self._waiting[f"{run} {batch.first} {batch.attempt}"] = self._waiting.pop(run)
            batch = self._waiting[run] = Batch(run, attempt, first, [], asyncio.get_running_loop().create_future())
        batch.events += events
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())
        return await asyncio.shield(batch.kept)

    async def empty(self) -> None:
        """Until all that was put has been written."""
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def _send(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # what the others have at this moment leaves too
            batches, self._waiting = list(self._waiting.values()), {}
            try:
                results = await self._write(batches)
            except LiveAway as error:
                for batch in batches:
                    batch.kept.set_exception(error)
                continue
            for batch, kept in zip(batches, results, strict=True):
                batch.kept.set_result(kept)
