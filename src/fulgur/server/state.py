"""What all requests share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, defaultdict
from pathlib import Path

from aiohttp import WSCloseCode, web

from fulgur.backends.base import Conversation
from fulgur.protocol.errors import ApiError, previous_not_found
from fulgur.server import registry
from fulgur.server.auth import Auth
from fulgur.server.config import ServerConfig
from fulgur.server.limits import LOG_LIMIT, Budget
from fulgur.server.metrics import Metrics
from fulgur.server.run import Run, kept
from fulgur.server.store import Store
from fulgur.workspace import folders

_WARM = 64  # conversations of stored responses kept in memory, with what the backends know about them
_WARM_BYTES = 32 << 20  # of all of them

log = logging.getLogger("fulgur.server")


class Server:
    """The models, the store, the numbers, and the responses under way."""

    def __init__(self, config: ServerConfig, models: registry.Registry | None = None) -> None:
        self.config = config
        self.models = models or registry.build(config)
        self.store = Store(self._store_path(), config.server.store_days, config.server.store_mb)
        self.metrics = Metrics()
        self.auth = Auth(config)
        self.budget = Budget(int(config.server.max_in_flight_mb * (1 << 20)))
        self.runs: dict[str, Run] = {}
        self.held: defaultdict[str, int] = defaultdict(int)  # bytes of the conversations that a key's sockets hold
        self.sockets: set[web.WebSocketResponse] = set()
        self.last_request = time.monotonic()
        self.background: set[asyncio.Task[None]] = set()
        self._warm: OrderedDict[tuple[str, str], Conversation] = OrderedDict()

    async def open(self) -> None:
        for name in ("fulgur.server", "aiohttp.server", "asyncio"):
            logging.getLogger(name).addFilter(LOG_LIMIT)
        await self.store.open()

    async def close(self) -> None:
        for run in list(self.runs.values()):
            run.stop("disconnected")
        await self.models.close()
        await self.store.close()

    def cache_owner(self, owner: str) -> str:
        """Whose prefix cache a key uses: its own, unless the operator shares one between all."""
        return "" if self.config.server.share_cache else owner

    def remember(self, owner: str, response_id: str, conversation: Conversation) -> None:
        """Keep a stored response's conversation at hand."""
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
        """Tell every socket that the server goes; its client may come back to the next one."""
        going = (socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server stops") for socket in self.sockets)
        await asyncio.gather(*going, return_exceptions=True)

    def idle_seconds(self) -> float:
        """How long nobody has wanted anything."""
        return 0.0 if self.sockets or self.runs else time.monotonic() - self.last_request

    def log_exception(self, error: BaseException) -> None:
        log.error("a request failed", exc_info=error)

    def _store_path(self) -> Path | None:
        name = self.config.server.store
        if name == ":memory:":
            return None
        return Path(name).expanduser() if name else folders.home() / "responses.sqlite"
