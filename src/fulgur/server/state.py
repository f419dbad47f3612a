"""The state that all requests share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, defaultdict

from aiohttp import WSCloseCode, web

from fulgur.backends.base import Conversation
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError, previous_not_found
from fulgur.protocol.ids import new_id
from fulgur.server import registry
from fulgur.server.auth import Auth
from fulgur.server.config import Key, ServerConfig
from fulgur.server.ending import kept
from fulgur.server.fronts import Fronts
from fulgur.server.limits import LOG_LIMIT, Budget
from fulgur.server.live import base as live
from fulgur.server.metrics import Metrics
from fulgur.server.pools import PoolState, Slot
from fulgur.server.rates import Rates
from fulgur.server.run import Run
from fulgur.server.store import base as store
from fulgur.server.store.owed import folder_of
from fulgur.server.store.patient import PatientStore
from fulgur.server.tracing import Tracer
from fulgur.text.parts import Usage

KEYS_S = 10.0  # keys are reloaded this often: then a revoked one no longer works
NEW_KEYS_S = 1.0  # an unknown key has them reloaded at once, but not more often than this
LOAD_KEYS_S = 5.0
_WARM = 64  # conversations of stored responses kept in memory, with what the backends know about them
_WARM_BYTES = 32 << 20  # of all of them

log = logging.getLogger("fulgur.server")


class Server:
    """The models, the store, the numbers, and the responses under way."""

    def __init__(self, config: ServerConfig, models: registry.Registry | None = None) -> None:
        self.config = config
        self.models = models or registry.build(config)
        elsewhere = store.is_url(config.server.store)
        place = config.server.store if elsewhere else store.store_path(config)
        owed = folder_of(str(place)) if place is not None else None
        self.store = PatientStore(store.make(config), owed, near=not elsewhere)
        self.live = live.make(config)
        self.fronts = Fronts(self) if self.live.shared else None
        self.metrics = Metrics()
        self.tracer = Tracer.of(config)
        self.auth = Auth(config)
        self.budget = Budget(int(config.server.max_in_flight_mb * (1 << 20)))
        self.runs: dict[str, Run] = {}
        self.slots: set[Slot] = set()  # of the answers at doors other than Responses, which are not runs
        self.held: defaultdict[str, int] = defaultdict(int)  # bytes of the conversations that a key's sockets hold
        self.sockets: set[web.WebSocketResponse] = set()
        self.last_request = time.monotonic()
        self.background: set[asyncio.Task[None]] = set()
        self._rates: dict[str, Rates] = {}
        self._keys: list[Key] = []
        self._keys_loaded = -KEYS_S
        self._warm: OrderedDict[tuple[str, str], Conversation] = OrderedDict()

    async def open(self) -> None:
        for name in ("fulgur.server", "aiohttp.server", "asyncio"):
            logging.getLogger(name).addFilter(LOG_LIMIT)
        await self.store.open()
        await self.live.open()
        if self.fronts is not None:
            self.fronts.open()
            for pool in self.pools().values():
                pool.share_slots(self.live, self.fronts.look)
        for entry in self.models.entries.values():
            entry.backend.share(self.live)
        await self._load_keys()

    async def close(self) -> None:
        for run in list(self.runs.values()):
            run.stop("disconnected")
        await self.models.close()
        for pool in self.pools().values():
            await pool.close()
        if self.fronts is not None:
            if self.background:  # let the journals be written to their ends
                await asyncio.wait(self.background, timeout=1.0)
            await self.fronts.close()
        await self.live.close()
        await self.store.close()
        if self.tracer is not None:
            await self.tracer.close()

    def pools(self) -> dict[str, PoolState]:
        """The pools that have a limit on slots."""
        pools = (entry.pool for entry in self.models.entries.values())
        return {pool.name: pool for pool in pools if pool.limits.concurrent}

    def look_at(self, pool: str) -> None:
        """Another front has changed the queue of a pool."""
        if found := self.pools().get(pool):
            found.look()

    # --- keys and their limits ---

    async def owner(self, credentials: str | None) -> str:
        """The name of a caller's key, or a 401. A new key works at once, a revoked one for a few seconds more."""
        age = time.monotonic() - self._keys_loaded
        if age > KEYS_S:
            await self._load_keys()
        try:
            return self.auth.owner(credentials)
        except ApiError:
            if age < NEW_KEYS_S:
                raise
            await self._load_keys()
            return self.auth.owner(credentials)

    async def _load_keys(self) -> None:
        """Load the keys of the store and of the config. While the store is away, the known keys stay valid."""
        self._keys_loaded = time.monotonic()
        try:
            async with asyncio.timeout(LOAD_KEYS_S):
                keys = [*await self.store.keys(), *self.config.keys]
                new = [key for key in keys if key not in self._keys]
                used = await self.store.usage(1) if any(key.tokens_per_day for key in new) else []
        except (FulgurError, TimeoutError) as error:
            self.log_exception(error)
            return
        self._keys = keys
        self.auth.use(keys)
        for key in new:
            minute = key.requests_per_minute, key.tokens_per_minute
            rates = self._rates[key.name] = Rates(f"The key '{key.name}'", *minute, key.tokens_per_day)
            await self.live.restore(rates, sum(each.input + each.output for each in used if each.owner == key.name))

    async def admit(self, pool: PoolState, owner: str, asked: str | None) -> tuple[str, list[Rates]]:
        """Count a request against its limits or raise a 429. Return its tier and the limits."""
        tier = pool.tier(asked)
        rates = pool.rates(tier, self._rates.get(owner))
        await self.live.admit(rates)
        return tier, rates

    def leave(self, pool: PoolState, slot: Slot, usage: Usage) -> None:
        """Give a slot back; what was used in it counts against its limits."""
        ran = slot.running
        self.last_request = time.monotonic()
        pool.leave(slot, usage)
        if ran:
            rates = pool.rates(slot.tier, self._rates.get(slot.owner))
            self.live.spend(rates, usage.input_tokens + usage.output_tokens)

    async def book(self, owner: str, model: str, tier: str, usage: Usage, cost: float | None) -> None:
        """Count a completed answer of a door that stores none."""
        self.metrics.record(model, "completed", usage, cost)
        await self.store.end(store.Answer(new_id("answer"), owner, model, tier, "completed", usage, cost or 0.0))

    def cache_owner(self, owner: str) -> str:
        """Whose prefix cache a key uses: its own, unless the operator shares one between all."""
        return "" if self.config.server.share_cache else owner

    def remember(self, owner: str, response_id: str, conversation: Conversation) -> None:
        """Keep a stored response's conversation in memory."""
        self._warm[owner, response_id] = conversation
        self._warm.move_to_end((owner, response_id))
        while len(self._warm) > _WARM or (self._warm and self._warm_bytes() > _WARM_BYTES):
            self._warm.popitem(last=False)

    def _warm_bytes(self) -> int:
        return sum(conversation.size() for conversation in self._warm.values())

    def forget(self, owner: str, response_id: str) -> None:
        self._warm.pop((owner, response_id), None)

    async def conversation(self, owner: str, response_id: str) -> Conversation:
        """The conversation up to and including a stored response."""
        warm = self._warm.get((owner, response_id))
        if warm is not None:
            return warm
        running = self.runs.get(response_id)
        if running is not None and running.owner == owner:
            raise ApiError(
                400,
                "previous_response_in_progress",
                f"The response '{response_id}' has not ended yet.",
                param="previous_response_id",
            )
        chain = await self.store.chain(owner, response_id)
        if chain is None:
            raise previous_not_found(response_id)
        conversation: Conversation | None = None
        for stored in chain:
            conversation = Conversation([*stored.input, *kept(stored.response.output)], conversation)
        assert conversation is not None
        self.remember(owner, response_id, conversation)
        return conversation

    async def hang_up(self) -> None:
        """Tell every socket that the server goes away; its client may reconnect to the next one."""
        going = (socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server stops") for socket in self.sockets)
        await asyncio.gather(*going, return_exceptions=True)

    def idle_seconds(self) -> float:
        """Seconds since the last activity; 0 while anything is connected or running."""
        return 0.0 if self.sockets or self.runs or self.slots else time.monotonic() - self.last_request

    def under_way(self) -> tuple[int, int]:
        """How many answers are being written, and how many wait for a slot, at all doors."""
        waits = sum(run.response.status == "queued" for run in self.runs.values())
        waits += sum(not slot.running for slot in self.slots)
        return len(self.runs) + len(self.slots) - waits, waits

    def log_exception(self, error: BaseException) -> None:
        log.error("a request failed", exc_info=error)
