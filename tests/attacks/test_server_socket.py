"""Hostile WebSocket clients: what one connection can make the server hold is bounded, and it gets clear errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import waiting
from serving import backend_of, script, serving, text

from fulgur.protocol.items import text_of
from fulgur.server import app, lanes, limits, websocket
from fulgur.server.auth import ANONYMOUS
from fulgur.server.config import ServerConfig
from fulgur.server.frames import Gate, GatedSocket

SECONDS = float(os.environ.get("FULGUR_FUZZ_SECONDS", "2"))


def config(**values: float) -> ServerConfig:
    made = ServerConfig()
    for name, value in values.items():
        setattr(made.server, name, value)
    return made


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[app.Running, aiohttp.ClientWebSocketResponse]]:
    async with serving(**options) as running, aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{running.base_url}/responses", max_msg_size=0) as socket:
            yield running, socket


async def create(socket: aiohttp.ClientWebSocketResponse, **fields: Any) -> None:
    await socket.send_json({"type": "response.create", "model": "m", "store": False, **fields})


async def until(socket: aiohttp.ClientWebSocketResponse, *kinds: str) -> dict[str, Any]:
    while True:
        event: dict[str, Any] = json.loads((await socket.receive(timeout=60)).data)
        if event["type"] in kinds:
            return event


async def test_a_message_that_is_too_large_leaves_the_socket_alive() -> None:
    async with connected(config=config(max_body_mb=1)) as (running, socket):
        await create(socket, input="x" * (3 << 20))
        assert (await until(socket, "error"))["error"]["code"] == "message_too_big"
        await create(socket, input="still here")
        await until(socket, "response.completed")
        assert running.server.budget.used == 0


async def test_a_message_in_fragments_is_counted_as_a_whole() -> None:
    async with connected(config=config(max_body_mb=1)) as (_, socket):
        writer = socket._writer
        for place in range(8):
            data = b"x" * (256 << 10)
            opcode = aiohttp.WSMsgType.TEXT if place == 0 else aiohttp.WSMsgType.CONTINUATION
            frame = bytearray(_masked(data, int(opcode), last=place == 7))
            writer.transport.write(bytes(frame))
            await asyncio.sleep(0)
        assert (await until(socket, "error"))["error"]["code"] == "message_too_big"
        await create(socket, input="still here")
        await until(socket, "response.completed")


def _masked(data: bytes, opcode: int, *, last: bool) -> bytes:
    return bytes([opcode | (0x80 if last else 0), 0xFF]) + len(data).to_bytes(8, "big") + bytes(4) + data


async def test_a_large_frame_comes_through_as_it_was_sent() -> None:
    """It reaches the reader in pieces; mask, order and length must fit, whatever the size."""
    choose = random.Random(5)
    async with connected(played=script(text("done")), context=10_000_000) as (running, socket):
        for size in (65_000, 65_535, 65_536, 65_537, 131_072, 700_001):
            said = "".join(choose.choices("abcdefghé\n", k=size))
            await create(socket, input=said, store=True)
            ended = await until(socket, "response.completed", "error")
            stored = await running.server.store.get(ANONYMOUS, ended["response"]["id"])
            assert stored is not None and text_of(stored.input[0]) == said


async def test_queued_creates_are_bounded_in_bytes() -> None:
    """60 creates of 1 MB: those beyond the key's room are refused, the others are answered, and all is given back."""
    slow = script(text("done"), prefill_rate=0, rate=2000)
    async with connected(played=slow, config=config(max_in_flight_mb=8), context=10_000_000) as (running, socket):
        for _ in range(60):
            await create(socket, input="x" * (1 << 20))
            assert running.server.budget.used <= 8 << 20
        ends = [await until(socket, "error", "response.completed") for _ in range(60)]
        codes = {end["error"]["code"] for end in ends if end["type"] == "error"}
        assert codes <= {"too_many_bytes_in_flight"} and any(end["type"] == "response.completed" for end in ends)
        while running.server.budget.used:
            await asyncio.sleep(0.01)


async def test_queued_creates_are_bounded_in_number() -> None:
    async with connected(played=script({"steps": [{"tokens": 100_000}]}, rate=10)) as (_, socket):
        for _ in range(lanes.MAX_QUEUED + 2):
            await create(socket, input="x")
        assert (await until(socket, "error"))["error"]["code"] == "too_many_queued"


async def test_a_dropped_connection_gives_its_room_back() -> None:
    endless = script({"steps": [{"tokens": 100_000}]}, rate=100)
    async with connected(played=endless, context=10_000_000) as (running, socket):
        for _ in range(5):
            await create(socket, input="x" * (1 << 20))
        await until(socket, "response.created")
        socket._response.connection.transport.abort()  # type: ignore[union-attr]
        while running.server.budget.used or running.server.runs:
            await asyncio.sleep(0.01)
        assert backend_of(running).running == 0


async def test_who_does_not_read_is_not_read_from() -> None:
    """Bad frames without end: the errors fill the socket, then the server stops reading; its buffers stay small."""
    async with connected() as (running, socket):
        transport = socket._response.connection.transport  # type: ignore[union-attr]
        transport.pause_reading()
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 400_000:
                await asyncio.wait_for(socket.send_str('{"type":"nonsense"}'), 1)
                sent += 1
        assert sent < 400_000, "the server takes no more"
        (server_side,) = running.server.sockets
        assert server_side._req.transport.get_write_buffer_size() < 4 << 20  # type: ignore[union-attr]
        transport.resume_reading()
        assert (await until(socket, "error"))["error"]["code"] == "unknown_event_type"


