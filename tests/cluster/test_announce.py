"""Replicas that fronts find in the live state."""

from __future__ import annotations

import asyncio

import pytest

from fulgur.cluster import announce
from fulgur.cluster.address import Address
from fulgur.errors import UsageError
from fulgur.server.live.memory import MemoryLive


async def test_slots_are_taken_from_the_lowest_free_one_on_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "BEAT_S", 0.01)
    live = MemoryLive()
    addresses = [Address("127.0.0.1", 7000 + number) for number in range(3)]
    announcers = [announce.Announcer(live, "m", address) for address in addresses]  # all at once
    while set((await announce.members(live, "m")).values()) != set(addresses):
        await asyncio.sleep(0.005)
    assert {announcer.slot for announcer in announcers} == {0, 1, 2}
    gone = next(announcer for announcer in announcers if announcer.slot == 1)
    await gone.close()
    assert set(await announce.members(live, "m")) == {0, 2}
    again = announce.Announcer(live, "m", Address("127.0.0.1", 7009))
    while len(await announce.members(live, "m")) < 3:
        await asyncio.sleep(0.005)
    assert again.slot == 1, "the old number: only its own sessions had moved"
    for announcer in (*announcers, again):
        await announcer.close()


def test_addresses() -> None:
    for text in ("127.0.0.1:7001", "unix:/run/fulgur/r0", "[::1]:7001", "replica-0.local:80"):
        assert str(Address.parse(text)) == text
    assert Address.parse("10.0.0.5:7001").from_outside() == Address("10.0.0.5", 7001)
    assert Address("0.0.0.0", 7001).from_outside().host not in ("0.0.0.0", "")
    for wrong in ("", "7001", "host:", "host:x", "host:70000"):
        with pytest.raises(UsageError):
            Address.parse(wrong)
