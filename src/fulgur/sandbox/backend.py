"""What a sandbox is to the tools: something that turns a command into one that runs inside."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fulgur.sandbox.policy import Policy


@dataclass
class Launch:
    """How to start a sandboxed command, in the same folder; the caller closes `pass_fds` after the start."""

    argv: list[str]
    pass_fds: tuple[int, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Variables the sandbox sets on top of the caller's."""


@dataclass(frozen=True)
class Probe:
    """Whether a backend works on this machine; `reason` says why not, `gaps` what it cannot keep."""

    name: str
    usable: bool
    reason: str = ""
    gaps: tuple[str, ...] = ()


class Sandbox(Protocol):
    """One way to keep a policy."""

    name: str

    def launch(self, command: Sequence[str], policy: Policy, folder: Path) -> Launch:
        """The command as it runs inside, started in `folder`."""
        ...

    def stale(self) -> bool:
        """Whether something running inside should be started anew because the workspace's top level changed."""
        ...

    def close(self) -> None:
        """Remove what the sandbox itself put into the workspace."""
        ...


def memory_file(data: bytes) -> int:
    """A descriptor to read `data` from, for a process that is about to be started."""
    descriptor = os.memfd_create("sandbox", 0)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class NameHolders:
    """Empty folders at protected names that are not taken: nothing can be mounted on what is not there."""

    def __init__(self) -> None:
        self._made: list[Path] = []

    def hold(self, path: Path) -> bool:
        """Make sure that the name is taken; False when it cannot be."""
        if not path.exists() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.mkdir()
                self._made.append(path)
        return path.exists()

    def release(self) -> None:
        """Remove those that are still empty."""
        for path in self._made:
            with contextlib.suppress(OSError):
                path.rmdir()
        self._made.clear()
