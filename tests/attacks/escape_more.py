# ruff: noqa: E501, UP031 (a table reads better with one attempt a line, and code in strings has braces)
"""More ways out of the sandbox, found since: the rest is in `tests/support/escape_attempts.py`, which says how to read them."""

import platform

from escape_attempts import Attempt, python

from fulgur.sandbox import seccomp

COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]


def call(name: str, *arguments: int) -> str:
    """A system call that must be refused before its arguments are looked at."""
    words = ", ".join(["ctypes.c_long(%d)" % argument for argument in arguments or (-1, -1, -1, -1, -1)])
    number = seccomp._CALLS[name][COLUMN]
    return python(
        f"import ctypes; c=ctypes.CDLL(None, use_errno=True); r=c.syscall({number}, {words}); e=ctypes.get_errno(); "
        'print("ESC"+"APED" if r>=0 or e not in (1, 13, 38) else e)'
    )


LIBC = 'import os,ctypes,struct; c=ctypes.CDLL(None, use_errno=True); v=int(os.environ["VICTIM"]); '
LOOK = ' | grep -aq TOP-SECRET && echo "ESC""APED"'
PAIR = 'import os,socket; a,b=socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); os.chdir(os.environ["OUT"]); '

FILES = [
    Attempt("dd", 'dd if=/dev/zero of="$OUT/file" bs=1 count=1 2>/dev/null'),
    Attempt("tee", 'echo x | tee "$OUT/file" >/dev/null'),
    Attempt("copy over", 'cp src/a.py "$OUT/file"'),
    Attempt("copy into", 'cp src/a.py "$OUT/folder/"'),
    Attempt("install", 'install -m 777 src/a.py "$OUT/new"'),
    Attempt("sed in place", 'sed -i s/safe/x/ "$OUT/file"'),
    Attempt("tar", 'tar cf - src | tar xf - -C "$OUT"'),
    Attempt("move over", 'echo x > src/x; mv -f src/x "$OUT/file"'),
    Attempt("hard link out", 'ln src/a.py "$OUT/hard"'),
    Attempt("link replaced outside", 'ln -sfn /etc/passwd "$OUT/file"'),
    Attempt("fifo replaced outside", 'rm -f "$OUT/file"; mkfifo "$OUT/file"'),
    Attempt("cd and write", 'cd "$OUT" && echo x > file'),
    Attempt("temporary file outside", 'mktemp -p "$OUT"'),
    Attempt("reopened descriptor", 'exec 3<"$OUT/file"; echo x > /proc/self/fd/3'),
    Attempt("reopened by /dev/fd", 'exec 3<"$OUT/file"; echo x > /dev/fd/3'),
    Attempt(
        "folder descriptor",
        python(
            'import os; d=os.open(os.environ["OUT"], os.O_RDONLY); os.open("new", os.O_CREAT|os.O_WRONLY, dir_fd=d)'
        ),
    ),
    Attempt("path descriptor", python('import os; d=os.open(os.environ["OUT"], os.O_PATH); os.mkdir("new", dir_fd=d)')),
    Attempt("fchdir", python('import os; os.fchdir(os.open(os.environ["OUT"], os.O_RDONLY)); open("file","w")')),
    Attempt(
        "unnamed file linked",
        python(
            'import os; o=os.environ["OUT"]; f=os.open(o, os.O_TMPFILE|os.O_RDWR, 0o600); import ctypes; ctypes.CDLL(None).linkat(-100, b"/proc/self/fd/%d" % f, -100, os.fsencode(o+"/new"), 0x400)'
        ),
    ),
    Attempt(
        "exchange with outside",
        python(
            'import ctypes,os; ctypes.CDLL(None).renameat2(-100, b"src/a.py", -100, os.fsencode(os.environ["OUT"]+"/file"), 2)'
        ),
    ),
    Attempt(
        "write by mapping",
        python('import os,mmap; f=os.open(os.environ["OUT"]+"/file", os.O_RDWR); mmap.mmap(f, 5)[0:1]=b"x"'),
    ),
    Attempt(
        "preallocate", python('import os; os.posix_fallocate(os.open(os.environ["OUT"]+"/file", os.O_RDWR), 0, 9999)')
    ),
    Attempt(
        "copy range",
        python(
            'import os; o=os.open(os.environ["OUT"]+"/file", os.O_WRONLY); i=os.open("src/a.py", 0); os.copy_file_range(i, o, 5)'
        ),
    ),
    Attempt("owner outside", 'chown 12345 "$OUT/file"', teeth=False),
    Attempt("group outside", 'chgrp 12345 "$OUT/file"', teeth=False),
    Attempt("mode of a folder outside", 'chmod 700 "$OUT/folder"'),
    Attempt(
        "mode by fchmodat2",
        python('import os; os.chmod("file", 0o777, dir_fd=os.open(os.environ["OUT"], os.O_PATH))'),
    ),
    Attempt(
        "inode flags",
        python(
            LIBC
            + 'import fcntl; f=os.open(os.environ["OUT"]+"/file", os.O_RDONLY); fcntl.ioctl(f, 0x40086602, struct.pack("l", 0x80)); print("ESC"+"APED")'
        ),
        teeth=False,
    ),
    Attempt(
        "inode flags of a folder",
        python(
            LIBC
            + 'import fcntl; f=os.open(os.environ["OUT"], os.O_RDONLY); fcntl.ioctl(f, 0x40086602, struct.pack("l", 0x80)); print("ESC"+"APED")'
        ),
        teeth=False,
    ),
    Attempt(
        "project of an inode",
        python(
            LIBC
            + 'import fcntl; f=os.open(os.environ["OUT"]+"/file", os.O_RDONLY); fcntl.ioctl(f, 0x401c5820, bytes(28)); print("ESC"+"APED")'
        ),
        teeth=False,
    ),
    Attempt("cwd of self", "cd src; echo x > /proc/self/cwd/../../outside/file"),
    Attempt("root of a thread", 'echo x > "/proc/thread-self/root$OUT/file"'),
    Attempt(
        "folder swapped for a link",
        'mkdir -p src/d; (for i in $(seq 200); do rmdir src/d 2>/dev/null; ln -sfn "$OUT" src/d; rm -f src/d; mkdir src/d 2>/dev/null; done) & for i in $(seq 200); do echo x > src/d/file 2>/dev/null; done; wait',
        teeth=False,
    ),
    Attempt(
        "long chain of links",
        'ln -s "$OUT" src/l0; for i in $(seq 20); do ln -s l$((i-1)) src/l$i; done; echo x > src/l20/file',
    ),
    Attempt("repository outside", 'git init -q "$OUT/repo"'),
    Attempt("global git settings", "git config --global core.pager evil"),
    Attempt("history of the shell", 'HISTFILE="$HOME/.bashrc"; set -o history; history -w', teeth=False),
    Attempt(
        "core file",
        'cd "$OUT"; ulimit -c unlimited; bash -c "kill -SEGV \\$\\$"; ls "$OUT" | grep -q core && echo "ESC""APED"',
        teeth=False,
    ),
]

