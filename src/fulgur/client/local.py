"""The server on this machine: finds the one that runs, or starts one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
from hashlib import sha256
from pathlib import Path

import msgspec

from fulgur import __version__
from fulgur.client import once
from fulgur.client.once import LocalServer
from fulgur.errors import FulgurError
from fulgur.sandbox import start
from fulgur.workspace import folders

IDLE_MINUTES = 60  # a server that a command started ends when nobody has used it for so long
_END_SECONDS = 15.0
_HOME = "Fulgur keeps its files there; FULGUR_HOME names another folder."
_LEAST_BYTES = 1 << 20  # with less on the disk not even the reason of a failure can be logged


class Note(msgspec.Struct, frozen=True):
    """`server.json`: what a server leaves for others to find it."""

    base_url: str
    pid: int
    version: str
    by_itself: bool = False
    """A command that needed a server started it, nobody by hand."""
    config: str = ""
    """Its server.toml, there or not."""
    digest: str = ""
    """Of what stood in it."""


async def ensure_server(config: LocalServer | None = None) -> str:
    """The base URL of the running local server, started first when there is none."""
    settings = config or LocalServer(folders.home())
    found = await find(settings.home)
    if found is not None and not outdated(settings.home):
        return found
    try:
        return await _found_or_started(settings)
    except OSError as error:
        raise FulgurError(f"{error.filename or settings.home}: {error.strerror or error}", hint=_HOME) from None


async def _found_or_started(settings: LocalServer) -> str:
    settings.home.mkdir(parents=True, exist_ok=True)
    with (settings.home / "server.lock").open("w") as lock:
        # Two terminals opened at once start one server: the second waits here, then finds it.
        await wait_for_lock(lock.fileno(), settings.home / "server.lock", settings.start_seconds, "fulgur serve")
        found = await find(settings.home)
        if found is not None and not (outdated(settings.home) and await _end(settings.home)):
            return found
        return await _start(settings)


async def find(home: Path) -> str | None:
    """The base URL of the server that wrote `server.json`, if it answers."""
    base_url = once.running(home)
    return base_url if base_url is not None and await asyncio.to_thread(once.answers, base_url) else None


def outdated(home: Path) -> str:
    """A message when the server's config has changed since it started; empty when it has not."""
    note = _note(home / "server.json")
    if note is None or not note.config or note.digest == _digest(Path(note.config)):
        return ""
    return f"{note.config} was changed after the server (process {note.pid}) read it; restart the server."


async def make_room(home: Path, port: int) -> bool:
    """End the server that a command had started on this port, to make room for one started by hand; False when there is
    none, or it is answering somebody."""
    base_url = await find(home)
    return base_url is not None and base_url.endswith(f":{port}/v1") and await _end(home)


def holder(home: Path, port: int) -> int | None:
    """The process of the local server if it has this port."""
    note = _note(home / "server.json")
    return note.pid if note is not None and note.base_url.endswith(f":{port}/v1") else None


async def _end(home: Path) -> bool:
    """End the server that a command had started. Not one that is answering somebody: clients would lose their answers;
    and not one that a person started."""
    note = _note(home / "server.json")
    if note is None or not note.by_itself or await asyncio.to_thread(once.resting, note.base_url) != note.pid:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(note.pid, signal.SIGTERM)
        for _ in range(int(_END_SECONDS / 0.05)):  # until its port is free
            await asyncio.sleep(0.05)
            os.kill(note.pid, 0)
    return True


def _note(file: Path) -> Note | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Note)
    except (OSError, msgspec.DecodeError):
        return None


def _digest(file: Path) -> str:
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def write_ready(file: Path, base_url: str, *, config: Path | None = None, by_itself: bool = False) -> None:
    """Write the note by which others find a server; `config` is the file that it has read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    read = ("", "") if config is None else (str(config.absolute()), _digest(config))
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(Note(base_url, os.getpid(), __version__, by_itself, *read)))
    part.replace(file)


def remove_ready(file: Path) -> None:
    """Remove the note, if it is this process's."""
    note = _note(file)
    if note is not None and note.pid == os.getpid():
        with contextlib.suppress(OSError):
            file.unlink()


async def _start(settings: LocalServer) -> str:
    """Start a server, on its configured port if that is free, else on any; it ends by itself when it is not used."""
    log = settings.home / "server.log"
    known = log.stat().st_size if log.exists() else 0  # earlier lines are from other servers
    first = [] if settings.port is None else ["--port", str(settings.port)]
    for port in (first, ["--port", "0"]):
        found = await _launch(settings, port, log)
        if found is not None:
            return found
        said = log.read_bytes()[known:].decode(errors="replace")
        if "Cannot listen" not in said:
            break
    if not said and shutil.disk_usage(settings.home).free < _LEAST_BYTES:
        raise FulgurError(f"{settings.home}: the disk is full, and the local server cannot start", hint=_HOME)
    reason, hint = _reason(said)
    raise FulgurError(
        f"The local server did not start{': ' if reason else ''}{reason}",
        hint=hint or f"Its log is {log}; start it by hand with `fulgur serve`.",
    )


def _reason(said: str) -> tuple[str, str]:
    """The message and the hint with which a server ended; for one that crashed, its last line."""
    lines = said.rstrip().splitlines()
    at = next((n for n in reversed(range(len(lines))) if lines[n].startswith("fulgur: ")), None)
    if at is None:
        return lines[-1].strip() if lines else "", ""
    return lines[at].removeprefix("fulgur: "), " ".join(line.strip() for line in lines[at + 1 :])


async def wait_for_lock(descriptor: int, file: Path, start_seconds: float, command: str) -> None:
    """Wait for another process that starts the same thing, as long as that may take but not for ever."""
    for _ in range(int(2 * start_seconds / 0.05)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(0.05)
    raise FulgurError(
        f"{file} is locked by another process, but nothing answers",
        hint=f"End the process that holds the lock, or run `{command}` by hand.",
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
