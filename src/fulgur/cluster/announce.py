"""Lets fronts find replicas by themselves: each replica writes its slot and address to the live state every second.

A replica takes the lowest free slot, so one that is restarted soon after its death gets its old number. Two that take
the same slot at once notice it at their next look; the one that was overwritten takes another.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from fulgur.cluster.address import Address
from fulgur.errors import FulgurError

if TYPE_CHECKING:
    from fulgur.server.live.base import Live

BEAT_S = 1.0
ALIVE_S = 3.0  # without a beat


def table(model: str) -> str:
    return f"replicas:{model}"


class Announcer:
    """Keeps one replica in the table until it is closed."""

    def __init__(self, live: Live, model: str, address: Address) -> None:
        self.slot = -1
        self._live = live
        self._table = table(model)
        self._own = str(address).encode()
        self._task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.slot >= 0:
            with contextlib.suppress(FulgurError):
                await self._live.beat(self._table, str(self.slot), self._own, 0)

    async def _go_on(self) -> None:
        while True:
            with contextlib.suppress(FulgurError):
                known = await self._live.alive(self._table)
                if self.slot < 0 or known.get(str(self.slot), self._own) != self._own:
                    self.slot = next(number for number in range(len(known) + 1) if str(number) not in known)
                await self._live.beat(self._table, str(self.slot), self._own, ALIVE_S)
            await asyncio.sleep(BEAT_S * random.uniform(0.7, 1.0))


async def members(live: Live, model: str) -> dict[int, Address]:
    """The replicas that are announced, by slot."""
    return {int(slot): Address.parse(value.decode()) for slot, value in (await live.alive(table(model))).items()}