PROTECTED = [
    Attempt("repository far below", "echo x > a/b/c/d/.git/config"),
    Attempt("hook far below", "mkdir a/b/c/d/.git/hooks; echo x > a/b/c/d/.git/hooks/pre-commit"),
    Attempt("folder moved and built anew", "mv a a2; mkdir -p a/b/c/d/.git; echo x > a/b/c/d/.git/config"),
    Attempt("middle folder moved", "mv a/b/c a/b/z; mkdir -p a/b/c/d/.git; echo x > a/b/c/d/.git/config"),
    Attempt("vendor moved", "mv vendor v2; mkdir -p vendor/lib/.git; echo x > vendor/lib/.git/config"),
    Attempt("last folder moved", "mv vendor/lib vendor/l2; mkdir -p vendor/lib/.git; echo x > vendor/lib/.git/config"),
    Attempt("parent removed", "rm -rf vendor; mkdir -p vendor/lib/.git; echo x > vendor/lib/.git/config"),
    Attempt(
        "parent exchanged",
        python(
            'import ctypes,os; os.makedirs("n/lib/.git"); open("n/lib/.git/config","w").write("x"); ctypes.CDLL(None).renameat2(-100, b"n", -100, b"vendor", 2)'
        ),
    ),
    Attempt(
        "parent exchanged from below",
        python(
            'import ctypes,os; os.makedirs("src/n/lib/.git"); open("src/n/lib/.git/config","w").write("x"); ctypes.CDLL(None).renameat2(-100, b"src/n", -100, b"vendor", 2)'
        ),
    ),
    Attempt("linked .git replaced", "rm -f linked/.git; mkdir linked/.git && echo x > linked/.git/config"),
    Attempt("linked .git renamed", "mv linked/.git linked/g; mkdir linked/.git; echo x > linked/.git/config"),
    Attempt("linked .git led elsewhere", "mkdir src/g; ln -sfn ../src/g linked/.git"),
    Attempt("through the linked .git", "echo x > linked/.git/config"),
    Attempt("target of the linked .git", "echo x > real-git/config"),
    Attempt("target moved", "mv real-git r2; mkdir real-git; echo x > real-git/config"),
    Attempt(
        "folder of the linked .git moved", "mv linked l2; mkdir linked; mkdir linked/.git; echo x > linked/.git/config"
    ),
    Attempt(".git file rewritten", "echo 'gitdir: ../src/g' > filed/.git"),
    Attempt(".git file replaced", "rm -f filed/.git; mkdir filed/.git; echo x > filed/.git/config"),
    Attempt(".git file moved over", "echo 'gitdir: x' > filed/g; mv -f filed/g filed/.git"),
    Attempt("target of the .git file", "echo x > hidden-git/config"),
    Attempt("hook behind the .git file", "mkdir -p hidden-git/hooks; echo x > hidden-git/hooks/pre-commit"),
    Attempt("folder of the .git file moved", "mv filed f2; mkdir filed; echo 'gitdir: x' > filed/.git"),
    Attempt("link at the top replaced", "rm -f .git; mkdir .git && echo x > .git/config", mode="linked"),
    Attempt("link at the top renamed", "mv .git g", mode="linked"),
    Attempt("link at the top led elsewhere", "ln -sfn src .git", mode="linked"),
    Attempt("target of the link at the top", "echo x > real-git/config", mode="linked"),
    Attempt("through the link at the top", "echo x > .git/config", mode="linked"),
    Attempt("settings beside a linked .git", "mkdir -p .fulgur; echo x > .fulgur/config.toml", mode="linked"),
    Attempt("holder removed", "rmdir .git; mkdir .git; echo x > .git/config", mode="plain"),
    Attempt("holder moved", "mv .git g; mkdir .git; echo x > .git/config", mode="plain"),
    Attempt("holder made writable", "chmod 777 .git; mkdir -p .git; echo x > .git/config", mode="plain"),
    Attempt("file for the holder", 'rm -rf .git; echo "gitdir: src" > .git', mode="plain"),
    Attempt("link for the holder", "rm -rf .git; ln -s src .git", mode="plain"),
    Attempt("git init", "git init -q .; git config core.fsmonitor x", mode="plain"),
    Attempt("commit", "git -c user.name=a -c user.email=a@b commit -qm x --allow-empty"),
    Attempt("separate repository", "git init -q --separate-git-dir=src/g ."),
]

