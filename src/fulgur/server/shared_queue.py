"""A pool's queue that all fronts share, in the live state: one fair queue, whichever front a request came to.

The queue is a value in the live state, changed by compare and set: a front reads it, lets the fair queue decide, writes
it back, and retries when another front was faster. Each front knows its own tickets and puts back those that the value
lacks, so nothing is lost when Redis loses its data. Tickets of fronts that are gone are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from fulgur.server.fair_queue import FairQueue, Standing, Ticket
from fulgur.server.live.base import LiveAway

if TYPE_CHECKING:
    from fulgur.server.live.base import Live
    from fulgur.server.pools import Slot

KEEP_S = 600.0  # how long the value outlives its last change
LOOK_S = 1.0  # between two looks while this front has tickets: a letter may be lost, a front may die

_encode, _decoder = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Standing)


class SharedQueue:
    """One pool, as one front sees it. `make` makes an empty queue; `notify` asks other fronts to look again."""

    def __init__(
        self,
        name: str,
        live: Live,
        make: Callable[[], FairQueue],
        grant: Callable[[Slot], None],
        notify: Callable[[set[str]], Awaitable[None]],
    ) -> None:
        self.queue = make()  # as it was last seen
        self.own: dict[str, Slot] = {}
        self._key = f"pool:{name}"
        self._live = live
        self._make = make
        self._grant = grant
        self._notify = notify
        self._costs: dict[str, float] = {}  # of own answers that have ended, until the value knows
        self._made = 0
        self._fronts = 1
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    async def add(self, slot: Slot) -> None:
        """Queue for a slot; it has one when this returns, if one is free."""
        self._made += 1
        slot.id = f"{self._live.front}:{self._made}"
        self.own[slot.id] = slot
        try:
            await self._change(lambda: slot.shared)
        except BaseException:
            self.remove(slot, 0.0)
            raise
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._go_on_looking())

    def remove(self, slot: Slot, cost: float) -> None:
        """Remove a slot that has ended or no longer wants to wait; the other fronts learn of it soon."""
        if self.own.pop(slot.id, None) is not None:
            if slot.running:
                self._costs[slot.id] = cost
            self.look()

    def look(self) -> None:
        """React to a change, here or elsewhere."""
        task = asyncio.create_task(self._change())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Finish the pending changes, so that the other fronts get what this one held."""
        looking = [self._looking] if self._looking is not None else []
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, *self._tasks, return_exceptions=True)

    async def _go_on_looking(self) -> None:
        while self.own:
            await asyncio.sleep(LOOK_S)
            await self._change(sweep=True)

    async def _change(self, done: Callable[[], bool] = lambda: False, *, sweep: bool = False) -> None:
        """Merge the value with what is known here, and hand out the free slots.

        `sweep`: also remove the tickets of fronts that are gone. `done`: whether an earlier change did the job.
        """
        async with self._changing:
            while not done():
                try:
                    old = await self._live.get(self._key)
                    fronts = await self._live.alive("fronts") if sweep else None
                    self._fronts = self._fronts if fronts is None else max(1, len(fronts))
                    queue = self._make()
                    if old is not None:
                        queue.restore(_decoder.decode(old))
                    costs = dict(self._costs)
                    others = self._step(queue, None if fronts is None else set(fronts), costs)
                    new = _encode(queue.standing())
                    if new != old and not await self._live.swap(self._key, old, new, KEEP_S):
                        continue
                    for name in costs:
                        del self._costs[name]
                except (LiveAway, msgspec.MsgspecError):
                    queue, others = self._alone(), set()
                self._settle(queue)
                with contextlib.suppress(LiveAway):
                    await self._notify(others)
                return

    def _step(self, queue: FairQueue, fronts: set[str] | None, costs: dict[str, float]) -> set[str]:
        """Let the queue decide once; return the other fronts that it concerns."""
        mine = self._live.front
        for ticket in queue.tickets():
            front = front_of(ticket)
            gone = ticket.id not in self.own if front == mine else fronts is not None and front not in fronts
            if gone and ticket.running:
                queue.done(ticket, costs.get(ticket.id, ticket.charged))
            elif gone:
                queue.withdraw(ticket)
        there = {ticket.id for ticket in queue.tickets()}
        for slot in self.own.values():
            if slot.id not in there:
                queue.put_back(Ticket(slot.owner, slot.tier, slot.running, slot.charged, slot.id))
        others = set()
        while (granted := queue.next()) is not None:
            others.add(front_of(granted))
        victim = queue.victim()
        if victim is not None:
            others.add(front_of(victim))
        return others - {mine}

    def _alone(self) -> FairQueue:
        """Without the live state: this front's tickets and its part of the slots."""
        queue = self._make()
        queue.slots = max(1, queue.slots // self._fronts)
        self._step(queue, None, {})
        return queue

    def _settle(self, queue: FairQueue) -> None:
        """Apply what was decided about this front's tickets."""
        self.queue = queue
        for ticket in queue.tickets():
            slot = self.own.get(ticket.id)
            if slot is not None:
                slot.shared = True
                slot.charged = ticket.charged
                if ticket.running and not slot.running:
                    slot.running = True
                    self._grant(slot)
        victim = queue.victim()
        slot = self.own.get(victim.id) if victim is not None else None
        if slot is not None:
            slot.make_room()


def front_of(ticket: Ticket) -> str:
    return ticket.id.rpartition(":")[0]
