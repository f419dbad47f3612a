"""Keeps ends that cannot be committed now in memory, serves reads from there, and retries until the store has them.

A stored response waits for a database that is away, so that a client that sees its end can read it at any front. After
the wait, and on a full disk, it says `store: false`.

An answer that is not stored is never read again: only its usage counts. Where the store is on this machine (`near`),
the usage is written to a file (`owed.py`), and committed while the answer's end is sent: the hop to the database's
thread takes longer than everything else that is done for a short answer. A database elsewhere is waited for, and what
it lacks after that is written to the file, which is lost if this machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.server.config import Key
from fulgur.server.store.base import Answer, Store, StoreAway, Stored, Used
from fulgur.server.store.migrate import Migration
from fulgur.server.store.owed import Owed

PATIENCE_S = 30.0  # how long the end of a stored response waits for a database
USAGE_S = 1.0  # how long the end of another response waits for a database elsewhere
RETRY_S = 1.0
MOST_RESPONSES = 64  # kept in memory
MOST_ANSWERS = 100_000  # of which only the usage is kept


@dataclass
class _Waiting:
    answer: Answer
    stored: Stored | None
    events: Sequence[bytes]
    committed: asyncio.Future[bool]


class PatientStore:
    """Wraps another store. `owed` is the folder for usage that the other one does not have yet."""

    def __init__(self, store: Store, owed: Path | None = None, *, near: bool = False) -> None:
        self.store = store
        self._near = near
        self._owed = Owed(owed) if owed is not None else None
        self._waiting: dict[str, _Waiting] = {}
        self._retrying: asyncio.Task[None] | None = None
        self._counting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self.store.open()
        for answer in self._owed.take_up() if self._owed is not None else ():
            self._keep(answer, None, ())
        if self._near and self._waiting:
            await self._try_again()  # from now on queries see the complete usage

    async def close(self) -> None:
        await self._counted()
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)
        await self._try_again()
        if self._owed is not None:
            self._owed.close()
        await self.store.close()

    def problem(self) -> str:
        return self.store.problem()

    async def end(self, answer: Answer, stored: Stored | None = None, events: Sequence[bytes] = ()) -> bool:
        if stored is None and self._near:
            self._owe(answer)
            counting = asyncio.create_task(self._count(answer))
            self._counting.add(counting)
            counting.add_done_callback(self._counting.discard)
            return True
        try:
            async with asyncio.timeout(USAGE_S if stored is None else None):
                return await self.store.end(answer, stored, events)
        except Exception as error:  # whatever the error, the usage must not be lost
            committed = self._keep(answer, stored, events)
            if stored is None:
                self._owe(answer)
                return True
            if isinstance(error, StoreAway):
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(asyncio.shield(committed), PATIENCE_S)
            self._owe(answer)  # its end is sent, but the response is not stored
            raise

    async def _count(self, answer: Answer) -> None:
        try:
            await self.store.end(answer)
        except Exception:  # whatever the error, the usage must not be lost
            self._keep(answer, None, ())
            return
        self._paid(answer.id)

    async def _counted(self) -> None:
        if self._counting:
            await asyncio.wait(self._counting)

    def _owe(self, answer: Answer) -> None:
        if self._owed is not None:
            self._owed.add(answer)

    def _paid(self, answer_id: str) -> None:
        if self._owed is not None:
            self._owed.paid(answer_id)

    def _keep(self, answer: Answer, stored: Stored | None, events: Sequence[bytes]) -> asyncio.Future[bool]:
        responses = [each for each in self._waiting.values() if each.stored is not None]
        if stored is not None and len(responses) >= MOST_RESPONSES:
            responses[0].stored = None  # its usage is still kept
        if len(self._waiting) >= MOST_ANSWERS:
            self._waiting.pop(next(iter(self._waiting)))
        committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[answer.id] = _Waiting(answer, stored, events, committed)
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.create_task(self._retry())
        return committed

    async def _retry(self) -> None:
        while self._waiting:
            await asyncio.sleep(RETRY_S)
            await self._try_again()

    async def _try_again(self) -> None:
        """Commit them in order, until the store cannot be reached."""
        for name, each in list(self._waiting.items()):
            try:
                ended = await self.store.end(each.answer, each.stored, each.events)
            except StoreAway:
                return
            except Exception:  # a full disk may have room for the next one
                continue
            self._waiting.pop(name, None)
            self._paid(name)
            if not each.committed.done():
                each.committed.set_result(ended)

    def _kept(self, owner: str, response_id: str) -> _Waiting | None:
        kept = self._waiting.get(response_id)
        return kept if kept is not None and kept.stored is not None and kept.answer.owner == owner else None

    async def fence(self, response_id: str, attempt: int) -> bool:
        return await self.store.fence(response_id, attempt)

    async def get(self, owner: str, response_id: str) -> Stored | None:
        kept = self._kept(owner, response_id)
        return kept.stored if kept is not None else await self.store.get(owner, response_id)

    async def chain(self, owner: str, response_id: str) -> list[Stored] | None:
        newest: list[Stored] = []
        wanted = response_id
        while (kept := self._kept(owner, wanted)) is not None:
            assert kept.stored is not None
            newest.append(kept.stored)
            if kept.stored.parent is None:
                return newest[::-1]
            wanted = kept.stored.parent
        older = await self.store.chain(owner, wanted)
        return None if older is None else [*older, *newest[::-1]]

    async def events(self, owner: str, response_id: str) -> list[bytes] | None:
        kept = self._kept(owner, response_id)
        return list(kept.events) if kept is not None else await self.store.events(owner, response_id)

    async def delete(self, owner: str, response_id: str) -> bool:
        kept = self._kept(owner, response_id)
        if kept is not None:
            kept.stored = None
            return True
        return await self.store.delete(owner, response_id)

    async def usage(self, days: int) -> list[Used]:
        await self._counted()  # every answer whose end was sent is counted
        return await self.store.usage(days)

    async def keys(self) -> list[Key]:
        return await self.store.keys()

    async def add_key(self, key: Key) -> None:
        await self.store.add_key(key)

    async def revoke_key(self, name: str) -> bool:
        return await self.store.revoke_key(name)

    async def applied(self) -> list[int]:
        return await self.store.applied()

    async def migrate(self) -> list[Migration]:
        return await self.store.migrate()
