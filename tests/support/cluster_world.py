"""Replicas in this process: real engines and real sockets, but no process to start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fulgur.cluster.address import Address
from fulgur.cluster.engine import ClusterEngine
from fulgur.cluster.fingerprint import fingerprint
from fulgur.cluster.replica import Replica
from fulgur.cluster.tls import Tls
from fulgur.engine.errors import EngineDied
from fulgur.engine.events import Event
from fulgur.engine.generation import Generation
from fulgur.engine.load import EngineInfo, EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest
from fulgur.engine.wire import Message
from fulgur.errors import FulgurError

SECRET = b"a secret that only the tests know"


class LoopEngine:
    """An engine that steps in the event loop, with the face of `EngineClient`."""

    def __init__(self, model: Path, kv_tokens: int = 8192) -> None:
        self.engine, self.info = open_engine(EngineOptions(model, kv_tokens=kv_tokens, threads=1, device="cpu"))
        self.info: EngineInfo
        self._generations: dict[str, Generation] = {}
        self._made = 0
        self._task: asyncio.Task[None] | None = None
        self.held = asyncio.Event()  # cleared: the engine does not step
        self.held.set()

    @property
    def busy(self) -> bool:
        return self.engine.busy

    def generate(self, request: GenerateRequest) -> Generation:
        self._made += 1
        request_id = f"g{self._made}"
        self.engine.submit(request, request_id)
        generation = self._generations[request_id] = Generation(request_id, request, self._send)
        self._wake()
        return generation

    async def close(self) -> None:
        for generation in self._generations.values():
            generation.fail(EngineDied("the engine was closed"))
        if self._task is not None:
            self._task.cancel()

    def _send(self, message: Message) -> None:
        if message[0] == "cancel":
            self.engine.cancel(message[1])
        else:
            self.engine.steer(message[1], message[2])
        self._wake()

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self.engine.busy:
            await self.held.wait()
            by_request: dict[str, list[Event]] = {}
            for event in self.engine.step():
                by_request.setdefault(event.request_id, []).append(event)
            for request_id, events in by_request.items():
                generation = self._generations[request_id]
                generation.deliver(events)
                if generation.done:
                    del self._generations[request_id]
            await asyncio.sleep(0)


class World:
    """Replicas by slot, and engines of fronts that use them."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.mark = fingerprint(model)
        self.replicas: dict[int, Replica] = {}
        self.addresses: dict[int, Address] = {}
        self.fronts: list[ClusterEngine] = []

    async def replica(
        self, slot: int, *, secret: bytes = SECRET, kv_tokens: int = 8192, tls: Tls | None = None
    ) -> Replica:
        """Start one; a second one in the same slot listens where the first did."""
        made = Replica(LoopEngine(self.model, kv_tokens), secret, self.mark)  # type: ignore[arg-type]
        self.addresses[slot] = await made.listen(self.addresses.get(slot, Address("127.0.0.1")), tls)
        self.replicas[slot] = made
        return made

    async def front(
        self, *, secret: bytes = SECRET, mark: str = "", patience: float = 10.0, tls: Tls | None = None
    ) -> ClusterEngine:
        made = await ClusterEngine.start(self.addresses, secret, mark or self.mark, patience, tls=tls)
        self.fronts.append(made)
        while not all(link.ready for link in made.links.values() if link.number in self.replicas):
            await asyncio.sleep(0.001)
        return made

    async def kill(self, slot: int) -> None:
        """As kill -9 looks from outside: connections drop, nothing is said."""
        await self.replicas.pop(slot).close()

    def hold(self) -> None:
        """No engine steps: what runs does not end before `go_on`."""
        for replica in self.replicas.values():
            replica.engine.held.clear()  # type: ignore[attr-defined]

    def go_on(self) -> None:
        for replica in self.replicas.values():
            replica.engine.held.set()  # type: ignore[attr-defined]

    def where(self) -> list[int]:
        """The slots that are generating."""
        return [slot for slot, replica in self.replicas.items() if replica.running]


@asynccontextmanager
async def cluster(model: Path, replicas: int = 2) -> AsyncIterator[World]:
    world = World(model)
    for slot in range(replicas):
        await world.replica(slot)
    try:
        yield world
    finally:
        for front in world.fronts:
            await front.close()
        for slot in list(world.replicas):
            await world.kill(slot)


__all__ = ["SECRET", "FulgurError", "LoopEngine", "World", "cluster"]
