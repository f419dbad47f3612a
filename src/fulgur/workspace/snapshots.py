"""Snapshots of the workspace, so that /undo can revert changes by any tool or shell command, without git.

A snapshot records every file by its content's hash; each content is stored once in the blob store. Files with the size,
times and inode of the last snapshot are not read again. Ignored folders (dependencies, build output) are left out,
ignored single files are not. Files that are too large, or cannot be read or stored, are only noted: undo cannot restore
them, and must not mistake them for new files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec

from fulgur.workspace import beneath
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.ignore import SKIPPED, IgnoreRules

LARGEST_FILE = 8 << 20
LARGEST_TOTAL = 256 << 20
MOST_FILES = 50_000
JUST_NOW = 50_000_000  # nanoseconds
PARTLY = "partly"
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # deleted since it was listed; ELOOP: it is a link now


class SnapshotEntry(msgspec.Struct, frozen=True, array_like=True):
    """One path.

    `kind` is file, link, folder or large (a file that is only noted). `blob` is the content's name or the link's
    target; for a folder, `PARTLY` if not all of its contents are known.
    """

    kind: str
    mode: int
    blob: str
    stamp: tuple[int, int, int, int] = (0, 0, 0, 0)
    """size, mtime, ctime and inode when it was read."""

    def same(self, other: SnapshotEntry | None) -> bool:
        """Whether both have the same content and mode."""
        if other is None:
            return False
        if "large" in (self.kind, other.kind):
            return self.stamp == other.stamp
        if self.kind == other.kind == "folder":
            return self.mode == other.mode
        return (self.kind, self.mode, self.blob) == (other.kind, other.mode, other.blob)


Manifest = dict[str, SnapshotEntry]


@dataclass(frozen=True)
class Difference:
    """A relative path that differs between two snapshots, with both sides; None: absent."""

    path: str
    before: SnapshotEntry | None
    after: SnapshotEntry | None


@dataclass
class Snapshots:
    """Takes and compares snapshots of one workspace."""

    root: Path
    blobs: BlobStore
    cache: Path | None = None
    """Where the last snapshot is kept between sessions, so that unchanged files are not read again."""
    uncovered: list[str] = field(default_factory=list)
    """Why parts of the workspace are not covered, in words; filled by `take`."""
    _last: Manifest = field(default_factory=dict)
    _lost: dict[str, list[str]] = field(default_factory=dict)
    """What could not be read or stored, by the reason; filled by a scan."""

    def take(self) -> Manifest:
        """Take a snapshot of the workspace as it is now."""
        if not self._last and self.cache is not None:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                self._last = read_cache(self.cache)
        manifest = self._scan()
        if self.cache is not None and manifest != self._last:
            with contextlib.suppress(OSError):
                self.cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                temporary = self.cache.with_suffix(f".{os.getpid()}.tmp")
                data = _encode(manifest)
                temporary.write_bytes(hashlib.sha256(data).digest() + data)
                os.replace(temporary, self.cache)
        self._last = manifest
        return manifest

    def _scan(self) -> Manifest:
        manifest: Manifest = {}
        rules = IgnoreRules(self.root)
        total = 0
        self.uncovered, self._lost = [], {}
        waiting = [""]  # relative, as plain strings: this runs over every file before and after a turn
        while waiting:
            above = waiting.pop()
            try:
                items, folder = self._listed(above)
            except OSError as error:
                if not above:
                    raise
                if error.errno in _GONE:
                    del manifest[above]
                else:
                    _know_in_part(manifest, above)
                    self._note_lost(above, error)
                continue
            try:
                for item in items:
                    name = f"{above}/{item.name}" if above else item.name
                    if item.is_dir(follow_symlinks=False):
                        if item.name not in SKIPPED and not rules.ignored(self.root / name, folder=True):
                            with contextlib.suppress(FileNotFoundError):
                                mode = stat.S_IMODE(item.stat(follow_symlinks=False).st_mode)
                                manifest[name] = SnapshotEntry("folder", mode, "")
                                waiting.append(name)
                        continue
                    if len(manifest) >= MOST_FILES:
                        self.uncovered.append(f"more than {MOST_FILES} files: the rest is not covered by undo")
                        for part in (above, *waiting):
                            _know_in_part(manifest, part)
                        return manifest
                    entry = self._entry(item, folder, name, total)
                    if entry is not None:
                        manifest[name] = entry
                        total += entry.stamp[0] if entry.kind == "file" else 0
            finally:
                os.close(folder)
        for why, names in self._lost.items():
            first = beneath.shown(names[0])
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self.uncovered.append(f"{first}{more} cannot be kept for undo: {why}")
        return manifest

    def _listed(self, above: str) -> tuple[list[os.DirEntry[str]], int]:
        """The contents of a folder, and a descriptor of it that the caller must close."""
        with beneath.folder(self.root, self.root / above) as reached:
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=reached)
        try:
            return list(os.scandir(folder)), folder
        except BaseException:
            os.close(folder)
            raise

    def _note_lost(self, name: str, error: OSError) -> None:
        """Record a file that cannot be kept, by reason; missing read permission is deliberate and not reported."""
        if error.errno != errno.EACCES:
            self._lost.setdefault(error.strerror or str(error), []).append(name)

    def _entry(self, item: os.DirEntry[str], folder: int, name: str, total: int) -> SnapshotEntry | None:
        try:
            info = item.stat(follow_symlinks=False)
            mode = stat.S_IMODE(info.st_mode)
            if stat.S_ISLNK(info.st_mode):
                return SnapshotEntry("link", 0, os.readlink(item.name, dir_fd=folder))
        except OSError:
            return None  # vanished
        if not stat.S_ISREG(info.st_mode):
            return None
        try:
            stamp = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
            known = self._last.get(name)
            if known is not None and known.kind == "file" and known.stamp == stamp and known.mode == mode:
                return known
            if info.st_size > LARGEST_FILE or total + info.st_size > LARGEST_TOTAL:
                self.uncovered.append(f"{beneath.shown(name)} ({info.st_size >> 20} MiB) is too large for undo")
                return SnapshotEntry("large", mode, "", stamp)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(item.name, flags, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                entry = SnapshotEntry("file", mode, self.blobs.put(file.read()), stamp)
            if time.time_ns() - info.st_ctime_ns < JUST_NOW:
                # File times are coarse: a change right after this read would go unnoticed. Force a re-read next time.
                return msgspec.structs.replace(entry, stamp=(info.st_size, 0, 0, 0))
            return entry
        except OSError as error:
            if error.errno in _GONE and not _is_there(item.name, folder):
                return None
            self._note_lost(name, error)
            return SnapshotEntry("large", mode, "", stamp)


def _known_to_be_absent(manifest: Manifest, path: str) -> bool:
    """Whether a path missing from the snapshot really was absent: all its parent folders are fully known."""
    above = ("" if parent == PurePosixPath() else str(parent) for parent in PurePosixPath(path).parents)
    return all(entry.blob != PARTLY for entry in map(manifest.get, above) if entry is not None)


def _know_in_part(manifest: Manifest, folder: str) -> None:
    entry = manifest.get(folder) or SnapshotEntry("folder", 0, "")  # the workspace root normally has no entry
    manifest[folder] = msgspec.structs.replace(entry, blob=PARTLY)


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def differences(before: Manifest, after: Manifest) -> list[Difference]:
    """The differences, in order of path.

    A path that one side lacks but may only have missed is left out: an undo would delete a file that always existed, or
    restore an old one."""
    found = []
    for path in sorted((before.keys() | after.keys()) - {""}):
        old, new = before.get(path), after.get(path)
        if (old is None and not _known_to_be_absent(before, path)) or (
            new is None and not _known_to_be_absent(after, path)
        ):
            continue
        if old is None or not old.same(new):
            found.append(Difference(path, old, new))
    return found


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Manifest] = msgspec.msgpack.Decoder(Manifest)


def _encode(manifest: Manifest) -> bytes:
    try:
        return _encoder.encode(manifest)
    except UnicodeEncodeError:  # names and link targets that are not UTF-8
        return _encoder.encode({beneath.stored(name): _with(entry, beneath.stored) for name, entry in manifest.items()})


def _decode(data: bytes) -> Manifest:
    manifest = _decoder.decode(data)
    if any("\0" in name or "\0" in entry.blob for name, entry in manifest.items()):
        return {beneath.unstored(name): _with(entry, beneath.unstored) for name, entry in manifest.items()}
    return manifest


def _with(entry: SnapshotEntry, change: Callable[[str], str]) -> SnapshotEntry:
    return msgspec.structs.replace(entry, blob=change(entry.blob)) if entry.kind == "link" else entry


def store_manifest(manifest: Manifest, blobs: BlobStore) -> str:
    """Store a manifest as a blob and return its name."""
    return blobs.put(_encode(manifest))


def read_cache(path: Path) -> Manifest:
    """The last snapshot of a workspace, as kept between sessions."""
    stored = path.read_bytes()
    if hashlib.sha256(stored[32:]).digest() != stored[:32]:
        raise msgspec.DecodeError(f"{path} is damaged")
    return _decode(stored[32:])


def read_manifest(name: str, blobs: BlobStore) -> Manifest:
    """A stored manifest."""
    return _decode(blobs.get(name))
