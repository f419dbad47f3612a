"""The fallback sandbox, Landlock: it needs no namespaces and no installed program, only Linux 6.2 or newer.

Its rules can only allow, for a folder and everything below it, so they cannot exclude `.git` from an allowed workspace.
If the kernel lets a process have private mounts, everything except the writable folders is mounted read-only, protected
names included, and secrets are covered. Otherwise everything next to a protected name or a secret is allowed entry by
entry, so new entries beside `.git` are refused.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fulgur.sandbox import seccomp, start
from fulgur.sandbox.backend import Launch, Probe, identity, memory_file, mounts
from fulgur.sandbox.policy import Policy
from fulgur.sandbox.protect import NameHolders

_ENTER = Path(__file__).with_name("landlock_enter.py")

_READ_FILE = 1 << 2
_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
_MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

_FILE_RIGHTS = _WRITE_FILE | _TRUNCATE
_FOLDER_RIGHTS = (
    _FILE_RIGHTS | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM | _REFER
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_LEAST_ABI = 3  # the first version that covers truncation


class Landlock:
    """Rules applied by a small supervisor, which also kills every process left over when the command ends."""

    name = "Landlock"

    def __init__(self, *, mounts: bool | None = None) -> None:
        self._mounts = mounts_work() if mounts is None else mounts
        self._holders = NameHolders()
        self._relied_on: dict[Path, object] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def launch(self, command: Sequence[str], policy: Policy, folder: Path) -> Launch:
        """Allow reading everything except secrets, and writing only the policy's folders and a private temporary
        one."""
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fulgur-sandbox-", ignore_cleanup_errors=True)
        version = abi()
        handled = _FOLDER_RIGHTS | _MAKE_CHAR | _MAKE_BLOCK | (_IOCTL_DEV if version >= 5 else 0)
        rules = [(device, handled & (_FILE_RIGHTS | _IOCTL_DEV)) for device in _DEVICES]
        rules.append((self._temporary.name, _FOLDER_RIGHTS))
        protected = policy.protected()
        mounted: list[tuple[str, bool]] = []
        if self._mounts:
            held = [path for path in protected.paths if self._holders.hold(path)]
            self._relied_on = {path: identity(path) for path in held}
            mounted = [(str(path), writable) for path, writable in mounts(policy, protected)]
            rules += [(str(root), _FOLDER_RIGHTS) for root in policy.writable]
        else:
            self._relied_on = {}
            for root in policy.writable:
                rules += _split(root, protected.paths, _FOLDER_RIGHTS, _FILE_RIGHTS, self._relied_on)
            if policy.hidden:
                handled |= _READ_FILE
                rules += _split(Path("/"), policy.hidden, _READ_FILE, _READ_FILE, {})
        filter_program = seccomp.build(internet=policy.network, namespaces=False, freeze_metadata=not self._mounts)
        spec = {
            "handled": handled,
            "rules": rules,
            "mounts": [*mounted, (self._temporary.name, True)] if self._mounts else [],
            "hidden": [str(path) for path in policy.hidden] if self._mounts else [],
            "scoped": 3 if version >= 6 else 0,
            "seccomp": base64.b64encode(filter_program).decode(),
            "folder": str(folder),
        }
        # By descriptor: a workspace with thousands of top-level entries has more rules than fit into an argument.
        rules_fd = memory_file(json.dumps(spec).encode())
        return Launch(start.script(_ENTER, str(rules_fd), *command), (rules_fd,), {"TMPDIR": self._temporary.name})

    def stale(self) -> bool:
        """Rules cover only what existed: not new entries beside a protected name, nor a replaced one."""
        return any(_current(path, known) != known for path, known in self._relied_on.items())

    def close(self) -> None:
        """Remove the private temporary folder and the empty folders that held names."""
        self._holders.release()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


def _split(
    folder: Path, apart: Sequence[Path], rights: int, file_rights: int, opened: dict[Path, object]
) -> list[tuple[str, int]]:
    """Rules for the largest folders and files below `folder` that contain nothing in `apart`.

    `opened` gets the folders without a rule of their own, with their entries.
    """
    inside = [path for path in apart if path.is_relative_to(folder)]
    if not inside:
        return [(str(folder), rights)]
    found: list[tuple[str, int]] = []
    opened[folder] = _names(folder)
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return found
    for entry in entries:
        path = Path(entry.path)
        if path in inside or entry.is_symlink():
            continue
        if entry.is_dir(follow_symlinks=False):
            found += _split(path, inside, rights, file_rights, opened)
        else:
            found.append((str(path), file_rights))
    return found


def _names(folder: Path) -> frozenset[tuple[str, int]]:
    """The entries of a folder; a replaced file counts as a different one."""
    try:
        return frozenset((entry.name, entry.inode()) for entry in os.scandir(folder))
    except OSError:
        return frozenset()


def _current(path: Path, known: object) -> object:
    return _names(path) if isinstance(known, frozenset) else identity(path)


def abi() -> int:
    """The kernel's Landlock version; 0 if it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    version = int(ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1))
    return max(version, 0)


@functools.cache
def mounts_work() -> bool:
    """Whether a process can have private mounts here."""
    return _try(mounts=True)[0]


@functools.cache
def probe() -> Probe:
    """Start `true` inside."""
    version = abi()
    if version == 0:
        return Probe("Landlock", False, "this kernel has no Landlock")
    if version < _LEAST_ABI:
        reason = f"this kernel's Landlock (version {version}) does not cover truncation: Linux 6.2 or later is needed"
        return Probe("Landlock", False, reason)
    if not seccomp.supported():
        return Probe("Landlock", False, f"no system call table for {platform.machine()}")
    gaps = ["System V and POSIX message queues, semaphores and shared memory are refused"]
    if not mounts_work():
        gaps += [
            "commands cannot create files and folders beside a `.git`, since this kernel gives a process no mounts "
            "of its own (tools that edit files can)",
            "changes of mode, owner and attributes are refused everywhere",
            "file times outside the workspace and the names of hidden files are not protected",
        ]
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
            done = start.run(launch.argv, policy.workspace, seconds=10, pass_fds=launch.pass_fds)
        except (OSError, start.TimeoutExpired) as error:
            return False, str(error)
        finally:
            for descriptor in launch.pass_fds:
                os.close(descriptor)
            sandbox.close()
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else "" if done.returncode == 0 else "it failed"
