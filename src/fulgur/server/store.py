"""Stored responses in SQLite (WAL): what was committed survives a kill -9.

One thread owns the database, so the event loop never waits for the disk. A response is committed before its terminal
event is sent: a client that saw it end can ask for it again. One that could not be written (a full disk) is kept in
memory as long as there is room, and says `store: false`.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from fulgur.errors import FulgurError
from fulgur.protocol.items import Item
from fulgur.protocol.response import Response

T = TypeVar("T")
_UNSAVED = 64  # responses that could not be written and are kept in memory

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, parent TEXT,
    response BLOB NOT NULL, input BLOB NOT NULL, events BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_created ON responses (created);
"""


class Stored(msgspec.Struct):
    """A response with the input it was given. `parent`: the stored response this input comes after."""

    response: Response
    input: list[Item]
    parent: str | None


class Store:
    """The database; `path` None keeps it in memory.

    What is older than `days` is forgotten when it opens; when there are more than `megabytes`, the oldest of the owner
    who has most (0: no limit).
    """

    def __init__(self, path: Path | None, days: float = 0.0, megabytes: float = 0.0) -> None:
        self._path = path
        self._days = days
        self._most = int(megabytes * (1 << 20))
        self._unsaved: OrderedDict[tuple[str, str], Stored] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._database: sqlite3.Connection | None = None

    async def open(self) -> None:
        await self._run(self._open)

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def put(self, owner: str, stored: Stored, events: list[tuple[bytes, bytes]]) -> None:
        await self._run(lambda: self._put(owner, stored, events))

    async def get(self, owner: str, response_id: str) -> Stored | None:
        return await self._run(lambda: self._get(owner, response_id))

    async def chain(self, owner: str, response_id: str) -> list[Stored] | None:
        """The response and all it came after, oldest first; None when one of them is gone."""
        return await self._run(lambda: self._chain(owner, response_id))

    async def events(self, owner: str, response_id: str) -> list[bytes] | None:
        return await self._run(lambda: self._events(owner, response_id))

    async def delete(self, owner: str, response_id: str) -> bool:
        return await self._run(lambda: self._delete(owner, response_id))

    # --- on the database's thread ---

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, msgspec.MsgspecError, zlib.error, UnicodeDecodeError) as error:
            raise FulgurError(
                f"The response store {self._path or 'in memory'} cannot be used: {error}",
                hint="Free disk space; if the file is damaged, move it away: a new one is made at the next start.",
            ) from None

    def _open(self) -> None:
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self._path or ":memory:", isolation_level=None)
            if self._path is not None:
                self._path.chmod(0o600)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute("PRAGMA busy_timeout=5000")
            database.executescript(_SCHEMA)
            if self._days:
                database.execute("DELETE FROM responses WHERE created < ?", (self._oldest_kept(database),))
        except (sqlite3.Error, OSError) as error:
            raise FulgurError(
                f"Cannot open the response store {self._path}: {error}",
                hint="Move the file away to begin a new one, or name another in server.store.",
            ) from None
        self._database = database

    def _oldest_kept(self, database: sqlite3.Connection) -> float:
        """Days count when the server was used on them: a clock that jumps ahead makes nothing old by itself."""
        used = database.execute("SELECT DISTINCT created / 86400 FROM responses ORDER BY 1 DESC").fetchall()
        days = max(1, math.ceil(self._days))
        by_use = used[days - 1][0] * 86_400 if len(used) >= days else 0
        return min(time.time() - self._days * 86_400, by_use)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _one(self, sql: str, *values: object) -> tuple[bytes, ...] | None:
        assert self._database is not None
        row: tuple[bytes, ...] | None = self._database.execute(sql, values).fetchone()
        return row

    def _put(self, owner: str, stored: Stored, events: list[tuple[bytes, bytes]]) -> None:
        assert self._database is not None
        row = (
            stored.response.id,
            owner,
            int(stored.response.created_at),
            stored.parent,
            msgspec.json.encode(stored.response),
            msgspec.json.encode(stored.input),
            zlib.compress(b"\n".join(data for _, data in events), 1),
        )
        try:
            self._make_room()
            self._database.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.Error:
            self._unsaved[owner, stored.response.id] = stored
            if len(self._unsaved) > _UNSAVED:
                self._unsaved.popitem(last=False)
            raise

    def _make_room(self) -> None:
        assert self._database is not None
        if not self._most or self._size() <= self._most:
            return
        weight = "LENGTH(response) + LENGTH(input) + LENGTH(events)"
        while self._size() > self._most * 9 // 10:
            largest = self._one(f"SELECT owner FROM responses GROUP BY owner ORDER BY SUM({weight}) DESC LIMIT 1")
            if largest is None:
                return
            oldest = "SELECT id FROM responses WHERE owner = ? ORDER BY created LIMIT 64"
            self._database.execute(f"DELETE FROM responses WHERE id IN ({oldest})", largest)

    def _size(self) -> int:
        """Bytes in use, without pages that wait to be used again."""
        pages, free, page = (
            int(self._one(f"PRAGMA {name}")[0])  # type: ignore[index]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page

    def _get(self, owner: str, response_id: str) -> Stored | None:
        if (owner, response_id) in self._unsaved:
            return self._unsaved[owner, response_id]
        row = self._one("SELECT response, input, parent FROM responses WHERE id = ? AND owner = ?", response_id, owner)
        if row is None:
            return None
        response = msgspec.json.decode(row[0], type=Response)
        return Stored(response, msgspec.json.decode(row[1], type=list[Item]), row[2])  # type: ignore[arg-type]

    def _chain(self, owner: str, response_id: str) -> list[Stored] | None:
        found: list[Stored] = []
        wanted: str | None = response_id
        while wanted is not None:
            stored = self._get(owner, wanted)
            if stored is None:
                return None
            found.append(stored)
            wanted = stored.parent
        found.reverse()
        return found

    def _events(self, owner: str, response_id: str) -> list[bytes] | None:
        row = self._one("SELECT events FROM responses WHERE id = ? AND owner = ?", response_id, owner)
        return None if row is None else zlib.decompress(row[0]).split(b"\n")

    def _delete(self, owner: str, response_id: str) -> bool:
        assert self._database is not None
        unsaved = self._unsaved.pop((owner, response_id), None)
        cursor = self._database.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response_id, owner))
        return cursor.rowcount > 0 or unsaved is not None
