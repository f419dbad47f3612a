"""Pools: slots that models share, the tiers that wait for them, and limits on requests and tokens."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fulgur.protocol.errors import ApiError
from fulgur.server.config import Pool, TierLimits
from fulgur.server.fair_queue import FLEX, FairQueue, Ticket, TierShare
from fulgur.server.rates import Clock, Rates
from fulgur.server.shared_queue import SharedQueue
from fulgur.text.parts import Usage

if TYPE_CHECKING:
    from fulgur.server.live.base import Live

DEFAULT = "default"
# As is usual in the market: a tier's weight against the others, and its price as a multiple of the model's.
WEIGHTS = {FLEX: 1.0, DEFAULT: 4.0, "priority": 16.0, "ultrafast": 64.0}
PRICES = {FLEX: 0.5, DEFAULT: 1.0, "priority": 2.0, "ultrafast": 6.0}
NAMES = {"fast": "priority"}  # what clients call it
FLEX_WAIT_S = 900.0
NOTIFY_S = 1.0  # a waiting client hears of its place at most this often
CACHED_COST, OUTPUT_COST = 0.1, 3.0  # the work of a token, relative to an input token that has to be computed

# Called with the place in the queue, from 1 on, and the expected wait in seconds.
OnPlace = Callable[[int, float | None], None]


class Slot(Ticket):
    """A place in a pool's queue, then one of its slots. `preempt` asks a running flex answer to make room."""

    def __init__(self, owner: str, tier: str, preempt: Callable[[], bool] | None) -> None:
        super().__init__(owner, tier)
        self.preempt = preempt
        self.leaving = False  # it was asked to make room
        self.shared = False  # the other fronts know it
        self.began = 0.0
        self.place = 0
        self.on_place: OnPlace | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def make_room(self) -> None:
        if not self.leaving and self.preempt is not None:
            self.leaving = self.preempt()


