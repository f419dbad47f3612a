"""The live state that many fronts share: Redis (the extra `cluster`), one server, not a Redis Cluster."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fulgur.errors import FulgurError
from fulgur.server.live import base, scripts
from fulgur.server.live.base import Events, LiveAway, Running
from fulgur.server.live.outbox import Batch, Outbox
from fulgur.server.rates import Rates

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")
log = logging.getLogger("fulgur.server")
COMMAND_S = 1.0
BEAT_S = 1.0
OPEN_S = 10.0  # how long to wait at the start for a Redis server that is there but slow
REST_S = 0.5  # how long Redis is left alone after a failure, so that no request waits for it
BLOCK_S = 5.0  # of one wait for mail
Charge = tuple[Rates, str, float]  # a limit of these rates, and how much of it is taken


class RedisLive:
    """`url` as redis-py takes it: redis://, rediss:// or unix://."""

    shared = True

    def __init__(self, url: str) -> None:
        self.front = base.new_front()
        self._url = url
        self._redis: Redis | None = None
        self._waiting: Redis | None = None  # for calls that block: their answers may take long
        self._scripts: dict[str, Any] = {}
        self._beating: asyncio.Task[None] | None = None
        self._spending: set[asyncio.Task[None]] = set()
        self._owned: dict[str, Running] = {}
        self._outbox = Outbox(self._append)
        self._fronts = 1  # that were alive when Redis was last seen
        self._problem = ""
        self._rest_until = 0.0
        self._was_away = False  # and may have lost its data
        self._slow = False  # it did not answer in time, but did not refuse either
        self._closed = False

    async def open(self) -> None:
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as RedisConnectionError
        except ImportError:
            raise FulgurError(
                "server.live names a Redis server, but redis-py is not installed.",
                hint="In Fulgur's checkout: pip install -e '.[cluster]'",
            ) from None
        try:
            # Retry once, immediately: a pooled connection may be dead.
            options: Any = {
                "socket_connect_timeout": COMMAND_S,
                "retry": Retry(NoBackoff(), 1, (RedisConnectionError,)),
            }
            self._redis = Redis.from_url(self._url, socket_timeout=COMMAND_S, **options)
            self._waiting = Redis.from_url(self._url, socket_timeout=None, **options)
        except ValueError as error:
            raise FulgurError(f"server.live: {error}", hint="Write it as redis://HOST:6379/0.") from None
        texts = {name: text for name, text in vars(scripts).items() if name.isupper() and isinstance(text, str)}
        self._scripts = {name: self._redis.register_script(text) for name, text in texts.items()}
        await self._find()
        self._beating = asyncio.create_task(self._go_on_beating())

    async def _find(self) -> None:
        """Reach Redis for the first time. A refusal is reported at once; a busy machine gets some seconds."""
        until = time.monotonic() + OPEN_S
        while True:
            try:
                return await self._beat()
            except LiveAway as error:
                if not self._slow or time.monotonic() > until:
                    await self.close()
                    raise LiveAway(error.message, hint="Check server.live, and that Redis is running.") from None
            self._rest_until = 0.0

    async def close(self) -> None:
        await asyncio.gather(*self._spending, return_exceptions=True)
        self._closed = True
        if self._beating is not None:
            # Not gathered: a call that fails at this moment may swallow the cancellation. The flag ends it then.
            self._beating.cancel()
            await asyncio.wait([self._beating], timeout=COMMAND_S)
            with contextlib.suppress(LiveAway):
                await self.beat("fronts", self.front, b"", 0)
        for redis in (self._redis, self._waiting):
            if redis is not None:
                await redis.aclose()

    def problem(self) -> str:
        return self._problem

    # --- limits ---

    async def admit(self, rates: Sequence[Rates]) -> None:
        charges = [(each, kind, float(kind == "requests")) for each in rates for kind in each.buckets()]
        if not charges:
            return
        try:
            refused = await self._charge(charges, check=True)
        except LiveAway:  # use the values last known; each front that was alive then gives its part of the limits
            for each in rates:
                each.check()
            for each in rates:
                each.request(self._fronts)
            return
        if refused:
            by, kind, _ = charges[refused - 1]
            raise by.over(kind)

    def spend(self, rates: Sequence[Rates], tokens: int) -> None:
        kinds = [(each, kind) for each in rates for kind in each.buckets() if kind != "requests"]
        self._spend([(each, kind, float(tokens)) for each, kind in kinds])

    async def restore(self, rates: Rates, tokens: int) -> None:
        if rates.day is not None and tokens:
            with contextlib.suppress(LiveAway):
                if not await self._command("set", f"fulgur:known:{rates.name}", 1, nx=True):
                    return
            self._spend([(rates, "day", float(tokens))])

    def _spend(self, charges: list[Charge]) -> None:
        if charges:
            task = asyncio.create_task(self._go_and_spend(charges))
            self._spending.add(task)
            task.add_done_callback(self._spending.discard)

    async def _go_and_spend(self, charges: list[Charge]) -> None:
        try:
            await self._charge(charges, check=False)
        except LiveAway:
            for rates, kind, amount in charges:
                rates.buckets()[kind].take(amount * self._fronts)

    async def _charge(self, charges: list[Charge], *, check: bool) -> int:
        """The number, from 1 on, of the first limit that is used up; 0 when all were charged."""
        buckets = [rates.buckets()[kind] for rates, kind, _ in charges]
        keys = [f"fulgur:lim:{rates.name}:{kind}" for rates, kind, _ in charges]
        numbers = [
            number
            for bucket, (_, _, amount) in zip(buckets, charges, strict=True)
            for number in (bucket.most, bucket.seconds, amount)
        ]
        refused, *left = await self._script("CHARGE", keys, int(check), *numbers)
        for bucket, now in zip(buckets, left, strict=True):
            bucket.set(float(now))
        return int(refused)

    # --- runs ---

    async def begin(self, run: Running) -> bool:
        begun = await self._begin(run)
        if begun:
            self._owned[run.id] = run
        return begun

    async def _begin(self, run: Running) -> bool:
        values = run.owner, run.front, run.attempt, run.request, int(base.LEASE_S)
        return bool(await self._script("BEGIN", _keys(run.id), *values))

    async def _begin_again(self, run: Running) -> None:
        """Announce a run again after Redis lost its data; the heartbeat first, or this front would be taken for
        dead."""
        await self.beat("fronts", self.front, b"", base.FRONT_S)
        await self._begin(run)

    async def find(self, response_id: str) -> Running | None:
        fields = ["owner", "front", "attempt", "request", "ended"]
        *found, ended = await self._command("hmget", _keys(response_id)[0], fields)
        return _running(response_id, found) if found[0] is not None and ended is None else None

    async def take(self, response_id: str, attempt: int) -> Running | None:
        found = await self._script("TAKE", _keys(response_id), attempt, self.front, int(base.LEASE_S))
        if not found:
            return None
        self._owned[response_id] = _running(response_id, found)
        return self._owned[response_id]

    async def end(self, response_id: str, attempt: int) -> None:
        await self._outbox.empty()
        self._owned.pop(response_id, None)
        with contextlib.suppress(LiveAway):  # its lease runs out by itself
            await self._script("END", _keys(response_id), attempt, int(base.KEEP_S))

    # --- events ---

    async def append(self, response_id: str, attempt: int, first: int, events: Sequence[bytes]) -> int | None:
        return await self._outbox.put(response_id, attempt, first, events)

    async def _append(self, batches: list[Batch]) -> list[int | None]:
        keys = [key for each in batches for key in _keys(each.run)]
        values = [
            value for each in batches for value in (each.attempt, each.first, len(each.events), b"\n".join(each.events))
        ]
        results: list[int] = await self._script("APPEND", keys, self.front, int(base.LEASE_S), *values)
        for place, each in enumerate(batches):
            run = self._owned.get(each.run)
            if results[place] == scripts.UNKNOWN and run is not None and run.attempt == each.attempt:
                await self._begin_again(run)
                results[place] = 0
        return [None if result < 0 else result for result in results]

    async def events(self, response_id: str, first: int, wait_s: float = 0.0) -> Events | None:
        until = time.monotonic() + wait_s
        while True:
            found = await self._events(response_id, first)
            left = until - time.monotonic()
            if found is None or found.data or found.ended or left <= 0:
                return found
            await self._read(_keys(response_id)[1], f"{first}-0", left)

    async def _events(self, response_id: str, first: int) -> Events | None:
        found = await self._script("EVENTS", _keys(response_id), first)
        if found is None:
            return None
        ended, number, lines = found
        return Events(lines.split(b"\n")[first - number :] if lines else [], bool(ended))

    # --- mail ---

    async def send(self, front: str, letter: bytes) -> None:
        assert self._redis is not None
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.xadd(f"fulgur:mail:{front}", {"letter": letter}, maxlen=base.MOST_LETTERS)
            pipe.expire(f"fulgur:mail:{front}", int(base.LETTERS_S))
            await self._try(pipe.execute)

    async def letters(self) -> AsyncIterator[bytes]:
        last = "0"
        while True:
            try:
                entries = await self._read(f"fulgur:mail:{self.front}", last, BLOCK_S)
            except LiveAway:
                await asyncio.sleep(REST_S)
                continue
            for name, fields in entries:
                last = name.decode()
                yield fields[b"letter"]

    async def _read(self, stream: str, after: str, wait_s: float) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Entries of a stream after an id; waits for one."""
        assert self._waiting is not None
        read = functools.partial(self._waiting.xread, {stream: after}, count=1000, block=max(1, int(wait_s * 1000)))
        found: Any = await self._try(lambda: asyncio.wait_for(read(), wait_s + COMMAND_S))
        return [entry for _, entries in found or [] for entry in entries]

    # --- tables and values ---

    async def beat(self, table: str, name: str, value: bytes, seconds: float) -> None:
        await self._script("BEAT", _table(table), name, value, seconds)

    async def alive(self, table: str) -> dict[str, bytes]:
        found = await self._script("ALIVE", _table(table))
        return {name.decode(): value for name, value in zip(found[::2], found[1::2], strict=True)}

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        await self._command("set", f"fulgur:{key}", value, px=max(1, int(seconds * 1000)))

    async def get(self, key: str, renew_s: float = 0.0) -> bytes | None:
        found: bytes | None
        if renew_s:
            found = await self._command("getex", f"fulgur:{key}", px=int(renew_s * 1000))
        else:
            found = await self._command("get", f"fulgur:{key}")
        return found

    async def drop(self, key: str) -> None:
        await self._command("delete", f"fulgur:{key}")

    async def swap(self, key: str, old: bytes | None, new: bytes, seconds: float) -> bool:
        return bool(await self._script("SWAP", [f"fulgur:{key}"], old or b"", new, max(1, int(seconds * 1000))))

    # --- the connection ---

    async def _go_on_beating(self) -> None:
        renewed = time.monotonic()
        while not self._closed:
            await asyncio.sleep(BEAT_S)
            self._rest_until = 0.0
            with contextlib.suppress(LiveAway):
                await self._beat()
                if self._owned and (self._was_away or time.monotonic() - renewed > base.RENEW_S):
                    renewed, self._was_away = time.monotonic(), False
                    await self._renew(list(self._owned.values()))

    async def _renew(self, runs: list[Running]) -> None:
        keys = [key for run in runs for key in _keys(run.id)]
        for place in await self._script("RENEW", keys, self.front, int(base.LEASE_S)):
            if runs[place].id in self._owned:
                await self._begin_again(runs[place])

    async def _beat(self) -> None:
        await self.beat("fronts", self.front, b"", base.FRONT_S)
        self._fronts = max(1, len(await self.alive("fronts")))

    async def _script(self, name: str, keys: list[str], *values: Any) -> Any:
        return await self._try(functools.partial(self._scripts[name], keys=keys, args=values))

    async def _command(self, name: str, *values: Any, **options: Any) -> Any:
        return await self._try(functools.partial(getattr(self._redis, name), *values, **options))

    async def _try(self, call: Callable[[], Awaitable[T]]) -> T:
        from redis.exceptions import RedisError
        from redis.exceptions import TimeoutError as RedisTimeout

        try:
            if time.monotonic() < self._rest_until:
                raise ConnectionError(self._problem)
            result = await call()
        except (RedisError, OSError, TimeoutError) as error:
            self._slow = isinstance(error, RedisTimeout | TimeoutError)
            if time.monotonic() >= self._rest_until:
                self._rest_until = time.monotonic() + REST_S
                if not self._problem:
                    log.warning("Redis cannot be reached: %s", error)
                self._problem = str(error) or type(error).__name__
            raise LiveAway(
                f"Redis cannot be reached: {self._problem}",
                hint="Answers continue; until it is back, each server counts limits on its own.",
            ) from None
        if self._problem:
            log.warning("Redis is back")
            self._problem, self._was_away = "", True
        return result


def _keys(response_id: str) -> list[str]:
    return [f"fulgur:run:{response_id}", f"fulgur:ev:{response_id}"]


def _table(name: str) -> list[str]:
    return [f"fulgur:beat:{name}", f"fulgur:told:{name}"]


def _running(response_id: str, fields: Sequence[bytes]) -> Running:
    owner, front, attempt, request = fields
    return Running(response_id, owner.decode(), front.decode(), int(attempt), request)
