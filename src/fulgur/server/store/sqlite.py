"""The embedded store: SQLite (WAL). What was committed survives a kill -9.

One thread owns the database, so the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fulgur.errors import FulgurError
from fulgur.server.config import Key
from fulgur.server.store import migrate, queries
from fulgur.server.store.base import DAY, FOLD_DAYS, Answer, Stored, Used, name_taken, today, used_of
from fulgur.server.store.migrate import Migration
from fulgur.server.store.rows import packed, stored_of, unpacked

T = TypeVar("T")
_SQL = {name: queries.for_sqlite(sql) for name, sql in vars(queries).items() if name.isupper()}
_PUT = "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"


class SqliteStore:
    """With `path` None everything is in memory.

    Responses older than `days` are deleted when it opens; beyond `megabytes`, the oldest of the owner who has most are
    deleted (0: no limit).
    """

    def __init__(self, path: Path | None, days: float = 0.0, megabytes: float = 0.0) -> None:
        self._path = path
        self._days = days
        self._most = int(megabytes * (1 << 20))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._database: sqlite3.Connection | None = None
        self._problem = ""

    async def open(self) -> None:
        await self._run(self._open)

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    def problem(self) -> str:
        return self._problem

    async def end(self, answer: Answer, stored: Stored | None = None, events: Sequence[bytes] = ()) -> bool:
        try:
            ended = await self._run(lambda: self._end(answer, stored, events))
        except FulgurError as error:
            self._problem = error.message
            raise
        self._problem = ""
        return ended

    async def fence(self, response_id: str, attempt: int) -> bool:
        return await self._run(lambda: self._change("FENCE", response_id, attempt, int(time.time())))

    async def get(self, owner: str, response_id: str) -> Stored | None:
        return await self._run(lambda: next(map(stored_of, self._rows("GET", response_id, owner)), None))

    async def chain(self, owner: str, response_id: str) -> list[Stored] | None:
        found = await self._run(lambda: [*map(stored_of, self._rows("CHAIN", response_id, owner))])
        return found[::-1] if found and found[-1].parent is None else None

    async def events(self, owner: str, response_id: str) -> list[bytes] | None:
        return await self._run(
            lambda: next((unpacked(row[0]) for row in self._rows("EVENTS", response_id, owner)), None)
        )

    async def delete(self, owner: str, response_id: str) -> bool:
        return await self._run(lambda: self._change("DELETE", response_id, owner))

    async def usage(self, days: int) -> list[Used]:
        first = today() - days + 1
        return await self._run(lambda: [used_of(row) for row in self._rows("USAGE", first, first * DAY)])

    async def keys(self) -> list[Key]:
        return await self._run(lambda: [Key(*row) for row in self._rows("KEYS")])

    async def add_key(self, key: Key) -> None:
        values = key.name, key.sha256, key.requests_per_minute, key.tokens_per_minute, key.tokens_per_day
        if not await self._run(lambda: self._change("ADD_KEY", *values, int(time.time()))):
            raise name_taken(key.name)

    async def revoke_key(self, name: str) -> bool:
        return await self._run(lambda: self._change("REVOKE_KEY", name))

    async def applied(self) -> list[int]:
        return await self._run(self._applied)

    async def migrate(self) -> list[Migration]:
        return await self._run(self._migrate)

    # --- on the database's thread ---

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, msgspec.MsgspecError, zlib.error, UnicodeDecodeError) as error:
            raise FulgurError(
                f"The response store {self._path or 'in memory'} cannot be used: {error}",
                hint="Free disk space; if the file is damaged, move it away: a new one is created at the next start.",
            ) from None

    def _connect(self) -> sqlite3.Connection:
        if self._database is None:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._path or ":memory:", isolation_level=None)
            if self._path is not None:
                self._path.chmod(0o600)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute("PRAGMA busy_timeout=5000")
        return self._database

    def _open(self) -> None:
        try:
            database = self._connect()
            self._migrate()
            with self._transaction():
                if self._days:
                    database.execute("DELETE FROM responses WHERE created < ?", (self._oldest_kept(database),))
                for name in ("FOLD", "FOLDED"):
                    self._change(name, (today() - FOLD_DAYS) * DAY)
        except (sqlite3.Error, OSError) as error:
            damaged = type(error) is sqlite3.DatabaseError
            why = error.strerror if isinstance(error, OSError) else error
            first = (
                "Move the file away to start a new one" if damaged else "Free disk space, or correct the permissions"
            )
            raise FulgurError(
                f"Cannot open the response store {self._path}: {why}",
                hint=f"{first}; or name another file in server.store.",
            ) from None

    def _applied(self) -> list[int]:
        database = self._connect()
        database.execute(migrate.VERSIONS)
        return [int(row[0]) for row in database.execute("SELECT version FROM schema_versions")]

    def _migrate(self) -> list[Migration]:
        """Apply all missing migrations, or none."""
        database = self._connect()
        with self._transaction():
            missing = migrate.pending(migrate.SQLITE, self._applied(), str(self._path))
            for migration in missing:
                for statement in migrate.statements(migration.sql):
                    database.execute(statement)
                database.execute("INSERT INTO schema_versions VALUES (?, ?)", (migration.version, int(time.time())))
        return missing

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        database = self._connect()
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _oldest_kept(self, database: sqlite3.Connection) -> float:
        """Only days on which the server was used count, so a clock that jumps ahead does not make responses old."""
        used = database.execute("SELECT DISTINCT created / 86400 FROM responses ORDER BY 1 DESC").fetchall()
        days = max(1, math.ceil(self._days))
        by_use = used[days - 1][0] * DAY if len(used) >= days else 0
        return min(time.time() - self._days * DAY, by_use)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _rows(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        assert self._database is not None
        return self._database.execute(_SQL[name], values).fetchall()

    def _change(self, name: str, *values: object) -> bool:
        """Execute a statement; whether it changed a row."""
        assert self._database is not None
        return self._database.execute(_SQL[name], values).rowcount > 0

    def _end(self, answer: Answer, stored: Stored | None, events: Sequence[bytes]) -> bool:
        assert self._database is not None
        row = packed(answer.owner, stored, events) if stored is not None else None
        if row is not None:
            self._make_room()
        with self._transaction():
            if not self._change("END", *answer.row()):
                return (answer.attempt,) in self._rows("ENDED_BY", answer.id)
            if row is not None:
                self._database.execute(_PUT, row)
        return True

    def _make_room(self) -> None:
        assert self._database is not None
        if not self._most or self._size() <= self._most:
            return
        weight = "LENGTH(response) + LENGTH(input) + LENGTH(events)"
        by_weight = f"SELECT owner FROM responses GROUP BY owner ORDER BY SUM({weight}) DESC LIMIT 1"
        while self._size() > self._most * 9 // 10:
            largest = self._database.execute(by_weight).fetchone()
            if largest is None:
                return
            oldest = "SELECT id FROM responses WHERE owner = ? ORDER BY created LIMIT 64"
            self._database.execute(f"DELETE FROM responses WHERE id IN ({oldest})", largest)

    def _size(self) -> int:
        """Bytes in use, without free pages."""
        assert self._database is not None
        pages, free, page = (
            int(self._database.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page
