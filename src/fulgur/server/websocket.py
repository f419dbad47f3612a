"""WebSocket mode: one connection, its frames, its lanes, and the responses it still holds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from fulgur.backends.base import Conversation
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.items import Item
from fulgur.protocol.request import CreateRequest, InterruptRequest, SteerRequest
from fulgur.server import steering
from fulgur.server.event_loop import off_loop
from fulgur.server.frames import GatedSocket
from fulgur.server.fronts import Fronts
from fulgur.server.lanes import Lanes, lane_of
from fulgur.server.limits import Lease
from fulgur.server.parse import LARGE, convert, decode
from fulgur.server.prepare import input_items, prepare_off_loop
from fulgur.server.rates import meters_of
from fulgur.server.run import Run
from fulgur.server.sinks import SocketSink
from fulgur.server.state import Server
from fulgur.server.steering import Steer
from fulgur.server.typeahead import TypeAhead

HEARTBEAT_S = 30.0
TURN_S = 0.0002  # spent on one client's frames before the others get their turn
MAX_STEER_TEXT = 65_536  # characters
MAX_WAITING = 64  # responses whose steers wait for tool outputs


@dataclass
class Held:
    """The latest response of a lane: what a `store: false` chain continues from."""

    response_id: str
    conversation: Conversation
    stored: bool
    ids: set[str]  # its own, and those of the responses it was steered away from


async def serve(server: Server, request: web.Request, owner: str) -> web.WebSocketResponse:
    """Take the upgrade and live with the connection until it ends."""
    limits = server.config.server
    if len(server.sockets) >= limits.max_connections:
        raise ApiError(503, "too_many_connections", "The server has no room for another connection.")
    session = Session(server, SocketSink(request), owner)
    socket = GatedSocket(
        int(limits.max_body_mb * (1 << 20)),
        lambda: server.budget.lease(owner),
        session.refuse,
        heartbeat=HEARTBEAT_S,
        compress=False,
        decode_text=False,
        autoclose=True,
    )
    await socket.prepare(request)
    server.sockets.add(socket)
    server.metrics.add("fulgur_websockets")
    try:
        await session.read(socket)
    finally:
        server.sockets.discard(socket)
        server.last_request = time.monotonic()
        server.metrics.add("fulgur_websockets", -1)
        await session.close()
    return socket


class Session:
    """The state of one connection; it is gone with the connection."""

    def __init__(self, server: Server, sink: SocketSink, owner: str) -> None:
        self.server = server
        self.owner = owner
        self.sink = sink
        self.held: dict[str | None, Held] = {}
        self._lanes = Lanes()
        self._running: dict[str | None, Run] = {}
        self._waiting: dict[str, list[Steer]] = {}  # by the response whose tool outputs they wait for
        self._typeahead = TypeAhead(self)
        self._closed = False
        self._elsewhere: set[asyncio.Task[None]] = set()  # steers that other fronts are asked to take
        self._queued: list[Lease | None] = []  # of creates that wait for their turn
        self._leases: dict[str | None, list[Lease | None]] = {}  # of the create that runs in a lane, and of its steers

    async def read(self, socket: GatedSocket) -> None:
        """Read frames until the client leaves or the time is up. A client that does not read is not read from."""
        seconds = self.server.config.server.connection_minutes * 60
        deadline = asyncio.get_running_loop().call_later(seconds, self._time_is_up, socket)
        leases = socket.gate.leases
        turn = time.monotonic()
        try:
            async for message in socket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    continue
                if time.monotonic() - turn > TURN_S:  # frames that have arrived are delivered without a wait
                    await asyncio.sleep(0)
                    turn = time.monotonic()
                lease = leases.popleft()
                if isinstance(lease, ApiError):
                    self.refuse(lease)
                elif message.type is WSMsgType.TEXT:
                    await self._frame(message.data, lease)
                else:
                    self.refuse(invalid("Frames are JSON text, not binary.", code="invalid_frame"))
                    _give_back(lease)
                if self.sink.full():
                    await self.sink.drain()
        finally:
            deadline.cancel()
            socket.gate.close()

    async def close(self) -> None:
        """Free the engine: nobody reads any more. Only the wait at the end may be cut short."""
        self._closed = True
        self._typeahead.close()
        self._lanes.stop()
        for run in self._running.values():
            run.detach()
        for lease in self._queued:
            _give_back(lease)
        for lane in list(self.held):
            self._drop(lane)
        await self._lanes.wait()

    # --- frames ---

    async def _frame(self, data: bytes, lease: Lease | None) -> None:
        """`lease` is the room that a large frame takes; it is given back when nothing needs the frame any more."""
        lane: str | None = None
        try:
            frame = await decode(data, self.server.config.server.max_nesting)
            kind = frame.get("type")
            lane = lane_of(frame)
            self.server.metrics.add("fulgur_websocket_frames_total", type=kind if kind in _KINDS else "other")
            if kind == "response.create":
                self._lanes.submit(lane, lambda: self._create(frame, lane, lease))
                self._queued.append(lease)
                return
            if kind == "response.steer":
                lease = self._steer(frame, lease)
            elif kind in ("response.interrupt", "response.cancel"):
                self._stop(convert(frame, InterruptRequest), lane, interrupt=kind == "response.interrupt")
            elif kind == "response.prefill":
                self._typeahead.put(frame, lane, lease)
                return
            else:
                known = ", ".join(_KINDS)
                raise invalid(f"Unknown event type {kind!r:.100}. Known: {known}.", "type", "unknown_event_type")
        except ApiError as error:
            self._error(error, None if error.code == "invalid_stream_id" else lane)
        except BaseException:  # the client left while its frame was decoded
            _give_back(lease)
            raise
        _give_back(lease)

    async def _create(self, frame: dict[str, Any], lane: str | None, lease: Lease | None) -> None:
        """One create in its lane's turn. Whatever is wrong with it, the socket and the other lanes live on."""
        self._queued.remove(lease)
        self._leases[lane] = [lease]
        try:
            await self._answer(frame, lane)
        finally:
            for each in self._leases.pop(lane):
                _give_back(each)

    async def _answer(self, frame: dict[str, Any], lane: str | None) -> None:
        previous_id = frame.get("previous_response_id")
        try:
            run = await self._prepare(frame, lane)
        except ApiError as error:
            if error.status != 429:  # a client that has to wait sends the same request again
                self._evict(lane, previous_id)
            self._error(error, lane)
            return
        except Exception as error:
            self.server.log_exception(error)
            self._evict(lane, previous_id)
            self._error(ApiError(500, "server_error", "The server failed on this request; its log says why."), lane)
            return
        self._running[lane] = run
        try:
            await run.run()
        finally:
            del self._running[lane]
        if run.response.status == "failed":
            self._evict(lane, previous_id)
        elif run.after is not None:
            self._hold(lane, Held(run.response.id, run.after, run.prepared.store, run.ids))
            if run.prepared.store:
                self.server.remember(self.owner, run.response.id, run.after)
        if run.waiting:
            self._waiting[run.response.id] = run.waiting

    async def _prepare(self, frame: dict[str, Any], lane: str | None) -> Run:
        lease = self._leases[lane][0]
        if lease is not None and lease.size > LARGE:
            request = await off_loop(convert, frame, CreateRequest)
        else:
            request = convert(frame, CreateRequest)
        entry = self.server.models.get(request.model)
        _, rates = await self.server.admit(entry.pool, self.owner, request.service_tier)
        meters = meters_of(rates)
        if meters is not None:
            self.send({"type": "codex.rate_limits", "rate_limits": meters})
        await entry.ready()
        previous, parent = await self.find(request.previous_response_id)
        steers = self._waiting.pop(request.previous_response_id or "", [])
        if steers:
            request.input = [item for steer in steers for item in steer.items] + input_items(request.input)
        prepared = await prepare_off_loop(request, entry, previous, parent, websocket=True)
        if prepared.store and previous is not None and parent is None:
            prepared.input = prepared.turn.conversation.all()  # what is stored must not depend on this connection
        return Run(self.server, prepared, self.sink, self.owner, lane)

    async def find(self, response_id: str | None) -> tuple[Conversation | None, str | None]:
        """The conversation a create continues, and the stored response it follows, if that is stored."""
        if response_id is None:
            return None, None
        for held in self.held.values():
            if held.response_id == response_id:
                return held.conversation, response_id if held.stored else None
        return await self.server.conversation(self.owner, response_id), response_id

    def _evict(self, lane: str | None, previous_id: Any) -> None:
        """A continuation that failed in its own lane loses what it continued; a failed fork keeps its parent."""
        held = self.held.get(lane)
        if held is not None and held.response_id == previous_id:
            self._drop(lane)

    def _hold(self, lane: str | None, held: Held) -> None:
        """Keep a lane's latest response; when a key's sockets hold too much, drop this one's oldest."""
        if self._closed:
            return
        if lane in self.held:
            self._drop(lane)
        self.held[lane] = held
        sizes, most = self.server.held, self.server.config.server.max_held_mb * (1 << 20)
        sizes[self.owner] += held.conversation.size()
        while sizes[self.owner] > most and self.held:
            self._drop(next(iter(self.held)))

    def _drop(self, lane: str | None) -> None:
        self.server.held[self.owner] -= self.held.pop(lane).conversation.size()

    def _steer(self, frame: dict[str, Any], lease: Lease | None) -> Lease | None:
        """Hand a steer to its run, which then keeps the lease; returns the lease when nothing was kept."""
        run: Run | None = None
        lane: str | None = None
        try:
            request = convert(frame, SteerRequest)
            if _text_size(request.input) > MAX_STEER_TEXT:
                frame = {**frame, "input": None}  # its sender has the words, and they may be many
                raise ApiError(
                    400, "invalid_input", f"The text of a steer may have at most {MAX_STEER_TEXT:,} characters."
                )
            if len(self._waiting) >= MAX_WAITING:
                raise ApiError(400, "too_many_pending_steers", "Too many steers are waiting for tool outputs.")
            run = self._run(request.previous_response_id)
            if run is None and self.server.fronts is not None and not self._ended(request.previous_response_id):
                task = asyncio.create_task(self._steer_elsewhere(self.server.fronts, frame, request))
                self._elsewhere.add(task)
                task.add_done_callback(self._elsewhere.discard)
                return lease
            if run is None:
                lane = self._lane_of_ended(request.previous_response_id)
                raise ApiError(400, "response_already_completed", "The response has ended.")
            lane = run.stream_id
            run.steer(request)
            self._leases[lane].append(lease)
            return None
        except FulgurError as error:
            code = error.code if isinstance(error, ApiError) and error.code in _STEER_CODES else "invalid_input"
            failed = ApiError(400, code, error.message)
            sequence = run.emitter.sequence if run is not None else 0
            self.server.metrics.add("fulgur_steers_total", outcome="failed")
            self.send(steering.refusal(frame, failed, sequence, lane))
            return lease

    async def _steer_elsewhere(self, fronts: Fronts, frame: dict[str, Any], request: SteerRequest) -> None:
        """A steer for a response that another front runs; its outcome comes on the response's own stream."""
        named = {"previous_response_id": request.previous_response_id}
        try:
            steer = {"id": await fronts.steer(self.owner, request), **named}
            self.send({"type": "response.steer.accepted", "sequence_number": 0, "steer": steer})
        except ApiError as error:
            self.server.metrics.add("fulgur_steers_total", outcome="failed")
            code = error.code if error.code in _STEER_CODES else "invalid_input"
            self.send(steering.refusal(frame, ApiError(400, code, error.message), 0, None))

    def _ended(self, response_id: str) -> bool:
        return any(response_id in held.ids for held in self.held.values())

    def _lane_of_ended(self, response_id: str) -> str | None:
        for lane, held in self.held.items():
            if response_id in held.ids:
                return lane
        raise ApiError(404, "response_not_found", f"There is no response '{response_id}' on this connection.")

    def _stop(self, request: InterruptRequest, lane: str | None, *, interrupt: bool) -> None:
        run = self._run(request.response_id) if request.response_id else self._running.get(lane)
        if run is None:
            raise ApiError(404, "response_not_found", f"There is no running response '{request.response_id}' here.")
        if interrupt:
            run.emitter.emit("response.interrupt.accepted", response_id=run.response.id)
        run.stop("interrupted" if interrupt else "cancelled")

    def _run(self, response_id: str) -> Run | None:
        return next((run for run in self._running.values() if response_id in run.ids), None)

    # --- back to the client ---

    def send(self, event: dict[str, Any]) -> None:
        self.sink.send_soon(b"", msgspec.json.encode(event))

    def _error(self, error: ApiError, lane: str | None) -> None:
        frame: dict[str, Any] = {"type": "error", "status": error.status, "error": error.body()}
        self.send(frame if lane is None else {**frame, "stream_id": lane})

    def refuse(self, error: ApiError) -> None:
        self._error(error, None)

    def _time_is_up(self, socket: web.WebSocketResponse) -> None:
        minutes = self.server.config.server.connection_minutes
        self._error(
            ApiError(
                400,
                "websocket_connection_limit_reached",
                f"The connection has reached its limit of {minutes:g} minutes. Open a new one.",
            ),
            None,
        )
        asyncio.ensure_future(_close(socket))  # noqa: RUF006 - ends with the connection


async def _close(socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.close(code=WSCloseCode.GOING_AWAY, message=b"connection limit reached")


def _give_back(lease: Lease | None) -> None:
    if lease is not None:
        lease.release()


def _text_size(given: str | list[Item]) -> int:
    """Characters of a steer's text; its images do not count."""
    if isinstance(given, str):
        return len(given)
    contents = [item.get("content") for item in given]
    texts = [
        part.get("text")
        for content in contents
        if isinstance(content, list)
        for part in content
        if isinstance(part, dict)
    ]
    return sum(len(text) for text in (*contents, *texts) if isinstance(text, str))


_KINDS = ("response.create", "response.steer", "response.cancel", "response.interrupt", "response.prefill")
_STEER_CODES = (
    "response_not_found",
    "invalid_input",
    "steering_not_supported",
    "too_many_pending_steers",
    "response_already_completed",
    "response_not_active",
)
