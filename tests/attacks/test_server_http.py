"""Hostile HTTP: bombs, half requests, bodies that never end, values by the million. Others are served all the same."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from serving import script, serving, text
from waiting import PATIENCE

from fulgur.server import app, auth, limits, parse
from fulgur.server.config import ServerConfig

BODY = {"model": "m", "input": "hello"}


@asynccontextmanager
async def posting(config: ServerConfig | None = None, **options: Any) -> AsyncIterator[tuple[app.Running, Any]]:
    async with serving(config=config, **options) as running, aiohttp.ClientSession() as session:

        async def post(data: bytes | dict[str, Any], **headers: str) -> tuple[int, str]:
            sent = data if isinstance(data, bytes) else json.dumps(data).encode()
            async with session.post(f"{running.base_url}/responses", data=sent, headers=headers) as answer:
                body = await answer.json()
                return answer.status, (body.get("error") or {}).get("code", "")

        yield running, post


async def test_a_gzip_bomb_is_too_large() -> None:
    async with posting() as (running, post):
        packed = gzip.compress(b'{"model": "m", "input": "' + b"a" * (64 << 20) + b'"}')
        assert len(packed) < 1 << 20
        assert await post(packed, **{"Content-Encoding": "gzip"}) == (413, "body_too_large")
        assert running.server.budget.used == 0
        assert (await post(BODY))[0] == 200


async def test_nothing_is_unpacked_for_who_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[int] = []
    monkeypatch.setattr(parse.zlib, "decompressobj", lambda *_: unpacked.append(1))
    _, record = auth.new_key("someone")
    async with posting(ServerConfig(keys=[record])) as (_, post):
        packed = gzip.compress(b"a" * (64 << 20))
        assert await post(packed, **{"Content-Encoding": "gzip"}) == (401, "invalid_api_key")
    assert not unpacked


@pytest.mark.parametrize(
    ("data", "encoding", "expected"),
    [
        (b"this is no gzip", "gzip", (400, "invalid_encoding")),
        (gzip.compress(json.dumps(BODY).encode())[:-6], "gzip", (400, "invalid_encoding")),
        (b"\x00\x01\x02", "deflate", (400, "invalid_encoding")),
        (b"\x28\xb5\x2f\xfd", "zstd", (415, "unsupported_encoding")),
        (gzip.compress(json.dumps(BODY).encode()), "gzip", (200, "")),
        (zlib.compress(json.dumps(BODY).encode()), "deflate", (200, "")),
        (json.dumps(BODY).encode(), "identity", (200, "")),
    ],
)
async def test_encodings(data: bytes, encoding: str, expected: tuple[int, str]) -> None:
    async with posting() as (_, post):
        assert await post(data, **{"Content-Encoding": encoding}) == expected


async def test_values_by_the_million_are_refused() -> None:
    """A decoder that makes millions of objects holds up every thread; text full of commas is no such thing."""
    async with posting(context=2_000_000) as (_, post):
        many = b'{"model": "m", "input": [' + b"[]," * 500_000 + b"[]]}"
        assert await post(many) == (400, "too_many_values")
        assert await post({**BODY, "input": '\\"[1,2,{' * 100_000}) == (200, "")


async def test_bytes_in_flight_are_bounded_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one key's large bodies are answered its next one waits, another key's does not; all is given back."""
    monkeypatch.setattr(limits, "WAIT_S", 0.1)
    keys = {name: auth.new_key(name) for name in ("a", "b")}
    config = ServerConfig(keys=[record for _, record in keys.values()])
    config.server.max_in_flight_mb = 4
    slow = script({"match": "^slow", "steps": [{"tokens": 20_000}]}, text("done"), rate=100)
    async with posting(config, played=slow, context=2_000_000) as (running, post):
        bearer = {name: {"Authorization": f"Bearer {key}"} for name, (key, _) in keys.items()}
        held = asyncio.create_task(post({**BODY, "input": "slow" + "x" * (2 << 20)}, **bearer["a"]))
        while not running.server.runs:
            await asyncio.sleep(0.01)
        large = {**BODY, "input": "y" * (1300 << 10)}
        assert await post(large, **bearer["a"]) == (429, "too_many_bytes_in_flight")
        assert await post(large, **bearer["b"]) == (200, "")
        assert await post(BODY, **bearer["a"]) == (200, ""), "small requests always pass"
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        while running.server.budget.used:
            await asyncio.sleep(0.01)


async def half_requests(running: app.Running, count: int) -> list[asyncio.StreamWriter]:
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Wait: ")
        writers.append(writer)
    return writers


@pytest.mark.parametrize("limit", ["connections", "peer"])
async def test_an_idle_connection_that_was_used_outlives_half_requests(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has asked before and pauses is older than the flood, and must not make room for it."""
    config = ServerConfig()
    if limit == "connections":
        config.server.max_connections = 20
    else:
        monkeypatch.setattr(limits, "PEER_FRESH", 20)
    async with serving(config=config) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for flood in (60, 60, 0):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200" in await asyncio.wait_for(reader.readline(), PATIENCE)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(size)
            for other in await half_requests(running, flood):
                other.transport.abort()
        writer.close()


async def test_connections_that_were_used_make_room_for_newcomers() -> None:
    """All places taken by connections that asked once and stay: those idle longest go."""
    config = ServerConfig()
    config.server.max_connections = 10
    async with posting(config) as (running, post):
        for _ in range(30):
            _, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await post(BODY))[0] == 200


@pytest.mark.parametrize("limit", ["connections", "peer"])
async def test_half_requests_shut_out_only_themselves(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig()
    if limit == "connections":
        config.server.max_connections = 20
    else:
        monkeypatch.setattr(limits, "PEER_FRESH", 20)
    async with posting(config) as (running, post):
        writers = await half_requests(running, 60)
        for _ in range(3):
            assert (await post(BODY))[0] == 200
        for writer in writers:
            writer.close()


async def test_the_head_of_a_request_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IDLE_S", 0.2)
    async with serving() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b"", "the server closes"
        writer.close()


async def test_a_body_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "BODY_S", 0.2)
    async with serving() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        assert b"408" in await asyncio.wait_for(reader.readline(), PATIENCE)
        writer.close()


def test_the_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("flooded")
    log.addFilter(limits.LogLimit())
    for _ in range(10_000):
        log.error("again")
    assert len(caplog.records) <= limits.LOG_BURST + 60
