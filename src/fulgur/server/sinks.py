"""Events onto the wire: WebSocket frames and server-sent events, one write each.

Both write to the transport directly. aiohttp does the handshakes, the reading and the closing, but its senders cost a
coroutine per message: more than everything else that is done for a token.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiohttp import web

STREAM = web.RequestKey("stream", web.StreamResponse)  # the answer to a request, once its head has left
_BUFFER = 1 << 18  # bytes a slow reader may be behind before its answer waits


class TransportSink:
    """Common to both: nothing is sent to a client that is gone, and a slow reader is waited for."""

    def __init__(self, request: web.Request) -> None:
        self._protocol: Any = request.protocol
        self._transport: Any = request.transport
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=_BUFFER)

    def gone(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def full(self) -> bool:
        return bool(self._protocol.writing_paused)

    async def drain(self) -> None:
        with contextlib.suppress(ConnectionError):  # the watcher of the connection stops the answer
            await self._protocol._drain_helper()


class SocketSink(TransportSink):
    """Text frames, unmasked and uncompressed, as a server sends them.

    A token is written at once, with what was gathered before it; other events are written together in the next
    iteration of the event loop.
    """

    def __init__(self, request: web.Request) -> None:
        super().__init__(request)
        self._loop = asyncio.get_running_loop()
        self._gathered: list[bytes] = []

    def send(self, kind: bytes, data: bytes) -> None:
        if self._gathered:
            self._gathered.append(_frame(data))
            self._flush()
        elif not self.gone():
            self._transport.write(_frame(data))

    def send_soon(self, kind: bytes, data: bytes) -> None:
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(_frame(data))

    def _flush(self) -> None:
        frames, self._gathered = self._gathered, []
        if frames and not self.gone():
            self._transport.write(b"".join(frames))


def _frame(data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        return b"\x81%c%b" % (size, data)
    if size < 65536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), data)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), data)


class SseSink(TransportSink):
    """`event:` and `data:` lines in one chunk of the body. The stream ends with `data: [DONE]`."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        super().__init__(request)
        self._response = response
        self._chunked = response.chunked

    @classmethod
    async def open(cls, request: web.Request, content_type: str = "text/event-stream") -> SseSink:
        headers = {"Content-Type": content_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        if request.version >= (1, 1):
            response.enable_chunked_encoding()
        await response.prepare(request)
        request[STREAM] = response
        return cls(request, response)

    def send_soon(self, kind: bytes, data: bytes) -> None:
        """Always write one event at a time: some parsers need it."""
        self.send(kind, data)

    def send(self, kind: bytes, data: bytes) -> None:
        self.write(b"event: %b\ndata: %b\n\n" % (kind, data))

    def write(self, event: bytes) -> None:
        if event and not self.gone():
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)

    async def close(self, last: bytes = b"data: [DONE]\n\n") -> web.StreamResponse:
        self.write(last)
        if not self.gone():
            await self._response.write_eof()
        return self._response
