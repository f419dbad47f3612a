"""A real server on loopback with a scripted model, a workspace, and an agent on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from fulgur.agent.agent import Agent
from fulgur.backends.base import Capabilities
from fulgur.backends.scripted import Script, ScriptedBackend, ScriptedGeneration
from fulgur.config.settings import Settings, load_settings
from fulgur.protocol.agent import TURN_ENDS, AgentEvent, MessageDelta, ToolFinished
from fulgur.sandbox.choose import probes
from fulgur.server import app
from fulgur.server.config import Model, Pool, ServerConfig
from fulgur.server.pools import PoolState
from fulgur.server.registry import Registry, ServedModel
from fulgur.server.state import Server

T = TypeVar("T")

needs_sandbox = pytest.mark.skipif(not any(p.usable for p in probes()), reason="no sandbox works on this machine")


def say(text: str, **reply: Any) -> dict[str, Any]:
    return {"steps": [{"text": text}], **reply}


def call(name: str, arguments: dict[str, Any] | str, **reply: Any) -> dict[str, Any]:
    return {"steps": [{"call": name, "arguments": arguments}], **reply}


def make_script(replies: list[dict[str, Any]], rate: float = 0.0) -> Script:
    return msgspec.convert({"reply": replies, "rate": rate}, Script)


@asynccontextmanager
async def serving(
    replies: list[dict[str, Any]],
    *,
    rate: float = 0.0,
    context: int = 200_000,
    capabilities: Capabilities | None = None,
    more: dict[str, list[dict[str, Any]]] | None = None,
    pool: Pool | None = None,
) -> AsyncIterator[app.Running]:
    """A server with the model `m` (and `more` models by name), all in one `pool`."""
    config = ServerConfig()
    config.server.port = 0
    config.server.store = ":memory:"
    place = PoolState("p", pool) if pool is not None else None
    entries = [
        ServedModel(
            name,
            Model(backend="scripted"),
            ScriptedBackend(name, make_script(script, rate), context=context, capabilities=capabilities),
            place,
        )
        for name, script in {"m": replies, **(more or {})}.items()
    ]
    running = await app.start(config, Server(config, Registry(entries)))
    try:
        yield running
    finally:
        await running.close()


def settings_for(base_url: str, workspace: Path, *overrides: str) -> Settings:
    given = [f"model_providers.test.base_url={base_url}", "model_provider=test"]
    if not any(probe.usable for probe in probes()):
        given.append("sandbox_mode=danger-full-access")  # a machine that has none: what needs one is skipped
    return load_settings(workspace, overrides=[*given, *overrides])


def hold_delays(monkeypatch: pytest.MonkeyPatch, condition: Callable[[], Awaitable[object]]) -> None:
    """The delays of a script without a rate last until the condition holds, however fast the machine is."""

    async def held(_: ScriptedGeneration, seconds: float) -> None:
        if seconds:
            await condition()

    monkeypatch.setattr(ScriptedGeneration, "_sleep", held)


class Watch:
    """Collects the events of an agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.seen: list[AgentEvent] = []
        self._changed = asyncio.Condition()
        self._events = agent.events()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self._events:
            async with self._changed:
                self.seen.append(event)
                self._changed.notify_all()

    async def until(self, wanted: Callable[[AgentEvent], bool] | type, since: int = 0) -> Any:
        """The first event (from index `since`) that is wanted, when it has come."""
        fits: Callable[[AgentEvent], bool] = (lambda e: isinstance(e, wanted)) if isinstance(wanted, type) else wanted
        async with self._changed:
            while True:
                for event in self.seen[since:]:
                    if fits(event):
                        return event
                await self._changed.wait()

    async def turn(self, prompt: str) -> Any:
        """Submit a prompt and wait for the turn's end."""
        since = len(self.seen)
        self.agent.submit(prompt)
        end = await self.until(lambda e: isinstance(e, TURN_ENDS), since)
        await self.agent.wait()
        return end

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.seen if isinstance(event, kind)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.of(MessageDelta))

    @property
    def outputs(self) -> list[str]:
        return [event.output for event in self.of(ToolFinished)]


@asynccontextmanager
async def agent_on(
    running: app.Running | Proxy, workspace: Path, *overrides: str, **options: Any
) -> AsyncIterator[Watch]:
    agent = await Agent.open(settings_for(running.base_url, workspace, *overrides), **options)
    watch = Watch(agent)
    try:
        yield watch
    finally:
        await agent.close()
        await watch._task


class Proxy:
    """A TCP relay whose connections can be cut in the middle of anything."""

    def __init__(self, running: app.Running) -> None:
        self._target = running.port
        self._writers: list[asyncio.StreamWriter] = []
        self.opened = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop every connection and take no more."""
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Drop every connection without a word."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        out_reader, out_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, out_writer]
        await asyncio.gather(_pump(reader, out_writer), _pump(out_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, asyncio.CancelledError):
        pass
    writer.close()