SECRETS = [
    Attempt("key read", f'cat "$OUT/.ssh/id"{LOOK}'),
    Attempt("key copied", f'cp "$OUT/.ssh/id" src/k; cat src/k{LOOK}'),
    Attempt("key by a link", f'ln -s "$OUT/.ssh" src/s; cat src/s/id{LOOK}'),
    Attempt("key by a hard link", f'ln "$OUT/.ssh/id" src/k; cat src/k{LOOK}'),
    Attempt("key by /proc", f'cat "/proc/self/root$OUT/.ssh/id"{LOOK}'),
    Attempt("key by another process", f'cat "/proc/$VICTIM/root$OUT/.ssh/id"{LOOK}'),
    Attempt("key by another process's folder", f'cat "/proc/$VICTIM/cwd/.ssh/id"{LOOK}'),
    Attempt("key in a search", f'grep -ra TOP "$OUT/.ssh"{LOOK}'),
    Attempt("key in an archive", f'tar cf - -C "$OUT" .ssh{LOOK}'),
    Attempt("key executed", 'bash "$OUT/.ssh/id" | grep -q TOP-SECRET && echo "ESC""APED"'),
    Attempt(
        "key by its folder's descriptor",
        python(
            'import os; d=os.open(os.environ["OUT"]+"/.ssh", os.O_RDONLY); f=os.open("id", 0, dir_fd=d); print(os.read(f, 99))'
        )
        + LOOK,
    ),
    Attempt(
        "key mapped",
        python('import os,mmap; f=os.open(os.environ["OUT"]+"/.ssh/id", 0); print(mmap.mmap(f, 0, prot=1)[:])') + LOOK,
    ),
    Attempt("keys moved away", f'mv "$OUT/.ssh" "$OUT/s2"; cat "$OUT/s2/id"{LOOK}'),
    Attempt("keys uncovered", f'umount "$OUT/.ssh"; umount -l "$OUT/.ssh"; cat "$OUT/.ssh/id"{LOOK}'),
    Attempt("password file", f'cat "$OUT/.netrc"{LOOK}'),
    Attempt("password file uncovered", f'umount "$OUT/.netrc"; cat "$OUT/.netrc"{LOOK}'),
    Attempt("other sessions", f'cat "$FULGUR_HOME"/*{LOOK}'),
    Attempt(
        "lock of the records",
        'exec 3<"$FULGUR_HOME/projects.lock" && flock -n 3 && test -s "$FULGUR_HOME/projects.lock" && echo "ESC""APED"',
    ),
    Attempt("keys in read-only", f'cat "$OUT/.ssh/id"{LOOK}', mode="read-only"),
    Attempt("password in read-only", f'cat "$OUT/.netrc"{LOOK}', mode="read-only"),
]

