"""More connections than the system gives descriptors: the server hears others all the same, and its log stays short."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE

from fulgur.client import once

FLOOD = 1200
FILES = 1024
HALF = b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Wait: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def own_files() -> Iterator[None]:
    """Descriptors for this side of the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FLOOD), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server that may open 1,024 files: where it listens, and its log."""
    file, log = tmp_path / "server.toml", tmp_path / "log"
    file.write_text('[server]\nport = 0\nstore = ":memory:"\n[models.m]\nbackend = "scripted"\n')
    command = ["bash", "-c", f'ulimit -n {FILES}; exec "$@"', "-", sys.executable, "-m", "fulgur", "serve"]
    with log.open("wb") as output:
        environment = {**os.environ, "FULGUR_HOME": str(tmp_path)}
        process = subprocess.Popen([*command, "--file", str(file)], stdout=output, stderr=output, env=environment)
    try:
        while b"Codex" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        yield log.read_text().split("listens on ")[1].split()[0], log
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.parametrize("first", [HALF, WHOLE], ids=["half", "idle"])
async def test_a_flood_of_connections_leaves_the_server_hearing(
    first: bytes, small_server: tuple[str, Path], own_files: None
) -> None:
    url, log = small_server
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    reader, used = await asyncio.open_connection(host, int(port))
    flood: list[asyncio.StreamWriter] = []
    for number in range(FLOOD):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        flood.append(writer)
        if number % 300 == 0:  # one that was there before, and goes on asking
            used.write(WHOLE)
            assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 200")
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    for _ in range(3):
        answer = await asyncio.to_thread(once.post, url, "/responses", {"model": "m", "input": "hello"})
        assert answer["status"] == "completed"
    for writer in (*flood, used):
        writer.transport.abort()
    assert log.stat().st_size < 64 << 10
