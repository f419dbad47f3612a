"""`fulgur serve`: the Responses API on this machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError, UsageError
from fulgur.ui.flags import port
from fulgur.ui.foreign import log_to_stderr, out

if TYPE_CHECKING:
    from fulgur.server.config import ServerConfig
    from fulgur.server.registry import ServedModel
    from fulgur.server.state import Server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", type=Path, help="config file (default: server.toml in Fulgur's home)")
    parser.add_argument("--host", help="the address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=port, help="port, 0 for a free one (default 8787)")
    parser.add_argument("-m", "--model", metavar="PATH", type=Path, help="serve this folder or GGUF file, by its name")
    parser.add_argument("--device", metavar="NAME", help="where local models run: auto, cpu, cuda or cuda:N")
    parser.add_argument("--new-key", metavar="NAME", help="create an API key; print it and what to put in the config")
    parser.add_argument("--idle-exit", type=float, metavar="MINUTES", help="exit after this long without a request")


def run(args: argparse.Namespace) -> int:
    if args.new_key is not None:
        return _new_key(args.new_key)
    from fulgur.server import config as settings
    from fulgur.server.registry import embedded

    config = settings.load(args.file)
    if args.host is not None:
        config.server.host = args.host
    if args.port is not None:
        config.server.port = args.port
    if args.model is not None:
        if not args.model.exists():
            raise UsageError(f"There is no model at {args.model}.")
        config.models[args.model.stem or args.model.name] = settings.Model(backend="local", path=str(args.model))
    named = set(config.models)
    if args.device is not None:
        _set_device(config, args.device)
    config.models |= {name: model for name, model in embedded().items() if name not in named}  # these are always served
    log_to_stderr()
    # A server with its own config file is not the one that the agent and other terminals look for.
    known = args.file is None or args.idle_exit is not None
    asyncio.run(_serve(config, args.idle_exit, args.file, known=known, first=named or set(config.models)))
    return 0


def _set_device(config: ServerConfig, name: str) -> None:
    """Set the device of every local model that was named; the embedded ones are packed for the CPU."""
    from fulgur.engine.device import check_device

    check_device(name)
    here = [model for model in config.models.values() if model.backend == "local"]
    if not here and name not in ("auto", "cpu"):
        raise UsageError(
            f"--device {name}: no model here can run there; the embedded ones are packed for the CPU",
            hint="Name another with -m FOLDER, or in server.toml.",
        )
    for model in here:
        model.device = name


async def _serve(
    config: ServerConfig, idle_minutes: float | None, file: Path | None, *, known: bool, first: set[str]
) -> None:
    """Serve until stopped. The models in `first` are loaded at once, the others on demand."""
    from fulgur.client import local
    from fulgur.server import app, auth, event_loop
    from fulgur.workspace import folders

    home = folders.home()
    by_hand = idle_minutes is None
    made_room = by_hand and await local.make_room(home, config.server.port)
    try:
        running = await app.start(config)
    except FulgurError as error:
        holder = local.holder(home, config.server.port) if await local.find(home) else None
        if holder is None:
            raise
        hint = f"Use that one, end it with `kill {holder}`, or choose another port with --port."
        raise FulgurError(f"{error.message}, by another Fulgur server (process {holder})", hint=hint) from None
    event_loop.tune_interpreter()
    models = running.server.models.entries
    out(f"Fulgur listens on {running.base_url}")
    out(f"  models: {', '.join(models) or 'none (add one in server.toml, see docs/server.md)'}")
    out("  Codex:  fulgur connect codex")
    if made_room:
        out("  stopped the server that a command had started on this port")
    note = home / "server.json"
    if known and auth.is_loopback(config.server.host):
        other = await local.find(home)
        if other in (None, running.base_url):  # the note of a server that has gone may name this very port
            read = file or home / "server.toml"
            local.write_ready(note, running.base_url, config=read, by_itself=not by_hand)
        else:
            out(f"  commands on this machine keep using the server at {other}")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loading = [
        asyncio.create_task(_load(entry))
        for entry in models.values()
        if entry.backend.kind == "local" and entry.name in first
    ]
    if idle_minutes is None:
        await stop.wait()
    else:
        await _until_idle(running.server, stop, idle_minutes * 60)
    for task in loading:
        task.cancel()
    local.remove_ready(note)
    await running.close()


async def _until_idle(server: Server, stop: asyncio.Event, seconds: float) -> None:
    while not stop.is_set() and server.idle_seconds() < seconds:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), min(10.0, seconds))


async def _load(entry: ServedModel) -> None:
    """Start a model; print where it runs and why, or why it does not."""
    try:
        backend = await entry.ready()
    except FulgurError as error:
        out(f"fulgur: {error}")
        return
    from fulgur.backends.local import LocalBackend
    from fulgur.server import event_loop

    event_loop.tune_interpreter()
    assert isinstance(backend, LocalBackend)
    info = backend.engine.info
    where = "the GPU" if info.runtime == "cuda" else "the CPU"
    out(f"  {entry.name}: on {where} ({info.isa}), {info.reason}; KV cache of {info.kv_tokens:,} tokens")


def _new_key(name: str) -> int:
    if not name:
        raise UsageError("A key needs a name.")
    from fulgur.server import auth

    key, record = auth.new_key(name)
    out(f"The key, shown only now:\n  {key}")
    out(f'In server.toml:\n  [[keys]]\n  name = "{record.name}"\n  sha256 = "{record.sha256}"')
    return 0
