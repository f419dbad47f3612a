"""One create, from its turn to its terminal event, and the successors that steering opens."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from fulgur.backends.base import Backend, Conversation, Generation
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.protocol.request import SteerRequest
from fulgur.server import accounting, compact, ending, steering, tracing
from fulgur.server.emitter import Emitter, EventLog, NullSink, Sink
from fulgur.server.journal import Journal
from fulgur.server.output import Output
from fulgur.server.place import Place
from fulgur.server.prepare import Prepared
from fulgur.server.steering import Steer, Steers
from fulgur.server.store.base import Answer, Stored
from fulgur.server.takeover import CatchUp
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

OVERTAKEN = "overtaken"  # a later attempt owns the response: this one ends silently
GRACE_S = 15.0  # how long a stored response outlives its socket


class Run:
    """Drives the backend and feeds the sink. `response` and `conversation` are those of the current response."""

    def __init__(
        self,
        server: Server,
        prepared: Prepared,
        sink: Sink,
        owner: str,
        stream_id: str | None,
        *,
        attempt: int = 1,
        known: Sequence[bytes] = (),
    ) -> None:
        """`attempt` is more than 1, and `known` its events so far, for a response taken over from another front."""
        self.server = server
        self.owner = owner
        self.stream_id = stream_id
        self.sink = sink
        self.after: Conversation | None = None  # input and output, once the response has ended
        self.waiting: list[Steer] = []  # steers that wait for tool outputs: the next create carries them
        self.stopped = ""
        self.attempt = attempt
        self.journal: Journal | None = None
        self.ids: set[str] = set()  # of the current response and of those it succeeded
        self.traceparent = tracing.parent.get()
        self.refused: ApiError | None = None  # why the response failed, when a client can act on it
        self._steers = Steers()
        self._applied: list[Steer] = []  # what the current response was opened for
        self.generation: Generation | None = None
        self._spent: Generation | None = None  # kept until its end was sent: a long prompt takes a while to free
        self._parts: AsyncIterator[Part] | None = None
        self._work: asyncio.Future[Any] | None = None  # a wait for a slot, a prefill or a compaction
        self._begin(prepared, known)

    def _begin(self, prepared: Prepared, known: Sequence[bytes] = ()) -> None:
        self.prepared = prepared
        self.response = prepared.response
        self.conversation = prepared.turn.conversation
        prepared.turn.owner = self.server.cache_owner(self.owner)
        if self._parts is None:
            self.place = Place(self)
        self.response.service_tier = self.place.tier
        self.log = EventLog() if prepared.store else None
        if self.log is not None and known:
            self.emitter: Emitter = CatchUp(self.sink, self.stream_id, self.log, list(known))
        else:
            self.emitter = Emitter(self.sink, self.stream_id, self.log)
        self.journal = Journal(self) if self.log is not None and self.server.fronts is not None else None
        self.output = Output(self.emitter, self.response.id, seal_reasoning=prepared.seal_reasoning)
        self.usage = Usage()
        self.started = time.perf_counter()
        self.first_output: float | None = None
        self._entered: float | None = None  # when it got its slot
        self.server.runs[self.response.id] = self
        self.ids.add(self.response.id)

    # --- called from outside ---

    def stop(self, reason: str) -> None:
        """End at the next token: `cancelled`, `interrupted` (Codex) or `disconnected`."""
        if not self.stopped or reason == OVERTAKEN:
            self.stopped = reason
            if self.generation is not None:
                self.generation.cancel()
            if self._work is not None:
                self._work.cancel()

    def detach(self) -> None:
        """Continue without a socket. A stored response runs on for a while: its client may come back and replay it."""
        if self.log is None:
            self.stop("disconnected")
            return
        self.sink = self.emitter.sink = NullSink()
        asyncio.get_running_loop().call_later(GRACE_S, self._stop_unless_followed)

    def _stop_unless_followed(self) -> None:
        if self.log is None or not (self.log.followed() or self.server.live.problem()):
            self.stop("disconnected")  # while the live state is away, a front that follows it cannot say so
        elif not self.log.ended:
            asyncio.get_running_loop().call_later(GRACE_S, self._stop_unless_followed)

    def steer(self, request: SteerRequest) -> Steer:
        """Accept a steer and set it to work; raises ApiError when it cannot be."""
        if self.response.status in ("failed", "cancelled") or self.stopped:
            raise ApiError(400, "response_already_completed", "The response has ended.")
        if not self.prepared.entry.backend.capabilities.chat:
            raise ApiError(400, "steering_not_supported", f"The model '{self.response.model}' cannot be steered.")
        steer = self._steers.add(request, self.generation)
        if self._steers.late is not None:
            self._steers.late.append(steer)
        else:
            self._confirm(steer)
        return steer

    def _confirm(self, steer: Steer) -> None:
        if self.journal is not None:
            self.journal.steered(steer)
        self.emitter.emit("response.steer.accepted", steer=steer.named())
        self.server.metrics.add("fulgur_steers_total", outcome="accepted")

    # --- one create ---

    async def run(self) -> None:
        """Run until no successor follows. Errors end as `response.failed`, never as an exception."""
        try:
            while True:
                following = await self._one()
                if following is None:
                    return
                self.attempt = 1
                self._begin(following)
        finally:
            if self.generation is not None:
                self.generation.cancel()
            self.server.runs.pop(self.response.id, None)

    async def _one(self) -> Prepared | None:
        if self.journal is not None:
            await self.journal.open()
        refused = await self.place.ask() if self._parts is None else None
        self.response.status = "queued" if self.place.waits() else "in_progress"
        steers = {"steers": [steer.id for steer in self._applied]} if self._applied else {}
        self.emitter.emit("response.created", response=self.response, **steers)
        self.server.metrics.add("fulgur_responses_running")
        steered: list[Steer] | None = None
        try:
            if refused is not None:
                raise refused
            if await self.place.enter():
                self._entered = time.perf_counter()
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
            if self._parts is None:
                self.place.leave(self.usage)
        return await self._finish(steered)

    # --- the answer ---

    async def until(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do the work unless the run is told to stop first; then the response has ended, and this returns False."""
        self._work = asyncio.ensure_future(work)
        if self.stopped:
            self._work.cancel()
        await asyncio.wait([self._work])
        done, self._work = self._work, None
        if done.cancelled():
            self._ended(Finish("cancelled", self.usage))
            return False
        done.result()
        return True

    async def _answer(self) -> list[Steer] | None:
        """Generate until the end (None) or until steers took over."""
        backend = await self.prepared.entry.ready()
        if not self.prepared.generate or self.prepared.compact:
            if await self.until(self._prefill(backend) if not self.prepared.generate else self._compact(backend)):
                self.response.status = "completed"
            return None
        if self._parts is None:
            self.generation = backend.generate(self.prepared.turn)
            self._parts = self.generation.__aiter__()
        if self.stopped and self.generation is not None:
            self.generation.cancel()
        while True:
            assert self._parts is not None
            steered = await self._consume(self._parts)
            if not self.place.cut:
                return steered
            rest = await self.place.again(self.usage)
            if rest is None:
                return None
            self.usage, self.generation = Usage(), backend.generate(rest)
            self._parts = self.generation.__aiter__()

    async def _prefill(self, backend: Backend) -> None:
        if self.conversation.length or self.prepared.turn.instructions:
            self.usage = await backend.prefill(self.prepared.turn)

    async def _compact(self, backend: Backend) -> None:
        self.usage, item = await compact.compact(backend, self.prepared.turn)
        self.emitter.emit("response.output_item.added", output_index=0, item=item)
        self.emitter.emit("response.output_item.done", output_index=0, item=item)
        self.output.items.append(item)

    async def _consume(self, parts: AsyncIterator[Part]) -> list[Steer] | None:
        output, emitter, generation = self.output, self.emitter, self.generation
        async for part in parts:
            emitter.more_follows = generation is not None and generation.more
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
                if self._steers.at_item:
                    return await self._leave(parts)
            elif isinstance(part, Begin):
                self.usage.input_tokens, self.usage.cached_tokens = part.input_tokens, part.cached_tokens
                with contextlib.suppress(ApiError):  # its sender was told when it arrived
                    self._steers.offer(self.generation)
                continue
            elif isinstance(part, Steered):
                return self._steer_at_token(part)
            else:
                if self.place.was_cut(part):
                    self.usage = part.usage
                else:
                    self._ended(part)
                continue  # nothing follows; the loop ends when the backend has released what it holds
            if self.first_output is None:
                self.first_output = time.perf_counter()
            if emitter.sink.full():
                await emitter.sink.drain()
        self._parts = None
        return None

    def _cut_here(self) -> bool:
        """Whether a steer waits at a boundary between two items, the safe place by the documented contract."""
        return bool(self._steers.at_item) and (self.output.kind != "" or bool(self.output.items))

    async def _leave(self, parts: AsyncIterator[Part]) -> list[Steer] | None:
        """Stop generating at the end of an item; `_finish` decides what follows from the steer."""
        self.output.close()
        if self.generation is not None:
            self.generation.cancel()
        async for part in parts:
            if isinstance(part, Finish):
                self.usage = part.usage
        self._parts = self.generation = None
        self.response.status = "steered"
        return None

    def _steer_at_token(self, part: Steered) -> list[Steer]:
        """The backend continues in the new direction: close the partial item and let the successor begin."""
        self.usage = part.usage
        self.place.add_steered(part.usage)
        self.output.close("incomplete")
        self.response.status = "steered"
        return self._steers.take_applied(part.items)

    def _ended(self, finish: Finish) -> None:
        self.usage = finish.usage
        self._spent, self.generation = self.generation, None
        error = ending.settle(self.response, self.output, self.emitter, finish, self.stopped)
        if error is not None:
            self._fail(error.code, error.message)

    def _fail(self, code: str, message: str) -> None:
        self.output.close("incomplete")
        self.response.status = "failed"
        self.response.error = {"code": code, "message": message}
        if self.generation is not None:
            self.generation.cancel()
        self.generation = self._parts = None

    # --- the end of one response ---

    async def _finish(self, taken: list[Steer] | None) -> Prepared | None:
        """Close the response, store it, send its terminal event, and return its successor."""
        response, generated = self.response, time.perf_counter()
        owed = steering.required_input(self.output.items)
        if response.status == "steered":
            if owed:
                response.status = "completed"
            else:
                response.status = "incomplete"
                response.incomplete_details = {"reason": "steered"}
        response.output = self.output.items
        self.usage = self.place.in_all(self.usage)
        price = accounting.at_tier(self.prepared.entry.model.price, self.place.price())
        response.usage = accounting.usage_object(self.usage, price)
        if response.status == "completed":
            response.completed_at = int(time.time())
        self.after = self.conversation.extend(ending.kept(self.output.items))
        paid = accounting.cost(price, self.usage)
        self.server.metrics.record(self.prepared.entry.name, response.status, self.usage, paid)
        accounting.measure(self.server.metrics, self.prepared.entry, self.usage, self.started, self.first_output)
        await self._close_log(paid or 0.0)
        tracing.of_run(self, self._entered, generated)
        return self._follow(taken, owed)

    def _follow(self, taken: list[Steer] | None, owed: list[dict[str, object]]) -> Prepared | None:
        """The successor that steering asks for, if any."""
        assert self.after is not None
        if self.response.status in ("failed", "cancelled") or self.stopped:
            for steer in [*(taken or []), *self._steers.drain()]:
                steering.emit_failed(self.emitter, steer, "response_not_active", "The response ended before the steer.")
            return None
        if taken is None:  # the answer ended before the backend could turn
            taken = self._steers.drain()
            if not taken:
                return None
        else:
            owed = []  # the backend has gone on already
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

    async def _close_log(self, paid: float) -> None:
        """Commit before the terminal event is sent: a client that saw a stored response end can read it back."""
        response = self.response
        name = {"completed": "completed", "failed": "failed"}.get(response.status, "incomplete")
        kind = f"response.{name}"
        stored, events = None, []
        if self.log is not None:
            stored = Stored(response, self.prepared.input, self.prepared.parent)
            events = [*(data for _, data in self.log.events), self.emitter.preview(kind, response)]
        model, tier = self.prepared.entry.name, self.place.tier
        used = Answer(response.id, self.owner, model, tier, response.status, self.usage, paid, self.attempt)
        self._steers.late = []
        # An overtaken response is incomplete, and the front that took it over may not have fenced it in the store yet.
        if self.stopped != OVERTAKEN and await ending.commit(self.server, used, stored, events):
            self.emitter.last(kind, response)
        else:
            self.stopped = self.stopped or OVERTAKEN  # another front ends it
        if self.log is not None:
            self.log.end()
        late, self._steers.late = self._steers.late or [], None
        for steer in late:
            self._confirm(steer)
        self.server.runs.pop(self.response.id, None)
