"""The interface of the live state: what fronts share while answers are under way, and nothing that must last.

`MemoryLive` is the default, for one front; `RedisLive` serves many. `server.live` in the config chooses.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from fulgur.errors import FulgurError
from fulgur.server.config import ServerConfig
from fulgur.server.rates import Rates

LEASE_S = 60.0  # a run whose front has not renewed it for so long may be taken over
RENEW_S = 20.0
FRONT_S = 5.0  # a front that has not told of itself for so long is gone
KEEP_S = 120.0  # that the events of a run are kept after its end
MOST_LETTERS = 10_000
LETTERS_S = 60.0  # that mail for a front waits to be read


class LiveAway(FulgurError):
    """The live state cannot be reached now; answers go on without it."""


class Running(msgspec.Struct):
    """A run under way. `request` is what another front needs to bring it to its end."""

    id: str
    owner: str  # the key it belongs to
    front: str  # who runs it
    attempt: int = 1
    request: bytes = b""


class Events(msgspec.Struct):
    """Events of a run from a sequence number on, and whether its last one is among them or before them."""

    data: list[bytes]
    ended: bool


class Live(Protocol):
    """What passes. `front` is this process's name, a new one at each start.

    Calls raise `LiveAway` while it cannot be reached, except for the limits, which go on by themselves.
    """

    front: str
    shared: bool  # whether other fronts see it

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def problem(self) -> str:
        """Why the live state cannot be used now; empty when it can."""

    # --- limits ---

    async def admit(self, rates: Sequence[Rates]) -> None:
        """Count a request against all these limits, or none of them and a 429. The rates then say what is left."""

    def spend(self, rates: Sequence[Rates], tokens: int) -> None:
        """Count the tokens of an answer that has ended; nobody waits for it."""

    async def restore(self, rates: Rates, tokens: int) -> None:
        """What a key has used today, unless that is known here."""

    # --- runs: who brings which response to its end ---

    async def begin(self, run: Running) -> bool:
        """Own a new run; its lease is renewed until `end`. False when the id is taken."""

    async def find(self, response_id: str) -> Running | None: ...

    async def take(self, response_id: str, attempt: int) -> Running | None:
        """Own a run whose latest attempt is `attempt`, as the next one. None: somebody else was first.

        The caller makes sure that the other front is gone (`alive("fronts")`), or means to overrule it.
        """

    async def end(self, response_id: str, attempt: int) -> None:
        """The run has ended. Its events are kept for a while; a stale attempt ends nothing. Never raises."""

    # --- events of a run, for replay at any front ---

    async def append(self, response_id: str, attempt: int, first: int, events: Sequence[bytes]) -> int | None:
        """Add events, the first of them with the sequence number `first`: how many are there now.

        None when a later attempt owns the run, or it has ended. Fewer than `first` when some were lost, with the
        memory of the live state or while it was away: then nothing was added, and they are told again from there on.
        Events that come at the same time, of whatever runs, leave together.
        """

    async def events(self, response_id: str, first: int, wait_s: float = 0.0) -> Events | None:
        """Those from `first` on; waits until there is one or the run has ended. None: they are not known here."""

    # --- mail between fronts: steers, cancels, and answers to them ---

    async def send(self, front: str, letter: bytes) -> None:
        """To a front, also to this one. A letter to a front that is gone is lost after a minute."""

    def letters(self) -> AsyncIterator[bytes]:
        """What is sent to this front, in order, each once."""

    # --- tables of what is alive: each entry lasts only as long as it is told again ---

    async def beat(self, table: str, name: str, value: bytes, seconds: float) -> None: ...

    async def alive(self, table: str) -> dict[str, bytes]:
        """The entries of a table that were told in time. `fronts` is kept by the live state itself."""

    # --- values that expire: pins, queues of pools ---

    async def put(self, key: str, value: bytes, seconds: float) -> None: ...

    async def get(self, key: str, renew_s: float = 0.0) -> bytes | None:
        """A value; it lasts for `renew_s` from now on, if given."""

    async def drop(self, key: str) -> None: ...

    async def swap(self, key: str, old: bytes | None, new: bytes, seconds: float) -> bool:
        """Put a value in the place of `old`; False when that is not the value any more."""


def new_front() -> str:
    return f"front-{secrets.token_hex(6)}"


def make(config: ServerConfig) -> Live:
    """The live state that the config names; it is not open yet."""
    if config.server.live:
        from fulgur.server.live.redis import RedisLive

        return RedisLive(config.server.live)
    from fulgur.server.live.memory import MemoryLive

    return MemoryLive()
