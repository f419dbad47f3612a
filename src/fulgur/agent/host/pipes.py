"""Standard input and output as one connection, for a program that its client starts."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import IO

from fulgur.errors import UsageError


async def connect_pipes(
    source: IO[str], sink: IO[bytes], *, longest: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a reader of lines up to `longest` bytes, and a writer. UsageError if either stream is a file or closed:
    the event loop cannot wait for those."""
    for stream, name in ((source, "input"), (sink, "output")):
        if not _can_wait(stream.fileno()):
            raise UsageError(
                f"standard {name} is not a pipe; a client must start this command",
                hint="docs/editors.md shows how editors do it.",
            )
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=longest)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sink)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def _can_wait(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
