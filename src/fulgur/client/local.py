"""The server on this machine: the one that runs, or a new one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from fulgur import __version__
from fulgur.errors import FulgurError


@dataclass(frozen=True)
class LocalServer:
    """How the local server is found and started. `home` holds `server.json`, which says where it listens."""

    home: Path
    config: Path | None = None  # passed to `fulgur serve --file`
    port: int | None = None  # None: what the config says, else a free one
    start_seconds: float = 30.0


async def ensure_server(config: LocalServer | None = None) -> str:
    """The base URL of the running local server, started first when there is none."""
    settings = config or LocalServer(_home())
    found = await find(settings.home)
    if found is not None:
        return found
    settings.home.mkdir(parents=True, exist_ok=True)
    with (settings.home / "server.lock").open("w") as lock:
        # Two terminals opened at once start one server: the second waits here and then finds the first's.
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        return await find(settings.home) or await _start(settings)


async def find(home: Path) -> str | None:
    """Where the server that wrote `server.json` answers, if it does."""
    try:
        record = msgspec.json.decode((home / "server.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    base_url = str(record.get("base_url"))
    if record.get("version") != __version__:
        return None
    return base_url if await answers(base_url) else None


async def answers(base_url: str) -> bool:
    """Whether a Fulgur server answers at `/healthz`."""
    url = base_url.removesuffix("/v1") + "/healthz"
    with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            async with session.get(url) as answer:
                return answer.status == 200 and "x-fulgur-version" in answer.headers
    return False


def write_ready(file: Path, base_url: str) -> None:
    """What a server that was started by itself leaves for others to find it."""
    record = {"base_url": base_url, "pid": os.getpid(), "version": __version__}
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(record))
    part.replace(file)


async def _start(settings: LocalServer) -> str:
    command = [sys.executable, "-m", "fulgur", "serve", "--ready-file", str(settings.home / "server.json")]
    if settings.config is not None:
        command += ["--file", str(settings.config)]
    command += ["--port", str(settings.port or 0)]
    with (settings.home / "server.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    for _ in range(int(settings.start_seconds / 0.05)):
        await asyncio.sleep(0.05)
        if process.returncode is not None:
            break
        found = await find(settings.home)
        if found is not None:
            return found
    tail = (settings.home / "server.log").read_text(errors="replace").strip().splitlines()[-1:]
    raise FulgurError(
        f"The local server did not start{': ' + tail[0] if tail else ''}",
        hint=f"Its log is {settings.home / 'server.log'}; start it by hand with `fulgur serve`.",
    )


def _home() -> Path:
    return Path(os.environ.get("FULGUR_HOME") or Path.home() / ".fulgur").absolute()
