"""Undo: restore files byte for byte as they were before the last turn that changed any, even by shell commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace.beneath import shown
from fulgur.workspace.files import Files
from fulgur.workspace.merge import merge
from fulgur.workspace.snapshots import Difference, Manifest, SnapshotEntry, Snapshots, differences


@dataclass
class Restored:
    """The result of an undo: restored paths, those of them that keep changes made since the turn, and failures."""

    paths: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def restore(files: Files, snapshots: Snapshots, before: Manifest, after: Manifest | None) -> Restored:
    """Restore what differs between the snapshots `before` and `after` a turn (None: it never ended; now counts).

    If a file was changed again since the turn, for example by hand, only the turn's change is reverted, and the file is
    named in `kept`. If both touch the same lines, the file is left as it is.
    """
    now = snapshots.take()
    result = Restored()
    changed = differences(before, after if after is not None else now)
    # Remove deepest first, so that folders are empty when they are removed; then create parents first.
    for difference in sorted(changed, key=lambda d: d.path, reverse=True):
        if difference.before is None:
            _one(files, difference, now, after, result)
    for difference in changed:
        if difference.before is not None:
            _one(files, difference, now, after, result)
    return result


def _one(files: Files, difference: Difference, now: Manifest, after: Manifest | None, result: Restored) -> None:
    path, wanted, current = difference.path, difference.before, now.get(difference.path)
    if (wanted is None and current is None) or (wanted is not None and wanted.same(current)):
        return
    newer = after is not None and not _same(current, after.get(path))
    try:
        if after is not None and newer:
            _put_merged(files, path, wanted, after.get(path), current)
            result.kept.append(shown(path))
        else:
            _put(files, files.policy.workspace / path, wanted, current)
        result.paths.append(shown(path))
    except FulgurError as error:
        result.failed.append(f"{shown(path)}: {error.message}")
    except OSError as error:
        result.failed.append(f"{shown(path)}: {error.strerror}")


def _put_merged(
    files: Files, path: str, wanted: SnapshotEntry | None, turn: SnapshotEntry | None, current: SnapshotEntry | None
) -> None:
    """Revert the turn's change in a file that was changed since; FulgurError, and no change, if they overlap."""
    entries = (turn, wanted, current)
    if all(entry is not None and entry.kind == "file" for entry in entries):
        base, before, now = (files.blobs.get(entry.blob) for entry in entries if entry is not None)
        merged = merge(base, before, now)
        if merged is not None:
            assert current is not None
            files.restore(files.policy.workspace / path, merged, current.mode)
            return
    raise FulgurError("the same lines were changed after that turn, so it was left unchanged")


def _same(one: SnapshotEntry | None, other: SnapshotEntry | None) -> bool:
    return other is None if one is None else one.same(other)


def _put(files: Files, path: Path, wanted: SnapshotEntry | None, current: SnapshotEntry | None) -> None:
    if reason := files.policy.refusal(path):
        raise FulgurError(reason)
    if wanted is not None and wanted.kind == "large":
        raise FulgurError("it was too large to be kept, or could not be read")
    if current is not None and current.kind == "folder" and (wanted is None or wanted.kind != "folder"):
        files.restore_folder(path, None)
    elif current is not None and (wanted is None or wanted.kind != current.kind):
        files.restore(path, None, None)
    if wanted is None:
        return
    if wanted.kind == "folder":
        files.restore_folder(path, wanted.mode)
    elif wanted.kind == "link":
        files.restore_link(path, wanted.blob)
    else:
        files.restore(path, files.blobs.get(wanted.blob), wanted.mode)
