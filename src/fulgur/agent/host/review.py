"""The changes of a session that nobody has accepted or rejected yet, by file and by hunk.

Each file has a base: its content as far as it was accepted. Accepting moves the base towards what is on disk; rejecting
moves what is on disk back to the base. What the person changes in between goes into the base, so it is kept either way.
"""

from __future__ import annotations

import difflib
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fulgur.agent.session.log import SessionLog
from fulgur.errors import FulgurError
from fulgur.protocol.host import FileChange, Hunk
from fulgur.workspace.files import Change, Files
from fulgur.workspace.merge import merge
from fulgur.workspace.snapshots import Manifest, SnapshotEntry, differences, read_manifest
from fulgur.workspace.textfile import shown_text

Content = bytes | None  # None: the file does not exist
JUDGED = "judged"  # the type of the log record that stores a base


@dataclass
class _File:
    base: Content
    seen: Content
    """What the agent left; anything else on disk was changed by somebody since."""


class Review:
    """Thread-safe: a turn may go on while a person judges."""

    def __init__(self, files: Callable[[], Files], record: Callable[[str, str | None], None]) -> None:
        self._get_files = files
        self._record = record
        self._known: dict[str, _File] = {}
        self._lock = threading.Lock()

    @property
    def _files(self) -> Files:
        return self._get_files()  # new settings replace the files object

    def load(self, log: SessionLog) -> None:
        """Replay the stored turns' changes, and what was accepted or rejected of them."""
        before: Manifest | None = None
        blobs = self._files.blobs
        for record in log.records():
            try:
                if record["type"] == "snapshot" and record["when"] == "before":
                    before = read_manifest(record["manifest"], blobs)
                elif record["type"] == "snapshot" and before is not None:
                    self.turn_changed(before, read_manifest(record["manifest"], blobs))
                    before = None
                elif record["type"] == JUDGED:
                    base = blobs.get(record["base"]) if record["base"] else None
                    self._known[record["path"]] = _File(base, base)
            except (OSError, msgspec.DecodeError, FulgurError):
                continue  # undo has dropped the contents: those changes count as accepted

    def changed(self, path: str, before: Content, after: Content) -> None:
        """Note that the agent changed a file."""
        with self._lock:
            file = self._known.get(path)
            if file is None:
                self._known[path] = _File(before, after)
                return
            self._follow(file, before)
            file.seen = after

    def turn_of(self, before: str, after: str) -> None:
        """Like `turn_changed`, by the names of a turn's snapshots."""
        try:
            self.turn_changed(*(read_manifest(name, self._files.blobs) for name in (before, after)))
        except (OSError, msgspec.DecodeError, FulgurError):
            return  # undo reports that it does not cover this turn

    def turn_changed(self, before: Manifest, after: Manifest) -> None:
        """Note everything that changed during a turn, commands included."""
        for difference in differences(before, after):
            old, new = self._content(difference.before), self._content(difference.after)
            known = self._known.get(difference.path)
            if (old, new) != (None, None) and (known is None or known.seen != new):
                self.changed(difference.path, old if known is None else known.seen, new)

    def pending(self) -> list[FileChange]:
        """The files that differ from their base, sorted by path."""
        with self._lock:
            found = []
            for path in sorted(self._known):
                file = self._known[path]
                now = self._now(path)
                self._follow(file, now)
                if file.base != now:
                    found.append(_change(path, file.base, now))
            return found

    def count(self) -> int:
        """How many files wait for a decision."""
        return len(self.pending())

    def accept(self, path: str | None, hunk: str | None) -> list[str]:
        """Keep everything, a file or a hunk; return the paths this decided."""
        with self._lock:
            done = []
            for name, file, now in self._chosen(path):
                file.base = now if hunk is None else _moved(name, now, file.base, hunk)[1]
                self._record(name, self._files.blobs.put(file.base) if file.base is not None else None)
                done.append(name)
            return done

    def reject(self, path: str | None, hunk: str | None) -> list[str]:
        """Revert everything, a file or a hunk on disk; return the paths that changed."""
        with self._lock:
            done = []
            for name, file, now in self._chosen(path):
                wanted = file.base if hunk is None else _moved(name, now, file.base, hunk)[0]
                self._files.commit([Change(self._files.writable(name), now, wanted)])
                file.seen = wanted
                done.append(name)
            return done

    def _chosen(self, path: str | None) -> list[tuple[str, _File, Content]]:
        names = sorted(self._known) if path is None else [path]
        if path is not None and path not in self._known:
            raise FulgurError(f"this session did not change {path}")
        chosen = []
        for name in names:
            file, now = self._known[name], self._now(name)
            self._follow(file, now)
            if file.base != now:
                chosen.append((name, file, now))
        return chosen

    def _now(self, path: str) -> Content:
        try:
            return self._files.read(self._files.locate(path))
        except FulgurError:
            return None

    @staticmethod
    def _follow(file: _File, now: Content) -> None:
        """Someone else changed the file from `seen` to `now`: merge their part into the base."""
        if now == file.seen:
            return
        if None in (file.base, file.seen, now):
            file.base = now if file.base is not None or now is None else file.base
        else:
            assert file.base is not None and file.seen is not None and now is not None
            merged = merge(file.seen, file.base, now)
            file.base = now if merged is None else merged
        file.seen = now

    def _content(self, entry: SnapshotEntry | None) -> Content:
        return self._files.blobs.get(entry.blob) if entry is not None and entry.kind == "file" else None


def _lines(content: Content) -> list[bytes]:
    return (content or b"").splitlines(keepends=True)


def _hunks(path: str, base: Content, now: Content) -> list[tuple[str, int, int, int, int]]:
    """Runs of changed lines: each with its id and both line ranges."""
    old, new = _lines(base), _lines(now)
    found = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            key = repr((path, a, c, old[a:b], new[c:d])).encode()
            found.append((hashlib.sha256(key).hexdigest()[:12], a, b, c, d))
    return found


def _moved(path: str, now: Content, base: Content, hunk: str) -> tuple[Content, Content]:
    """Return `now` with the hunk reverted, and the base with the hunk accepted."""
    old, new = _lines(base), _lines(now)
    for name, a, b, c, d in _hunks(path, base, now):
        if name == hunk:
            rejected, accepted = [*new[:c], *old[a:b], *new[d:]], [*old[:a], *new[c:d], *old[b:]]
            return b"".join(rejected) if rejected or base is not None else None, b"".join(accepted)
    raise FulgurError(f"{path} changed since this hunk was shown", hint="Look at its changes again.")


def _change(path: str, base: Content, now: Content) -> FileChange:
    old, new = shown_text(base), shown_text(now)
    hunks = []
    if (old is not None or base is None) and (new is not None or now is None):
        before, after = _lines(base), _lines(now)
        for name, a, b, c, d in _hunks(path, base, now):
            texts = [[line.decode(errors="replace") for line in part] for part in (before[a:b], after[c:d])]
            hunks.append(Hunk(id=name, old_start=a + 1, new_start=c + 1, old=texts[0], new=texts[1]))
    kind = "added" if base is None else "deleted" if now is None else "modified"
    return FileChange(path=path, kind=kind, old=old, new=new, hunks=hunks)  # type: ignore[arg-type]
