"""The store that many fronts share: PostgreSQL through asyncpg (the extra `cluster`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from fulgur.errors import FulgurError
from fulgur.server.config import Key
from fulgur.server.store import migrate, queries
from fulgur.server.store.base import DAY, FOLD_DAYS, Answer, StoreAway, Stored, Used, name_taken, today, used_of
from fulgur.server.store.migrate import Migration
from fulgur.server.store.rows import packed, stored_of, unpacked

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")
log = logging.getLogger("fulgur.server")
CONNECTIONS = 8
COMMAND_S = 10.0
CLEAN_S = 3600.0
_LOCK = 0x66756C67  # of migrations and cleaning, among the advisory locks of the database
_END_STORED = f"""
WITH ended AS ({queries.END} RETURNING id), kept AS (
    INSERT INTO responses SELECT $12::text, $13::text, $14::bigint, $15::text, $16::bytea, $17::bytea, $18::bytea
    FROM ended ON CONFLICT DO NOTHING)
SELECT COUNT(*) FROM ended
"""
_END = f"WITH ended AS ({queries.END} RETURNING id) SELECT COUNT(*) FROM ended"
_FORGET = "DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE created < $1 ORDER BY created LIMIT 1000)"


class PostgresStore:
    """`url` as libpq takes it. What is older than `days` is forgotten within an hour (0: never)."""

    def __init__(self, url: str, days: float = 0.0) -> None:
        self._url = url
        self._days = days
        self._pool: asyncpg.Pool[Any] | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._problem = ""

    async def open(self) -> None:
        await self._connect()
        applied = await self.applied()
        missing = migrate.pending(migrate.POSTGRESQL, applied, self._name())
        if missing and applied:  # fronts of the older version may run: the operator chooses when the schema changes
            raise FulgurError(
                f"The store {self._name()} lacks migration {missing[0].version} ({missing[0].name}).",
                hint="Run `fulgur admin migrate up`.",
            )
        if missing:
            await self.migrate()
        self._cleaning = asyncio.create_task(self._clean_regularly())

    async def close(self) -> None:
        if self._cleaning is not None:
            self._cleaning.cancel()
            await asyncio.gather(self._cleaning, return_exceptions=True)
        if self._pool is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pool.close(), 5)
            self._pool.terminate()
            self._pool = None

    def problem(self) -> str:
        return self._problem

    # --- responses ---

    async def end(self, answer: Answer, stored: Stored | None = None, events: Sequence[bytes] = ()) -> bool:
        if stored is None:
            ended = await self._value(_END, *answer.row())
        else:
            row = await asyncio.to_thread(packed, answer.owner, stored, events)
            ended = await self._value(_END_STORED, *answer.row(), *row)
        return bool(ended) or await self._value(queries.ENDED_BY, answer.id) == answer.attempt

    async def fence(self, response_id: str, attempt: int) -> bool:
        return await self._change(queries.FENCE, response_id, attempt, int(time.time()))

    async def get(self, owner: str, response_id: str) -> Stored | None:
        rows = await self._rows(queries.GET, response_id, owner)
        return stored_of(rows[0]) if rows else None

    async def chain(self, owner: str, response_id: str) -> list[Stored] | None:
        rows = await self._rows(queries.CHAIN, response_id, owner)
        found = await asyncio.to_thread(lambda: [stored_of(row) for row in rows])
        return found[::-1] if found and found[-1].parent is None else None

    async def events(self, owner: str, response_id: str) -> list[bytes] | None:
        rows = await self._rows(queries.EVENTS, response_id, owner)
        return await asyncio.to_thread(unpacked, rows[0][0]) if rows else None

    async def delete(self, owner: str, response_id: str) -> bool:
        return await self._remove(queries.DELETE, response_id, owner)

    # --- usage and keys ---

    async def usage(self, days: int) -> list[Used]:
        first = today() - days + 1
        return [used_of(row) for row in await self._rows(queries.USAGE, first, first * DAY)]

    async def keys(self) -> list[Key]:
        return [Key(*row) for row in await self._rows(queries.KEYS)]

    async def add_key(self, key: Key) -> None:
        limits = key.requests_per_minute, key.tokens_per_minute, key.tokens_per_day
        if not await self._change(queries.ADD_KEY, key.name, key.sha256, *limits, int(time.time())):
            raise name_taken(key.name)

    async def revoke_key(self, name: str) -> bool:
        return await self._remove(queries.REVOKE_KEY, name)

    # --- the schema ---

    async def applied(self) -> list[int]:
        await self._connect()

        async def read(connection: asyncpg.Connection[Any]) -> list[int]:
            if await connection.fetchval("SELECT to_regclass('schema_versions')") is None:
                return []
            return [row[0] for row in await connection.fetch("SELECT version FROM schema_versions ORDER BY version")]

        return await self._call(read)

    async def migrate(self) -> list[Migration]:
        await self._connect()

        async def apply(connection: asyncpg.Connection[Any]) -> list[Migration]:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                await connection.execute(migrate.VERSIONS)
                applied = [row[0] for row in await connection.fetch("SELECT version FROM schema_versions")]
                missing = migrate.pending(migrate.POSTGRESQL, applied, self._name())
                for each in missing:
                    await connection.execute(each.sql)
                    await connection.execute(
                        "INSERT INTO schema_versions VALUES ($1, $2)", each.version, int(time.time())
                    )
                return missing

        return await self._call(apply)

    # --- cleaning ---

    async def _clean_regularly(self) -> None:
        while True:
            with contextlib.suppress(FulgurError):
                await self._call(self._clean)
            await asyncio.sleep(CLEAN_S)

    async def _clean(self, connection: asyncpg.Connection[Any]) -> None:
        """One front at a time: forget old responses, and sum up the usage of old answers."""
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
            return
        try:
            before = int(time.time() - self._days * DAY)
            while self._days and (await connection.execute(_FORGET, before)) != "DELETE 0":
                pass
            async with connection.transaction(isolation="repeatable_read"):
                for sql in (queries.FOLD, queries.FOLDED):
                    await connection.execute(sql, (today() - FOLD_DAYS) * DAY)
        finally:
            await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)

    # --- the connection ---

    def _name(self) -> str:
        """The URL without a password."""
        parts = urlsplit(self._url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    async def _connect(self) -> None:
        if self._pool is not None:
            return
        try:
            import asyncpg
        except ImportError:
            raise FulgurError(
                "server.store names a PostgreSQL database, but asyncpg is not installed.",
                hint="In Fulgur's checkout: pip install -e '.[cluster]'",
            ) from None
        logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)  # we log ourselves, once, that the server is away
        try:
            self._pool = await asyncpg.create_pool(
                self._url, min_size=1, max_size=CONNECTIONS, timeout=5, command_timeout=COMMAND_S
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TimeoutError) as error:
            raise StoreAway(
                f"Cannot open the store {self._name()}: {error or type(error).__name__}",
                hint="Check server.store, and that PostgreSQL is running and accepts connections from this machine.",
            ) from None

    async def _rows(self, sql: str, *values: object) -> list[Any]:
        return await self._call(lambda connection: connection.fetch(sql, *values))

    async def _value(self, sql: str, *values: object) -> Any:
        return await self._call(lambda connection: connection.fetchval(sql, *values))

    async def _change(self, sql: str, *values: object) -> bool:
        """Execute a statement; whether it changed a row."""
        said = await self._call(lambda connection: connection.execute(sql, *values))
        return not str(said).endswith(" 0")

    async def _remove(self, delete: str, *values: object) -> bool:
        """Execute a DELETE; whether the row was there.

        It is looked up first: a repeated DELETE cannot tell a row that its first try has deleted from one that never
        existed.
        """
        lookup = delete.replace("DELETE", "SELECT COUNT(*)", 1)
        was_there = False

        async def work(connection: asyncpg.Connection[Any]) -> bool:
            nonlocal was_there
            was_there = was_there or bool(await connection.fetchval(lookup, *values))
            await connection.execute(delete, *values)
            return was_there

        return await self._call(work)

    async def _call(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        """Do the work, and repeat it once when the connection died.

        The first try may have been committed nevertheless, so all work must be idempotent.
        """
        import asyncpg

        away = (
            OSError,
            TimeoutError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,  # a connection that died in the middle of something
            asyncpg.PostgresConnectionError,
            asyncpg.CannotConnectNowError,
            asyncpg.AdminShutdownError,
            asyncpg.CrashShutdownError,
            asyncpg.TooManyConnectionsError,
        )
        assert self._pool is not None, "the store is open"
        last = False
        while True:
            try:
                async with self._pool.acquire(timeout=5) as connection:
                    result = await work(connection)  # type: ignore[arg-type]
                if self._problem:
                    log.warning("PostgreSQL is back")
                    self._problem = ""
                return result
            except away as error:
                if last:
                    if not self._problem:
                        log.warning("PostgreSQL cannot be reached: %s", error)
                    self._problem = str(error) or type(error).__name__
                    raise StoreAway(
                        f"The store {self._name()} cannot be reached: {self._problem}",
                        hint="Answers continue; they are stored when PostgreSQL is back.",
                    ) from error
                await self._pool.expire_connections()
                last = True
            except asyncpg.PostgresError as error:
                raise FulgurError(
                    f"The store {self._name()} reported an error: {error}",
                    hint="`fulgur admin migrate status` shows its schema.",
                ) from error
