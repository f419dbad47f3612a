"""Bounds the storage that /undo needs: drops sessions by age, then the oldest ones by size.

Runs once a day. A session loses its undo as a whole, never in part. Its file records that (`let_go`), lists of sessions
show it, and the person is told. Conversations are never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fulgur.agent.session.log import SessionLog, read_records, summaries
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import read_journal
from fulgur.workspace.journal import EditJournal
from fulgur.workspace.snapshots import Manifest, read_cache, read_manifest

DAY = 86_400.0
_SPARED_SECONDS = DAY  # a session used within a day may still be open somewhere
_GRACE_SECONDS = 3600.0  # newly stored content may not be in any session yet


@dataclass(frozen=True)
class Pruned:
    """Sessions whose undo was dropped, and how many bytes that freed."""

    sessions: tuple[str, ...]
    bytes: int

    def __str__(self) -> str:
        names = ", ".join(self.sessions[:3]) + (f" and {len(self.sessions) - 3} more" if len(self.sessions) > 3 else "")
        return f"dropped the undo data of {len(self.sessions)} old sessions ({names}); {self.bytes >> 20} MiB freed"


def due(home: Path) -> bool:
    """Whether a day has passed since the last run; marks this one."""
    stamp = home / "blobs" / "pruned"
    with contextlib.suppress(OSError):
        if time.time() - stamp.stat().st_mtime < DAY:
            return False
    if not stamp.parent.is_dir():
        return False
    stamp.touch()
    return True


def prune(home: Path, *, most_days: float, most_bytes: int, spare: Collection[str] = ()) -> Pruned:
    """Drop what exceeds the bounds; `spare` names sessions to keep whatever they hold."""
    blobs = BlobStore(home / "blobs")
    now = time.time()
    kept: set[str] = {*_current(home, now - most_days * DAY), *_unfinished(home)}
    kept |= _edits(home, now - most_days * DAY, most_bytes, blobs)
    size = sum(_size(blobs, name) for name in kept)
    gone: list[str] = []
    for summary in summaries(home):  # the latest first
        if not summary.undo:
            continue
        needed = _needed(Path(summary.path), blobs)
        more = sum(_size(blobs, name) for name in needed - kept)
        age = now - summary.updated
        young = age < _SPARED_SECONDS or summary.session_id in spare
        if needed and not young and (age > most_days * DAY or size + more > most_bytes):
            log = SessionLog(Path(summary.path))
            log.append("let_go", durable=True)
            log.close()
            gone.append(summary.session_id)
            continue
        kept |= needed
        size += more
    freed = 0
    for path in _stored(blobs.folder):
        with contextlib.suppress(OSError):
            info = path.stat()
            if path.parent.name + path.name not in kept and now - info.st_mtime > _GRACE_SECONDS:
                path.unlink()
                freed += info.st_size
    return Pruned(tuple(gone), freed)


def prune_when_due(settings: Settings, spare: Collection[str] = ()) -> Pruned | None:
    """Prune once a day by the configured bounds; return what was dropped, if sessions lost their undo."""
    if not due(settings.home):
        return None
    days, megabytes = settings.integer("undo_days") or 0, settings.integer("undo_megabytes") or 0
    with contextlib.suppress(OSError, FulgurError):
        pruned = prune(settings.home, most_days=days, most_bytes=megabytes << 20, spare=spare)
        return pruned if pruned.sessions else None
    return None


def prune_beside(settings: Settings, session: str, tell: Callable[[Pruned], None]) -> None:
    """Run `prune_when_due` in a separate thread; this session is spared."""
    loop = asyncio.get_running_loop()

    def work() -> None:
        if pruned := prune_when_due(settings, [session]):
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(tell, pruned)

    threading.Thread(target=work, daemon=True).start()


def _edits(home: Path, since: float, most_bytes: int, blobs: BlobStore) -> set[str]:
    """The contents that `fulgur edit --undo` needs; edits beyond the bounds are dropped, the oldest first."""
    journal = EditJournal(home)
    entries = journal.entries()
    needed: set[str] = set()
    size, oldest = 0, float("inf")
    for when in sorted({entry.time for entry in entries}, reverse=True):
        more = {name for entry in entries if entry.time == when for name in (entry.before, entry.after)} - {*needed, ""}
        size += sum(_size(blobs, name) for name in more)
        if when < since or size > most_bytes:
            break
        needed |= more
        oldest = when
    if any(entry.time < oldest for entry in entries):
        with journal.locked():  # another command may have recorded an edit since
            journal.save(entry for entry in journal.entries() if entry.time >= oldest)
    return needed


def _needed(session: Path, blobs: BlobStore) -> set[str]:
    """Every content that an undo in the session may need."""
    found: set[str] = set()
    with contextlib.suppress(FulgurError, OSError):
        for record in read_records(session, damaged="skip"):
            if record["type"] == "snapshot" and record["manifest"] not in found:
                found.add(record["manifest"])
                with contextlib.suppress(OSError, FulgurError, msgspec.DecodeError):
                    found |= _contents(read_manifest(record["manifest"], blobs))
    return found


def _contents(manifest: Manifest) -> set[str]:
    return {entry.blob for entry in manifest.values() if entry.kind == "file"}


def _current(home: Path, since: float) -> Iterator[str]:
    """The contents in each workspace's snapshot cache; a cache that was not used for long is removed."""
    for path in (home / "index").glob("*.snapshot"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if path.stat().st_mtime < since:
                path.unlink()
            else:
                yield from _contents(read_cache(path))


def _unfinished(home: Path) -> Iterator[str]:
    """The contents needed to roll back a patch that a kill cut off."""
    for folder in ("sessions", "tasks"):
        for path in (home / folder).glob("*.journal"):
            yield from (entry.before for entry in read_journal(path) if entry.before)


def _stored(folder: Path) -> Iterator[Path]:
    for part in folder.glob("[0-9a-f][0-9a-f]"):
        yield from part.iterdir()


def _size(blobs: BlobStore, name: str) -> int:
    try:
        return blobs.path(name).stat().st_size
    except OSError:
        return 0
