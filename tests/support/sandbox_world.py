"""What the escape attempts are made against: a workspace, and around it everything they must not touch."""

import contextlib
import ctypes
import hashlib
import os
import pty
import resource
import secrets
import select
import shutil
import socket
import stat as stat_module
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE

from fulgur.sandbox import bubblewrap, landlock
from fulgur.sandbox.backend import Probe, Sandbox
from fulgur.sandbox.policy import Mode, Policy


def _with_mounts() -> Probe:
    found = landlock.probe()
    if not found.usable or landlock.mounts_work():
        return found
    return Probe(found.name, False, "this kernel gives a process no mounts of its own")


def _here(make: type, probe: Probe) -> object:
    skipped = pytest.mark.skip(reason=f"{probe.name}: {probe.reason}")
    return pytest.param(make, id=make.__name__, marks=[] if probe.usable else skipped)


class LandlockWithoutMounts(landlock.Landlock):
    """As on a kernel that gives a process no mounts of its own."""

    def __init__(self) -> None:
        super().__init__(mounts=False)


class LandlockWithMounts(landlock.Landlock):
    """With protected names mounted read-only."""

    def __init__(self) -> None:
        super().__init__(mounts=True)


each_backend = pytest.mark.parametrize(
    "make",
    [
        _here(bubblewrap.Bubblewrap, bubblewrap.probe()),
        _here(LandlockWithMounts, _with_mounts()),
        _here(LandlockWithoutMounts, landlock.probe()),
    ],
)