class PoolState:
    """One pool."""

    def __init__(self, name: str, limits: Pool, clock: Clock = time.monotonic) -> None:
        self.name = name
        self.limits = limits
        self.tiers = _offered(limits)
        self._queue = self._new_queue()
        self._shared: SharedQueue | None = None
        self._clock = clock
        self._rates = Rates(f"The pool '{name}'", limits.requests_per_minute, limits.tokens_per_minute, clock=clock)
        self._tier_rates = {
            tier: Rates(
                f"The tier '{tier}' of the pool '{name}'", each.requests_per_minute, each.tokens_per_minute, clock=clock
            )
            for tier, each in self.tiers.items()
        }
        self._seconds = 0.0  # how long a slot is taken, on average
        self._notifying: asyncio.Task[None] | None = None

    def _new_queue(self) -> FairQueue:
        tiers = {
            tier: TierShare(each.weight or WEIGHTS[tier], each.slots, each.reserved)
            for tier, each in self.tiers.items()
        }
        return FairQueue(self.limits.concurrent, tiers)

    def share_slots(self, live: Live, notify: Callable[[str, set[str]], Awaitable[None]]) -> None:
        """Share the slots with all other fronts from now on. `notify` asks other fronts to look at a pool."""
        if self.limits.concurrent:
            notify_fronts = functools.partial(notify, self.name)
            self._shared = SharedQueue(self.name, live, self._new_queue, self._grant, notify_fronts)

    def look(self) -> None:
        """Another front has changed something."""
        if self._shared is not None:
            self._shared.look()

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()

    def tier(self, asked: str | None) -> str:
        """The tier that serves a request: the one asked for, where the pool has it."""
        name = NAMES.get(asked or DEFAULT, asked or DEFAULT)
        return name if name in self.tiers else DEFAULT

    def price(self, tier: str) -> float:
        """As a multiple of the model's price."""
        given = self.tiers[tier].price
        return PRICES[tier] if given is None else given

    # --- limits ---

    def rates(self, tier: str, key: Rates | None = None) -> list[Rates]:
        """What a request counts against: the pool, its tier and its key."""
        return [self._rates, self._tier_rates[tier], *([key] if key is not None else [])]

    # --- slots ---

    async def ask(self, owner: str, tier: str, preempt: Callable[[], bool] | None = None) -> Slot:
        """A slot, or a place in the queue for one. `preempt` is called when a flex answer should make room."""
        slot = Slot(owner, tier, preempt)
        most = self.limits.queue
        if most and len(self._waiting()) >= most:
            raise ApiError(
                429,
                "queue_full",
                f"The queue of pool '{self.name}' is full ({most} requests).",
                type="rate_limit_error",
                headers={"retry-after": "5"},
            )
        if self._shared is not None:
            await self._shared.add(slot)
        else:
            self._queue.add(slot)
            self._start()
        return slot

    def _waiting(self) -> FairQueue:
        """The queue as far as it is known here."""
        return self._queue if self._shared is None else self._shared.queue

    async def wait(self, slot: Slot, on_place: OnPlace | None = None) -> None:
        """Wait for the slot. `on_place` is called with its place, at once and when it changes."""
        if slot.running:
            return
        slot.on_place = on_place
        self._notify()
        if self._notifying is None or self._notifying.done():
            self._notifying = asyncio.create_task(self._notify_while_any_wait())
        try:
            async with asyncio.timeout(FLEX_WAIT_S if slot.tier == FLEX else None):
                await asyncio.shield(slot.ready)
        except TimeoutError:
            if not slot.running:
                raise ApiError(
                    429,
                    "resource_unavailable",
                    "No capacity became free for the flex tier in 15 minutes. Try again later, or use another tier.",
                    type="rate_limit_error",
                ) from None

    def leave(self, slot: Slot, usage: Usage) -> None:
        """Give back the slot, or the place in the queue. The usage of a slot is charged to its key and tier."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        cost = usage.input_tokens - cached + CACHED_COST * cached + OUTPUT_COST * usage.output_tokens
        if self._shared is not None:
            self._shared.remove(slot, cost)
        elif slot.running:
            self._queue.done(slot, cost)
        else:
            self._queue.withdraw(slot)
        if not slot.running:
            return
        taken = self._clock() - slot.began
        self._seconds = taken if not self._seconds else self._seconds + (taken - self._seconds) / 8
        if self._shared is None:
            self._start()

    def _start(self) -> None:
        while (slot := self._queue.next()) is not None:
            assert isinstance(slot, Slot)
            self._grant(slot)
        victim = self._queue.victim()
        if isinstance(victim, Slot):
            victim.make_room()

    def _grant(self, slot: Slot) -> None:
        slot.began = self._clock()
        if not slot.ready.done():
            slot.ready.set_result(None)

    # --- reports to those who wait ---

    async def _notify_while_any_wait(self) -> None:
        while len(self._waiting()):
            await asyncio.sleep(NOTIFY_S)
            self._notify()

    def _notify(self) -> None:
        """Notify everybody whose place has changed; the order is computed once for all of them."""
        for place, ticket in enumerate(self._waiting().order(), 1):
            slot = ticket if self._shared is None else self._shared.own.get(ticket.id)
            if isinstance(slot, Slot) and slot.on_place is not None and slot.place != place:
                slot.place = place
                with contextlib.suppress(ConnectionError):
                    slot.on_place(place, self._expected(place))

    def _expected(self, place: int) -> float | None:
        if not self._seconds:
            return None
        return round(place * self._seconds / max(1, self.limits.concurrent), 1)


def _offered(limits: Pool) -> dict[str, TierLimits]:
    """The tiers a pool offers. Without slots to wait for, only the default and those in the config; the fastest tier
    only when the config has it."""
    given: dict[str, TierLimits] = {str(name): tier for name, tier in limits.tiers.items()}
    names = [DEFAULT, *given, *((FLEX, "priority") if limits.concurrent else ())]
    return {name: given.get(name) or TierLimits() for name in WEIGHTS if name in names}
