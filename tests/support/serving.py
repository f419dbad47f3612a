"""A server on loopback with a scripted model, for the tests of this folder and the client's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from fulgur.backends.base import Capabilities
from fulgur.backends.scripted import Script, ScriptedBackend
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.server.pools import PoolState
from fulgur.server.registry import Registry, ServedModel
from fulgur.server.state import Server

T = TypeVar("T")


def script(*replies: dict[str, Any], rate: float = 0.0, prefill_rate: float = 0.0) -> Script:
    return msgspec.convert({"reply": list(replies), "rate": rate, "prefill_rate": prefill_rate}, Script)


def text(words: str, **reply: Any) -> dict[str, Any]:
    return {"steps": [{"text": words}], **reply}


@asynccontextmanager
async def serving(
    played: Script | None = None,
    *,
    config: ServerConfig | None = None,
    capabilities: Capabilities | None = None,
    model: Model | None = None,
    pool: PoolState | None = None,
    context: int = 200_000,
) -> AsyncIterator[app.Running]:
    """A server on a free port with one scripted model, `m`."""
    config = config or ServerConfig()
    config.server.port = 0
    config.server.store = config.server.store or ":memory:"
    backend = ScriptedBackend("m", played or Script(), context=context, capabilities=capabilities)
    entry = ServedModel("m", model or Model(backend="scripted"), backend, pool)
    running = await app.start(config, Server(config, Registry([entry])))
    try:
        yield running
    finally:
        await running.close()


def backend_of(running: app.Running) -> ScriptedBackend:
    backend = running.server.models.entries["m"].backend
    assert isinstance(backend, ScriptedBackend)
    return backend
