"""One warm WebSocket to a Fulgur (or any Responses) server, with lanes, steering and recovery."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from fulgur.client import resume
from fulgur.client.discover import nobody_answers
from fulgur.client.stream import ResponseStream
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.errors import ApiError
from fulgur.protocol.ids import new_id
from fulgur.protocol.items import Item, user_message

RETRY_DELAYS = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0)
_LOOK_DELAY = 1.0  # from this delay on, look for the server elsewhere: one restarted by hand is back before


class Turn:
    """A finished response as the client remembers it: enough to send the conversation again in full."""

    __slots__ = ("input", "output", "parent")

    def __init__(self, parent: Turn | None, input: list[Item], output: list[Item]) -> None:
        self.parent, self.input, self.output = parent, input, output

    def items(self) -> list[Item]:
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return [item for turn in reversed(turns) for item in (*turn.input, *turn.output)]


class Lane:
    """One lane of a connection, with the interface of a connection. `more` goes into every request."""

    def __init__(self, connection: Connection, name: str, more: dict[str, Any] | None = None) -> None:
        self._connection = connection
        self._name = name
        self._more = more or {}
        self.on_trouble: Callable[[str], None] = lambda message: None  # the connection's owner hears of it

    @property
    def is_fulgur(self) -> bool:
        return self._connection.is_fulgur

    @property
    def closed(self) -> bool:
        return self._connection.closed

    async def create(self, body: dict[str, Any]) -> ResponseStream:
        return await self._connection.create({**body, **self._more}, lane=self._name)

    async def models(self) -> list[dict[str, Any]]:
        return await self._connection.models()

    async def close(self) -> None:
        """Do nothing: the connection stays open for the other lanes."""


class Connection:
    """`await Connection.open("http://127.0.0.1:8787/v1")`, then `create` as often as you like.

    Creates of one lane run one after the other, those of different lanes at the same time.
    """

    def __init__(self, base_url: str, api_key: str | None, session: aiohttp.ClientSession) -> None:
        self.base_url = base_url.rstrip("/")
        self.is_fulgur = False
        self.rate_limits: dict[str, Any] = {}
        self.turns: dict[str, Turn] = {}  # by response id, the latest of each lane
        self._session = session
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[str | None, deque[ResponseStream]] = {}  # sent, response.created not seen
        self._active: dict[str | None, ResponseStream] = {}
        self._latest: dict[str | None, str] = {}
        self._prefills: dict[str, asyncio.Future[ev.Prefilled]] = {}
        self._closed = False
        self._lost: FulgurError | None = None  # why it could not be restored
        self.on_trouble: Callable[[str], None] = lambda message: None  # the socket is lost and not yet restored
        self.look: Callable[[], Awaitable[str]] | None = None
        """Where the server is now, started when none runs; None: only ever at `base_url`."""
        self._live = asyncio.Event()

    @classmethod
    async def open(
        cls, base_url: str, *, api_key: str | None = None, look: Callable[[], Awaitable[str]] | None = None
    ) -> Connection:
        """Connect to `http(s)://host:port/v1`; the socket stays open until `close`. `look` finds a server that was
        restarted, or is elsewhere, when an answer was lost with it."""
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10))
        connection = cls(base_url, api_key, session)
        connection.look = look
        try:
            await connection._connect()
        except BaseException:
            await session.close()
            raise
        connection._reader = asyncio.create_task(connection._read())
        return connection

    async def create(self, body: dict[str, Any], *, lane: str | None = None) -> ResponseStream:
        """Send a `response.create`; the events come from the returned stream, errors too."""
        stream = ResponseStream(self, body, lane)
        await self._send_create(stream, body)
        return stream

    async def prefill(self, body: dict[str, Any], *, lane: str | None = None) -> ev.Prefilled | None:
        """Warm the cache with an unfinished input (Fulgur servers only; others: None)."""
        if not self.is_fulgur:
            return None
        future: asyncio.Future[ev.Prefilled] = asyncio.get_running_loop().create_future()
        name = new_id("prefill")
        self._prefills[name] = future
        frame = {**body, "type": "response.prefill", "prefill_id": name}
        await self.send({**frame, "stream_id": lane} if lane else frame)
        return await future

    async def models(self) -> list[dict[str, Any]]:
        """The models that the server's catalog lists."""
        data = await self.get_json("/models")
        listed: list[dict[str, Any]] = data.get("data", [])
        return listed

    @property
    def closed(self) -> bool:
        """Closed, or lost for good: another one must be opened."""
        return self._closed

    async def close(self) -> None:
        self._closed = True
        if self._socket is not None:
            await self._socket.close()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        await self._session.close()
        self._fail_all(FulgurError("The connection was closed."))
        self._live.set()  # let waiting senders see that it is closed

    # --- called by streams and recovery ---

    async def send(self, frame: dict[str, Any]) -> None:
        await self._live.wait()
        if self._closed or self._socket is None:
            raise self._lost or FulgurError("The connection is closed.")
        with contextlib.suppress(ConnectionError):  # the reader notices a drop and reconnects
            await self._socket.send_str(msgspec.json.encode(frame).decode())

    async def cancel(self, stream: ResponseStream) -> None:
        if self.is_fulgur:
            await self.send({"type": "response.cancel", "response_id": stream.response_id})
            return
        # There is no cancel in the documented protocol: a client that stops reading drops the socket.
        self._forget(stream)
        stream.end()
        if not self._active and self._socket is not None:
            await self._socket.close()

    async def get_json(self, path: str) -> dict[str, Any]:
        try:
            async with self._session.get(self.base_url + path, headers=self._headers) as answer:
                data: dict[str, Any] = msgspec.json.decode(await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            raise self._nobody(error) from None
        if answer.status >= 400:
            told = data.get("error") or {}
            raise ApiError(answer.status, str(told.get("code")), str(told.get("message")))
        return data

    def get(self, path: str) -> Any:
        return self._session.get(self.base_url + path, headers=self._headers)

    async def recreate(self, stream: ResponseStream, body: dict[str, Any]) -> None:
        """Send again a create that was lost with the socket."""
        await self._send_create(stream, body)

    def context_of(self, body: dict[str, Any]) -> list[Item] | None:
        """The whole input of a create, or None when it continues a response that the client does not know."""
        given = body.get("input", [])
        own = [user_message(given)] if isinstance(given, str) else list(given)
        previous = body.get("previous_response_id")
        if not previous:
            return own
        turn = self.turns.get(previous)
        return None if turn is None else turn.items() + own

    def deliver(self, stream: ResponseStream, event: ev.Event) -> None:
        """Hand one event to its stream and end the stream when nothing can follow."""
        late = isinstance(event, ev.SteerFailed) and event.error.code == "response_already_completed"
        if late and stream.keep_late():
            self._settle(stream)
            return
        stream.take(event)
        if isinstance(event, ev.TERMINAL):
            self._remember(stream, event)
        if isinstance(event, (*ev.TERMINAL, ev.SteerPending, ev.SteerFailed)):
            self._settle(stream)

    def _settle(self, stream: ResponseStream) -> None:
        """Once the response has ended and every steer was answered, send the late ones, or end the stream."""
        response = stream.response
        if response is None or response.status in ("in_progress", "queued") or stream.open_steers > 0:
            return
        self._forget(stream)
        late, stream.late_steers = stream.late_steers, []
        if not late:
            stream.end()
            return
        stream.ask_again({**stream.body, "previous_response_id": response.id, "input": late})
        self._create_soon(stream)

    # --- the socket ---

    def _nobody(self, error: Exception) -> FulgurError:
        return nobody_answers(self.base_url, error)

    async def _connect(self) -> None:
        try:
            socket = await self._session.ws_connect(
                self.base_url + "/responses", headers=self._headers, max_msg_size=0, compress=0, autoping=True
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(error.status, "handshake_failed", f"{self.base_url}: {error.message}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._nobody(error) from None
        self._socket = socket
        self.is_fulgur = "x-fulgur-version" in socket._response.headers
        self._live.set()

    async def _read(self) -> None:
        while not self._closed:
            assert self._socket is not None
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._route(ev.decode_event(message.data))
            self._live.clear()
            if not self._closed:
                try:
                    await self._recover()
                except FulgurError as error:
                    self._closed, self._lost = True, error
                    self._fail_all(error)
                    self._live.set()  # let waiting senders see that it is closed

    async def _recover(self) -> None:
        for future in self._prefills.values():  # a hint that is not worth repeating
            future.cancel()
        self._prefills.clear()
        streams = [*self._active.values(), *(stream for lane in self._waiting.values() for stream in lane)]
        self._active.clear()
        self._waiting.clear()
        last: FulgurError | None = None
        for delay in RETRY_DELAYS:
            await asyncio.sleep(delay)
            try:
                if delay >= _LOOK_DELAY and streams and self.look is not None:
                    self.base_url = (await self.look()).rstrip("/")
                await self._connect()
                break
            except FulgurError as error:
                if last is None and streams:
                    self.on_trouble(f"{error.message}; trying again")
                last = error
        else:
            for stream in streams:
                stream.end(last)
            raise last or FulgurError("The connection was lost.")
        for stream in streams:
            await resume.resume(self, stream)

    # --- routing ---

    async def _send_create(self, stream: ResponseStream, body: dict[str, Any]) -> None:
        self._waiting.setdefault(stream.lane, deque()).append(stream)
        await self.send({**body, "type": "response.create", **({"stream_id": stream.lane} if stream.lane else {})})

    def _route(self, event: ev.Event) -> None:
        lane = event.stream_id if isinstance(event.stream_id, str) else None
        if isinstance(event, ev.RateLimits):
            self.rate_limits = event.rate_limits
            return
        if isinstance(event, ev.Prefilled):
            future = self._prefills.pop(str(event.prefill_id), None)
            if future is not None and not future.done():
                future.set_result(event)
            return
        if isinstance(event, ev.ResponseCreated):
            self._start(lane, event)
        if isinstance(event, ev.SteerAccepted | ev.SteerPending | ev.SteerFailed):
            steered = event.steer.previous_response_id
            stream = next((s for s in self._active.values() if s.response_id == steered), self._active.get(lane))
        else:
            stream = self._active.get(lane)
        if isinstance(event, ev.ErrorEvent):
            self._error(lane, stream, event)
        elif stream is not None:
            self.deliver(stream, event)

    def _start(self, lane: str | None, event: ev.ResponseCreated) -> None:
        """Find whose response this is: the next create of the lane, or the successor of a steered one."""
        waiting = self._waiting.get(lane)
        active = self._active.get(lane)
        previous = event.response.previous_response_id
        if active is not None and active.open_steers and previous == active.response_id:
            if not (waiting and waiting[0].body.get("previous_response_id") == previous):
                steered = active.take_steers(event.steers if isinstance(event.steers, list) else None)
                active.body = {**active.body, "previous_response_id": previous, "input": steered}
                return
            self._forget(active)
            active.end()
        if waiting:
            self._active[lane] = waiting.popleft()

    def _error(self, lane: str | None, stream: ResponseStream | None, event: ev.ErrorEvent) -> None:
        if event.error.code == "websocket_connection_limit_reached":
            return  # the server closes the socket next; recovery opens another
        waiting = self._waiting.get(lane)
        if stream is None and waiting:
            stream = waiting.popleft()
        if stream is None:
            return
        if event.error.code == "previous_response_not_found" and (context := self.context_of(stream.body)) is not None:
            stream.body = {**stream.body, "input": context, "previous_response_id": None}
            self._create_soon(stream)
            return
        self._forget(stream)
        stream.end(ApiError(event.status, event.error.code or "error", event.error.message, param=event.error.param))

    def _create_soon(self, stream: ResponseStream) -> None:
        task = asyncio.create_task(self._send_create(stream, stream.body))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _remember(self, stream: ResponseStream, event: ev.ResponseEvent) -> None:
        given = stream.body.get("input", [])
        own = [user_message(given)] if isinstance(given, str) else list(given)
        parent = self.turns.get(stream.body.get("previous_response_id") or "")
        self.turns.pop(self._latest.get(stream.lane, ""), None)
        self.turns[event.response.id] = Turn(parent, own, event.response.output)
        self._latest[stream.lane] = event.response.id

    def _forget(self, stream: ResponseStream) -> None:
        if self._active.get(stream.lane) is stream:
            del self._active[stream.lane]

    def _fail_all(self, error: FulgurError) -> None:
        for stream in [*self._active.values(), *(s for lane in self._waiting.values() for s in lane)]:
            stream.end(error)
        self._active.clear()
        self._waiting.clear()