async def test_few_tiny_messages_wait_for_who_does_not_read() -> None:
    """Thousands of each socket made every collection of garbage a pause for everybody."""
    async with connected() as (running, socket):
        transport = socket._response.connection.transport  # type: ignore[union-attr]
        transport.pause_reading()
        (server_side,) = running.server.sockets
        assert isinstance(server_side, GatedSocket)
        frames = b"".join(_masked(b'{"type":"nonsense"}', 1, last=True) for _ in range(50_000))
        transport.write(frames)
        protocol = server_side._req._protocol  # type: ignore[union-attr]
        await waiting.until(lambda: protocol._reading_paused and protocol.writing_paused)
        assert len(server_side.gate.leases) < 1000
        transport.abort()


async def test_steers_are_bounded() -> None:
    async with connected(played=script({"steps": [{"tokens": 100_000}]}, rate=100)) as (running, socket):
        await create(socket, input="go")
        running_id = (await until(socket, "response.created"))["response"]["id"]
        for _ in range(20):
            steer = {"type": "response.steer", "previous_response_id": running_id}
            await socket.send_json({**steer, "input": "y" * (websocket.MAX_STEER_TEXT + 1)})
            failed = await until(socket, "response.steer.failed")
            assert failed["error"]["code"] == "invalid_input"
        assert running.server.budget.used == 0


async def test_held_conversations_are_bounded_by_key() -> None:
    """A key's sockets hold so many bytes for `store: false`; beyond, the oldest lane has to send its history again."""
    options = {"config": config(max_held_mb=2), "context": 10_000_000}
    async with connected(played=script(text("done")), **options) as (running, socket):
        ids = []
        for lane in ("a", "b", "c"):
            await create(socket, input="x" * (900 << 10), stream_id=lane)
            ids.append((await until(socket, "response.completed"))["response"]["id"])
        assert sum(running.server.held.values()) <= 2 << 20
        await create(socket, input="on", previous_response_id=ids[2], stream_id="c")
        await until(socket, "response.completed")
        await create(socket, input="on", previous_response_id=ids[0], stream_id="a")
        assert (await until(socket, "error"))["error"]["code"] == "previous_response_not_found"
    assert not any(running.server.held.values())


@pytest.mark.parametrize("seed", range(3))
async def test_fuzz_frames_never_end_the_server(seed: int) -> None:
    """Raw bytes, broken and valid frames, cut anywhere; then an honest client is served and no room is lost."""
    choose = random.Random(seed)
    ends = time.monotonic() + SECONDS / 3
    quick = script(text("done"), rate=0)
    async with serving(quick, config=config(max_body_mb=0.25)) as running, aiohttp.ClientSession() as session:
        while time.monotonic() < ends:
            socket = await session.ws_connect(f"{running.base_url}/responses")
            transport = socket._response.connection.transport  # type: ignore[union-attr]
            for _ in range(choose.randrange(1, 12)):
                data = _random_bytes(choose)
                cut = choose.randrange(len(data) + 1)
                transport.write(data[:cut])
                await asyncio.sleep(0)
                transport.write(data[cut:])
            if choose.random() < 0.5:
                transport.abort()
            await socket.close()
        while running.server.budget.used or running.server.sockets:
            await asyncio.sleep(0.01)
        async with session.ws_connect(f"{running.base_url}/responses") as honest:
            await create(honest, input="hello")
            await until(honest, "response.completed")


def _random_bytes(choose: random.Random) -> bytes:
    kind = choose.randrange(6)
    if kind == 0:
        return choose.randbytes(choose.randrange(1, 200))
    if kind == 1:
        return _masked(choose.randbytes(choose.randrange(100)), choose.randrange(16), last=choose.random() < 0.7)
    body: Any = {
        "type": "response.create",
        "model": "m",
        "store": False,
        "input": "x" * choose.choice([1, 20_000, 300_000]),
    }
    if kind == 2:
        body["type"] = choose.choice(["response.steer", "response.cancel", "response.prefill", "response.interrupt", 7])
    if kind == 3:
        body[choose.choice(["input", "model", "tools", "stream_id", "text"])] = choose.choice(
            [
                None,
                1,
                [],
                {},
                [1],
                [None],
                "\ud7ff",
                {"a": [[]]},
                [{"type": "message"}],
                [{"role": "user", "content": [7]}],
            ]
        )
    text_data = json.dumps(body).encode()
    if kind == 4:
        text_data = text_data[: choose.randrange(len(text_data))]
    if kind == 5:
        half = len(text_data) // 2
        return _masked(text_data[:half], 1, last=False) + _masked(text_data[half:], 0, last=True)
    return _masked(text_data, 1, last=True)


def test_a_key_never_takes_all_the_room() -> None:
    async def main() -> None:
        budget = limits.Budget(100)
        first, second = budget.lease("a"), budget.lease("b")
        assert first.grow(75) and not first.grow(1) and second.grow(25) and not second.grow(1)
        first.release()
        first.release()
        assert budget.used == 25 and second.grow(50)

    asyncio.run(main())


def test_a_flood_of_tiny_frames_is_read_in_smaller_portions() -> None:
    """Frames cost by their number: eight sockets that send nothing else must not fill a turn of the loop."""

    class Side:
        max_size = limits.READ_BYTES

        def feed_data(self, data: bytes) -> tuple[bool, bytes]:
            return False, b""

    side = Side()
    gate = Gate(side, 1 << 20, lambda: None, lambda error: None, side)  # type: ignore[arg-type, return-value]
    tiny = b"\x81\x80\0\0\0\0"
    gate.feed_data(tiny * 1000)
    assert side.max_size < limits.READ_BYTES
    gate.feed_data(tiny * (side.max_size // len(tiny)))
    assert side.max_size < limits.READ_BYTES  # it goes on
    gate.feed_data(tiny * 3)
    assert side.max_size == limits.READ_BYTES
