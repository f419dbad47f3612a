"""`fulgur serve`: the Responses API on this machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", type=Path, help="config file (default: server.toml in Fulgur's home)")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port, 0 for a free one (default 8787)")
    parser.add_argument(
        "-m", "--model", metavar="PATH", type=Path, help="also serve this folder or GGUF file, by its name"
    )
    parser.add_argument("--new-key", metavar="NAME", help="make an API key, print it and what to put in the config")
    parser.add_argument("--ready-file", type=Path, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.new_key:
        return _new_key(args.new_key)
    from fulgur.server import config as settings

    config = settings.load(args.file)
    if args.host is not None:
        config.server.host = args.host
    if args.port is not None:
        config.server.port = args.port
    if args.model is not None:
        config.models[args.model.stem or args.model.name] = settings.Model(backend="local", path=str(args.model))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(_serve(config, args.ready_file))
    return 0


async def _serve(config: object, ready_file: Path | None) -> None:
    from fulgur.client import local
    from fulgur.server import app
    from fulgur.server.config import ServerConfig

    assert isinstance(config, ServerConfig)
    running = await app.start(config)
    models = running.server.models.entries
    print(f"Fulgur listens on {running.base_url}")
    print(f"  models: {', '.join(models) or 'none (add one in server.toml, see docs/server.md)'}")
    print("  Codex:  fulgur connect codex", flush=True)
    if ready_file is not None:
        local.write_ready(ready_file, running.base_url)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    for entry in models.values():
        if entry.backend.kind == "local":
            task = asyncio.create_task(entry.ready())
            task.add_done_callback(_say_if_failed)
    await stop.wait()
    await running.close()


def _say_if_failed(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        print(f"fulgur: {error}", flush=True)


def _new_key(name: str) -> int:
    from fulgur.server import auth

    key, record = auth.new_key(name)
    print(f"The key, shown only now:\n  {key}")
    print(f'In server.toml:\n  [[keys]]\n  name = "{record.name}"\n  sha256 = "{record.sha256}"')
    return 0
