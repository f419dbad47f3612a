"""A seccomp filter as classic BPF: what no sandboxed command may call, whatever the file rules say.

Sockets: file rules do not cover them, and a Unix socket reaches services outside (Docker, the session bus, agents), so
that family is always refused. Of `socketpair` only the connected kinds stay, because a datagram socket can send to any
name. `io_uring` could open sockets unseen by the filter.
Mounts, tracing and kernel interfaces have no use in a build or a test and are common ways out.
Without namespaces (Landlock), a command shares process ids and System V objects with everybody: changing limits,
priorities and scheduling of other processes is refused, and so are those objects. With `freeze_metadata`, changes of
mode, owner and attributes are refused everywhere, since Landlock has no rule for them.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct

Instruction = tuple[int, int, int, int]
Check = tuple[int, int]

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_GO_ON = -1  # the following instructions decide

_LOAD, _AND, _JUMP, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16

# name: (x86_64, aarch64); -1 if the architecture has no such call.
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
    "socketpair": (53, 199), "prlimit64": (302, 261), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "open_tree_attr": (467, 467), "vhangup": (153, 58),
    "quotactl_fd": (443, 443), "modify_ldt": (154, -1), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
}  # fmt: skip
_METADATA = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr",
    "fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "setxattrat", "removexattrat", "file_setattr",
)  # fmt: skip
_SHARED = (
    "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl",
    "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive",
)  # fmt: skip
# The index of the argument that names a process; 0 in it means the caller itself.
_OF_A_PROCESS = {
    "prlimit64": 0, "setpriority": 1, "ioprio_set": 1, "sched_setaffinity": 0, "sched_setscheduler": 0,
    "sched_setparam": 0, "sched_setattr": 0,
}  # fmt: skip
_FILTERED = ("socket", "socketpair", "ioctl", "clone", "clone3", *_OF_A_PROCESS)

_CLONE_NEW = 0x7E020000  # a new namespace of any kind
_TERMINAL_IOCTLS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX: typing into a terminal; TIOCSETD: kernel modules
# Ioctls of these kinds change flags, attributes, labels, encryption and subvolumes on a file opened only for reading.
_FILE_IOCTL_KINDS = (0x6600, 0x5800, 0x9400)
_FILE_IOCTLS_THAT_LOOK = (
    0x80086601, 0x80046601, 0x80087601, 0xC020660B, 0x801C581F,  # flags, version, extents, attributes
    0x40049409, 0x4020940D, 0xC0189436,  # clones of contents: need a file that can be written
)  # fmt: skip
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def supported() -> bool:
    """Whether this machine's system call numbers are known."""
    return platform.machine() in _ARCHITECTURES


def build(*, internet: bool, namespaces: bool = True, freeze_metadata: bool = False) -> bytes:
    """Build the filter. With `internet`, IPv4 and IPv6 sockets are allowed (in a network namespace they lead
    nowhere)."""
    column, architecture = _ARCHITECTURES[platform.machine()]
    program: list[Instruction] = []

    def refuse(code: int = errno.EPERM) -> None:
        program.append((_RETURN, 0, 0, _ERRNO | code))

    def by_argument(name: str, argument: int, checks: list[Check], *, matched: int, otherwise: int) -> None:
        if (number := _CALLS[name][column]) >= 0:
            program.extend(_by_argument(number, argument, checks, matched=matched, otherwise=otherwise))

    program.append((_LOAD, 0, 0, _ARCH))
    program.append((_EQUAL, 1, 0, architecture))
    refuse()
    program.append((_LOAD, 0, 0, _NR))
    if architecture == 0xC000003E:
        # The same kernel's x32 calls have other numbers and would slip through.
        program.append((_AT_LEAST, 0, 1, 0x40000000))
        refuse()
    spared = {*_FILTERED, *(() if freeze_metadata else _METADATA), *(_SHARED if namespaces else ())}
    for name, numbers in _CALLS.items():
        if numbers[column] >= 0 and name not in spared:
            program.append((_EQUAL, 0, 1, numbers[column]))
            refuse()
    # glibc then falls back to clone, whose flags the filter can see.
    program.append((_EQUAL, 0, 1, _CALLS["clone3"][column]))
    refuse(errno.ENOSYS)
    families = [socket.AF_INET, socket.AF_INET6] if internet else []
    inet = [(_EQUAL, int(family)) for family in families]
    no = _ERRNO | errno.EPERM
    by_argument("socket", 0, inet, matched=_ALLOW, otherwise=_ERRNO | errno.EACCES)
    connected = [(_EQUAL, int(kind)) for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)]
    by_argument("socketpair", 1, [(_AND, 0xF), *connected], matched=_GO_ON, otherwise=_ERRNO | errno.EACCES)
    by_argument("socketpair", 0, [(_EQUAL, int(socket.AF_UNIX))], matched=_ALLOW, otherwise=_ERRNO | errno.EACCES)
    by_argument("clone", 0, [(_BITS, _CLONE_NEW)], matched=no, otherwise=_ALLOW)
    if not namespaces:
        for name, argument in _OF_A_PROCESS.items():
            by_argument(name, argument, [(_EQUAL, 0)], matched=_ALLOW, otherwise=no)
    by_argument("ioctl", 1, [(_EQUAL, request) for request in _TERMINAL_IOCTLS], matched=no, otherwise=_GO_ON)
    if freeze_metadata:
        look = [(_EQUAL, request) for request in _FILE_IOCTLS_THAT_LOOK]
        by_argument("ioctl", 1, look, matched=_ALLOW, otherwise=_GO_ON)
        kinds = [(_EQUAL, kind) for kind in _FILE_IOCTL_KINDS]
        by_argument("ioctl", 1, [(_AND, 0xFF00), *kinds], matched=no, otherwise=_ALLOW)
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _by_argument(number: int, argument: int, checks: list[Check], *, matched: int, otherwise: int) -> list[Instruction]:
    """If the call is `number`, decide by the low half of one argument; to continue, load the call number again."""
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGS + 8 * argument)]
    for position, (test, value) in enumerate(checks):
        # A match jumps over the remaining checks and the no-match branch.
        body.append((test, 0 if test == _AND else len(checks) - position, 0, value))
    matches: list[Instruction] = [] if matched == _GO_ON else [(_RETURN, 0, 0, matched)]
    body.append((_JUMP, 0, 0, len(matches)) if otherwise == _GO_ON else (_RETURN, 0, 0, otherwise))
    body += [*matches, (_LOAD, 0, 0, _NR)]
    return [(_EQUAL, 0, len(body), number), *body]
