"""The files of the project, for `@file`: listed in the background, searched at every key."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from fulgur.workspace.beneath import shown
from fulgur.workspace.ignore import walk

_LIMIT = 20_000
_STALE_SECONDS = 10.0


class FileIndex:
    """Paths relative to the workspace."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.paths: list[str] = []
        self._listed = 0.0
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """List again in the background if the list is old."""
        if (self._thread and self._thread.is_alive()) or time.monotonic() - self._listed < _STALE_SECONDS:
            return
        self._listed = time.monotonic()
        self._thread = threading.Thread(target=self._list, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Give a listing that has just begun a moment to finish, so that the first `@` finds something."""
        if self._thread and not self.paths:
            self._thread.join(seconds)

    def search(self, query: str, limit: int = 50) -> list[str]:
        """Best matches first: by the start of the file's own name, then by a part of the path, then by the letters in
        order."""
        query = query.lower()
        if not query:
            return sorted(self.paths, key=lambda path: (path.count("/"), path))[:limit]
        named: list[str] = []
        inside: list[str] = []
        spread: list[str] = []
        for path in self.paths:
            low = path.lower()
            if query in low:
                (named if low.rsplit("/", 1)[-1].startswith(query) else inside).append(path)
            elif len(spread) < limit and _in_order(query, low):
                spread.append(path)
        return [*sorted(named, key=len), *sorted(inside, key=len), *spread][:limit]

    def _list(self) -> None:
        """List without git: a repository's configuration may name programs that git would run."""
        found = walk(self.workspace, limit=_LIMIT)
        self.paths = [shown(os.path.relpath(entry.path, self.workspace)) for entry in found]


def _in_order(letters: str, text: str) -> bool:
    """Whether the letters occur in this order."""
    rest = iter(text)
    return all(letter in rest for letter in letters)
