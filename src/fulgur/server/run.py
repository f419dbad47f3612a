"""One create, from its turn to its terminal event, and the successors that steering opens."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fulgur.backends.base import Backend, Conversation, Generation
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import Item, item_type
from fulgur.protocol.request import SteerRequest
from fulgur.server import accounting, compact, steering
from fulgur.server.emitter import Emitter, EventLog, Sink
from fulgur.server.output import Output
from fulgur.server.prepare import Prepared
from fulgur.server.steering import Steer
from fulgur.server.store import Stored
from fulgur.text.parts import (
    Begin,
    CallDelta,
    CallEnd,
    CallStart,
    Finish,
    Malformed,
    Part,
    ReasoningDelta,
    Steered,
    TextDelta,
    Usage,
)

if TYPE_CHECKING:
    from fulgur.server.state import Server

# Why a run was told to stop, and the status its response ends with.
STOPPED = {"cancelled": "cancelled", "interrupted": "incomplete", "disconnected": "incomplete"}


class Run:
    """Drives the backend and tells the sink. `response` and `conversation` are those of the current response."""

    def __init__(self, server: Server, prepared: Prepared, sink: Sink, owner: str, stream_id: str | None) -> None:
        self.server = server
        self.owner = owner
        self.stream_id = stream_id
        self.sink = sink
        self.after: Conversation | None = None  # input and output, once the response has ended
        self.waiting: list[Steer] = []  # steers that wait for tool outputs: the next create carries them
        self.stopped = ""
        self.ids: set[str] = set()  # of the current response and of those it succeeded
        self.refused: ApiError | None = None  # why the response failed, when a client can act on it
        self._steers: list[Steer] = []  # to be applied at the end of the current item
        self._token_steers: list[Steer] = []  # given to the backend
        self._unconfirmed: list[Steer] | None = None  # come while the response is being stored: a list only then
        self._applied: list[Steer] = []  # what the current response was opened for
        self._generation: Generation | None = None
        self._parts: AsyncIterator[Part] | None = None
        self._work: asyncio.Future[Any] | None = None  # a prefill or a compaction
        self._begin(prepared)

    def _begin(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.response = prepared.response
        self.conversation = prepared.turn.conversation
        prepared.turn.owner = self.server.cache_owner(self.owner)
        self.log = EventLog() if prepared.store else None
        self.emitter = Emitter(self.sink, self.stream_id, self.log)
        self.output = Output(self.emitter, seal_reasoning=prepared.seal_reasoning)
        self._usage = Usage()
        self._started = time.perf_counter()
        self._first: float | None = None
        self.server.runs[self.response.id] = self
        self.ids.add(self.response.id)

    # --- what others ask of it ---

    def stop(self, reason: str) -> None:
        """End at the next token: `cancelled`, `interrupted` (Codex) or `disconnected`."""
        if not self.stopped:
            self.stopped = reason
            if self._generation is not None:
                self._generation.cancel()
            if self._work is not None:
                self._work.cancel()

    def steer(self, request: SteerRequest) -> None:
        """Accept a steer and set it to work; raises ApiError when it cannot be."""
        if self.response.status in ("failed", "cancelled") or self.stopped:
            raise ApiError(400, "response_already_completed", "The response has ended.")
        if len(self._steers) + len(self._token_steers) >= steering.MAX_PENDING:
            raise ApiError(400, "too_many_pending_steers", f"At most {steering.MAX_PENDING} steers may wait.")
        if not self.prepared.entry.backend.capabilities.chat:
            raise ApiError(400, "steering_not_supported", f"The model '{self.response.model}' cannot be steered.")
        steer = steering.accept(request)
        self._steers.append(steer)
        try:
            self._offer()
        except ApiError:
            self._steers.remove(steer)
            raise
        if self._unconfirmed is not None:
            self._unconfirmed.append(steer)
        else:
            self._confirm(steer)

    def _offer(self) -> None:
        """Give the backend the steers that want a token's boundary, in their order, as far as it takes them."""
        for steer in [steer for steer in self._steers if steer.at_token]:
            if self._generation is None or not self._generation.steer(steer.items):
                return
            self._steers.remove(steer)
            self._token_steers.append(steer)

    def _confirm(self, steer: Steer) -> None:
        self.emitter.emit("response.steer.accepted", steer=steer.named())
        self.server.metrics.add("fulgur_steers_total", outcome="accepted")

    # --- the way of one create ---

    async def run(self) -> None:
        """Until no successor follows. Errors end as `response.failed`, never as an exception."""
        try:
            while True:
                following = await self._one()
                if following is None:
                    return
                self._begin(following)
        finally:
            if self._generation is not None:
                self._generation.cancel()
            self.server.runs.pop(self.response.id, None)

    async def _one(self) -> Prepared | None:
        pool = self.prepared.entry.pool
        fresh = self._parts is None
        waits = fresh and pool is not None and pool.full()
        self.response.status = "queued" if waits else "in_progress"
        steers = {"steers": [steer.id for steer in self._applied]} if self._applied else {}
        self.emitter.emit("response.created", response=self.response, **steers)
        if fresh and pool is not None:
            if waits:
                self.emitter.response("response.queued", self.response)
            await pool.enter()
        self.response.status = "in_progress"
        self.emitter.response("response.in_progress", self.response)
        self.server.metrics.add("fulgur_responses_running")
        steered: list[Steer] | None = None
        try:
            steered = await self._answer()
        except ApiError as error:
            self.refused = error
            self._fail(error.code, error.message)
        except FulgurError as error:
            self._fail("server_error", str(error))
        except Exception as error:
            self.server.log_exception(error)
            self._fail("server_error", "The server failed on this request; its log says why.")
        finally:
            self.server.metrics.add("fulgur_responses_running", -1)
            if self._parts is None and pool is not None:
                pool.leave(self._usage.input_tokens + self._usage.output_tokens)
        return await self._finish(steered)

    async def _answer(self) -> list[Steer] | None:
        """Generate until the end (None) or until steers took over."""
        backend = await self.prepared.entry.ready()
        if not self.prepared.generate or self.prepared.compact:
            self._work = asyncio.ensure_future(
                self._prefill(backend) if not self.prepared.generate else self._compact(backend)
            )
            await asyncio.wait([self._work])
            work, self._work = self._work, None
            if work.cancelled():
                self._ended(Finish("cancelled", self._usage))
            else:
                work.result()
                self.response.status = "completed"
            return None
        if self._parts is None:
            self._generation = backend.generate(self.prepared.turn)
            self._parts = self._generation.__aiter__()
        if self.stopped and self._generation is not None:
            self._generation.cancel()
        return await self._consume(self._parts)

    async def _prefill(self, backend: Backend) -> None:
        if self.conversation.length or self.prepared.turn.instructions:
            self._usage = await backend.prefill(self.prepared.turn)

    async def _compact(self, backend: Backend) -> None:
        self._usage, item = await compact.compact(backend, self.prepared.turn)
        self.emitter.emit("response.output_item.added", output_index=0, item=item)
        self.emitter.emit("response.output_item.done", output_index=0, item=item)
        self.output.items.append(item)

    async def _consume(self, parts: AsyncIterator[Part]) -> list[Steer] | None:
        output, sink, emitter, generation = self.output, self.sink, self.emitter, self._generation
        async for part in parts:
            emitter.more = generation is not None and generation.more
            if isinstance(part, TextDelta):
                if output.kind != "message" and self._cut_here():
                    return await self._leave(parts)
                output.text(part.text, part.logprobs)
            elif isinstance(part, CallDelta):
                output.call_delta(part.text)
            elif isinstance(part, ReasoningDelta):
                if output.kind != "reasoning" and self._cut_here():
                    return await self._leave(parts)
                output.reasoning(part.text)
            elif isinstance(part, CallStart):
                if self._cut_here():
                    return await self._leave(parts)
                output.call_start(part)
            elif isinstance(part, CallEnd | Malformed):
                output.close("completed" if isinstance(part, CallEnd) else "incomplete")
                if self._steers:
                    return await self._leave(parts)
            elif isinstance(part, Begin):
                self._usage.input_tokens, self._usage.cached_tokens = part.input_tokens, part.cached_tokens
                with contextlib.suppress(ApiError):  # said to its sender when it came
                    self._offer()
                continue
            elif isinstance(part, Steered):
                return self._turn_at_token(part)
            else:
                self._ended(part)
                continue  # nothing follows: the backend lets go of what it holds
            if self._first is None:
                self._first = time.perf_counter()
            if sink.full():
                await sink.drain()
        self._parts = None
        return None

    def _cut_here(self) -> bool:
        """Between two items, with a steer waiting: the safe boundary of the documented contract."""
        return bool(self._steers) and (self.output.kind != "" or bool(self.output.items))

    async def _leave(self, parts: AsyncIterator[Part]) -> list[Steer] | None:
        """Stop generating at an item's end; what the steer makes of it is decided in `_finish`."""
        self.output.close()
        if self._generation is not None:
            self._generation.cancel()
        async for part in parts:
            if isinstance(part, Finish):
                self._usage = part.usage
        self._parts = self._generation = None
        self.response.status = "steered"
        return None

    def _turn_at_token(self, part: Steered) -> list[Steer]:
        """The backend goes on in the new direction: close the partial item and let the successor begin."""
        self._usage = part.usage
        self.output.close("incomplete")
        self.response.status = "steered"
        taken = [steer for steer in self._token_steers if steering.among(steer.items, part.items)]
        self._token_steers = [steer for steer in self._token_steers if steer not in taken]
        return taken

    def _ended(self, finish: Finish) -> None:
        self._usage = finish.usage
        self._generation = None
        if self.stopped:
            if self.stopped == "interrupted":
                dropped = self.output.discard()
                if dropped is not None:
                    self.emitter.emit(
                        "response.output_item.interrupted",
                        response_id=self.response.id,
                        item_id=dropped[0],
                        output_index=dropped[1],
                    )
            else:
                self.output.close("incomplete")
            self.response.status = STOPPED[self.stopped]
            self.response.incomplete_details = {"reason": self.stopped}
        elif finish.reason in ("length", "content_filter"):
            self.output.close("incomplete")
            self.response.status = "incomplete"
            reason = "max_output_tokens" if finish.reason == "length" else "content_filter"
            self.response.incomplete_details = {"reason": reason}
        elif finish.reason == "cancelled":
            self._fail("server_error", "The backend ended the answer before it was whole.")
        else:
            self.output.close()
            self.response.status = "completed"

    def _fail(self, code: str, message: str) -> None:
        self.output.close("incomplete")
        self.response.status = "failed"
        self.response.error = {"code": code, "message": message}
        if self._generation is not None:
            self._generation.cancel()
        self._generation = self._parts = None

    # --- the end of one response ---

    async def _finish(self, taken: list[Steer] | None) -> Prepared | None:
        """Close the response, store it, send its terminal event, and say what follows it."""
        response = self.response
        owed = steering.required_input(self.output.items)
        if response.status == "steered":
            if owed:
                response.status = "completed"
            else:
                response.status = "incomplete"
                response.incomplete_details = {"reason": "steered"}
        response.output = self.output.items
        response.usage = accounting.usage_object(self._usage, self.prepared.entry.model.price)
        if response.status == "completed":
            response.completed_at = int(time.time())
        self.after = self.conversation.extend(kept(self.output.items))
        accounting.measure(
            self.server.metrics, self.prepared.entry, response.status, self._usage, self._started, self._first
        )
        await self._close_log()
        return self._follow(taken, owed)

    def _follow(self, taken: list[Steer] | None, owed: list[dict[str, object]]) -> Prepared | None:
        """The successor that steering asks for, if any."""
        assert self.after is not None
        waiting = [*self._token_steers, *self._steers]
        if self.response.status in ("failed", "cancelled") or self.stopped:
            for steer in [*(taken or []), *waiting]:
                steering.emit_failed(self.emitter, steer, "response_not_active", "The response ended before the steer.")
            return None
        if taken is None:  # the answer ended before the backend could turn
            taken, self._token_steers, self._steers = waiting, [], []
            if not taken:
                return None
        else:
            owed = []  # the backend goes on already
        if owed:
            for steer in taken:
                self.emitter.emit(
                    "response.steer.pending",
                    steer=steer.named(),
                    reason="waiting_for_required_input",
                    required_input=owed,
                )
            self.waiting = taken
            return None
        self._applied = taken
        items = [item for steer in taken for item in steer.items]
        self.server.metrics.add("fulgur_steers_total", len(taken), outcome="applied")
        return self.prepared.successor(self.after.extend(items), items)

    async def _close_log(self) -> None:
        """Commit before the terminal event is sent: who saw it end can ask for it again."""
        name = {"completed": "completed", "failed": "failed"}.get(self.response.status, "incomplete")
        kind = f"response.{name}"
        if self.log is not None:
            events = [*self.log.events, (b"", self.emitter.preview(kind, self.response))]
            parent = self.prepared.parent
            self._unconfirmed = []
            try:
                await self.server.store.put(self.owner, Stored(self.response, self.prepared.input, parent), events)
            except Exception as error:
                self.server.log_exception(error)
                self.server.metrics.add("fulgur_store_failures_total")
                self.response.store = False  # the answer is whole, and says that it will not be there tomorrow
        self.emitter.response(kind, self.response)
        if self.log is not None:
            self.log.end()
        late, self._unconfirmed = self._unconfirmed or [], None
        for steer in late:
            self._confirm(steer)
        self.server.runs.pop(self.response.id, None)


def kept(output: list[Item]) -> list[Item]:
    """What of an output the conversation goes on from: partial messages too, partial tool calls not."""
    return [item for item in output if item_type(item) == "message" or item.get("status", "completed") == "completed"]
