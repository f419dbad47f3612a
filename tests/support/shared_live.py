"""The live state of several fronts in one process, for tests that need no Redis."""

from __future__ import annotations

from fulgur.server.live.memory import MemoryLive


class SharedLive(MemoryLive):
    """The state of several fronts in one process."""

    shared = True

    def __init__(self, first: SharedLive | None = None) -> None:
        super().__init__()
        self.fronts: dict[str, SharedLive] = {}
        if first is not None:
            self.fronts = first.fronts
            self._runs, self._tables, self._values = first._runs, first._tables, first._values
        self.fronts[self.front] = self

    async def close(self) -> None:
        self.fronts.pop(self.front, None)

    async def send(self, front: str, letter: bytes) -> None:
        if front in self.fronts:
            self.fronts[front]._letters.put_nowait(letter)

    async def alive(self, table: str) -> dict[str, bytes]:
        return dict.fromkeys(self.fronts, b"") if table == "fronts" else await super().alive(table)
