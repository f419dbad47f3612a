"""A working copy of the workspace, whose changes can be merged with later changes of the original."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace import beneath
from fulgur.workspace.beneath import shown
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Change, FileDiff, Files, diff_of
from fulgur.workspace.ignore import walk
from fulgur.workspace.merge import merge
from fulgur.workspace.snapshots import (
    LARGEST_FILE,
    LARGEST_TOTAL,
    MOST_FILES,
    Difference,
    SnapshotEntry,
    Snapshots,
    differences,
)

_PREFIX = "fulgur-copy-"
_MOST_BYTES = LARGEST_TOTAL  # what a snapshot covers
_HINT = "List files that are not source in .gitignore, or work in a subfolder."
# Environments are shared, not copied: the sandbox keeps them from being written through the link.
_LINKED = (".venv", "venv", "node_modules")


@dataclass
class Merged:
    """The changes merged into the workspace, and the files in conflict."""

    diffs: list[FileDiff] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


class WorkspaceCopy:
    """A folder with all files that are not ignored, committed or not. `close` removes it.

    Files that are too large to merge are linked if the sandbox prevents writes through the link (`links`), so that a
    repository with gigabytes of data costs no more than its source.
    """

    def __init__(self, workspace: Path, blobs: BlobStore, place: Path | None = None, *, links: bool = True) -> None:
        self._blobs = blobs
        _sweep()
        self._place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place)).resolve()
        self.folder = self._place / workspace.name
        try:
            self._fill(workspace, links)
            self._snapshots = Snapshots(self.folder, blobs)
            self._base = self._snapshots.take()
        except BaseException:
            self.close()
            raise

    def _fill(self, workspace: Path, links: bool) -> None:
        self.folder.mkdir()
        total = 0
        for number, entry in enumerate(walk(workspace, limit=MOST_FILES + 1)):
            if number == MOST_FILES:  # changes of files beyond the limit would be lost
                raise FulgurError(f"{workspace} has too many files to copy (over {MOST_FILES:,})", hint=_HINT)
            with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                size = entry.stat(follow_symlinks=False).st_size
                target = self.folder / Path(entry.path).relative_to(workspace)
                if links and size > LARGEST_FILE:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.symlink_to(entry.path)
                    continue
                total += size
                beneath.copy(workspace, Path(entry.path), self.folder, target)
            if total > _MOST_BYTES:
                raise FulgurError(f"{workspace} is too large to copy (over {_MOST_BYTES >> 20} MB)", hint=_HINT)
        for name in _LINKED:
            if (workspace / name).is_dir():
                (self.folder / name).symlink_to(workspace / name)

    def diffs(self) -> list[FileDiff]:
        """The changes made in the copy."""
        return [
            diff_of(shown(change.path), self._content(change.before), self._content(change.after))
            for change in self._changed()
        ]

    def merged(self, files: Files, more: Sequence[Change] = ()) -> Merged:
        """Apply the copy's changes and `more` to the workspace of `files` in one step; none of them on a conflict."""
        changes, conflicts = self.changes(files)
        conflicts = [path for path in conflicts if files.locate(path) not in {change.path for change in more}]
        if conflicts:
            return Merged(conflicts=conflicts)
        ours = {change.path for change in more}
        return Merged(diffs=files.commit([*(change for change in changes if change.path not in ours), *more]))

    def changes(self, files: Files) -> tuple[list[Change], list[str]]:
        """The changes to make in the workspace of `files`, and the files in conflict."""
        workspace = files.policy.workspace
        changes: list[Change] = []
        conflicts: list[str] = []
        for changed in self._changed():
            path = workspace / changed.path
            before, after = self._content(changed.before), self._content(changed.after)
            now = beneath.read_if_there(workspace, path)
            if now == after:
                continue
            mode = changed.after.mode if changed.after is not None else None
            if now == before:
                changes.append(Change(path, now, after, mode))
            elif (both := _together(before, now, after)) is not None:
                changes.append(Change(path, now, both, mode))
            else:
                conflicts.append(shown(changed.path))
        return changes, conflicts

    def left_out(self) -> list[str]:
        """Changed files that cannot be merged because of their size."""
        found = differences(self._base, self._snapshots.take())
        return [shown(change.path) for change in found if "large" in (kind(change.before), kind(change.after))]

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self._place, ignore_errors=True)

    def _changed(self) -> list[Difference]:
        """The files that differ; folders follow from them, and links are left alone."""
        found = differences(self._base, self._snapshots.take())
        return [change for change in found if {kind(change.before), kind(change.after)} <= {"file", ""}]

    def _content(self, entry: SnapshotEntry | None) -> bytes | None:
        return None if entry is None else self._blobs.get(entry.blob)


def _sweep() -> None:
    """Remove copies left behind by killed processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        number = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if number.isdigit() and folder.stat(follow_symlinks=False).st_uid == os.getuid() and not _runs(int(number)):
                shutil.rmtree(folder)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _together(before: bytes | None, now: bytes | None, after: bytes | None) -> bytes | None:
    """A file with both changes; None if they cannot be merged, for example because one side removed it."""
    if before is None or now is None or after is None:
        return None
    return merge(before, now, after)


def kind(entry: SnapshotEntry | None) -> str:
    """The kind of an entry; empty when there is none."""
    return "" if entry is None else entry.kind
