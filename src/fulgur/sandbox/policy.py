"""What a command may touch: the writable folders, their parts that stay read-only, and the network."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fulgur.sandbox import protect
from fulgur.sandbox.secrets import secret_files

Mode = Literal["read-only", "workspace-write", "danger-full-access"]


@dataclass(frozen=True)
class Policy:
    """The rules of one session; all paths are real (no symlinks)."""

    mode: Mode
    workspace: Path
    home: Path
    """Fulgur's home: sessions, config and approvals; never writable from inside."""
    extra_roots: tuple[Path, ...] = ()
    network: bool = False
    hidden: tuple[Path, ...] = ()
    """Neither commands nor our own tools may read these."""

    @classmethod
    def make(
        cls,
        mode: Mode,
        workspace: Path,
        home: Path,
        extra_roots: tuple[Path, ...] = (),
        network: bool = False,
        *,
        hide_secrets: bool = True,
        hide: Sequence[Path] = (),
    ) -> Policy:
        """Create a policy with every path resolved; roots that do not exist are left out.

        Hidden are Fulgur's home, the usual places of keys unless `hide_secrets` is False, and the paths in `hide`.
        """
        workspace, home = workspace.resolve(), home.resolve()
        roots = tuple(root.resolve() for root in extra_roots if root.is_dir())
        secrets = list(secret_files(_user_home())) if hide_secrets else []
        wanted = [home, *secrets, *(path.resolve() for path in hide if path.exists())]
        needed = [workspace, *roots, *(Path(place).resolve() for place in (sys.prefix, sys.base_prefix, _PACKAGE))]
        hidden = [] if mode == "danger-full-access" else _outermost(_without(wanted, needed))
        return cls(mode, workspace, home, roots, network, tuple(hidden))

    @property
    def writable(self) -> tuple[Path, ...]:
        """The folders that may be written, except for `protected`."""
        return (self.workspace, *self.extra_roots) if self.mode == "workspace-write" else ()

    def protected(self) -> protect.Protected:
        """What stays read-only inside the writable folders."""
        return protect.find(self.writable, [self.home])

    def secret(self, path: Path) -> str | None:
        """Why our own tools may not read `path` (already real), or None if they may."""
        if any(path == place or path.is_relative_to(place) for place in self.hidden):
            return "it is hidden from the model (/status lists what is)"
        return None

    def refusal(self, path: Path) -> str | None:
        """Why our own tools may not write `path` (already real except for its last part), or None if they may."""
        if self.mode == "danger-full-access":
            return None
        if self.mode == "read-only":
            return "the sandbox is read-only"
        if not any(path.is_relative_to(root) for root in self.writable):
            return "it is outside the workspace"
        if path == self.home or path.is_relative_to(self.home):
            return "it belongs to Fulgur itself"
        for root in self.writable:
            if path.is_relative_to(root) and any(part in protect.NAMES for part in path.relative_to(root).parts):
                return "`.git` and `.fulgur` are protected"
        return None

    def describe(self) -> str:
        """Format as `workspace-write, no network` for people."""
        if self.mode == "danger-full-access":
            return self.mode
        return f"{self.mode}, {'network' if self.network else 'no network'}"


_PACKAGE = Path(__file__).parents[1]


def _user_home() -> Path:
    return Path(os.path.expanduser("~")).resolve()


def _without(wanted: Sequence[Path], needed: Sequence[Path]) -> Iterator[Path]:
    """Yield the wanted places; for one that contains something needed, only the entries that do not."""
    for path in wanted:
        if any(place == path for place in needed):
            continue
        if any(place.is_relative_to(path) for place in needed):
            yield from _without(_entries(path), needed)
        elif path.exists():
            yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if not entry.is_symlink()]
    except OSError:
        return []


def _outermost(paths: Iterator[Path]) -> list[Path]:
    found = sorted(set(paths))
    return [path for path in found if not any(above in found for above in path.parents)]
