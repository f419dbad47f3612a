"""A host with real sockets on a scripted model, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from agent_world import settings_for

from fulgur.agent.host.host import Host
from fulgur.agent.host.serve import Listener, write_note
from fulgur.client.host import Followed, HostClient
from fulgur.protocol.agent import TURN_ENDS
from fulgur.protocol.host import Attached
from fulgur.server import app
from fulgur.workspace import folders


@asynccontextmanager
async def hosting() -> AsyncIterator[Listener]:
    """A host that clients find by its note in Fulgur's home."""
    listener = Listener(Host())
    await listener.start()
    write_note(folders.home() / "host.json", listener)
    try:
        yield listener
    finally:
        await listener.host.close_all()
        await listener.close()


async def handshake(listener: Listener, headers: dict[str, str]) -> int:
    """The status that a WebSocket with these headers gets: 101, or that of a refusal."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.ws_connect(listener.url, headers=headers):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status


@asynccontextmanager
async def client_of() -> AsyncIterator[HostClient]:
    client = await HostClient(folders.home(), starts=False).open()
    try:
        yield client
    finally:
        await client.close()


def opening(server: app.Running, workspace: Path, *overrides: str, **more: Any) -> dict[str, Any]:
    """The parameters of `session.open` on a test's server."""
    given = settings_for(server.base_url, workspace, "features.quick_tests=false", *overrides).request["overrides"]
    return {"workspace": str(workspace), "overrides": given, **more}


class Seen:
    """Collects what a client is told of one session."""

    def __init__(self, joined: tuple[Attached, AsyncIterator[Followed]]) -> None:
        self.attached, self._events = joined
        self.events: list[Followed] = []
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self._events:
            async with self._changed:
                self.events.append(event)
                self._changed.notify_all()

    async def until(self, wanted: Callable[[Any], bool] | type, since: int = 0) -> Any:
        fits: Callable[[Any], bool] = (lambda e: isinstance(e, wanted)) if isinstance(wanted, type) else wanted
        async with self._changed:
            while True:
                for event in self.events[since:]:
                    if fits(event):
                        return event
                await self._changed.wait()

    async def ended(self, since: int = 0) -> Any:
        return await self.until(lambda e: isinstance(e, TURN_ENDS), since)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
