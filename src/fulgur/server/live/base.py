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
FRONT_S = 5.0  # a front without a heartbeat for so long is gone
KEEP_S = 120.0  # how long the events of a run are kept after its end
MOST_LETTERS = 10_000
LETTERS_S = 60.0  # how long mail for a front waits to be read


class LiveAway(FulgurError):
    """The live state cannot be reached now; answers go on without it."""


class Running(msgspec.Struct):
    """A run under way. `request` is what another front needs to finish it."""

    id: str
    owner: str  # the key it belongs to
    front: str  # the front that runs it
    attempt: int = 1
    request: bytes = b""


class Events(msgspec.Struct):
    """Events of a run from a sequence number on, and whether the run's last event is among or before them."""

    data: list[bytes]
    ended: bool


class Live(Protocol):
    """The transient state. `front` is this process's name, a new one at each start.

    Calls raise `LiveAway` while it cannot be reached, except for the limits, which are then counted locally.
    """

    front: str
    shared: bool  # whether other fronts see it

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def problem(self) -> str:
        """Why the live state cannot be used now; empty when it can."""

    # --- limits ---

    async def admit(self, rates: Sequence[Rates]) -> None:
        """Count a request against all these limits; or, with a 429, against none. The rates then say what is left."""

    def spend(self, rates: Sequence[Rates], tokens: int) -> None:
        """Count the tokens of an answer that has ended; nobody waits for it."""

    async def restore(self, rates: Rates, tokens: int) -> None:
        """Charge what a key has used today, unless that is known here."""

    # --- runs: which front finishes which response ---

    async def begin(self, run: Running) -> bool:
        """Take ownership of a new run; its lease is renewed until `end`. False when the id is taken."""

    async def find(self, response_id: str) -> Running | None: ...

    async def take(self, response_id: str, attempt: int) -> Running | None:
        """Take ownership of a run whose latest attempt is `attempt`, as the next one. None: another front was first.

        The caller makes sure that the other front is gone (`alive("fronts")`), or means to overrule it.
        """

    async def end(self, response_id: str, attempt: int) -> None:
        """The run has ended. Its events are kept for a while; a stale attempt ends nothing. Never raises."""

    # --- events of a run, for replay at any front ---

    async def append(self, response_id: str, attempt: int, first: int, events: Sequence[bytes]) -> int | None:
        """Add events, the first of them with the sequence number `first`; return how many there are now.

        None when a later attempt owns the run, or it has ended. Fewer than `first` when the live state has lost or
        missed some: then nothing was added, and the caller sends them again from there on. Events that come at the same
        time are sent together, whatever their run.
        """

    async def events(self, response_id: str, first: int, wait_s: float = 0.0) -> Events | None:
        """Those from `first` on; waits until there is one or the run has ended. None: they are not known here."""

    # --- mail between fronts: steers, cancels, and answers to them ---

    async def send(self, front: str, letter: bytes) -> None:
        """To a front, also to this one. A letter to a front that is gone is lost after a minute."""

    def letters(self) -> AsyncIterator[bytes]:
        """What is sent to this front, in order, each once."""

    # --- tables of what is alive: an entry lasts only as long as its heartbeat ---

    async def beat(self, table: str, name: str, value: bytes, seconds: float) -> None: ...

    async def alive(self, table: str) -> dict[str, bytes]:
        """The entries of a table that were renewed in time. `fronts` is kept by the live state itself."""

    # --- values that expire: pins, queues of pools ---

    async def put(self, key: str, value: bytes, seconds: float) -> None: ...

    async def get(self, key: str, renew_s: float = 0.0) -> bytes | None:
        """A value; it lasts for `renew_s` from now on, if given."""

    async def drop(self, key: str) -> None: ...

    async def swap(self, key: str, old: bytes | None, new: bytes, seconds: float) -> bool:
        """Replace the value `old` by `new`; False when the value is no longer `old`."""


def new_front() -> str:
    return f"front-{secrets.token_hex(6)}"


def make(config: ServerConfig) -> Live:
    """The live state that the config names; it is not open yet."""
    if config.server.live:
        from fulgur.server.live.redis import RedisLive

        return RedisLive(config.server.live)
    from fulgur.server.live.memory import MemoryLive

    return MemoryLive()
