"""The numbered events of one session, for any number of readers, in bounded memory.

There is one buffer and no queue per reader: a reader is just a position. A reader that is too slow finds its position
gone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque

MOST_BYTES = 4 << 20  # about half a minute of a session at 2,000 tokens a second


class Feed:
    """Encoded events `first`..`last`. The oldest are dropped beyond the byte limit, but never the newest one."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.last = 0
        self.closed = False

    @property
    def first(self) -> int:
        """The oldest number still kept; `last + 1` if none is."""
        return self.last - len(self._kept) + 1

    def append(self, event: bytes) -> int:
        """Add an event, wake the readers and return its number."""
        self._kept.append(event)
        self._size += len(event)
        self.last += 1
        while self._size > self._most and len(self._kept) > 1:
            self._size -= len(self._kept.popleft())
        self._wake()
        return self.last

    def get(self, number: int) -> bytes:
        """The event with this number, from `first` to `last`."""
        return self._kept[number - self.first]

    def since(self, number: int) -> list[bytes]:
        """The events after this number, which is at least `first - 1`."""
        return list(itertools.islice(self._kept, number + 1 - self.first, None))

    async def beyond(self, number: int) -> bool:
        """Wait for an event after `number`; False if none will come."""
        while self.last <= number:
            if self.closed:
                return False
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                if future in self._waiting:
                    self._waiting.remove(future)
        return True

    def close(self) -> None:
        """Allow no more events; readers end after those that are kept."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
