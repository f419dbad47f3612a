"""The second choice: Landlock, which needs no namespaces and no installed program, only Linux 6.2 or newer.

Its rules only ever allow, for a whole folder and all below it, so that `.git` in an allowed workspace cannot be
excepted. Where the kernel lets a process have mounts of its own, protected names are mounted read-only over themselves
and the whole workspace is allowed. Where it does not, the workspace's other children are allowed one by one, and new
entries beside `.git` are refused.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fulgur.sandbox import seccomp
from fulgur.sandbox.backend import Launch, NameHolders, Probe, memory_file
from fulgur.sandbox.policy import Policy

_ENTER = Path(__file__).with_name("landlock_enter.py")

_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
_MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

_FILE_RIGHTS = _WRITE_FILE | _TRUNCATE
_FOLDER_RIGHTS = (
    _FILE_RIGHTS | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM | _REFER
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_LEAST_ABI = 3  # truncation is covered from here on


class Landlock:
    """Rules applied by a small supervisor, which also ends every process left over when the command is over."""

    name = "Landlock"

    def __init__(self, *, mounts: bool | None = None) -> None:
        self._mounts = mounts_work() if mounts is None else mounts
        self._holders = NameHolders()
        self._top_level: dict[Path, frozenset[str]] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def launch(self, command: Sequence[str], policy: Policy, folder: Path) -> Launch:
        """Everything may be read; only the policy's folders and a private temporary folder may be written."""
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fulgur-sandbox-")
        version = abi()
        handled = _FOLDER_RIGHTS | _MAKE_CHAR | _MAKE_BLOCK | (_IOCTL_DEV if version >= 5 else 0)
        rules = [(device, handled & (_FILE_RIGHTS | _IOCTL_DEV)) for device in _DEVICES]
        rules.append((self._temporary.name, _FOLDER_RIGHTS))
        protected = policy.protected()
        guarded: list[str] = []
        self._top_level = {}
        if self._mounts and not any(path.is_symlink() for path in protected):
            guarded = [str(path) for path in protected if self._holders.hold(path)]
            rules += [(str(root), _FOLDER_RIGHTS) for root in policy.writable]
        else:
            for root in policy.writable:
                rules += [(str(path), rights) for path, rights in _allow(root, protected)]
            self._top_level = {root: _names(root) for root in policy.writable}
        filter_program = seccomp.build(internet=policy.network, freeze_metadata=True)
        spec = {
            "handled": handled,
            "rules": rules,
            "guarded": guarded,
            "scoped": 3 if version >= 6 else 0,
            "seccomp": base64.b64encode(filter_program).decode(),
            "folder": str(folder),
        }
        # By descriptor: a workspace with thousands of entries at its top has more rules than an argument may be long.
        rules_fd = memory_file(json.dumps(spec).encode())
        argv = [sys.executable, "-I", "-S", str(_ENTER), str(rules_fd), *command]
        return Launch(argv, (rules_fd,), {"TMPDIR": self._temporary.name})

    def stale(self) -> bool:
        """New top-level entries are not in the rules of what already runs."""
        return any(_names(root) != names for root, names in self._top_level.items())

    def close(self) -> None:
        """Remove the private temporary folder, and the empty folders that held a name."""
        self._holders.release()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _allow(folder: Path, protected: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """The largest folders and files beneath `folder` without anything protected in them."""
    inside = [path for path in protected if path.is_relative_to(folder)]
    if not inside:
        yield folder, _FOLDER_RIGHTS
        return
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if path in inside or entry.is_symlink():
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _allow(path, inside)
        else:
            yield path, _FILE_RIGHTS


def abi() -> int:
    """The kernel's Landlock version, 0 when there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    version = int(ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1))
    return max(version, 0)


@functools.cache
def mounts_work() -> bool:
    """Whether a process may have mounts of its own here."""
    return _try(mounts=True)[0]


@functools.cache
def probe() -> Probe:
    """Start `true` inside."""
    version = abi()
    if version == 0:
        return Probe("Landlock", False, "this kernel has no Landlock")
    if version < _LEAST_ABI:
        reason = f"this kernel's Landlock (version {version}) does not cover truncation: Linux 6.2 is the least"
        return Probe("Landlock", False, reason)
    if not seccomp.supported():
        return Probe("Landlock", False, f"no system call table for {platform.machine()}")
    gaps = [
        "changes of mode, owner and attributes are refused everywhere, and so is shared memory in /dev/shm",
        "file times outside the workspace are not protected",
    ]
    if not mounts_work():
        gaps.insert(
            0,
            "new files and folders at the top of the workspace are refused to commands, since this kernel gives a "
            "process no mounts of its own (tools that edit files make them)",
        )
    if version < 6:
        gaps.append("signals to your other processes are not blocked")
    works, reason = _try(mounts=False)
    return Probe("Landlock", works, reason, gaps=tuple(gaps) if works else ())


def _try(*, mounts: bool) -> tuple[bool, str]:
    """Start `true` in a folder with every rule that is used for real."""
    if abi() < _LEAST_ABI or not seccomp.supported():
        return False, ""
    with tempfile.TemporaryDirectory() as folder:
        policy = Policy.make("workspace-write", Path(folder), Path(folder) / ".fulgur")
        sandbox = Landlock(mounts=mounts)
        launch = sandbox.launch(["true"], policy, policy.workspace)
        try:
            done = subprocess.run(
                launch.argv, pass_fds=launch.pass_fds, capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return False, str(error)
        finally:
            for descriptor in launch.pass_fds:
                os.close(descriptor)
            sandbox.close()
    lines = done.stderr.strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else "" if done.returncode == 0 else "it failed"
