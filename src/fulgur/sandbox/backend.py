"""What a sandbox is to the tools: something that turns a command into one that runs inside."""

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


Identity = tuple[int, int] | None


def identity(path: Path) -> Identity:
    """Which file a name stands for; None for nothing."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def mounts(policy: Policy, protected: Protected) -> Iterator[tuple[Path, bool]]:
    """What is mounted over itself, and whether it can be written, every folder before what lies in it."""
    found: dict[Path, bool] = dict.fromkeys([*policy.writable, *protected.pinned], True)
    for folder in protected.closed:
        found.update(dict.fromkeys(children(folder, protected.paths), True))
    found.update(dict.fromkeys(protected.closed, False))
    found.update({path: False for path in protected.paths if path.exists() and not path.is_symlink()})
    yield from sorted(found.items())
