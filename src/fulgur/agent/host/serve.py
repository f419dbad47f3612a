"""Where clients reach the host: a WebSocket on loopback with the token, or stdio for the program that started it.

The token is in `host.json`, which only its owner may read. It may also be sent as a subprotocol, `fulgur.token.TOKEN`,
next to `fulgur.host`. The web app has a cookie instead. `door.py` has the rules.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import WSMsgType, web

from fulgur import __version__
from fulgur.agent.host.door import Door
from fulgur.agent.host.host import Host
from fulgur.agent.host.link import HostLink
from fulgur.agent.host.pages import add_pages
from fulgur.agent.host.pipes import connect_pipes

PROTOCOL = "fulgur.host"
LARGEST_MESSAGE = 16 << 20
MOST_CLIENTS = 64
_PING_SECONDS = 20.0


class Listener:
    """The WebSocket side of a host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.door = Door()
        self.clients = 0
        self._sockets: set[web.WebSocketResponse] = set()

    async def start(self, port: int = 0) -> None:
        """Listen on loopback; port 0 takes a free one."""
        app = web.Application()
        app.router.add_get("/host", self._connect)
        add_pages(app, self.door)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.door.port = int(self._runner.addresses[0][1])

    async def close(self) -> None:
        for socket in [*self._sockets]:
            await socket.close()
        await self._runner.cleanup()

    @property
    def port(self) -> int:
        return self.door.port

    @property
    def token(self) -> str:
        return self.door.token

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/host"

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        if reason := self.door.refusal(request):
            return web.Response(status=403, text=f"{reason}\n")
        if self.clients >= MOST_CLIENTS:
            return web.Response(status=503, text="too many clients\n")
        socket = web.WebSocketResponse(
            protocols=(PROTOCOL,), heartbeat=_PING_SECONDS, max_msg_size=LARGEST_MESSAGE, compress=False
        )
        await socket.prepare(request)

        async def send(data: bytes) -> None:
            await socket.send_str(data.decode())

        async def messages() -> AsyncIterator[str]:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    yield message.data

        link = HostLink(self.host, send)
        self._sockets.add(socket)
        self.clients += 1
        try:
            await link.peer.run(messages())
        finally:
            self.clients -= 1
            self._sockets.discard(socket)
            await link.close()
        return socket


def write_note(file: Path, listener: Listener) -> None:
    """Write the host's address and token for programs of the same user; created unreadable for anybody else."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = {"url": listener.url, "token": listener.token, "pid": os.getpid(), "version": __version__}
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump(record, out)
    part.replace(file)


async def serve_stdio(host: Host) -> None:
    """Serve one client on stdin and stdout, one message per line; ends with the input."""
    reader, writer = await connect_pipes(sys.stdin, sys.stdout.buffer, longest=LARGEST_MESSAGE)

    async def send(data: bytes) -> None:
        writer.write(data + b"\n")
        await writer.drain()

    async def lines() -> AsyncIterator[bytes]:
        while line := await reader.readline():
            if line.strip():
                yield line

    link = HostLink(host, send)
    try:
        await link.peer.run(lines())
    finally:
        await link.close()
