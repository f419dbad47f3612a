"""Pins that all fronts know, in the live state."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from fulgur.cluster.routing import Pin, Pins
from fulgur.errors import FulgurError

if TYPE_CHECKING:
    from fulgur.server.live.base import Live

_KEEP_S = 1800.0  # after its last request a session is forgotten
_encode, _decoder = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Pin)


class SharedPins(Pins):
    """Uses what this front knows at once, and asks the live state for the rest; without it, what is known remains."""

    def __init__(self, model: str, live: Live) -> None:
        super().__init__()
        self._model = model
        self._live = live
        self._writing: set[asyncio.Task[None]] = set()

    def put(self, key: str, pin: Pin) -> None:
        super().put(key, pin)
        task = asyncio.get_running_loop().create_task(self._write(key, pin))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def to_be_fetched(self, key: str) -> bool:
        return self.get(key) is None

    async def fetch(self, key: str) -> None:
        with contextlib.suppress(FulgurError, msgspec.MsgspecError):
            found = await self._live.get(self._name(key), _KEEP_S)
            if found is not None:
                super().put(key, _decoder.decode(found))

    async def _write(self, key: str, pin: Pin) -> None:
        with contextlib.suppress(FulgurError):
            await self._live.put(self._name(key), _encode(pin), _KEEP_S)

    def _name(self, key: str) -> str:
        return f"pin:{self._model}:{key}"
