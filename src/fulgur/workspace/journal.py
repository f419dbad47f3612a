"""The edits that people asked for, newest last: what `fulgur edit --undo` takes back and `fulgur next` goes on from.

Contents lie beside those of the agent's snapshots and are let go by the same rules (`agent/session/undo_store.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.sandbox.policy import Policy
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Change, FileDiff, Files

KEPT = 200


@dataclass(frozen=True)
class JournalEntry:
    """One change: the file's content before (empty: it was not there) and after, by hash. Changes of one `time` were
    made together."""

    path: str
    before: str
    after: str
    time: float


class EditJournal:
    """The last changes of single files; `home` is Fulgur's."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.file = home / "edits" / "journal.jsonl"
        self.blobs = BlobStore(home / "blobs")

    def entries(self) -> list[JournalEntry]:
        try:
            lines = self.file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # a line that was cut off by a crash
                found.append(JournalEntry(**json.loads(line)))
        return found

    def last(self, path: Path | None = None) -> JournalEntry | None:
        """The newest change, of this file or of any."""
        wanted = None if path is None else str(path.resolve())
        return next((e for e in reversed(self.entries()) if wanted is None or e.path == wanted), None)

    def before(self, path: Path, now: bytes) -> bytes | None:
        """The file's content before its last change, if that is the one that made it what it is now."""
        entry = self.last(path)
        with contextlib.suppress(FileNotFoundError):
            if entry is not None and entry.before and self.blobs.get(entry.after) == now:
                return self.blobs.get(entry.before)
        return None

    def write(self, changes: Sequence[Change]) -> list[FileDiff]:
        """Change files, all or none; refuses when one is no longer what it was, or may not be written."""
        real = [replace(change, path=change.path.resolve()) for change in changes]
        for change in real:
            if change.path.exists() and not change.path.stat().st_mode & 0o222:
                raise FulgurError(f"{change.path} is read-only; nothing was changed", hint="`chmod +w` lets it change.")
        with self.locked():
            earlier = self.entries()
            # Changes of one time were made together, so two edits never have the same.
            now = max(time.time(), earlier[-1].time + 1e-6 if earlier else 0.0)
            made = [self._entry(change, now) for change in real]
            self.save([*earlier, *made])  # first: what was changed can be taken back, whatever happens now
            try:
                return self._files(real[0].path).commit(real)
            except BaseException:
                self.save(earlier)
                raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes files or the journal meanwhile: several commands may run at once."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def undo(self, path: Path | None = None) -> list[JournalEntry]:
        """Take the newest edit back (that of this file, or of any), with every file that it changed."""
        with self.locked():
            return self._undo(path)

    def _undo(self, path: Path | None) -> list[JournalEntry]:
        last = self.last(path)
        if last is None:
            raise FulgurError("there is no edit to undo" + (f" in {path}" if path else ""))
        entries = [entry for entry in self.entries() if entry.time == last.time]
        files = self._files(Path(last.path))
        changes = []
        for entry in entries:
            real = Path(entry.path)
            try:
                before = self.blobs.get(entry.before) if entry.before else None
                after = self.blobs.get(entry.after)
            except FileNotFoundError:
                raise FulgurError(f"the edit of {real} is too old: what undo needs was let go") from None
            if files.read(real) != after:
                raise FulgurError(
                    f"{real} was changed after that edit; nothing was undone",
                    hint="Take the later change back first, or restore the file by hand.",
                )
            changes.append(Change(real, after, before))
        files.commit(changes)
        self.save(other for other in self.entries() if other not in entries)
        return entries

    def _entry(self, change: Change, now: float) -> JournalEntry:
        assert change.after is not None, "edits remove no files"
        before = self.blobs.put(change.before) if change.before is not None else ""
        return JournalEntry(str(change.path), before, self.blobs.put(change.after), now)

    def save(self, entries: Iterable[JournalEntry]) -> None:
        """Keep these, at most the last 200 edits; an edit of several files stays whole."""
        entries = list(entries)
        kept = set(sorted({entry.time for entry in entries})[-KEPT:])
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.file.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in entries if entry.time in kept))
        os.replace(temporary, self.file)

    def _files(self, path: Path) -> Files:
        """The person's own command may write what the person may."""
        policy = Policy.make("danger-full-access", path.parent, self._home)
        return Files(policy, self.blobs, self.file.with_name("writing.json"))
