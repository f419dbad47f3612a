"""The store's interface, and what is kept in it.

`SqliteStore` is the default; `PostgresStore` serves many fronts. `server.store` in the config chooses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.items import Item
from fulgur.protocol.response import Response
from fulgur.server.config import Key, ServerConfig
from fulgur.server.store.migrate import Migration
from fulgur.text.parts import Usage
from fulgur.workspace import folders

DAY = 86_400
FOLD_DAYS = 7  # after so many days the usage of answers is summed up: one row per day, key, model and tier


class StoreAway(FulgurError):
    """The database cannot be reached now; the same call may work in a moment."""


class Stored(msgspec.Struct):
    """A response with the input it was given. `parent`: the stored response this input comes after."""

    response: Response
    input: list[Item]
    parent: str | None


class Answer(msgspec.Struct):
    """What one answer used. `attempt` counts the fronts that tried to finish it, from 1 on."""

    id: str
    owner: str
    model: str
    tier: str
    status: str
    usage: Usage
    cost: float = 0.0
    attempt: int = 1
    created: int = msgspec.field(default_factory=lambda: int(time.time()))

    def row(self) -> tuple[str, str, str, str, str, int, int, int, int, int, float]:
        """The values in the order of the table's columns."""
        tokens = self.usage.input_tokens, self.usage.cached_tokens, self.usage.output_tokens
        return self.id, self.owner, self.model, self.tier, self.status, self.attempt, self.created, *tokens, self.cost


class Used(msgspec.Struct):
    """What a key used of a model in a tier."""

    owner: str
    model: str
    tier: str
    answers: int
    input: int
    cached: int
    output: int
    cost: float


class Store(Protocol):
    """What lasts. Every call may raise a FulgurError; `StoreAway` when it is worth trying again."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def problem(self) -> str:
        """Why the store cannot be used now; empty when it can."""

    async def end(self, answer: Answer, stored: Stored | None = None, events: Sequence[bytes] = ()) -> bool:
        """Commit the end of an answer in one transaction: what it used and, if it is stored, the response.

        An answer ends once. False, and nothing is written, when another attempt has ended it or a later one has begun
        (`fence`). The same end may be committed again: it counts once.
        """

    async def fence(self, response_id: str, attempt: int) -> bool:
        """Begin a later attempt: from now on no earlier one can end the response. False when it has ended already."""

    async def get(self, owner: str, response_id: str) -> Stored | None: ...

    async def chain(self, owner: str, response_id: str) -> list[Stored] | None:
        """The response and all that came before it, oldest first; None when one of them is gone."""

    async def events(self, owner: str, response_id: str) -> list[bytes] | None:
        """All events of a stored response; the index is the sequence number."""

    async def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; whether it was there."""

    async def usage(self, days: int) -> list[Used]:
        """The usage by key, model and tier over the last `days` days including today; the highest cost comes first."""

    async def keys(self) -> list[Key]:
        """The keys that were made with `fulgur admin keys`; those of the config come in addition."""

    async def add_key(self, key: Key) -> None:
        """Add a key; UsageError when another one has its name. The same key may be added again."""

    async def revoke_key(self, name: str) -> bool:
        """Remove a key; whether it was there."""

    async def applied(self) -> list[int]:
        """The versions of the schema that the database has; the store need not be open."""

    async def migrate(self) -> list[Migration]:
        """Bring the schema up to date, or refuse one that is newer. Returns the migrations that were applied."""


def name_taken(name: str) -> UsageError:
    return UsageError(f"A key named '{name}' already exists.", hint="Choose another name, or revoke that key first.")


def used_of(row: Sequence[Any]) -> Used:
    """Convert a row of `queries.USAGE`."""
    owner, model, tier, *numbers, cost = row
    return Used(owner, model, tier, *map(int, numbers), float(cost))  # type: ignore[call-arg]


def today() -> int:
    return int(time.time()) // DAY


def is_url(name: str) -> bool:
    """Whether `server.store` names a PostgreSQL database, not a file."""
    return name.startswith(("postgresql://", "postgres://"))


def store_path(config: ServerConfig) -> Path | None:
    """The file of the embedded store; None: in memory."""
    name = config.server.store
    if name == ":memory:":
        return None
    return folders.expanded(name) if name else folders.home() / "responses.sqlite"


def make(config: ServerConfig) -> Store:
    """The store that the config names; it is not open yet."""
    server = config.server
    if is_url(server.store):
        from fulgur.server.store.postgres import PostgresStore

        return PostgresStore(server.store, server.store_days)
    from fulgur.server.store.sqlite import SqliteStore

    return SqliteStore(store_path(config), server.store_days, server.store_mb)
