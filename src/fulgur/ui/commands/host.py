"""`fulgur host`: many agents in one process, for terminals, editors and browsers. Started on demand."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal

from fulgur.ui.flags import port
from fulgur.ui.foreign import log_to_stderr, out

_LOOK_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, default=0, help="port on loopback (default: a free one)")
    parser.add_argument("--stdio", action="store_true", help="serve one client on stdin and stdout instead")
    parser.add_argument("--idle-exit", type=float, metavar="MINUTES", help="exit after this long without a client")


def run(args: argparse.Namespace) -> int:
    log_to_stderr()
    asyncio.run(_stdio() if args.stdio else _listen(args.port, args.idle_exit))
    return 0


async def _stdio() -> None:
    from fulgur.agent.host.host import Host
    from fulgur.agent.host.serve import serve_stdio

    host = Host()
    try:
        await serve_stdio(host)
    finally:
        await host.close_all()


async def _listen(port: int, idle_minutes: float | None) -> None:
    from fulgur.agent.host.host import Host
    from fulgur.agent.host.serve import Listener, write_note
    from fulgur.errors import FulgurError
    from fulgur.workspace import folders

    host = Host()
    listener = Listener(host)
    try:
        await listener.start(port)
    except OSError as error:
        raise FulgurError(
            f"Cannot listen on 127.0.0.1:{port}: {error.strerror}", hint="--port 0 picks a free one."
        ) from None
    note = folders.home() / "host.json"
    write_note(note, listener)
    out(f"Fulgur's host listens on {listener.url}; {note} holds the token")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
        await host.put_away()
        idle = host.idle_seconds if not listener.clients else 0.0
        if idle_minutes is not None and idle > idle_minutes * 60:
            break
    with contextlib.suppress(OSError, ValueError):
        if json.loads(note.read_bytes()).get("pid") == os.getpid():
            note.unlink()
    await host.close_all()
    await listener.close()
