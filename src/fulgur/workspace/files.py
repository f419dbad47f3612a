"""The only module through which the agent's own tools change files.

Every change is checked against the sandbox's policy, keeps mode and owner, replaces the file atomically, and saves the
previous content. Files are opened by `beneath`, so that a background command cannot redirect a write by swapping a
folder for a link.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import secrets
import stat
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from fulgur.errors import FulgurError
from fulgur.sandbox.policy import Policy
from fulgur.workspace import beneath, folders
from fulgur.workspace.beneath import shown
from fulgur.workspace.blobs import BlobStore, content_name
from fulgur.workspace.textfile import TextFile


class FileRefused(FulgurError):
    """The policy does not allow this file to be read or written."""


@dataclass(frozen=True)
class Change:
    """One file's change: from `before` (None: absent) to `after` (None: removed). `path` is the real path."""

    path: Path
    before: bytes | None
    after: bytes | None
    mode: int | None = None
    """The mode of a new file; an old file keeps its own."""


@dataclass(frozen=True)
class FileDiff:
    """A change for display: unified diff and line counts."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    diff: str
    added: int
    removed: int
    before: bytes | None = field(default=None, repr=False)
    """The whole content before, for checks that compare."""
    after: bytes | None = field(default=None, repr=False)


class Buffers(Protocol):
    """An editor that has files open."""

    def read(self, path: Path, on_disk: bytes) -> bytes | None:
        """The content that the editor shows; None if it does not say."""

    def write(self, path: Path, content: bytes) -> bool:
        """Whether the editor accepted the new content."""


class Files:
    """Reads and writes for one session. With `buffers`, files that an editor has open go through it."""

    def __init__(self, policy: Policy, blobs: BlobStore, journal: Path) -> None:
        self.policy = policy
        self.blobs = blobs
        self.buffers: Buffers | None = None
        self._journal = journal

    def locate(self, path: str) -> Path:
        """The real path of a path that a model or the user named, relative to the workspace."""
        if not path or "\0" in path:
            raise FulgurError(f"{path!r} is not a valid path")
        return Path(os.path.realpath(self.policy.workspace / folders.expanded(path)))

    def is_link(self, path: str) -> bool:
        """Whether the path is a symbolic link."""
        return os.path.islink(self.policy.workspace / folders.expanded(path))

    def writable(self, path: str) -> Path:
        """The real path, if the policy allows writing it; else FileRefused with the reason."""
        real = self.locate(path)
        if reason := self.policy.refusal(real):
            raise FileRefused(f"{path} may not be written: {reason}")
        return real

    def show(self, path: Path) -> str:
        """The path for display: relative if it is inside the workspace."""
        workspace = self.policy.workspace
        return shown(str(path.relative_to(workspace) if path.is_relative_to(workspace) else path))

    def read(self, path: Path, limit: int = -1) -> bytes:
        """The first `limit` bytes of a regular file (its real path), -1: all."""
        if reason := self.policy.secret(path):
            raise FileRefused(f"{self.show(path)} may not be read: {reason}")
        try:
            return self._shown(path, beneath.read(self._root(path), path, limit))
        except OSError as error:
            raise FulgurError(f"{self.show(path)}: {error.strerror}") from None

    def _shown(self, path: Path, on_disk: bytes) -> bytes:
        shown = self.buffers.read(path, on_disk) if self.buffers is not None else None
        return on_disk if shown is None else shown

    def commit(self, changes: Sequence[Change]) -> list[FileDiff]:
        """Make all changes or none: after an error, or a kill (see `recover`), completed changes are rolled back."""
        changes = [change for change in changes if change.before != change.after]
        for change in changes:
            if reason := self.policy.refusal(change.path):
                raise FileRefused(f"{self.show(change.path)} may not be written: {reason}")
            if self._content(change.path) != change.before:
                raise FulgurError(f"{self.show(change.path)} changed since it was read", hint="Read it again.")
        self._write_journal(changes)
        done: list[Change] = []
        try:
            for change in changes:
                done.append(change)
                if not self._taken(change):
                    self._replace(change.path, change.after, change.mode)
        except OSError as error:
            for change in reversed(done):
                with contextlib.suppress(OSError):
                    self._replace(change.path, change.before, None)
            raise FulgurError(f"{self.show(done[-1].path)}: {error.strerror}; nothing was changed") from None
        finally:
            self._journal.unlink(missing_ok=True)
        return [diff_of(self.show(change.path), change.before, change.after) for change in changes]

    def _taken(self, change: Change) -> bool:
        """Whether an editor wrote the change, byte for byte."""
        if self.buffers is None or change.after is None or not self.buffers.write(change.path, change.after):
            return False
        with contextlib.suppress(OSError, FulgurError):
            return beneath.read(self._root(change.path), change.path) == change.after
        return False

    def recover(self) -> list[str]:
        """Roll back a `commit` that was killed halfway; returns the restored paths.

        A file with neither the old nor the new content was edited since: it stays as it is.
        """
        restored = []
        for entry in read_journal(self._journal):
            path = Path(entry.path)
            if _name(self._content(path)) == entry.after and self.policy.refusal(path) is None:
                self._replace(path, self.blobs.get(entry.before) if entry.before else None, None)
                restored.append(self.show(path))
        self._journal.unlink(missing_ok=True)
        return restored

    def restore(self, path: Path, content: bytes | None, mode: int | None) -> None:
        """Restore one file for undo; `content` None removes it."""
        if reason := self.policy.refusal(path):
            raise FileRefused(f"{self.show(path)} may not be written: {reason}")
        self._replace(path, content, mode, keep_mode=False)

    def restore_folder(self, path: Path, mode: int | None) -> None:
        """Restore a folder for undo; `mode` None removes it, if it is empty."""
        with self._folder(path.parent, create=mode is not None) as parent:
            if mode is None:
                os.rmdir(path.name, dir_fd=parent)
                return
            with contextlib.suppress(FileExistsError):
                os.mkdir(path.name, dir_fd=parent)
            descriptor = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)

    def restore_link(self, path: Path, target: str) -> None:
        """Restore a link for undo."""
        with self._folder(path.parent, create=True) as parent:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=parent)
            os.symlink(target, path.name, dir_fd=parent)

    def _write_journal(self, changes: Sequence[Change]) -> None:
        entries = [
            JournalEntry(str(c.path), self.blobs.put(c.before) if c.before is not None else None, _name(c.after))
            for c in changes
        ]
        self._journal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._journal.with_suffix(".tmp")
        text = json.dumps(entries)
        temporary.write_text(f"{zlib.crc32(text.encode()):08x} {text}")
        os.replace(temporary, self._journal)

    def _replace(self, path: Path, content: bytes | None, mode: int | None, *, keep_mode: bool = True) -> None:
        with self._folder(path.parent, create=content is not None) as folder:
            if content is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path.name, dir_fd=folder)
                return
            old: os.stat_result | None = None
            with contextlib.suppress(FileNotFoundError):
                old = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            temporary = f".{path.name[:100]}.{secrets.token_hex(4)}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    self._keep_owner_and_mode(file.fileno(), old if keep_mode or mode is None else None, mode, old)
                os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @staticmethod
    def _keep_owner_and_mode(
        descriptor: int, like: os.stat_result | None, mode: int | None, owner: os.stat_result | None
    ) -> None:
        if owner is not None and (owner.st_uid, owner.st_gid) != (os.getuid(), os.getgid()):
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        if like is not None:
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
        elif mode is not None:
            os.fchmod(descriptor, mode)

    def _content(self, path: Path) -> bytes | None:
        """The current content; None if there is no regular file."""
        with contextlib.suppress(OSError, FulgurError):
            return self._shown(path, beneath.read(self._root(path), path))
        return None

    def _folder(self, folder: Path, *, create: bool) -> AbstractContextManager[int]:
        """A descriptor of the folder, reached from a writable root without following any symlink."""
        return beneath.folder(self._root(folder), folder, create=create)

    def _root(self, path: Path) -> Path:
        return next((root for root in self.policy.writable if path.is_relative_to(root)), Path(path.anchor))


class JournalEntry(NamedTuple):
    """A file that a commit changes: the names of its contents (`BlobStore`), None where there is no file."""

    path: str
    before: str | None
    after: str | None


def read_journal(path: Path) -> list[JournalEntry]:
    """The changes of a commit that did not finish.

    Empty for an incomplete journal, whose commit never started, and for a corrupted one, which must not be used."""
    try:
        checksum, _, text = path.read_bytes().partition(b" ")
        if zlib.crc32(text) != int(checksum, 16):
            return []
        return [JournalEntry(*entry) for entry in json.loads(text)]
    except (OSError, ValueError, TypeError):
        return []


def _name(content: bytes | None) -> str | None:
    return None if content is None else content_name(content)


def diff_of(name: str, before: bytes | None, after: bytes | None) -> FileDiff:
    """The unified diff of a change."""
    kind: Literal["added", "modified", "deleted"] = (
        "added" if before is None else "deleted" if after is None else "modified"
    )
    try:
        old = TextFile.decode(before or b"", name)
        new = TextFile.decode(after or b"", name)
    except FulgurError:
        return FileDiff(name, kind, f"Binary file {name} {kind}\n", 0, 0, before, after)
    lines = list(
        difflib.unified_diff(
            [line + "\n" for line in old.lines],
            [line + "\n" for line in new.lines],
            "/dev/null" if before is None else f"a/{name}",
            "/dev/null" if after is None else f"b/{name}",
        )
    )
    if not lines and before is not None and after is not None and before != after:
        return FileDiff(name, kind, f"Only line endings or the encoding of {name} {kind}\n", 0, 0, before, after)
    added = sum(line.startswith("+") for line in lines[2:])
    removed = sum(line.startswith("-") for line in lines[2:])
    return FileDiff(name, kind, "".join(lines), added, removed, before, after)
