"""The engine in a separate process, as asyncio code uses it.

A crash of the engine fails the running generations and nothing else: the client restarts it at once, and requests that
come meanwhile wait until it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from fulgur.engine.child import Child
from fulgur.engine.errors import EngineDied
from fulgur.engine.events import Event
from fulgur.engine.generation import Generation
from fulgur.engine.load import EngineInfo, EngineOptions
from fulgur.engine.params import GenerateRequest
from fulgur.engine.wire import Message, frame, unpack_error
from fulgur.errors import FulgurError

__all__ = ["EngineClient", "EngineInfo", "Generation"]


class EngineClient:
    """One engine process. Made by `start`, used from the event loop it was made in."""

    info: EngineInfo

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._child: Child | None = None
        self._launching: asyncio.Task[None] | None = None
        self._outbox: list[bytes] = []  # frames to send once there is a process again
        self._generations: dict[str, Generation] = {}
        self._made = 0
        self._closed = False

    @classmethod
    async def start(
        cls,
        model: Path,
        *,
        bits: int | None = None,
        threads: int | None = None,
        kv_tokens: int | None = None,
        runtime: str = "native",
        device: str = "auto",
        kv_dtype: str = "bf16",
    ) -> EngineClient:
        """Start the process and wait until the model is loaded."""
        client = cls(EngineOptions(Path(model), bits, threads, kv_tokens, runtime, device, kv_dtype))
        await client._launch()
        return client

    @property
    def pid(self) -> int | None:
        """The id of the process, if one is running."""
        return None if self._child is None else self._child.process.pid

    def generate(self, request: GenerateRequest) -> Generation:
        """Submit a request; iterate over the result for its events."""
        if self._closed:
            raise EngineDied("the engine was closed")
        self._made += 1
        generation = Generation(f"g{self._made}", request, self._send)
        self._send(("submit", generation.request_id, request))
        self._generations[generation.request_id] = generation
        return generation

    async def close(self) -> None:
        """End the process; generations that still run fail."""
        if self._closed:
            return
        self._closed = True
        if self._launching is not None:
            self._launching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._launching
        child, self._child = self._child, None
        if child is not None:
            await child.close()
        self._fail(self._take_generations(), EngineDied("the engine was closed"))

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _send(self, message: Message) -> None:
        if self._closed:
            return
        if message[0] == "cancel" and (generation := self._generations.get(message[1])) and generation.done:
            del self._generations[message[1]]  # a kept one that has finished: the engine drops it without a report
        if self._child is not None:
            self._child.write(frame(message))
            return
        self._outbox.append(frame(message))
        if self._launching is None:
            self._launching = asyncio.get_running_loop().create_task(self._launch_again(None, []))

    async def _launch(self) -> None:
        """Start a process and wait until it can serve; raises the error that it reports if it cannot."""
        child = await Child.spawn(self._options, self._receive)
        try:
            self.info = await child.ready
        except EngineDied:
            raise await child.bury() from None
        except BaseException:
            await child.close()
            raise
        child.on_lost = lambda: self._lost(child)
        self._child = child
        outbox, self._outbox = self._outbox, []
        for data in outbox:
            child.write(data)

    def _lost(self, child: Child) -> None:
        """The process ended unexpectedly: fail its generations and start another one."""
        self._child = None
        doomed = self._take_generations()
        self._launching = asyncio.get_running_loop().create_task(self._launch_again(child, doomed))

    async def _launch_again(self, dead: Child | None, doomed: list[Generation]) -> None:
        try:
            if dead is not None:
                self._fail(doomed, await dead.bury())
            await self._launch()
        except asyncio.CancelledError:
            self._fail(doomed, EngineDied("the engine was closed"))
            raise
        except FulgurError as error:  # it no longer starts: the next request tries again
            self._outbox.clear()
            self._fail(self._take_generations(), error)
        finally:
            self._launching = None

    def _receive(self, message: Message) -> None:
        if message[0] == "refused":
            generation = self._generations.pop(message[1], None)
            if generation is not None:
                generation.fail(unpack_error(message[2]))
            return
        by_request: dict[str, list[Event]] = {}
        for event in message[1]:
            by_request.setdefault(event.request_id, []).append(event)
        for request_id, events in by_request.items():
            generation = self._generations.get(request_id)
            if generation is not None:
                generation.deliver(events)
                if generation.done and not generation.request.keep:
                    del self._generations[request_id]

    def _take_generations(self) -> list[Generation]:
        generations, self._generations = self._generations, {}
        return list(generations.values())

    def _fail(self, generations: list[Generation], error: FulgurError) -> None:
        for generation in generations:
            if not generation.done or generation.request.keep:
                generation.fail(error)
