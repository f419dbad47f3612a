# ruff: noqa: E501 (a table reads better with one attempt a line)
"""Ways out of the sandbox, as a table. Each is a bash script run in a workspace laid out by `world.World`.

An attempt succeeds when anything it must not touch has changed, or when it prints ESCAPED.
`teeth`: run without a sandbox it does succeed, which a test checks, so that no attempt fails for a silly reason.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Attempt:
    name: str
    script: str
    mode: str = "workspace-write"
    teeth: bool = True


def python(code: str) -> str:
    return f"\"$PYTHON\" -I -c '{code}'"


SOCKET = 'import os,socket; s=socket.socket(socket.{family}, socket.{kind}); {use}; print("ESC"+"APED")'


ATTEMPTS = [
    Attempt("write outside", 'echo x > "$OUT/file"'),
    Attempt("append outside", 'echo x >> "$OUT/file"'),
    Attempt("truncate outside", ': > "$OUT/file"'),
    Attempt("delete outside", 'rm -f "$OUT/file"'),
    Attempt("rename outside", 'mv "$OUT/file" "$OUT/other"'),
    Attempt("new folder outside", 'mkdir "$OUT/new"'),
    Attempt("fifo outside", 'mkfifo "$OUT/fifo"'),
    Attempt("symlink made outside", 'ln -s /etc/passwd "$OUT/link"'),
    Attempt("remove folder outside", 'rm -rf "$OUT/folder"'),
    Attempt("dot dot", "echo x > ../outside/file"),
    Attempt("dot dot after cd", "cd src && cd ../.. && echo x > outside/file"),
    Attempt("existing symlink to a file", "echo x > file-link"),
    Attempt("existing symlink to a folder", "echo x > folder-link/new"),
    Attempt("new symlink", 'ln -s "$OUT" src/way && echo x > src/way/file'),
    Attempt("hard link", 'ln "$OUT/file" src/hard && echo x > src/hard'),
    Attempt("move from outside in", 'mv "$OUT/file" src/taken'),
    Attempt("move workspace out", 'mv src "$OUT/src"'),
    Attempt("change mode outside", 'chmod 777 "$OUT/file"'),
    Attempt("change mode by descriptor", python('import os; os.fchmod(os.open(os.environ["OUT"]+"/file", os.O_RDONLY), 0o777)')),
    Attempt("extended attribute", python('import os; os.setxattr(os.environ["OUT"]+"/file", "user.x", b"1"); print("ESC"+"APED")')),
    Attempt("truncate call", python('import os; os.truncate(os.environ["OUT"]+"/file", 0)')),
    Attempt("truncate by read-only open", python('import os; os.open(os.environ["OUT"]+"/file", os.O_RDONLY|os.O_TRUNC)')),
    Attempt("shell start file", 'echo evil >> "$HOME/.bashrc"'),
    Attempt("interpreter's packages", '"$PYTHON" -c "import sys; open(sys.prefix + \'/escaped\', \'w\')" && echo "ESC""APED"', teeth=False),
    Attempt("git hook", "printf '#!/bin/sh\\n' > .git/hooks/pre-commit"),
    Attempt("git config", "git config core.fsmonitor evil"),
    Attempt("git hooks path", "printf '[core]\\nhooksPath=x\\n' >> .git/config"),
    Attempt("replace .git", "mv .git .git-old; mkdir .git; echo x > .git/config"),
    Attempt("remove .git", "rm -rf .git"),
    Attempt("folder moved over .git", "mkdir src/g; echo x > src/g/config; rm -rf .git; mv -T src/g .git"),
    Attempt(".git by symlink", "ln -s ../.git src/g; echo x > src/g/config"),
    Attempt(".git by hard link", "ln .git/config src/c && echo x > src/c"),
    Attempt("hook of a nested repository", "echo x > vendor/lib/.git/hooks/post-checkout"),
    Attempt("new .git where there was none", 'cd "$PLAIN" && mkdir -p .git && echo x > .git/config', mode="plain"),
    Attempt("new .fulgur where there was none", 'cd "$PLAIN" && mkdir -p .fulgur && echo x > .fulgur/config.toml', mode="plain"),
    Attempt("unmount .git", 'umount -l .git; umount .git/; echo x > .git/config'),
    Attempt("rename over .git", python('import os; os.mkdir("n"); open("n/config","w").write("x"); os.rename(".git","o"); os.rename("n",".git")')),
    Attempt("exchange with .git", python('import ctypes,os; os.makedirs("src/n"); open("src/n/config","w").write("x"); ctypes.CDLL(None).renameat2(-100, b"src/n", -100, b".git", 2)')),
    Attempt("workspace moved away", 'cd .. && mv workspace w2 && mkdir workspace && echo x > w2/.git/config'),
    Attempt("own settings", "echo 'sandbox_mode=\"danger-full-access\"' > .fulgur/config.toml"),
    Attempt("remove own settings", "rm -rf .fulgur"),
    Attempt("remembered approvals", 'echo {} > "$FULGUR_HOME/projects.json"'),
    Attempt("root of the first process", 'echo x > "/proc/1/root$OUT/file"', teeth=False),
    Attempt("root of a process outside", 'echo x > "/proc/$VICTIM/root$OUT/file"'),
    Attempt("proc self root", 'echo x > "/proc/self/root$OUT/file"'),
    Attempt("proc cwd of a process outside", 'echo x > "/proc/$VICTIM/cwd/file"'),
    Attempt("secrets of a process outside", 'grep -aq TOP-SECRET "/proc/$VICTIM/environ" && echo "ESC""APED"'),
    Attempt("memory of a process outside", python('import os; open("/proc/"+os.environ["VICTIM"]+"/mem", "r+b"); print("ESC"+"APED")')),
    Attempt("kill a process outside", 'kill -9 "$VICTIM" && echo "ESC""APED"'),
    Attempt("stop a process by group", 'kill -STOP -- "-$VICTIM" && echo "ESC""APED"'),
    Attempt("trace a process outside", python('import os,ctypes; r=ctypes.CDLL(None).ptrace(16, int(os.environ["VICTIM"]), 0, 0); print("ESC"+"APED" if r==0 else r)')),
    Attempt("kernel settings", 'echo core > /proc/sys/kernel/core_pattern && echo "ESC""APED"', teeth=False),
    Attempt("system request", 'echo h > /proc/sysrq-trigger && echo "ESC""APED"', teeth=False),
    Attempt("shared memory", 'echo x > "/dev/shm/$MARKER" && test -e "/proc/$VICTIM/root/dev/shm/$MARKER" && echo "ESC""APED"'),
    Attempt("control groups", 'mkdir "/sys/fs/cgroup/$MARKER" && echo "ESC""APED"; rmdir "/sys/fs/cgroup/$MARKER"', teeth=False),
    Attempt("another terminal", 'echo evil > "$TERMINAL"'),
    Attempt("tcp", python(SOCKET.format(family="AF_INET", kind="SOCK_STREAM", use='s.connect(("127.0.0.1", int(os.environ["PORT"])))'))),
    Attempt("tcp by bash", 'exec 3<>"/dev/tcp/127.0.0.1/$PORT" && echo "ESC""APED"'),
    Attempt("udp", python(SOCKET.format(family="AF_INET", kind="SOCK_DGRAM", use='s.sendto(b"x", ("127.0.0.1", int(os.environ["UDP_PORT"])))').replace('print("ESC"+"APED")', "0"))),
    Attempt("unix socket", python(SOCKET.format(family="AF_UNIX", kind="SOCK_STREAM", use='s.connect(os.environ["OUT"]+"/socket")'))),
    Attempt("abstract unix socket", python(SOCKET.format(family="AF_UNIX", kind="SOCK_STREAM", use='s.connect("\\0"+os.environ["ABSTRACT"])'))),
    Attempt("netlink", python(SOCKET.format(family="AF_NETLINK", kind="SOCK_RAW", use="0"))),
    Attempt("io_uring", python('import ctypes; r=ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)); print("ESC"+"APED" if r>=0 else r)'), teeth=False),
    Attempt("background process", '(sleep 0.2; echo x > "$OUT/file") & wait'),
    Attempt("background process after the end", '(sleep 0.3; echo x > "$OUT/file") >/dev/null 2>&1 &'),
    Attempt("daemon", 'setsid nohup bash -c \'sleep 0.3; echo x > "$OUT/file"\' >/dev/null 2>&1 &'),
    Attempt("daemon that stays", 'setsid nohup bash -c "exec -a $MARKER sleep 60" >/dev/null 2>&1 & sleep 0.1'),
    Attempt("new user namespace", 'unshare -Ur true && echo "ESC""APED"', teeth=False),
    Attempt("mount", 'mount -t tmpfs none src && echo "ESC""APED"', teeth=False),
    Attempt("bind mount", 'mkdir -p src/m; mount --bind "$OUT" src/m && echo x > src/m/file', teeth=False),
    Attempt("remount", 'mount -o remount,rw / && echo "ESC""APED"', teeth=False),
    Attempt("device node", 'mknod src/disk b 1 0 && echo "ESC""APED"', teeth=False),
    Attempt("file handle", python('import ctypes; r=ctypes.CDLL(None).syscall(304, -1, 0, 0); import errno; print(r)'), teeth=False),
    Attempt("new privileges", 'grep -q "NoNewPrivs:.0" /proc/self/status && echo "ESC""APED"'),
    Attempt("write in read-only", "echo x > src/a.py", mode="read-only"),
    Attempt("delete in read-only", "rm -rf src", mode="read-only"),
    Attempt("outside in read-only", 'echo x > "$OUT/file"', mode="read-only"),
]  # fmt: skip
