"""Runs as a separate program (`python -I -S landlock_enter.py DESCRIPTOR COMMAND…`): applies the rules and becomes the
command.

Two processes: the child applies the rules to itself and executes the command; the parent stays outside the rules,
adopts whatever the command leaves running in the background, and kills all of it when the command or the agent ends.
Imports nothing from the package, so that it starts fast and needs no path.
"""

import base64
import contextlib
import ctypes
import json
import os
import re
import signal
import struct
import sys

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 24, 22, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPSET = {"x86_64": 126, "aarch64": 91}

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_RDONLY, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 4096, 16384, 1 << 18
_MOUNT_SETATTR, _MOUNT_ATTR_RDONLY, _AT_FDCWD, _AT_RECURSIVE = 442, 1, -100, 0x8000

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result


def guard(mounts: "list[tuple[str, bool]]", hidden: "list[str]") -> None:
    """Set up mounts private to this process: everything read-only except the given folders; hidden ones covered."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) == 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    elif _libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), f"own mounts: {os.strerror(ctypes.get_errno())}")
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    for path, _ in mounts:
        _mount(path, path, _MS_BIND | _MS_REC)
    again = [point for point in _writable_mounts() if _nearest(point, mounts)]
    _set_read_only("/", True, _AT_RECURSIVE)
    for point in again:
        _set_read_only(point, False)
    for path in hidden:
        if os.path.isdir(path):
            _mount("none", path, _MS_RDONLY, "tmpfs")
        else:
            _mount("/dev/null", path, _MS_BIND)


def _writable_mounts() -> "list[str]":
    """The mount points that are writable."""
    found = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields = line.split(b" ")
            if b"ro" not in fields[5].split(b","):
                found.append(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), fields[4])))
    return found


def _nearest(point: str, mounts: "list[tuple[str, bool]]") -> bool:
    """The flag of the closest mount at or above a place; False if there is none."""
    above = [(path, writable) for path, writable in mounts if point == path or point.startswith(f"{path}/")]
    return max(above)[1] if above else False


def _set_read_only(path: str, read_only: bool, flags: int = 0) -> None:
    bit = _MOUNT_ATTR_RDONLY
    attributes = struct.pack("=QQQQ", *((bit, 0) if read_only else (0, bit)), 0, 0)
    _call(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(len(attributes)))


def _mount(source: "str | None", target: str, flags: int, kind: "str | None" = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _libc.mount(*arguments, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def restrict(spec: dict) -> None:  # type: ignore[type-arg]
    """Apply the Landlock rules and the filter to this process, and drop every privilege."""
    _drop_capabilities()
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    attributes = struct.pack("=QQQ", spec["handled"], 0, spec["scoped"])
    if not spec["scoped"]:
        attributes = attributes[:8]
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    for path, rights in spec["rules"]:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # it has gone, so nothing needs to be allowed
        _call(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, descriptor), 0)
        os.close(descriptor)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    program = base64.b64decode(spec["seccomp"])
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    if _libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def _drop_capabilities() -> None:
    """Drop all capabilities. For root, drop the bounding set too, or the next program would regain them."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    _libc.syscall(_CAPSET[os.uname().machine], header, ctypes.create_string_buffer(24))


def _descendants() -> "list[int]":
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _end_all() -> None:
    """Kill all descendants, including those started meanwhile."""
    while left := _descendants():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _leave(number: int, frame: object) -> None:
    _end_all()
    os._exit(128 + number)


def main() -> int:
    """Start the command under the rules and wait for it."""
    with os.fdopen(int(sys.argv[1]), "rb") as rules:
        spec = json.load(rules)
    command = sys.argv[2:]
    agent = os.getppid()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the command
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if os.getppid() != agent:
        return 143  # the agent died before the death signal was set
    child = os.fork()
    if child == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)
        try:
            if spec["mounts"]:
                guard(spec["mounts"], spec["hidden"])
            os.chdir(spec["folder"])
            restrict(spec)
            os.execvp(command[0], command)
        except OSError as error:
            print(f"sandbox: {error}", file=sys.stderr)
            os._exit(126)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            _end_all()
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    os._exit(main())
