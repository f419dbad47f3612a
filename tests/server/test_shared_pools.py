"""A pool of several fronts: its slots, turns and tiers count over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from shared_live import SharedLive

from fulgur.server import shared_queue
from fulgur.server.config import Pool
from fulgur.server.live.base import Live, LiveAway
from fulgur.server.live.redis import RedisLive
from fulgur.server.pools import PoolState, Slot
from fulgur.text.parts import Usage

USED = Usage(input_tokens=10, output_tokens=30)


class Front:
    """A front's view of the pool; letters between fronts arrive at once."""

    def __init__(self, live: Live, others: dict[str, Front], limits: Pool) -> None:
        self.live, self.pool = live, PoolState("p", limits)
        self.slots: list[Slot] = []
        others[live.front] = self

        async def tell(pool: str, fronts: set[str]) -> None:
            for name in fronts:
                if name in others:
                    others[name].pool.look()

        self.pool.share_slots(live, tell)

    async def ask(self, owner: str, tier: str = "default", **options: object) -> Slot:
        self.slots.append(await self.pool.ask(owner, tier, **options))  # type: ignore[arg-type]
        return self.slots[-1]

    def leave(self, slot: Slot) -> None:
        self.slots.remove(slot)
        self.pool.leave(slot, USED)

    def running(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.running]


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.cluster)])
async def lives(request: pytest.FixtureRequest) -> AsyncIterator[list[Live]]:
    async with AsyncExitStack() as stack:
        made: list[Live] = []
        for number in range(2):
            if request.param == "memory":
                made.append(SharedLive(made[0] if number else None))  # type: ignore[arg-type]
            else:
                made.append(RedisLive(request.getfixturevalue("redis").url))
            await made[-1].open()
            stack.push_async_callback(made[-1].close)
        yield made


@pytest.fixture
async def fronts(lives: list[Live]) -> AsyncIterator[tuple[Front, Front]]:
    others: dict[str, Front] = {}
    here, there = (Front(live, others, Pool(concurrent=2)) for live in lives)
    yield here, there
    for front in (here, there):
        await front.pool.close()


async def until_ready(*slots: Slot) -> None:
    await asyncio.wait_for(asyncio.gather(*(slot.ready for slot in slots)), 30)


async def test_slots_count_over_all_fronts(fronts: tuple[Front, Front]) -> None:
    here, there = fronts
    for number in range(3):
        for front in fronts:
            await front.ask(f"key {number}")
    assert len(here.running()) + len(there.running()) == 2
    served = 0
    while here.slots or there.slots:
        running = [(front, slot) for front in fronts for slot in front.running()]
        assert len(running) <= 2
        if running:
            served += 1
            running[0][0].leave(running[0][1])
        await asyncio.sleep(0.001)
    assert served == 6


async def test_a_light_key_at_one_front_overtakes_a_heavy_one_at_the_other(fronts: tuple[Front, Front]) -> None:
    here, there = fronts
    heavy = [await here.ask("heavy") for _ in range(8)]
    light = await there.ask("light")
    order = [ticket.owner for ticket in there.pool._waiting().order()]
    assert order.index("light") <= 1, "who comes starts level with those that are there"
    for slot in heavy[:2]:
        here.leave(slot)
    await until_ready(light)
    assert len(here.running()) <= 1, "five of the heavy ones came before it and wait"
    there.leave(light)
    await until_ready(heavy[2], heavy[3])


async def test_a_flex_answer_makes_room_for_another_front(fronts: tuple[Front, Front]) -> None:
    here, there = fronts
    asked = asyncio.Event()

    def preempt() -> bool:
        asked.set()
        return True

    flex = [await here.ask("a", "flex", preempt=preempt) for _ in range(2)]
    urgent = await there.ask("b", "priority")
    await asyncio.wait_for(asked.wait(), 30)
    here.leave(next(slot for slot in flex if slot.leaving))
    await until_ready(urgent)


async def test_slots_of_a_front_that_is_gone_are_given_away(
    fronts: tuple[Front, Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_queue, "LOOK_S", 0.01)
    here, there = fronts
    for _ in range(3):
        await here.ask("a")
    waiting = await there.ask("b")
    assert here.pool._shared is not None and not waiting.running
    await here.pool.close()  # it looks no more, and its live state says goodbye
    await here.live.close()
    await until_ready(waiting)


async def test_without_the_live_state_each_front_gives_its_part(
    fronts: tuple[Front, Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_queue, "LOOK_S", 0.01)
    here, there = fronts
    first = await here.ask("a")
    assert first.running
    shared = there.pool._shared
    assert shared is not None
    await there.ask("a")
    while shared._fronts != 2:
        await asyncio.sleep(0.001)

    async def away(*_: object) -> bytes | None:
        raise LiveAway("away")

    for front in fronts:
        monkeypatch.setattr(front.live, "get", away)
    slots = [await there.ask("b") for _ in range(3)]
    assert len(there.running()) == 1, "of two slots and two fronts"
    there.leave(there.running()[0])
    await until_ready(slots[0])
    monkeypatch.undo()
    here.leave(first)
    await until_ready(slots[1])