PROCESSES = [
    Attempt("polite kill", 'kill -TERM "$VICTIM" && echo "ESC""APED"'),
    Attempt(
        "kill by process descriptor",
        python(LIBC + 'import signal; signal.pidfd_send_signal(os.pidfd_open(v), 9); print("ESC"+"APED")'),
    ),
    Attempt(
        "kill one thread",
        python(LIBC + 'r=c.syscall(%d, v, v, 9); print("ESC"+"APED" if r==0 else r)' % (234, 131)[COLUMN]),
    ),
    Attempt("kill everybody", "kill -9 -1; sleep 0.1", teeth=False),
    Attempt(
        "signal by a pipe",
        python(
            LIBC
            + 'import fcntl; r,w=os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, v); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC|os.O_NONBLOCK); os.write(w, b"x")'
        ),
    ),
    Attempt(
        "limits of another process", python(LIBC + "import resource; resource.prlimit(v, resource.RLIMIT_CPU, (1, 1))")
    ),
    Attempt(
        "open files of another process",
        python(LIBC + "import resource; resource.prlimit(v, resource.RLIMIT_NOFILE, (1, 1))"),
    ),
    Attempt(
        "limits of the first process",
        python(
            LIBC
            + "import resource; resource.prlimit(os.getppid() if os.getppid() > 2 else v, resource.RLIMIT_NOFILE, (1, 1))"
        ),
        teeth=False,
    ),
    Attempt("priority of another process", 'renice 19 "$VICTIM"'),
    Attempt("priority of a group", 'renice 19 -g "$VICTIM"'),
    Attempt(
        "disk priority of another process",
        python(
            LIBC
            + 'r=c.syscall(%d, 1, v, 3<<13); print("ESC"+"APED" if r==0 else r)' % seccomp._CALLS["ioprio_set"][COLUMN]
        ),
    ),
    Attempt(
        "processors of another process",
        python(LIBC + 'os.sched_setaffinity(v, {max(os.sched_getaffinity(0))}); print("ESC"+"APED")'),
    ),
    Attempt(
        "scheduler of another process", python(LIBC + "os.sched_setscheduler(v, os.SCHED_IDLE, os.sched_param(0))")
    ),
    Attempt("memory killer's choice", 'echo 1000 > "/proc/$VICTIM/oom_score_adj"'),
    Attempt("descriptors of another process", 'readlink "/proc/$VICTIM/fd/0" && echo "ESC""APED"'),
    Attempt("memory map of another process", 'test -n "$(cat "/proc/$VICTIM/maps")" && echo "ESC""APED"'),
    Attempt("memory read", python(LIBC + 'print(open(f"/proc/{v}/environ","rb").read())') + LOOK),
    Attempt("memory written by a call", call("process_vm_writev"), teeth=False),
    Attempt("memory read by a call", call("process_vm_readv"), teeth=False),
    Attempt("descriptor taken", call("pidfd_getfd"), teeth=False),
    Attempt(
        "namespace of another process",
        python(LIBC + 'f=os.open(f"/proc/{v}/ns/mnt", 0); print("ESC"+"APED" if c.setns(f, 0)==0 else "")'),
        teeth=False,
    ),
    Attempt(
        "shared memory by key",
        python(
            'import os,ctypes; c=ctypes.CDLL(None); c.shmat.restype=ctypes.c_long; i=c.shmget(int(os.environ["SHM_KEY"]), 0, 0); a=c.shmat(i, None, 0) if i>=0 else -1; a>0 and ctypes.memmove(a, b"evil", 4)'
        ),
    ),
    Attempt(
        "shared memory removed",
        python(
            'import os,ctypes; c=ctypes.CDLL(None); i=c.shmget(int(os.environ["SHM_KEY"]), 0, 0); print("ESC"+"APED" if i>=0 and c.shmctl(i, 0, None)==0 else i)'
        ),
    ),
    Attempt(
        "typing into another terminal",
        python(
            'import os,fcntl; f=os.open(os.environ["TERMINAL"], os.O_RDWR|os.O_NOCTTY); fcntl.ioctl(f, 0x5412, b"x"); print("ESC"+"APED")'
        ),
        teeth=False,
    ),
]

