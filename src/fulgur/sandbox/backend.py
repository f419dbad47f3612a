"""The sandbox interface for tools: turn a command into one that runs inside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fulgur.sandbox.policy import Policy
from fulgur.sandbox.protect import Protected, children


@dataclass
class Launch:
    """How to start a sandboxed command in the same folder; the caller closes `pass_fds` after the start."""

    argv: list[str]
    pass_fds: tuple[int, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Variables the sandbox sets on top of the caller's."""


@dataclass(frozen=True)
class Probe:
    """Whether a backend works on this machine; `reason` says why not, `gaps` what it cannot enforce."""

    name: str
    usable: bool
    reason: str = ""
    gaps: tuple[str, ...] = ()


class Sandbox(Protocol):
    """One way to enforce a policy."""

    name: str

    def launch(self, command: Sequence[str], policy: Policy, folder: Path) -> Launch:
        """Return the command wrapped to run inside, started in `folder`."""
        ...

    def stale(self) -> bool:
        """Whether a process inside should be restarted because the workspace's top level changed."""
        ...

    def close(self) -> None:
        """Remove what the sandbox itself put into the workspace."""
        ...


def memory_file(data: bytes) -> int:
    """A descriptor to read `data` from, for a process about to be started."""
    descriptor = os.memfd_create("sandbox", 0)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


Identity = tuple[int, int] | None


def identity(path: Path) -> Identity:
    """Identify the file that a name stands for; None if there is none."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def mounts(policy: Policy, protected: Protected) -> Iterator[tuple[Path, bool]]:
    """The paths to mount over themselves, and whether each is writable; every folder before what it contains."""
    found: dict[Path, bool] = dict.fromkeys([*policy.writable, *protected.pinned], True)
    for folder in protected.closed:
        found.update(dict.fromkeys(children(folder, protected.paths), True))
    found.update(dict.fromkeys(protected.closed, False))
    found.update({path: False for path in protected.paths if path.exists() and not path.is_symlink()})
    yield from sorted(found.items())
