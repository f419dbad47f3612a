"""`fulgur cluster up`: the fronts, and the replicas of this machine, kept alive until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from fulgur.cluster.address import Address
from fulgur.cluster.open import cluster_models
from fulgur.errors import FulgurError
from fulgur.sandbox import start
from fulgur.server.config import ServerConfig
from fulgur.workspace import folders

AGAIN_S = 1.0  # before a part that died is restarted
Say = Callable[[str], None]
UPDATE = b"update\n"  # a line for Ray's driver
_PATIENCE_S = 70.0  # for a part to finish its work: longer than a replica's drain


class Part:
    """One process, restarted whenever it ends. It stops at SIGTERM, or at the end of its input."""

    def __init__(self, name: str, command: list[str], say: Say, *, by_input: bool = False) -> None:
        self.name = name
        self._command = command
        self._by_input = by_input
        self._say = say
        self._process: start.AsyncProcess | None = None
        self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            stdin = start.PIPE if self._by_input else start.DEVNULL
            self._process = await start.spawn(self._command, Path.cwd(), stdin=stdin)
            code = await self._process.wait()
            self._say(f"{self.name} exited ({code}); restarting it")
            await asyncio.sleep(AGAIN_S)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.end()

    async def end(self) -> None:
        """End the running process; without `stop` another one follows."""
        process = self._process
        if process is not None and process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()
            else:
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _PATIENCE_S)
            except TimeoutError:
                process.kill()

    def write(self, line: bytes) -> None:
        """Write to a process that reads its input."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line)


def note() -> Path:
    """Where `down` and `status` find what `up` runs."""
    return folders.home() / "cluster.json"


async def up(config: ServerConfig, file: Path, say: Say) -> None:
    """Run until SIGINT or SIGTERM. Fronts stop first, so that nothing new reaches the replicas.

    After SIGUSR1 the replicas are replaced by ones that read the config as it is then.
    """
    if running() is not None:
        raise FulgurError("A cluster is already running.", hint="`fulgur cluster down` stops it.")
    stop, update = asyncio.Event(), asyncio.Event()
    for each, event in ((signal.SIGINT, stop), (signal.SIGTERM, stop), (signal.SIGUSR1, update)):
        asyncio.get_running_loop().add_signal_handler(each, event.set)
    note().parent.mkdir(parents=True, exist_ok=True)
    note().write_text(json.dumps({"pid": os.getpid(), "file": str(file.absolute())}))
    given = str(file.absolute())
    replicas: list[Part] = []
    addresses: list[Address] = []
    try:
        if config.cluster.placement == "ray":
            # In a separate process, because Ray handles signals its own way.
            command = start.python("fulgur.cluster.ray_serve", given)
            replicas.append(Part("Ray's driver", command, say, by_input=True))
        else:
            for name, model in cluster_models(config).items():
                for slot, address in enumerate(model.replicas):
                    addresses.append(Address.parse(address))
                    words = ["cluster", "replica", "--file", given, "--model", name, "--slot", str(slot)]
                    replicas.append(Part(f"replica {slot} of {name}", start.python("fulgur", *words), say))
        fronts = []
        for number in range(config.cluster.fronts):
            words = ["serve", "--file", given, "--port", str(config.server.port + number)]
            fronts.append(Part(f"front {number}", start.python("fulgur", *words), say))
        ports = ", ".join(str(config.server.port + number) for number in range(config.cluster.fronts))
        what = "Ray starts the" if config.cluster.placement == "ray" else len(replicas)
        say(f"{what} replicas; fronts on {config.server.host}: {ports or 'none'}")
        updating = asyncio.create_task(_go_on_updating(update, replicas, addresses, say))
        await stop.wait()
        updating.cancel()
        say("The cluster is stopping; running answers are finished first.")
        await asyncio.gather(*(part.stop() for part in fronts))
        await asyncio.gather(*(part.stop() for part in replicas))
    finally:
        note().unlink(missing_ok=True)


async def _go_on_updating(update: asyncio.Event, replicas: list[Part], addresses: list[Address], say: Say) -> None:
    """Replace the replicas one by one: each finishes its work, and the next waits until its successor listens."""
    while True:
        await update.wait()
        update.clear()
        say("Replacing the replicas; running answers are finished first.")
        if not addresses:  # Ray does it
            for part in replicas:
                part.write(UPDATE)
            continue
        for part, address in zip(replicas, addresses, strict=True):
            await part.end()
            while not await _listens(address):
                await asyncio.sleep(0.1)
        say("The replicas have been replaced.")


async def _listens(address: Address) -> bool:
    try:
        made = await address.connect(_Probe)
    except OSError:
        return False
    assert made.transport is not None
    made.transport.abort()
    return True


class _Probe(asyncio.Protocol):
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport


def running() -> int | None:
    """The process of a cluster that was started here."""
    with contextlib.suppress(OSError, ValueError, KeyError, ProcessLookupError):
        pid = int(json.loads(note().read_text())["pid"])
        if b"cluster" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def signal_up(number: signal.Signals) -> None:
    """Signal the `up` that runs here: SIGTERM ends it, SIGUSR1 replaces the replicas."""
    pid = running()
    if pid is None:
        raise FulgurError("No cluster is running here.", hint="`fulgur cluster up` starts one.")
    os.kill(pid, number)
