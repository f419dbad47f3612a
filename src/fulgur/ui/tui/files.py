"""The files of the project, for `@file`: listed once in the background, searched at every key."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from pathlib import Path

_LIMIT = 20_000
_SKIPPED = frozenset(
    {".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache", "target"}
)
_STALE_SECONDS = 10.0


class FileIndex:
    """Paths relative to the workspace."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.paths: list[str] = []
        self._listed = 0.0
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """List again in the background when the list is old."""
        if (self._thread and self._thread.is_alive()) or time.monotonic() - self._listed < _STALE_SECONDS:
            return
        self._listed = time.monotonic()
        self._thread = threading.Thread(target=self._list, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Give a listing that just began a moment to end, so that the first `@` is not answered with nothing."""
        if self._thread and not self.paths:
            self._thread.join(seconds)

    def search(self, query: str, limit: int = 50) -> list[str]:
        """Best matches first: the file's own name, then a part of the path, then the letters in this order."""
        query = query.lower()
        if not query:
            return sorted(self.paths, key=lambda path: (path.count("/"), path))[:limit]
        named: list[str] = []
        inside: list[str] = []
        spread: list[str] = []
        letters = re.compile(".*?".join(map(re.escape, query)))
        for path in self.paths:
            low = path.lower()
            if query in low:
                (named if low.rsplit("/", 1)[-1].startswith(query) else inside).append(path)
            elif len(spread) < limit and letters.search(low):
                spread.append(path)
        return [*sorted(named, key=len), *sorted(inside, key=len), *spread][:limit]

    def _list(self) -> None:
        self.paths = _from_git(self.workspace) or _from_walk(self.workspace)


def _from_git(folder: Path) -> list[str]:
    command = ["git", "-C", str(folder), "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path][:_LIMIT]


def _from_walk(folder: Path) -> list[str]:
    found: list[str] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        base = os.path.relpath(root, folder)
        found += [name if base == "." else f"{base}/{name}" for name in sorted(names)]
        if len(found) >= _LIMIT:
            break
    return found[:_LIMIT]
