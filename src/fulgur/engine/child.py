"""One engine process and the socket to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import IO

from fulgur.engine.errors import EngineDied
from fulgur.engine.load import EngineInfo, EngineOptions
from fulgur.engine.wire import FrameReader, Message, frame, unpack_error
from fulgur.sandbox import start

_PATIENCE = 2.0  # seconds for a process whose socket is closed to end by itself
_TAIL = 4096  # bytes of its output


class Child(asyncio.Protocol):
    """A running `fulgur.engine.worker`. `ready` resolves when it has loaded its model."""

    def __init__(self, process: start.Process[bytes], log: IO[bytes], receive: Callable[[Message], None]) -> None:
        self.process = process
        self.ready: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self.on_lost: Callable[[], None] | None = None
        self._log = log
        self._receive = receive
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def spawn(cls, options: EngineOptions, receive: Callable[[Message], None]) -> Child:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process is buried)
        with theirs:
            command = start.python("fulgur.engine.worker", str(theirs.fileno()))
            process = start.popen(command, start.ROOT, pass_fds=[theirs.fileno()], stdout=log, stderr=log)
        child = cls(process, log, receive)
        await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=ours)
        # The child has a different working directory.
        child.write(frame(("open", replace(options, model=options.model.absolute()))))
        return child

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    async def bury(self) -> EngineDied:
        """Reap a process whose socket is closed, and return an error that says how it ended."""
        asked = False
        for _ in range(int(_PATIENCE * 200)):
            if self.process.poll() is not None:
                break
            await asyncio.sleep(0.005)
        else:
            asked = True
            self.process.kill()
            self.process.wait()
        how = "stopped answering" if asked else _how_it_ended(self.process.returncode)
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - _TAIL, 0))
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        self._log.close()
        last = f" Last output: {lines[-1]}" if lines else ""
        return EngineDied(f"the engine process {how}.{last}", hint="It restarts automatically; send the request again.")

    async def close(self) -> None:
        """End the process."""
        self.on_lost = None
        if self._transport is not None:
            self._transport.close()
        await self.bury()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if message[0] == "ready":
                self.ready.set_result(message[1])
            elif message[0] == "failed":
                self.ready.set_exception(unpack_error(message[1]))
            else:
                self._receive(message)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(EngineDied("the engine process ended while it was loading the model"))
        if self.on_lost is not None:
            self.on_lost()


def _how_it_ended(code: int) -> str:
    if code < 0:
        try:
            return f"was killed ({signal.Signals(-code).name})"
        except ValueError:
            return f"was killed (signal {-code})"
    return f"ended with code {code}"
