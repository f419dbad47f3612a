"""The lanes of one connection: first in, first out within a lane, in parallel across lanes, with a limit in all."""

from __future__ import annotations

import asyncio
import functools
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from fulgur.protocol.errors import ApiError

MAX_IN_FLIGHT = 16
MAX_LANES = 32
MAX_QUEUED = 256
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")

Work = Callable[[], Awaitable[None]]


class Lanes:
    """Starts each piece of work when its lane and the connection have room. `None` is the default lane."""

    def __init__(self, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self._free = max_in_flight
        self._queues: dict[str | None, deque[Work]] = {}
        self._busy: set[str | None] = set()
        self._ready: deque[str | None] = deque()  # lanes with work that wait for a free place
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._starting = False  # more work starts in the next iteration of the event loop

    def submit(self, lane: str | None, work: Work) -> None:
        """Queue work; raises ApiError when there are too many lanes or too much work waits."""
        if lane not in self._queues:
            if lane is not None and sum(name is not None for name in self._queues) >= MAX_LANES:
                raise ApiError(
                    400,
                    "websocket_stream_limit_reached",
                    f"A connection may have at most {MAX_LANES} lanes.",
                    param="stream_id",
                )
            self._queues[lane] = deque()
        if sum(map(len, self._queues.values())) >= MAX_QUEUED:
            raise ApiError(
                429,
                "too_many_queued",
                f"A connection may have at most {MAX_QUEUED} queued creates.",
                type="rate_limit_error",
            )
        self._queues[lane].append(work)
        if lane not in self._busy and len(self._queues[lane]) == 1:
            self._ready.append(lane)
        self._start_soon()

    def stop(self) -> None:
        """Start nothing more."""
        self._closed = True

    async def wait(self) -> None:
        """Wait for what runs, which the caller has told to stop."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start_soon(self) -> None:
        if not self._starting:
            self._start()

    def _start(self) -> None:
        """Start one, and another in the next iteration of the loop: sixteen creates at once must not block others."""
        self._starting = bool(self._free and self._ready and not self._closed)
        if self._starting:
            lane = self._ready.popleft()
            self._free -= 1
            self._busy.add(lane)
            task = asyncio.ensure_future(self._queues[lane].popleft()())
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._done, lane))
            asyncio.get_running_loop().call_soon(self._start)

    def _done(self, lane: str | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free += 1
        self._busy.discard(lane)
        if self._queues[lane]:
            self._ready.append(lane)
        self._start_soon()


def lane_of(frame: dict[str, Any]) -> str | None:
    """The lane a frame names; raises ApiError when the name is invalid."""
    name = frame.get("stream_id")
    if name is None:
        return None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError(
            400,
            "invalid_stream_id",
            "A stream_id has 1 to 256 characters of A-Z, a-z, 0-9, '_', '.' and '-'.",
            param="stream_id",
        )
    return name