class SharedMemory:
    """A System V segment of somebody else."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.shmat.restype = ctypes.c_void_p
        self.key = secrets.randbelow(1 << 30) + 1
        self._id = self._libc.shmget(self.key, 4096, 0o1666)
        self._address = self._libc.shmat(self._id, None, 0)
        ctypes.memmove(self._address, b"safe", 4)

    def read(self) -> bytes:
        return ctypes.string_at(self._address, 4)

    def close(self) -> None:
        self._libc.shmdt(ctypes.c_void_p(self._address))
        self._libc.shmctl(self._id, 0, None)


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = root / "workspace"
        self.plain = root / "plain"
        self.linked = root / "linked"
        self.outside = root / "outside"
        self.home = root / "home"
        for folder in (self.workspace / "src", self.plain / "src", self.outside / "folder", self.home):
            folder.mkdir(parents=True)
        (self.workspace / "src/a.py").write_text("a = 1\n")
        (self.workspace / ".fulgur").mkdir()
        (self.workspace / ".fulgur/config.toml").write_text("")
        for repository in (self.workspace, self.workspace / "vendor/lib"):
            (repository / ".git/hooks").mkdir(parents=True)
            (repository / ".git/HEAD").write_text("ref: refs/heads/main\n")
            (repository / ".git/config").write_text("[core]\n")
            (repository / ".git/refs").mkdir()
            (repository / ".git/objects").mkdir()
        self._nested()
        (self.workspace / "file-link").symlink_to(self.outside / "file")
        (self.workspace / "folder-link").symlink_to(self.outside / "folder")
        for name in ("file", ".bashrc", "folder/inner"):
            (self.outside / name).write_text("safe\n")
        self.secrets = [self.outside / ".ssh", self.outside / ".netrc"]
        self.secrets[0].mkdir()
        (self.secrets[0] / "id").write_text("echo TOP-SECRET\n")
        self.secrets[1].write_text("TOP-SECRET\n")
        (self.home / "projects.json").write_text("[]")
        (self.home / "projects.lock").write_text("TOP-SECRET\n")
        self.marker = f"fulgur-stray-{secrets.token_hex(6)}"
        self.victim = subprocess.Popen(
            ["sleep", "300"], cwd=self.outside, env={"KEY": "TOP-SECRET"}, start_new_session=True
        )
        self.tcp, self.udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.unix, self.abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        os.chdir(self.outside)  # a socket's path may be 108 bytes long at most
        self.unix.bind("socket")
        os.chdir(here)
        self.unix.listen()
        self.abstract.bind(f"\0{self.marker}")
        self.abstract.listen()
        self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        os.chdir(self.outside)
        self.datagrams.bind("datagrams")
        os.chdir(here)
        self.terminal, self.terminal_slave = pty.openpty()
        self.shared = SharedMemory()
        self._condition = self._of_the_victim()

    def _nested(self) -> None:
        """Repositories far below, by a link, and by a file; and a workspace whose own `.git` is a link."""
        deep = self.workspace / "a/b/c/d/.git"
        for folder in (deep, self.workspace / "real-git", self.workspace / "hidden-git", self.linked / "real-git"):
            folder.mkdir(parents=True)
            (folder / "config").write_text("[core]\n")
        for folder in (self.workspace / "linked", self.workspace / "filed", self.linked / "src"):
            folder.mkdir()
        (self.workspace / "linked/.git").symlink_to("../real-git")
        (self.workspace / "linked/code.py").write_text("a = 1\n")
        (self.workspace / "filed/.git").write_text("gitdir: ../hidden-git\n")
        (self.linked / ".git").symlink_to("real-git")

    def _of_the_victim(self) -> tuple[object, ...]:
        """What a process outside could be made to suffer without being killed."""
        pid = self.victim.pid
        limits = tuple(resource.prlimit(pid, which) for which in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE))
        score = Path(f"/proc/{pid}/oom_score_adj").read_text()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        scheduling = (os.getpriority(os.PRIO_PROCESS, pid), os.sched_getaffinity(pid), os.sched_getscheduler(pid))
        return (*limits, *scheduling, score, state == "T")

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for server in (self.tcp, self.udp, self.unix, self.abstract, self.datagrams):
            server.close()
        self.shared.close()
        os.close(self.terminal)
        os.close(self.terminal_slave)

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHON": sys.executable,
            "HOME": str(self.outside),
            "OUT": str(self.outside),
            "PLAIN": str(self.plain),
            "FULGUR_HOME": str(self.home),
            "VICTIM": str(self.victim.pid),
            "MARKER": self.marker,
            "ABSTRACT": self.marker,
            "PORT": str(self.tcp.getsockname()[1]),
            "UDP_PORT": str(self.udp.getsockname()[1]),
            "TERMINAL": os.ttyname(self.terminal_slave),
            "SHM_KEY": str(self.shared.key),
        }

    def policy(self, mode: str, network: bool = False) -> Policy:
        workspace = {"plain": self.plain, "linked": self.linked}.get(mode, self.workspace)
        kind: Mode = "workspace-write" if mode in ("plain", "linked") else mode  # type: ignore[assignment]
        return Policy.make(kind, workspace, self.home, (), network, hide=self.secrets)

    def run(self, sandbox: Sandbox, script: str, policy: Policy) -> tuple[int, str]:
        launch = sandbox.launch(["bash", "-c", script], policy, policy.workspace)
        done = subprocess.run(
            launch.argv,
            pass_fds=launch.pass_fds,
            env={**self.environment(), **launch.environment},
            cwd=policy.workspace,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=False,
        )
        for descriptor in launch.pass_fds:
            os.close(descriptor)
        return done.returncode, done.stdout.decode(errors="replace")

    def state(self, mode: str) -> dict[str, str]:
        """A digest of everything that must stay as it is."""
        kept = [self.outside, self.home, self.workspace / ".git", self.workspace / ".fulgur"]
        kept += [self.workspace / "vendor/lib/.git", self.plain / ".git", self.plain / ".fulgur"]
        kept += [
            self.workspace / name for name in ("a/b/c/d/.git", "linked/.git", "real-git", "filed/.git", "hidden-git")
        ]
        kept += [self.linked / name for name in (".git", "real-git", ".fulgur")]
        if mode == "read-only":
            kept.append(self.workspace)
        found = {}
        for top in kept:
            for path in [top, *sorted(top.rglob("*"))]:
                with contextlib.suppress(FileNotFoundError):
                    stat = path.lstat()
                    body = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                    if (
                        stat_module.S_ISDIR(stat.st_mode)
                        and not any(path.iterdir())
                        and path.parent in (self.plain, self.linked)
                    ):
                        continue  # an empty folder the sandbox itself holds a name with
                    target = os.readlink(path) if path.is_symlink() else ""
                    found[str(path)] = f"{stat.st_mode:o} {stat.st_uid} {stat.st_gid} {target} {body}"
        return found

    def touched(self) -> list[str]:
        """What reached a process, a socket or a terminal outside."""
        signs = []
        if self.victim.poll() is not None:
            signs.append("the process outside is dead")
        elif self._of_the_victim() != self._condition:
            signs.append(f"the process outside was changed: {self._of_the_victim()}, before {self._condition}")
        if self.shared.read() != b"safe":
            signs.append("shared memory outside was written to")
        servers = [self.tcp, self.udp, self.unix, self.abstract, self.datagrams]
        if ready := select.select(servers, [], [], 0)[0]:
            signs.append(f"{len(ready)} sockets outside were reached")
        if select.select([self.terminal], [], [], 0)[0]:
            signs.append("a terminal outside was written to")
        return signs

    def strays(self) -> list[int]:
        """Processes started inside that are still there."""
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and self.marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
        return found

    def left(self) -> list[int]:
        """Strays that stay: what was killed may take a moment to go."""
        end = time.monotonic() + 10
        while (found := self.strays()) and time.monotonic() < end:
            time.sleep(0.02)
        return found

    def settle(self) -> None:
        """Give background attempts the time to act."""
        time.sleep(0.5)


def world_outside_tmp() -> Iterator[World]:
    # Not in /tmp, which bubblewrap hides: the attempts must see what they aim at.
    repository = Path(__file__).parents[2]
    hidden = any(repository.is_relative_to(place) for place in ("/tmp", "/var/tmp", "/run"))
    base = (Path.home() / ".cache" if hidden else repository / "build") / "sandbox-tests"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    made = World(folder)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)
