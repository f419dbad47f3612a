"""The client of the agent host: finds or starts the host, reconnects when it is lost, and sends nothing twice.

A session's events come by `attach`: each once, in order, across lost connections; `Attached` replaces what was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec

from fulgur import __version__
from fulgur.client.local import wait_for_lock
from fulgur.client.rpc import ConnectionLost, OnResult, Peer
from fulgur.errors import FulgurError
from fulgur.protocol.agent import AnyEvent
from fulgur.protocol.host import Attached, Submitted
from fulgur.protocol.rpc import RpcError
from fulgur.sandbox import start

T = TypeVar("T")
IDLE_MINUTES = 60  # a host that a command started ends after so long without clients
START_SECONDS = 30.0
_LARGEST_MESSAGE = 64 << 20
_RETRY_SECONDS = (0.0, 0.1, 0.3, 1.0, 2.0)
_MOST_LOST = 20  # connections that one request may lose: beyond that the request itself probably ends them


class _EventParams(msgspec.Struct):
    session: str
    seq: int
    event: AnyEvent


class _ClosedParams(msgspec.Struct):
    session: str


class _BufferParams(msgspec.Struct):
    session: str
    path: str
    text: str = ""


class Buffers(Protocol):
    """An editor's open files."""

    async def read(self, path: str) -> str | None: ...
    async def write(self, path: str, text: str) -> bool: ...


Followed = AnyEvent | Attached


class Follower:
    """One session as a client sees it."""

    def __init__(self, attached: Attached) -> None:
        self.session = attached.session
        self.epoch, self.seq = attached.epoch, attached.seq
        self.events: asyncio.Queue[Followed | None] = asyncio.Queue()

    def take(self, number: int, event: AnyEvent) -> None:
        if number == self.seq + 1:  # any other was seen before the connection was lost
            self.seq = number
            self.events.put_nowait(event)

    def restart(self, attached: Attached) -> None:
        """Deliver the session as it is now, instead of what was missed."""
        self.epoch, self.seq = attached.epoch, attached.seq
        self.events.put_nowait(attached)


