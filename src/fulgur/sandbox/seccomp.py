"""A seccomp filter as classic BPF: what no sandboxed command may call, whatever the file rules say.

Sockets: file rules do not cover them, and a Unix socket reaches services outside (Docker, the session bus, agents), so
that family is always refused; `socketpair` stays. `io_uring` could open sockets behind the filter's back.
Namespaces, mounts, tracing and kernel interfaces have no use in a build or a test and are common ways out.
With `freeze_metadata` (Landlock has no rule for them) changes of mode, owner and attributes are refused everywhere.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16

# name: (x86_64, aarch64); -1 where the architecture has no such call.
_CALLS: dict[str, tuple[int, int]] = {
    "socket": (41, 198), "ioctl": (16, 29), "clone": (56, 220), "clone3": (435, 435),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, -1),
    "ioperm": (173, -1), "fanotify_init": (300, 262),
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}  # fmt: skip
_METADATA = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr",
    "fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "setxattrat", "removexattrat", "file_setattr",
)  # fmt: skip
_FILTERED = ("socket", "ioctl", "clone", "clone3")

_CLONE_NEWUSER = 0x10000000
_INPUT_IOCTLS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into a terminal
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def supported() -> bool:
    """Whether this machine's call numbers are known."""
    return platform.machine() in _ARCHITECTURES


def build(*, internet: bool, freeze_metadata: bool) -> bytes:
    """The filter program. `internet`: IPv4 and IPv6 sockets are allowed (or lead nowhere, in a namespace)."""
    column, architecture = _ARCHITECTURES[platform.machine()]
    program: list[tuple[int, int, int, int]] = []

    def refuse(code: int = errno.EPERM) -> None:
        program.append((_RETURN, 0, 0, _ERRNO | code))

    program.append((_LOAD, 0, 0, _ARCH))
    program.append((_EQUAL, 1, 0, architecture))
    refuse()
    program.append((_LOAD, 0, 0, _NR))
    if architecture == 0xC000003E:
        # The x32 calls of the same kernel have other numbers and would slip through.
        program.append((_AT_LEAST, 0, 1, 0x40000000))
        refuse()
    for name, numbers in _CALLS.items():
        number = numbers[column]
        if number < 0 or name in _FILTERED or (name in _METADATA and not freeze_metadata):
            continue
        program.append((_EQUAL, 0, 1, number))
        refuse()
    # glibc falls back to clone, whose flags can be seen.
    program.append((_EQUAL, 0, 1, _CALLS["clone3"][column]))
    refuse(errno.ENOSYS)
    families = [socket.AF_INET, socket.AF_INET6] if internet else []
    checks = [(_EQUAL, int(family)) for family in families]
    program += _by_argument(_CALLS["socket"][column], 0, checks, matched=_ALLOW, otherwise=_ERRNO | errno.EACCES)
    program += _by_argument(
        _CALLS["clone"][column], 0, [(_BITS, _CLONE_NEWUSER)], matched=_ERRNO | errno.EPERM, otherwise=_ALLOW
    )
    program += _by_argument(
        _CALLS["ioctl"][column],
        1,
        [(_EQUAL, request) for request in _INPUT_IOCTLS],
        matched=_ERRNO | errno.EPERM,
        otherwise=_ALLOW,
    )
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _by_argument(
    number: int, argument: int, checks: list[tuple[int, int]], *, matched: int, otherwise: int
) -> list[tuple[int, int, int, int]]:
    """If the call is `number`, decide by the low half of one argument; else go on with the number still loaded."""
    body: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _ARGS + 8 * argument)]
    for position, (test, value) in enumerate(checks):
        # Jump over the remaining checks and the `otherwise` return.
        body.append((test, len(checks) - position, 0, value))
    body.append((_RETURN, 0, 0, otherwise))
    body.append((_RETURN, 0, 0, matched))
    return [(_EQUAL, 0, len(body), number), *body]