SOCKETS = [
    Attempt("datagram to a name", python(PAIR + 'a.sendto(b"x", "datagrams")')),
    Attempt(
        "descriptor to a name",
        python(
            PAIR
            + 'import array; a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))], 0, "datagrams")'
        ),
    ),
    Attempt("datagram by connecting", python(PAIR + 'a.connect("datagrams"); a.send(b"x")')),
    Attempt(
        "datagram with flags",
        python(
            'import os,socket; a,b=socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM|socket.SOCK_CLOEXEC|socket.SOCK_NONBLOCK); os.chdir(os.environ["OUT"]); a.sendto(b"x", "datagrams")'
        ),
    ),
    Attempt(
        "raw pair",
        python(
            'import os,socket; a,b=socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW); os.chdir(os.environ["OUT"]); a.sendto(b"x", "datagrams")'
        ),
    ),
    Attempt(
        "stream pair connected elsewhere",
        python(
            'import os,socket; a,b=socket.socketpair(); os.chdir(os.environ["OUT"]); a.connect("socket"); print("ESC"+"APED")'
        ),
        teeth=False,
    ),
    Attempt(
        "packets pair connected elsewhere",
        python(
            'import os,socket; a,b=socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET); os.chdir(os.environ["OUT"]); a.sendto(b"x", "datagrams")'
        ),
        teeth=False,
    ),
    Attempt(
        "datagram socket",
        python(
            'import os,socket; s=socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); os.chdir(os.environ["OUT"]); s.sendto(b"x", "datagrams")'
        ),
    ),
    Attempt(
        "crypto socket",
        python('import socket; socket.socket(38, socket.SOCK_SEQPACKET); print("ESC"+"APED")'),
        teeth=False,
    ),
    Attempt(
        "packet socket", python('import socket; socket.socket(17, socket.SOCK_RAW); print("ESC"+"APED")'), teeth=False
    ),
    Attempt(
        "machine socket",
        python('import socket; socket.socket(40, socket.SOCK_STREAM); print("ESC"+"APED")'),
        teeth=False,
    ),
    Attempt(
        "tipc pair",
        python('import socket; socket.socketpair(30, socket.SOCK_STREAM); print("ESC"+"APED")'),
        teeth=False,
    ),
    Attempt(
        "tcp by another protocol number",
        python(
            'import os,socket; s=socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.connect(("127.0.0.1", int(os.environ["PORT"]))); print("ESC"+"APED")'
        ),
        teeth=False,
    ),
    Attempt("udp by bash", 'echo x > "/dev/udp/127.0.0.1/$UDP_PORT"'),
    Attempt(
        "abstract datagram",
        python(
            'import os,socket; a,b=socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b"x", b"\\0"+os.environ["ABSTRACT"].encode()); print("ESC"+"APED")'
        ),
        teeth=False,
    ),
]

