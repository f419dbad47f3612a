"""Limits on what one client can take from the others: bytes held for it, connections, lines in the log."""

from __future__ import annotations

import asyncio
import heapq
import logging
import resource
import socket
import time
from collections import defaultdict
from typing import Any

from aiohttp import web

from fulgur.protocol.errors import ApiError

SMALL = 16 << 10  # bytes; what is smaller is not counted
WAIT_S = 10.0  # how long a body waits for room
IDLE_S = 30.0  # for the head of a request, and between two requests of a connection
RESERVED_FILES = 64  # descriptors kept for models, the store, a log
PEER_FRESH = 256  # connections of one address that have not sent a whole request yet
BACKLOG = 256  # connections that the kernel holds until they are accepted
ACCEPTED = 16  # connections per iteration of the event loop at most, so that others get their turn in between
READ_BYTES = 16 << 10  # of one connection per iteration: a flood of tiny frames is processed in small portions
LOG_BURST = 50  # lines; after them one a second


class Lease:
    """A number of bytes, held until they are released."""

    def __init__(self, budget: Budget, owner: str) -> None:
        self.size = 0
        self._budget = budget
        self._owner = owner

    def grow(self, size: int) -> bool:
        """Take more; False, with nothing changed, when there is no room for it."""
        if not self._budget.fits(self._owner, size):
            return False
        self._budget.add(self._owner, size)
        self.size += size
        return True

    async def wait(self, size: int) -> None:
        """Take more as soon as there is room; a 429 after a while."""
        deadline = time.monotonic() + WAIT_S
        while not self.grow(size):
            left = deadline - time.monotonic()
            if left <= 0:
                raise no_room()
            await self._budget.changed(left)

    def release(self) -> None:
        size, self.size = self.size, 0
        if size:
            self._budget.add(self._owner, -size)


class Budget:
    """The bytes of requests being read or answered, limited in all and by key (three quarters of all)."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._by_owner: dict[str, int] = defaultdict(int)
        self._freed = asyncio.Event()

    def lease(self, owner: str) -> Lease:
        return Lease(self, owner)

    def fits(self, owner: str, size: int) -> bool:
        return self.used + size <= self.total and self._by_owner[owner] + size <= self.total * 3 // 4

    def add(self, owner: str, size: int) -> None:
        self.used += size
        self._by_owner[owner] += size
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        if size < 0:
            self._freed.set()
            self._freed = asyncio.Event()

    async def changed(self, seconds: float) -> None:
        """Wait until something is released, or the time is up."""
        waiter = asyncio.ensure_future(self._freed.wait())
        await asyncio.wait([waiter], timeout=seconds)
        waiter.cancel()


def no_room() -> ApiError:
    return ApiError(
        429,
        "too_many_bytes_in_flight",
        "Too many bytes of requests are in flight. Wait for answers before sending more.",
        type="rate_limit_error",
        headers={"retry-after": "2"},
    )


class LimitedServer(web.Server):
    """aiohttp's server with a limit on connections.

    When there are too many, it closes the oldest one that has never sent a whole request, at the address that has most
    of them; when there is none, those that have been idle longest. A client that opens connections and says nothing
    only shuts itself out.
    """

    def __init__(self, like: web.Server, limit: int) -> None:
        super().__init__(
            like.request_handler,
            request_factory=like.request_factory,
            handler_cancellation=like.handler_cancellation,
            **like._kwargs,
        )
        self._limit = limit
        self._fresh: defaultdict[str, dict[web.RequestHandler, None]] = defaultdict(dict)  # by address, oldest first

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        address = _address(transport)
        if len(self._fresh[address]) >= PEER_FRESH:
            self._close_fresh(address)
        elif len(self._connections) > self._limit:
            self._make_room()
        self._fresh[address][handler] = None

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        transport = self._connections.get(handler)
        super().connection_lost(handler, exc)
        if transport is not None:
            self._forget(_address(transport), handler)

    def _make_room(self) -> None:
        if any(self._close_fresh(address) for address in sorted(self._fresh, key=lambda a: -len(self._fresh[a]))):
            return
        idle = [handler for handler in self._connections if _idle(handler)]
        # Close several at once: a search through all of them would cost more than the newcomer itself.
        for handler in heapq.nsmallest(max(1, self._limit // 64), idle, key=_last_used):
            handler.force_close()

    def _close_fresh(self, address: str) -> bool:
        """Close the oldest connection of an address that has sent no whole request; False when there is none."""
        for handler in list(self._fresh[address]):
            self._forget(address, handler)
            if not handler._request_count:
                handler.force_close()
                return True
        return False

    def _forget(self, address: str, handler: web.RequestHandler) -> None:
        self._fresh[address].pop(handler, None)
        if not self._fresh[address]:
            del self._fresh[address]


def _idle(handler: web.RequestHandler) -> bool:
    """Whether it waits for the head of a request."""
    return handler._waiter is not None and not handler._force_close


def _last_used(handler: web.RequestHandler) -> float:
    return float(handler._next_keepalive_close_time)


def _address(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else ""


class Runner(web.AppRunner):
    """An AppRunner with a `LimitedServer`. It does not decompress bodies: the sender is authenticated first."""

    __slots__ = ("_limit",)

    def __init__(self, app: web.Application, connections: int, **options: Any) -> None:
        super().__init__(app, keepalive_timeout=IDLE_S, auto_decompress=False, **options)
        self._limit = connections

    async def _make_server(self) -> web.Server:
        return LimitedServer(await super()._make_server(), self._limit)


async def listen(runner: web.AppRunner, host: str, port: int) -> None:
    """Accept in small portions from a long queue: asyncio takes one number for both, so set the kernel's afterwards."""
    site = web.TCPSite(runner, host, port, backlog=ACCEPTED)
    await site.start()
    for listening in site._server.sockets:  # type: ignore[union-attr]
        with socket.fromfd(listening.fileno(), listening.family, listening.type) as same:
            same.listen(BACKLOG)


def connections(wanted: int) -> int:
    """How many connections there can be: as many as wanted, as far as the system gives descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + RESERVED_FILES
    if soft < need:
        allowed = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
        soft = max(soft, allowed)
    return max(1, min(wanted, soft - RESERVED_FILES))


class LogLimit(logging.Filter):
    """A burst of lines, then one a second; the next line says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._free = float(LOG_BURST)
        self._last = time.monotonic()
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        self._free, self._last = min(LOG_BURST, self._free + now - self._last), now
        if self._free < 1:
            self._left_out += 1
            return False
        self._free -= 1
        if self._left_out:
            record.msg = f"({self._left_out} lines left out) {record.msg}"
            self._left_out = 0
        return True


LOG_LIMIT = LogLimit()
