"""PostgreSQL and Redis of this machine, in a folder of their own, on Unix sockets, for as long as the tests run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest


class Service:
    """A program that can be killed and started again, with what it has written kept."""

    def __init__(self, command: list[str], user: str | None, folder: Path, ready: list[str]) -> None:
        self._command, self._user, self._folder, self._ready = command, user, folder, ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, user=self._user, cwd=self._folder, stdout=log, stderr=log)
        for _ in range(600):
            if subprocess.run(self._ready, user=self._user, cwd=self._folder, capture_output=True).returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError((self._folder / "log").read_text())

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def pause(self, *, on: bool) -> None:
        """It no longer answers, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def stop(self, with_signal: int = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(with_signal)
        self._process.wait()


class Postgres(Service):
    """`url(name)` is a new database."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs, self._owner = programs, user
        data = folder / "data"
        initdb = [programs / "initdb", "-D", data, "-U", "fulgur", "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(initdb, user=user, cwd=folder, check=True, capture_output=True)
        options = ["listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "shared_buffers=16MB"]
        command = [str(programs / "postgres"), "-D", str(data), *(part for each in options for part in ("-c", each))]
        ready = [str(programs / "psql"), "-h", str(folder), "-U", "fulgur", "-c", "SELECT 1", "postgres"]
        super().__init__(command, user, folder, ready)
        self._count = 0

    def url(self) -> str:
        self._count += 1
        name = f"test{self._count}"
        create = [self._programs / "createdb", "-h", self._folder, "-U", "fulgur", name]
        subprocess.run(create, user=self._owner, cwd=self._folder, check=True)
        return f"postgresql://fulgur@/{name}?host={self._folder}"

    def kill(self) -> None:
        """With its children: they would keep the data locked for a moment."""
        assert self._process is not None
        children = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True).stdout
        super().kill()
        for child in children.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)


class RedisServer(Service):
    def __init__(self, folder: Path) -> None:
        self.url = f"unix://{folder}/redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", f"{folder}/redis.sock", "--save", "", "--dir", folder]
        ready = ["redis-cli", "-s", f"{folder}/redis.sock", "ping"]
        super().__init__([str(part) for part in command], None, folder, ready)

    def empty(self) -> None:
        subprocess.run([*self._ready[:-1], "flushall"], check=True, capture_output=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    pytest.importorskip("asyncpg", reason="pip install -e '.[cluster]'")
    found = sorted(glob("/usr/lib/postgresql/*/bin/postgres")) or [shutil.which("postgres") or ""]
    if not found[-1]:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="fulgur-pg-"))
    try:
        if user:
            shutil.chown(folder, user)
        server = Postgres(Path(found[-1]).parent, folder, user)
        server.start()
        yield server
        server.stop(signal.SIGINT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_running() -> Iterator[RedisServer]:
    pytest.importorskip("redis", reason="pip install -e '.[cluster]'")
    if shutil.which("redis-server") is None:
        pytest.skip("Redis is not installed (apt-get install redis-server)")
    folder = Path(tempfile.mkdtemp(prefix="fulgur-redis-"))
    try:
        server = RedisServer(folder)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis(redis_running: RedisServer) -> RedisServer:
    """Empty."""
    redis_running.empty()
    return redis_running
