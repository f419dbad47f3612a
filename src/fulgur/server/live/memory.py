"""The live state of one front, in its memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from fulgur.server.live.base import KEEP_S, MOST_LETTERS, Events, Running, new_front
from fulgur.server.rates import Clock, Rates


@dataclass
class _Run:
    run: Running
    data: list[bytes] = field(default_factory=list)
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryLive:
    shared = False

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.front = new_front()
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._letters: asyncio.Queue[bytes] = asyncio.Queue(MOST_LETTERS)
        self._tables: dict[str, dict[str, tuple[bytes, float]]] = {}
        self._values: dict[str, tuple[bytes, float]] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        self._runs.clear()

    def problem(self) -> str:
        return ""

    # --- limits ---

    async def admit(self, rates: Sequence[Rates]) -> None:
        for each in rates:
            each.check()
        for each in rates:
            each.request()

    def spend(self, rates: Sequence[Rates], tokens: int) -> None:
        for each in rates:
            each.spend(tokens)

    async def restore(self, rates: Rates, tokens: int) -> None:
        if rates.day is not None:
            rates.day.take(tokens)

    # --- runs ---

    async def begin(self, run: Running) -> bool:
        if run.id in self._runs:
            return False
        self._runs[run.id] = _Run(run)
        return True

    async def find(self, response_id: str) -> Running | None:
        found = self._runs.get(response_id)
        return found.run if found is not None and not found.ended else None

    async def take(self, response_id: str, attempt: int) -> Running | None:
        found = self._runs.get(response_id)
        if found is None or found.ended or found.run.attempt != attempt:
            return None
        old = found.run
        found.run = Running(old.id, old.owner, self.front, attempt + 1, old.request)
        return found.run

    async def end(self, response_id: str, attempt: int) -> None:
        found = self._runs.get(response_id)
        if found is not None and found.run.attempt == attempt:
            found.ended = True
            found.notify()
            asyncio.get_running_loop().call_later(KEEP_S, self._runs.pop, response_id, None)

    # --- events ---

    async def append(self, response_id: str, attempt: int, first: int, events: Sequence[bytes]) -> int | None:
        found = self._runs.get(response_id)
        if found is None or found.ended or found.run.attempt != attempt:
            return None
        if first <= len(found.data):
            found.data += events[len(found.data) - first :]
            found.notify()
        return len(found.data)

    async def events(self, response_id: str, first: int, wait_s: float = 0.0) -> Events | None:
        found = self._runs.get(response_id)
        if found is None:
            return None
        try:
            async with asyncio.timeout(wait_s):
                while wait_s and len(found.data) <= first and not found.ended:
                    await found.changed.wait()
        except TimeoutError:
            pass
        return Events(found.data[first:], found.ended)

    # --- mail ---

    async def send(self, front: str, letter: bytes) -> None:
        if front == self.front:
            if self._letters.full():
                self._letters.get_nowait()
            self._letters.put_nowait(letter)

    async def letters(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._letters.get()

    # --- tables and values ---

    async def beat(self, table: str, name: str, value: bytes, seconds: float) -> None:
        self._tables.setdefault(table, {})[name] = value, self._clock() + seconds

    async def alive(self, table: str) -> dict[str, bytes]:
        now = self._clock()
        entries = self._tables.get(table, {})
        for name in [name for name, (_, until) in entries.items() if until <= now]:
            del entries[name]
        own = {self.front: b""} if table == "fronts" else {}
        return own | {name: value for name, (value, _) in entries.items()}

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        now = self._clock()
        if len(self._values) % 1024 == 1023:
            self._values = {name: kept for name, kept in self._values.items() if kept[1] > now}
        self._values[key] = value, now + seconds

    async def get(self, key: str, renew_s: float = 0.0) -> bytes | None:
        found = self._values.get(key)
        if found is None or found[1] <= self._clock():
            self._values.pop(key, None)
            return None
        if renew_s:
            self._values[key] = found[0], self._clock() + renew_s
        return found[0]

    async def drop(self, key: str) -> None:
        self._values.pop(key, None)

    async def swap(self, key: str, old: bytes | None, new: bytes, seconds: float) -> bool:
        if await self.get(key) != old:
            return False
        await self.put(key, new, seconds)
        return True
