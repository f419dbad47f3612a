"""`fulgur acp`: the agent inside an editor, by the Agent Client Protocol on stdin and stdout."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

from fulgur.ui.flags import add_config_flags
from fulgur.ui.foreign import note

_LONGEST_LINE = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    # Only the protocol may reach stdout; everything else that is printed goes to stderr.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asyncio.run(_serve(args, out))
    return 0


async def _serve(args: argparse.Namespace, out: int) -> None:
    from fulgur.agent.host.pipes import connect_pipes
    from fulgur.ui.acp.agent import AcpAgent
    from fulgur.workspace import folders

    reader, writer = await connect_pipes(sys.stdin, os.fdopen(out, "wb", 0), longest=_LONGEST_LINE)
    if sys.stdin.isatty():
        note("fulgur acp waits for an editor on standard input (docs/editors.md); Ctrl-C ends it.")

    async def send(data: bytes) -> None:
        writer.write(data + b"\n")
        await writer.drain()

    agent = AcpAgent(folders.home(), send, args.config, args.model, args.profile)
    try:
        await agent.peer.run(lines(reader))
    finally:
        await agent.close()


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the messages, one per line, until the editor disconnects."""
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            if line.strip():
                yield line