class HostClient:
    """One connection that restores itself."""

    def __init__(self, home: Path, *, starts: bool = True) -> None:
        self._home = home
        self._starts = starts
        self._peer: Peer | None = None
        self._ready = asyncio.Event()
        self._followed: dict[str, Follower] = {}
        self._buffers: dict[str, tuple[Buffers, dict[str, Any]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._failed: FulgurError | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self.closed = False

    async def open(self) -> HostClient:
        """Connect, starting the host when none runs."""
        self._task = asyncio.create_task(self._run())
        await self._ready.wait()
        if self._failed is not None:
            raise self._failed
        return self

    async def close(self) -> None:
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def offer_buffers(self, session: str, editor: Buffers, *, reads: bool, writes: bool) -> None:
        """Let the session read and write files through an editor that has them open."""
        self._buffers[session] = (editor, {"session": session, "reads": reads, "writes": writes})
        await self.offer_buffers_again(session)

    async def offer_buffers_again(self, session: str) -> None:
        """Offer them to a session that was opened again; does nothing where none were offered."""
        if session in self._buffers:
            await self._ask("session.buffers", self._buffers[session][1], object)

    async def attach(self, method: str = "session.attach", **params: Any) -> tuple[Attached, AsyncIterator[Followed]]:
        """Join a session, or open one; returns it and its events from then on, which end when it is closed."""
        followers: list[Follower] = []

        def joined(result: msgspec.Raw) -> None:
            follower = Follower(msgspec.json.decode(result, type=Attached))
            self._followed[follower.session] = follower
            followers.append(follower)

        attached = await self._ask(method, params, Attached, joined)
        return attached, self._read(followers[-1])

    async def call(self, method: str, type: type[T], **params: Any) -> T:
        """Call a method of the host."""
        return await self._ask(method, params, type)

    async def tell(self, method: str, **params: Any) -> None:
        """Call a method of the host that answers nothing but errors."""
        await self._ask(method, params, object)

    async def _ask(self, method: str, params: Any, type: type[T], on_result: OnResult | None = None) -> T:
        """Send a request, again after a lost connection; so a request that must not be done twice carries an id."""
        if self._failed is not None and not self.closed:  # that was reported; perhaps there is a host again
            self._failed = None
            self._ready.clear()
            self._task = asyncio.create_task(self._run())
        for _ in range(_MOST_LOST):
            await self._ready.wait()
            if self._failed is not None:
                raise self._failed
            peer = self._peer
            assert peer is not None
            try:
                return await peer.request(method, params, type, on_result)
            except ConnectionLost:
                if self._peer is peer:  # else there is a new connection already, and it is ready
                    self._ready.clear()
            except RpcError as error:
                raise FulgurError(error.message, hint=error.hint or None) from None
        raise FulgurError("the agent host stopped and was not restarted", hint="Its log is host.log.")

    async def submit(self, session: str, text: str, how: str = "steer", expected_turn: int | None = None) -> Submitted:
        """Send a prompt, a new direction or one for later; taken once, however often the connection is lost."""
        more = {} if expected_turn is None else {"expected_turn": expected_turn}
        message = secrets.token_hex(8)
        return await self.call("turn.submit", Submitted, session=session, text=text, how=how, message=message, **more)

    async def _read(self, follower: Follower) -> AsyncIterator[Followed]:
        try:
            while (event := await follower.events.get()) is not None:
                yield event
        finally:
            if self._followed.get(follower.session) is follower:
                del self._followed[follower.session]

    async def _run(self) -> None:
        delays = iter(_RETRY_SECONDS)
        while not self.closed:
            try:
                await self._connected()
                delays = iter(_RETRY_SECONDS)
            except (FulgurError, aiohttp.ClientError, OSError, TimeoutError) as error:
                delay = next(delays, None)
                if delay is None or (isinstance(error, FulgurError) and not isinstance(error, ConnectionLost)):
                    told = (
                        error if isinstance(error, FulgurError) else FulgurError(f"the host does not answer: {error}")
                    )
                    self._fail(told)
                    return
                await asyncio.sleep(delay)
            except Exception as error:  # a bug of ours must leave nobody waiting
                self._fail(FulgurError(f"the connection to the host was lost: {type(error).__name__}: {error}"))
                return

    def _fail(self, error: FulgurError) -> None:
        self._failed = error
        self._ready.set()
        for follower in self._followed.values():
            follower.events.put_nowait(None)

    async def _connected(self) -> None:
        url, token = await (ensure_host(self._home) if self._starts else _found(self._home))
        headers = {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.ws_connect(
                url, headers=headers, max_msg_size=_LARGEST_MESSAGE, heartbeat=20.0, protocols=("fulgur.host",)
            ) as socket:
                self._socket = socket

                async def send(data: bytes) -> None:
                    await socket.send_str(data.decode())

                peer = self._peer = Peer(send, self._handle)
                running = asyncio.create_task(peer.run(_texts(socket)))
                try:
                    for follower in [*self._followed.values()]:
                        await self._attach_again(peer, follower)
                    self._ready.set()
                    await running
                finally:
                    self._ready.clear()
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)

    async def _attach_again(self, peer: Peer, follower: Follower) -> None:
        params = {"session": follower.session, "after": follower.seq, "epoch": follower.epoch}

        def joined(result: msgspec.Raw) -> None:
            attached = msgspec.json.decode(result, type=Attached)
            if attached.epoch != follower.epoch or attached.seq != follower.seq:
                follower.restart(attached)

        try:
            await peer.request("session.attach", params, object, joined)
            if follower.session in self._buffers:
                await peer.request("session.buffers", self._buffers[follower.session][1], object)
        except RpcError:
            follower.events.put_nowait(None)  # it was closed meanwhile

    async def _handle(self, method: str, params: msgspec.Raw) -> Any:
        match method:
            case "event":
                told = msgspec.json.decode(params, type=_EventParams)
                if (follower := self._followed.get(told.session)) is not None:
                    follower.take(told.seq, told.event)
            case "buffer.read":
                place = msgspec.json.decode(params, type=_BufferParams)
                return await self._buffers[place.session][0].read(place.path)
            case "buffer.write":
                place = msgspec.json.decode(params, type=_BufferParams)
                return await self._buffers[place.session][0].write(place.path, place.text)
            case "resync":
                attached = msgspec.json.decode(params, type=Attached)
                if (follower := self._followed.get(attached.session)) is not None:
                    follower.restart(attached)
            case "closed":
                name = msgspec.json.decode(params, type=_ClosedParams).session
                if (follower := self._followed.get(name)) is not None:
                    follower.events.put_nowait(None)
        return None


async def _texts(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[str]:
    async for message in socket:
        if message.type is aiohttp.WSMsgType.TEXT:
            yield message.data


async def find_host(home: Path) -> tuple[str, str] | None:
    """The address and token that a host of this version left, if it answers there."""
    try:
        record = json.loads((home / "host.json").read_bytes())
        if record["version"] != __version__:
            return None
        url, token = str(record["url"]), str(record["token"])
        port = int(url.rpartition(":")[2].partition("/")[0])
        # Be patient: on a busy machine a host that seems gone would be started a second time.
        _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 20)
        writer.close()
        return url, token
    except (OSError, ValueError, KeyError, TypeError, TimeoutError):
        return None


async def _found(home: Path) -> tuple[str, str]:
    found = await find_host(home)
    if found is None:
        raise FulgurError("no agent host is running", hint="`fulgur attach --new` starts one.")
    return found


async def ensure_host(home: Path) -> tuple[str, str]:
    """The address and token of the running host, started first when there is none."""
    found = await find_host(home)
    if found is not None:
        return found
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (home / "host.lock").open("w") as lock:
        await wait_for_lock(lock.fileno(), home / "host.lock", START_SECONDS, "fulgur host")
        return await find_host(home) or await _start(home)


async def _start(home: Path) -> tuple[str, str]:
    log = home / "host.log"
    command = start.python("fulgur", "host", "--idle-exit", f"{IDLE_MINUTES}")
    environment = start.environment({"FULGUR_HOME": str(home.absolute())})
    with log.open("ab") as output:
        process = await start.spawn(command, home, environment, stdout=output, stderr=output, start_new_session=True)
    for _ in range(int(START_SECONDS / 0.02)):
        await asyncio.sleep(0.02)
        if process.returncode is not None:
            break
        found = await find_host(home)
        if found is not None:
            return found
    tail = log.read_text(errors="replace").strip().splitlines()[-1:]
    raise FulgurError(f"The agent host did not start{': ' + tail[0] if tail else ''}", hint=f"Its log is {log}.")


async def app_address(home: Path, workspace: Path) -> str:
    """The address that logs a browser in, once; the page offers `workspace` first."""
    url, token = await ensure_host(home)
    base = url.replace("ws://", "http://").removesuffix("/host")
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            async with session.post(f"{base}/ticket", json={"workspace": str(workspace)}, headers=headers) as answer:
                if answer.status != 200:
                    raise FulgurError(f"the host refused the login: {(await answer.text()).strip()}")
                told = msgspec.json.decode(await answer.read(), type=dict[str, str])
    except aiohttp.ClientError as error:
        raise FulgurError(f"the host does not answer: {error}") from None
    return f"{base}/#{told['ticket']}"