REFUSED = (
    "ptrace", "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at", "bpf", "perf_event_open", "userfaultfd",
    "io_uring_enter", "io_uring_register", "keyctl", "add_key", "request_key", "kexec_load", "init_module", "finit_module",
    "delete_module", "reboot", "swapon", "swapoff", "acct", "quotactl", "syslog", "settimeofday", "clock_settime",
    "sethostname", "setdomainname", "fanotify_init", "kcmp", "open_tree_attr", "quotactl_fd", "adjtimex",
)  # fmt: skip
KERNEL = [Attempt(f"call {name}", call(name), teeth=False) for name in REFUSED] + [
    Attempt(
        "new namespace by clone",
        python(
            'import ctypes; c=ctypes.CDLL(None); r=c.syscall(%d, 0x10000011, 0, 0, 0, 0); r==0 and c._exit(0); print("ESC"+"APED" if r>0 else r)'
            % seccomp._CALLS["clone"][COLUMN]
        ),
        teeth=False,
    ),
    Attempt(
        "new mounts by clone",
        python(
            'import ctypes; c=ctypes.CDLL(None); r=c.syscall(%d, 0x00020011, 0, 0, 0, 0); r==0 and c._exit(0); print("ESC"+"APED" if r>0 else r)'
            % seccomp._CALLS["clone"][COLUMN]
        ),
        teeth=False,
    ),
    Attempt("kernel's own names", 'echo x > /proc/sys/kernel/hostname && echo "ESC""APED"', teeth=False),
    Attempt("caches dropped", 'echo 1 > /proc/sys/vm/drop_caches && echo "ESC""APED"', teeth=False),
    Attempt(
        "disk read",
        'for d in /dev/vda /dev/sda /dev/nvme0n1 /dev/mem /dev/kmsg; do head -c1 $d 2>/dev/null | grep -q . && echo "ESC""APED"; done',
        teeth=False,
        mode="workspace-write",
    ),
]

MORE = [*FILES, *PROTECTED, *SECRETS, *PROCESSES, *SOCKETS, *KERNEL]
