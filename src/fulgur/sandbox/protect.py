"""Which parts of the writable folders stay read-only: whoever can write them decides what runs outside the sandbox.

`.git` contains hooks and names of programs, `.fulgur` the agent's own settings. They are found at any depth, also as a
file that points elsewhere (worktrees, submodules) or as a link. A folder above one of them must not be moved away and
rebuilt, so it is pinned. A link cannot be mounted over, so the folder that contains it is closed: its other entries can
be written, but no entries can be added.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NAMES = (".git", ".fulgur")
_MOST_FOLDERS = 20_000  # searched, those near the top first
_HOLDER_MODE = 0o1700  # an empty folder with this mode only holds a name


@dataclass
class Protected:
    """Paths inside the writable folders; every folder comes before what it contains."""

    paths: list[Path] = field(default_factory=list)
    """Stay as they are. Those at the top of a writable folder may not exist yet."""
    pinned: list[Path] = field(default_factory=list)
    """Can be written in, but not moved or removed."""
    closed: list[Path] = field(default_factory=list)
    """Take no new entries and lose none, since a protected name in them is a link."""


def find(roots: Sequence[Path], more: Sequence[Path] = ()) -> Protected:
    """Find what is protected below these folders, including `more` if it lies below them."""
    paths: dict[Path, None] = {}
    closed: dict[Path, None] = {}
    for root in roots:
        paths.update(dict.fromkeys(root / name for name in NAMES))
        for path in _named(root):
            paths[path] = None
            if path.is_symlink():
                closed[path.parent] = None
            target = _points_to(path)
            if target is not None:
                paths[target] = None
    paths.update(dict.fromkeys(more))
    inside = sorted(path for path in paths if any(path != root and path.is_relative_to(root) for root in roots))
    whole = [path for path in inside if not any(above in paths for above in path.parents)]
    pinned = {
        above
        for path in [*whole, *closed]
        for root in roots
        if path.is_relative_to(root)
        for above in path.parents
        if above != root and above.is_relative_to(root)
    }
    pinned |= {folder for folder in closed if folder not in roots}
    return Protected(whole, sorted(pinned), sorted(closed))


def _named(root: Path) -> Iterator[Path]:
    """Yield every protected name below the root."""
    level = [root]
    seen = 0
    while level:
        below: list[Path] = []
        for folder in level:
            seen += 1
            if seen > _MOST_FOLDERS:
                return
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name in NAMES:
                        yield Path(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        below.append(Path(entry.path))
        level = below


def _points_to(path: Path) -> Path | None:
    """The target of a link, or of a `.git` file with `gitdir: …`."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if path.is_symlink():
            return path.resolve(strict=True)
        if path.name == ".git" and path.is_file():
            with path.open("rb") as file:
                found = re.match(rb"gitdir:\s*(.+?)\s*$", file.read(4096), re.DOTALL)
            if found is not None:
                return (path.parent / os.fsdecode(found[1])).resolve(strict=True)
    return None


def children(folder: Path, protected: Sequence[Path]) -> Iterator[Path]:
    """The writable entries of a closed folder: neither links nor protected."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_symlink() and Path(entry.path) not in protected:
                yield Path(entry.path)


class NameHolders:
    """Empty folders that take unused protected names, since nothing can be mounted on a path that does not exist.

    Sessions share them. Each holds a lock on those it relies on, and only the last session to leave removes them.
    """

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def hold(self, path: Path) -> bool:
        """Make sure that the name is taken; False if it cannot be."""
        for _ in range(20):  # another session may be removing it right now
            with contextlib.suppress(OSError):
                if path in self._held and os.path.samestat(os.fstat(self._held[path]), path.lstat()):
                    break
            with contextlib.suppress(OSError):
                path.mkdir(mode=0o700)
                path.chmod(_HOLDER_MODE)
            if not os.path.lexists(path) or not _is_holder(path) or self._lock(path):
                break
            time.sleep(0.005)
        return os.path.lexists(path)

    def _lock(self, path: Path) -> bool:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                if path in self._held:
                    os.close(self._held[path])
                self._held[path] = descriptor
                return True
        except OSError:
            pass
        os.close(descriptor)
        return False

    def release(self) -> None:
        """Remove those that are still empty and that no other session relies on."""
        for path, descriptor in self._held.items():
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_holder(path):
                    path.rmdir()
            os.close(descriptor)
        self._held.clear()


def _is_holder(path: Path) -> bool:
    try:
        info = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) == _HOLDER_MODE
