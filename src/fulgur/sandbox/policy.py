"""What a command may touch: the writable folders, the parts of them that stay read-only, and the network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Mode = Literal["read-only", "workspace-write", "danger-full-access"]

# Whoever writes these decides what runs outside the sandbox: git hooks and filters, and the agent's own settings.
PROTECTED_NAMES = (".git", ".fulgur")

# How deep nested repositories are looked for; below this a `.git` is not found and not protected.
_NESTED_DEPTH = 3
_NESTED_FOLDERS = 2000


@dataclass(frozen=True)
class Policy:
    """The rules of one session; all paths are real (no symlinks)."""

    mode: Mode
    workspace: Path
    home: Path
    """Fulgur's home: sessions, config and approvals; never writable from inside."""
    extra_roots: tuple[Path, ...] = ()
    network: bool = False

    @classmethod
    def make(
        cls, mode: Mode, workspace: Path, home: Path, extra_roots: tuple[Path, ...] = (), network: bool = False
    ) -> Policy:
        """A policy with every path resolved; roots that do not exist are left out."""
        roots = tuple(root.resolve() for root in extra_roots if root.is_dir())
        return cls(mode, workspace.resolve(), home.resolve(), roots, network)

    @property
    def writable(self) -> tuple[Path, ...]:
        """The folders that may be written (but for `protected`)."""
        return (self.workspace, *self.extra_roots) if self.mode == "workspace-write" else ()

    def protected(self) -> tuple[Path, ...]:
        """Paths inside the writable folders that stay read-only; some may not exist yet."""
        found: list[Path] = []
        for root in self.writable:
            found.extend(root / name for name in PROTECTED_NAMES)
            found.extend(_nested_repositories(root))
            if self.home != root and self.home.is_relative_to(root):
                found.append(self.home)
        return tuple(dict.fromkeys(found))

    def refusal(self, path: Path) -> str | None:
        """Why a tool of ours may not write `path` (already real but for its last part), or None when it may."""
        if self.mode == "danger-full-access":
            return None
        if self.mode == "read-only":
            return "the sandbox is read-only"
        if not any(path.is_relative_to(root) for root in self.writable):
            return "it is outside the workspace"
        if path == self.home or path.is_relative_to(self.home):
            return "it belongs to Fulgur itself"
        for root in self.writable:
            if path.is_relative_to(root) and any(part in PROTECTED_NAMES for part in path.relative_to(root).parts):
                return "`.git` and `.fulgur` are protected"
        return None

    def describe(self) -> str:
        """`workspace-write, no network` for people."""
        if self.mode == "danger-full-access":
            return self.mode
        return f"{self.mode}, {'network' if self.network else 'no network'}"


def _nested_repositories(root: Path) -> Iterator[Path]:
    """`.git` of repositories inside the root (submodules, vendored checkouts), to a bounded depth."""
    level = [root]
    seen = 0
    for _ in range(_NESTED_DEPTH):
        below: list[Path] = []
        for folder in level:
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            for entry in entries:
                if entry.name in PROTECTED_NAMES or not entry.is_dir(follow_symlinks=False):
                    continue
                seen += 1
                if seen > _NESTED_FOLDERS:
                    return
                child = Path(entry.path)
                if (child / ".git").exists():
                    yield child / ".git"
                below.append(child)
        level = below
