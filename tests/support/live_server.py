"""A server in a thread of its own, so that tests can drive real clients against it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec

from fulgur.backends.scripted import Script, ScriptedBackend
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.server.registry import Registry, ServedModel, make_backend
from fulgur.server.state import Server


class LiveServer:
    """Serves the scripted model `scripted`, and `local` when a model folder is given."""

    def __init__(self, *replies: dict[str, Any], rate: float = 0.0, folder: Path | None = None) -> None:
        self.script = msgspec.convert({"reply": list(replies), "rate": rate}, Script)
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        self._running = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._running.close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def base_url(self) -> str:
        return self._running.base_url

    @property
    def port(self) -> int:
        return self._running.port

    @property
    def server(self) -> Server:
        return self._running.server

    @property
    def backend(self) -> ScriptedBackend:
        backend = self.server.models.entries["scripted"].backend
        assert isinstance(backend, ScriptedBackend)
        return backend

    async def _start(self) -> app.Running:
        config = ServerConfig()
        config.server.port = 0
        config.server.store = ":memory:"
        scripted = ScriptedBackend("scripted", self.script)
        entries = [ServedModel("scripted", Model(backend="scripted"), scripted, None)]
        if self._folder is not None:
            model = Model(backend="local", path=str(self._folder), context=65_536)
            entries.append(ServedModel("local", model, make_backend("local", model, config), None))
        running = await app.start(config, Server(config, Registry(entries)))
        if self._folder is not None:
            await entries[-1].ready()
        return running
