"""The server on this machine: the one that runs, or a new one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec

from fulgur import __version__
from fulgur.client import once
from fulgur.client.once import LocalServer
from fulgur.errors import FulgurError
from fulgur.sandbox import start
from fulgur.workspace import folders

IDLE_MINUTES = 60  # a server that was started by itself ends when nobody has used it for so long


async def ensure_server(config: LocalServer | None = None) -> str:
    """The base URL of the running local server, started first when there is none."""
    settings = config or LocalServer(folders.home())
    found = await find(settings.home)
    if found is not None:
        return found
    settings.home.mkdir(parents=True, exist_ok=True)
    with (settings.home / "server.lock").open("w") as lock:
        # Two terminals opened at once start one server: the second waits here and then finds the first's.
        await wait_for_lock(lock.fileno(), settings.home / "server.lock", settings.start_seconds, "fulgur serve")
        return await find(settings.home) or await _start(settings)


async def find(home: Path) -> str | None:
    """Where the server that wrote `server.json` answers, if it does."""
    base_url = once.running(home)
    return base_url if base_url is not None and await asyncio.to_thread(once.answers, base_url) else None


def write_ready(file: Path, base_url: str) -> None:
    """What a server that was started by itself leaves for others to find it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"base_url": base_url, "pid": os.getpid(), "version": __version__}
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(record))
    part.replace(file)


def remove_ready(file: Path) -> None:
    """Take the note away again, if it is this process's."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        if msgspec.json.decode(file.read_bytes(), type=dict[str, Any]).get("pid") == os.getpid():
            file.unlink()


async def _start(settings: LocalServer) -> str:
    """Start a server, on its configured port if that is free, else on any; it ends by itself when it is not used."""
    log = settings.home / "server.log"
    first = [] if settings.port is None else ["--port", str(settings.port)]
    for port in (first, ["--port", "0"]):
        found = await _launch(settings, port, log)
        if found is not None:
            return found
        tail = log.read_text(errors="replace").strip().splitlines()[-2:]
        if not any("Cannot listen" in line for line in tail):
            break
    raise FulgurError(
        f"The local server did not start{': ' + tail[0] if tail else ''}",
        hint=f"Its log is {log}; start it by hand with `fulgur serve`.",
    )


async def wait_for_lock(descriptor: int, file: Path, start_seconds: float, command: str) -> None:
    """Wait for whoever starts the same thing, for as long as that may take and not for ever."""
    for _ in range(int(2 * start_seconds / 0.05)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(0.05)
    raise FulgurError(
        f"{file} is locked by another process, and nothing answers",
        hint=f"End the process that holds it, or start it by hand with `{command}`.",
    )


async def _launch(settings: LocalServer, port: list[str], log: Path) -> str | None:
    command = start.python("fulgur", "serve", "--idle-exit", f"{IDLE_MINUTES}", *port)
    if settings.config is not None:
        command += ["--file", str(settings.config.absolute())]
    if settings.model is not None:
        command += ["--model", str(settings.model.absolute())]
    environment = start.environment({"FULGUR_HOME": str(settings.home.absolute())})
    with log.open("ab") as output:
        process = await start.spawn(
            command, settings.home, environment, stdout=output, stderr=output, start_new_session=True
        )
    for _ in range(int(settings.start_seconds / 0.05)):
        await asyncio.sleep(0.05)
        if process.returncode is not None:
            return None
        found = await find(settings.home)
        if found is not None:
            return found
    return None
