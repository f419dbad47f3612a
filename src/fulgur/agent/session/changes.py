"""The workspace during a session: snapshots around each turn, the diff since the start, and undo."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

import msgspec

from fulgur.agent.session.state import SessionState
from fulgur.agent.workbench import Workbench
from fulgur.errors import FulgurError
from fulgur.protocol.agent import AgentEvent, Undone, Warned
from fulgur.workspace.beneath import shown
from fulgur.workspace.files import diff_of
from fulgur.workspace.snapshots import Manifest, SnapshotEntry, differences, read_manifest, store_manifest
from fulgur.workspace.undo import Restored, restore


class NothingToUndo(FulgurError):
    """No turn that changed a file is left."""


class Changes:
    """Knows what each turn changed, no matter who changed it."""

    def __init__(self, bench: Workbench, state: SessionState, enabled: bool) -> None:
        self._bench = bench
        self._state = state
        self._enabled = enabled
        self._lock = asyncio.Lock()
        self._said: set[str] = set()

    async def before(self) -> list[str]:
        """Snapshot once per turn, before the first tool that can change files; return new notes on what undo does not
        cover."""
        async with self._lock:
            if not self._enabled or self._state.turn.before is not None:
                return []
            await self._take("before")
            new = [text for text in self._bench.snapshots.uncovered if text not in self._said]
            self._said.update(new)
            return new

    async def after(self) -> list[str]:
        """Snapshot at the turn's end, if there was one before; return the paths that changed."""
        if self._state.turn.before is None:
            return []
        before = self._read(self._state.turn.before)
        return [shown(difference.path) for difference in differences(before, await self._take("after"))]

    async def undo(self, first: int = 1) -> tuple[int, Restored]:
        """Undo the last turn (`first` or later) that changed files and was not undone yet."""
        for turn in reversed(self._state.turns):
            if turn.before is None or turn.undone or turn.number < first:
                continue
            if turn.let_go:
                raise FulgurError(
                    f"turn {turn.number} can no longer be undone: its undo data was pruned",
                    hint="`undo_days` and `undo_megabytes` set how long it is kept.",
                )
            before = self._read(turn.before)
            after = self._read(turn.after) if turn.after else None
            if after is not None and not differences(before, after):
                continue
            restored = await asyncio.to_thread(restore, self._bench.files, self._bench.snapshots, before, after)
            if restored.failed and not restored.paths:
                raise FulgurError(f"turn {turn.number} was not undone: {'; '.join(restored.failed)}")
            self._state.undone(turn.number, restored.paths)
            return turn.number, restored
        raise NothingToUndo("nothing to undo: no change of this session is left")

    async def undo_back_to(self, first: int) -> list[Restored]:
        """Undo every turn from the last down to `first`."""
        restored = []
        with contextlib.suppress(NothingToUndo):
            while True:
                restored.append((await self.undo(first))[1])
        return restored

    def diff(self) -> str:
        """Return what the session changed, against its first snapshot."""
        kept = (turn.before for turn in self._state.turns if turn.before is not None and not turn.let_go)
        first = next(kept, None)
        if first is None:
            return ""
        before, now = self._read(first), self._bench.snapshots.take()
        parts = []
        for difference in differences(before, now):
            old, new = self._content(difference.before), self._content(difference.after)
            if old != new:
                parts.append(diff_of(shown(difference.path), old, new).diff)
        return "".join(parts)

    async def _take(self, when: str) -> Manifest:
        manifest = await asyncio.to_thread(self._bench.snapshots.take)
        self._state.snapshot(when, store_manifest(manifest, self._bench.files.blobs))
        return manifest

    def _read(self, name: str) -> Manifest:
        try:
            return read_manifest(name, self._bench.files.blobs)
        except (OSError, msgspec.DecodeError) as error:
            raise FulgurError(f"the undo data of this turn cannot be read: {error}") from None

    def _content(self, entry: SnapshotEntry | None) -> bytes | None:
        if entry is None or entry.kind in ("folder", "large"):
            return None
        return os.fsencode(entry.blob) if entry.kind == "link" else self._bench.files.blobs.get(entry.blob)


def restored_events(turn: int, restored: Restored) -> Iterator[AgentEvent]:
    """The events for files that were restored."""
    for failure in restored.failed:
        yield Warned(message=f"not restored: {failure}")
    yield Undone(turn=turn, paths=tuple(restored.paths), kept=tuple(restored.kept))
