"""The journal of the user's edits, newest last: `fulgur edit --undo` reverts them, `fulgur next` continues from them.

Contents are stored with those of the agent's snapshots and are removed by the same rules
(`agent/session/undo_store.py`).
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
    """One change: the hashes of the file's content before (empty: there was no file) and after.

    Changes with the same `time` were made together."""

    path: str
    before: str
    after: str
    time: float


class EditJournal:
    """The last edits; `home` is Fulgur's home folder."""

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
        """The newest change of this file, or of any; None when there is none."""
        wanted = None if path is None else str(path.resolve())
        return next((e for e in reversed(self.entries()) if wanted is None or e.path == wanted), None)

    def before(self, path: Path, now: bytes) -> bytes | None:
        """The file's content before its last change, if that change produced its current content."""
        entry = self.last(path)
        with contextlib.suppress(FileNotFoundError):
            if entry is not None and entry.before and self.blobs.get(entry.after) == now:
                return self.blobs.get(entry.before)
        return None

    def write(self, changes: Sequence[Change]) -> list[FileDiff]:
        """Change files, all or none; refuses when one has changed meanwhile, or may not be written."""
        real = [replace(change, path=change.path.resolve()) for change in changes]
        for change in real:
            if change.path.exists() and not change.path.stat().st_mode & 0o222:
                raise FulgurError(f"{change.path} is read-only; nothing was changed", hint="`chmod +w` lets it change.")
        with self.locked():
            earlier = self.entries()
            # The time identifies an edit, so it must be unique.
            now = max(time.time(), earlier[-1].time + 1e-6 if earlier else 0.0)
            made = [self._entry(change, now) for change in real]
            self.save([*earlier, *made])  # first, so that the edit can be undone whatever happens next
            try:
                return self._files(real[0].path).commit(real)
            except BaseException:
                self.save(earlier)
                raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the files and the journal against other commands that run at the same time."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def undo(self, path: Path | None = None) -> list[JournalEntry]:
        """Revert the newest edit (of this file, or of any) in every file that it changed."""
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
                raise FulgurError(f"the edit of {real} is too old: the data needed for undo was deleted") from None
            if files.read(real) != after:
                raise FulgurError(
                    f"{real} was changed after that edit; nothing was undone",
                    hint="Undo the later change first, or restore the file by hand.",
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
        """Save these entries, at most the last 200 edits; an edit of several files stays complete."""
        entries = list(entries)
        kept = set(sorted({entry.time for entry in entries})[-KEPT:])
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.file.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in entries if entry.time in kept))
        os.replace(temporary, self.file)

    def _files(self, path: Path) -> Files:
        """File access for the user's own command, which may write whatever the user may write."""
        policy = Policy.make("danger-full-access", path.parent, self._home)
        return Files(policy, self.blobs, self.file.with_name("writing.json"))
