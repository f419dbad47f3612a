"""A thousand idle sockets and 64 that stream, on one server process."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

import aiohttp

IDLE, STREAMING, TOKENS = 1000, 64, 300
REPLY = f"rate = 100\n[[reply]]\nsteps = [{{tokens = {TOKENS}}}]\n"


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


async def stream(session: aiohttp.ClientSession, url: str) -> str:
    async with session.ws_connect(f"{url}/responses", max_msg_size=0) as socket:
        await socket.send_json({"type": "response.create", "model": "m", "input": "go", "store": False})
        pieces: list[str] = []
        number = 0
        async for message in socket:
            event: dict[str, Any] = json.loads(message.data)
            assert event["sequence_number"] == number, "in order, none missing"
            number += 1
            if event["type"] == "response.output_text.delta":
                pieces.append(event["delta"])
            if event["type"] == "response.completed":
                return "".join(pieces)
    raise AssertionError("the socket ended before its response")


async def test_idle_and_streaming_sockets(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    (tmp_path / "script.toml").write_text(REPLY)
    (tmp_path / "server.toml").write_text(
        f'[server]\nport = 0\nstore = ":memory:"\n[models.m]\nbackend = "scripted"\npath = "{tmp_path}/script.toml"\n'
    )

    command = [sys.executable, "-m", "fulgur", "serve", "-f", str(tmp_path / "server.toml")]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().split()[-1]
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await stream(session, url)  # everything that is loaded once is loaded
            before = resident_kb(process.pid)
            idle = [await session.ws_connect(f"{url}/responses") for _ in range(IDLE)]
            each = (resident_kb(process.pid) - before) / IDLE
            whole = "".join(f" w{index:04d}" for index in range(TOKENS))
            answers = await asyncio.gather(*(stream(session, url) for _ in range(STREAMING)))
            assert answers == [whole] * STREAMING
            await idle[500].send_json({"type": "response.create", "model": "m", "input": "awake", "store": False})
            assert (await idle[500].receive_json())["type"] == "response.created"
            assert not any(socket.closed for socket in idle)
            print(f"{each:.1f} KB an idle socket")
            assert each <= 100
    finally:
        process.kill()
        await process.wait()
