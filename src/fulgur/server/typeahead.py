"""Type-ahead: the input a person is still typing, brought into the cache before it is sent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.protocol.request import CreateRequest
from fulgur.server.lanes import MAX_LANES
from fulgur.server.limits import Lease
from fulgur.server.parse import convert
from fulgur.server.prepare import prepare_off_loop

if TYPE_CHECKING:
    from fulgur.server.websocket import Session


class TypeAhead:
    """Runs one prefill at a time per connection; of those that arrive meanwhile, only the newest of each lane counts.

    Every `response.prefill` is answered by `response.prefilled` with its `prefill_id`; a superseded or impossible one
    reports 0 tokens, because a hint must never fail a session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next: dict[str | None, tuple[dict[str, Any], Lease | None]] = {}
        self._task: asyncio.Task[None] | None = None

    def put(self, frame: dict[str, Any], lane: str | None, lease: Lease | None) -> None:
        """`lease` is the room the frame takes, until it is answered."""
        if lane in self._next or len(self._next) > MAX_LANES:
            stale, room = self._next.pop(lane, (frame, lease))
            self._answer(stale, lane, 0, 0, room)
            if stale is frame:
                return
        self._next[lane] = frame, lease
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    def close(self) -> None:
        for _, lease in self._next.values():
            if lease is not None:
                lease.release()
        self._next.clear()
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while self._next:
            lane, (frame, lease) = next(iter(self._next.items()))
            del self._next[lane]
            tokens = cached = 0
            try:
                with contextlib.suppress(FulgurError):
                    tokens, cached = await self._prefill(frame)
            finally:
                self._answer(frame, lane, tokens, cached, lease)

    async def _prefill(self, frame: dict[str, Any]) -> tuple[int, int]:
        request = convert(frame, CreateRequest)
        request.store, request.generate = False, False
        entry = self._session.server.models.get(request.model)
        backend = await entry.ready()
        previous, _ = await self._session.find(request.previous_response_id)
        prepared = await prepare_off_loop(request, entry, previous, None, websocket=True)
        if not prepared.input and not request.instructions:
            raise ApiError(400, "empty_input", "There is nothing to prefill.")
        prepared.turn.owner = self._session.server.cache_owner(self._session.owner)
        usage = await backend.prefill(prepared.turn, unfinished=True)
        return usage.input_tokens, usage.cached_tokens

    def _answer(self, frame: dict[str, Any], lane: str | None, tokens: int, cached: int, lease: Lease | None) -> None:
        if lease is not None:
            lease.release()
        event = {"type": "response.prefilled", "sequence_number": 0, "input_tokens": tokens, "cached_tokens": cached}
        for name, value in (("prefill_id", frame.get("prefill_id")), ("stream_id", lane)):
            if isinstance(value, str):
                event[name] = value
        self._session.send(event)
