"""Finishes a response whose front died.

The answer is generated again from its start. The seed in the record makes the tokens the same, and events that the dead
front has written are not written again; the numbers continue where they stopped. Only a commit ends the response: an
attempt that was wrongly taken for dead has its commit refused by the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from fulgur.backends.base import Conversation
from fulgur.errors import FulgurError
from fulgur.server import journal
from fulgur.server.emitter import Emitter, EventLog, NullSink, Sink
from fulgur.server.live.base import Running
from fulgur.server.prepare import Prepared

if TYPE_CHECKING:
    from fulgur.server.run import Run
    from fulgur.server.state import Server

# Every attempt emits these; how often depends on the queue.
_REPEATED = ("response.created", "response.queued", "response.in_progress")
_STEER = "response.steer."


class _Event(msgspec.Struct):
    type: str
    sequence_number: int = 0
    delta: str | None = None
    steer: dict[str, Any] | None = None


_event = msgspec.json.Decoder(_Event)


class CatchUp(Emitter):
    """Emits only what earlier attempts did not; their events are in the log from the start."""

    def __init__(self, sink: Sink, stream_id: str | None, log: EventLog, known: list[bytes]) -> None:
        super().__init__(sink, stream_id, log)
        events = [_event.decode(data) for data in known]
        log.events = [(event.type.encode(), data) for event, data in zip(events, known, strict=True)]
        log.known = self.sequence = len(known)
        self._kinds = {event.type for event in events}
        content = (event for event in events if event.type not in _REPEATED and not event.type.startswith(_STEER))
        self._ahead = deque((event.type, event.delta) for event in content)

    def emit(self, kind: str, **fields: Any) -> None:
        if not self._said(kind, fields.get("delta")):
            super().emit(kind, **fields)

    def delta(self, text: str) -> None:
        if not self._said(self._kind.decode(), text):
            super().delta(text)

    def _said(self, kind: str, delta: str | None) -> bool:
        if kind in _REPEATED:
            return bool(self._ahead) or kind in self._kinds
        if not self._ahead or kind.startswith(_STEER):
            return False
        expected = self._ahead.popleft()
        if expected != (kind, delta):
            self._ahead.clear()
            raise FulgurError("The server that wrote this answer died, and the answer cannot be continued.")
        return True


async def take(server: Server, found: Running) -> Run | None:
    """Take ownership of the response and restart it. None when another front has it, or it has ended after all."""
    from fulgur.server.run import Run

    taken = await server.live.take(found.id, found.attempt)
    if taken is None:
        return None
    if not await server.store.fence(found.id, taken.attempt):
        await server.live.end(found.id, taken.attempt)
        return None
    known = await _written(server, found.id)
    record = journal.read(taken.request)
    prepared = await _prepared(server, taken.owner, record)
    run = Run(server, prepared, NullSink(), taken.owner, record.lane, attempt=taken.attempt, known=known)
    lost = journal.read_steers(await server.live.get(journal.steers_key(found.id)))
    task = asyncio.create_task(_bring_to_its_end(run, lost, known))
    server.background.add(task)
    task.add_done_callback(server.background.discard)
    return run


async def _written(server: Server, response_id: str) -> list[bytes]:
    """The events of earlier attempts; none when the live state has forgotten the first of them."""
    written = await server.live.events(response_id, 0)
    whole = written is not None and written.data and _event.decode(written.data[0]).sequence_number == 0
    return written.data if written is not None and whole else []


async def _bring_to_its_end(run: Run, lost: list[journal.KeptSteer], known: list[bytes]) -> None:
    settled = {
        str(event.steer.get("id"))
        for event in map(_event.decode, known)
        if event.steer is not None and event.type != "response.steer.accepted"
    }
    for steer in lost:
        if steer.id not in settled:
            run.emitter.emit(
                "response.steer.failed",
                steer={"id": steer.id, "previous_response_id": steer.response_id, "input": steer.input},
                error={
                    "type": "invalid_request_error",
                    "code": "response_not_active",
                    "message": "The server died before it could use the steer.",
                },
            )
    run.detach()
    await run.run()
    if run.after is not None and run.response.status != "failed":
        run.server.remember(run.owner, run.response.id, run.after)


async def _prepared(server: Server, owner: str, record: journal.Record) -> Prepared:
    entry = server.models.get(record.model)
    await entry.ready()
    conversation = Conversation(record.input)
    if record.parent is not None:
        conversation = (await server.conversation(owner, record.parent)).extend(record.input)
        journal.use_prompt(conversation, record.model, await server.live.get(journal.prompt_key(record.response.id)))
    record.turn.conversation = conversation
    return Prepared(
        entry,
        record.turn,
        record.response,
        record.input,
        record.parent,
        store=True,
        generate=record.generate,
        seal_reasoning=record.seal_reasoning,
        compact=record.compact,
    )
