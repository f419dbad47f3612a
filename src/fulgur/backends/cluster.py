"""A model whose engine runs in replicas elsewhere; templates, splitters and grammars are as with a local engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING

from fulgur.backends.base import Completion, Turn
from fulgur.backends.local import Engine, LocalBackend
from fulgur.backends.local_request import edit_item
from fulgur.cluster import announce, secret, tls
from fulgur.cluster.engine import PATIENCE_S, ClusterEngine, members
from fulgur.cluster.fingerprint import fingerprint
from fulgur.cluster.routing import Pins
from fulgur.cluster.shared_pins import SharedPins
from fulgur.errors import FulgurError
from fulgur.protocol.items import Item, item_type, text_of

if TYPE_CHECKING:
    from fulgur.engine.generation import Generation as EngineGeneration
    from fulgur.engine.params import GenerateRequest
    from fulgur.server.config import Cluster, Model
    from fulgur.server.live.base import Live

_BEGINNING = 4096  # characters that identify a conversation


class ClusterBackend(LocalBackend):
    """One model, any number of replicas."""

    def __init__(self, name: str, model: Model, cluster: Cluster) -> None:
        super().__init__(name, model)
        self._cluster = cluster
        self._pins = Pins()
        self._live: Live | None = None
        self._watching: asyncio.Task[None] | None = None

    def share(self, live: Live) -> None:
        if live.shared:
            self._live, self._pins = live, SharedPins(self.name, live)

    async def open_engine(self) -> Engine:
        known, encrypted = secret.load(self._cluster.secret_file), tls.load(self._cluster)
        mark = await asyncio.to_thread(fingerprint, self._path)
        if self._model.replicas:
            there = members(self._model.replicas)
            return await ClusterEngine.start(there, known, mark, pins=self._pins, tls=encrypted)
        if self._live is None:
            raise FulgurError(
                f"models.{self.name} lists no replicas, and server.live names no Redis server in which to find them.",
                hint="List them in models.NAME.replicas, or set server.live.",
            )
        engine = ClusterEngine(known, mark, self._pins, encrypted)
        self._watching = asyncio.create_task(self._watch(engine, self._live))
        await engine.ready(PATIENCE_S)
        return engine

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await super().close()

    async def _watch(self, engine: ClusterEngine, live: Live) -> None:
        """Follow the table of replicas. While it cannot be read, those that are known stay."""
        while True:
            with contextlib.suppress(FulgurError):
                found = await announce.members(live, self.name)
                if found:
                    engine.set_members(found)
            await asyncio.sleep(announce.BEAT_S)

    def submit(self, request: GenerateRequest, asked: Turn | Completion) -> EngineGeneration:
        engine = self.engine
        assert isinstance(engine, ClusterEngine)
        return engine.generate(request, affinity(asked))


def affinity(asked: Turn | Completion) -> str:
    """A key that requests share when one continues another: from the client's own key, else from how they begin.

    A conversation begins with everything before the model's first word; a completion and an edit belong to a file.
    """
    if isinstance(asked, Completion):
        begins = asked.path or str(asked.prompt)[:_BEGINNING]
    elif asked.cache_key:
        begins = asked.cache_key
    elif edit := edit_item(asked):
        begins = str(edit["path"])
    else:
        begins = _first_words(asked)
    return hashlib.blake2b(f"{asked.owner}\0{begins}".encode(errors="replace"), digest_size=16).hexdigest()


def _first_words(turn: Turn) -> str:
    words: list[str] = []
    size = 0
    for part in turn.conversation.chain():
        for item in part.items:
            if not _given(item) or size > _BEGINNING:
                return "\n".join(words)
            words.append(text_of(item)[:_BEGINNING])
            size += len(words[-1])
    return "\n".join(words)


def _given(item: Item) -> bool:
    return item_type(item) == "message" and item.get("role") != "assistant"
