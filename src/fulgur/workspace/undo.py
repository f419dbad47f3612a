"""Undo: the files as they were before the last turn that changed any, byte for byte, also what shell commands did."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace.beneath import shown
from fulgur.workspace.files import Files
from fulgur.workspace.snapshots import Difference, Manifest, SnapshotEntry, Snapshots, differences


@dataclass
class Restored:
    """What an undo did: paths put back, paths whose newer content was saved first, and what could not be put back."""

    paths: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def restore(files: Files, snapshots: Snapshots, before: Manifest, after: Manifest | None) -> Restored:
    """Put back what differs between the snapshots `before` and `after` a turn (None: it never ended; then now counts).

    A file that changed again since the turn is put back too, but its newer content is in the blob store first and it is
    named in `kept`: nothing is lost silently.
    """
    now = snapshots.take()
    result = Restored()
    changed = differences(before, after if after is not None else now)
    # Deepest first for what goes, so that folders are empty when they are removed; then parents first for what comes.
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
    if after is not None and not _same(current, after.get(path)):
        # `now` was just taken, so the newer content is in the blob store under its hash.
        result.kept.append(f"{shown(path)} ({current.blob[:12]})" if current and current.blob else shown(path))
    try:
        _put(files, files.policy.workspace / path, wanted, current)
        result.paths.append(shown(path))
    except FulgurError as error:
        result.failed.append(f"{shown(path)}: {error.message}")
    except OSError as error:
        result.failed.append(f"{shown(path)}: {error.strerror}")


def _same(one: SnapshotEntry | None, other: SnapshotEntry | None) -> bool:
    return other is None if one is None else one.same(other)


def _put(files: Files, path: Path, wanted: SnapshotEntry | None, current: SnapshotEntry | None) -> None:
    if reason := files.policy.refusal(path):
        raise FulgurError(reason)
    if wanted is not None and wanted.kind == "large":
        raise FulgurError("it was too large to be kept")
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
