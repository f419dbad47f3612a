"""Select the relevant files of a workspace: by `.gitignore` rules, and without folders such as caches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace import beneath
from fulgur.workspace.gitignore import MOST_BYTES, GitIgnore

# Always skipped, even without a .gitignore.
SKIPPED = frozenset(
    {".git", ".fulgur", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache"}
    | {".ruff_cache", ".pytest_cache", ".hypothesis", ".cache", ".next", ".gradle", ".idea", "site-packages"}
)


class IgnoreRules:
    """The `.gitignore` files from the workspace's root down to a folder, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._specs: dict[Path, GitIgnore | None] = {}

    def ignored(self, path: Path, *, folder: bool) -> bool:
        """Whether a rule of any parent folder excludes this path; the deepest file with a matching rule wins."""
        above = path.parent
        while True:
            spec = self._spec(above)
            if spec is not None:
                name = path.relative_to(above).as_posix()
                verdict = spec.verdict(name, folder=folder)
                if verdict is not None:
                    return verdict
            if above == self.root or above == above.parent:
                return False
            above = above.parent

    def _spec(self, folder: Path) -> GitIgnore | None:
        if folder not in self._specs:
            try:
                text = os.fsdecode(beneath.read(self.root, folder / ".gitignore", MOST_BYTES))
                self._specs[folder] = GitIgnore(text.split("\n"))
            except (OSError, ValueError, FulgurError):
                self._specs[folder] = None
        return self._specs[folder]


def walk(root: Path, *, start: Path | None = None, limit: int = 100_000) -> Iterator[os.DirEntry[str]]:
    """At most `limit` files beneath `start` that are not ignored, in order of name; symlinks are not followed."""
    rules = IgnoreRules(root)
    waiting = [start or root]
    count = 0
    while waiting:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        folders = []
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in SKIPPED and not rules.ignored(path, folder=True):
                    folders.append(path)
            elif entry.is_file(follow_symlinks=False) and not rules.ignored(path, folder=False):
                count += 1
                if count > limit:
                    return
                yield entry
        waiting.extend(reversed(folders))
