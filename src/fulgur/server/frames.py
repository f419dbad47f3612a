"""The gate in front of a WebSocket's reader: a message that is too large, or exceeds the budget, never reaches memory.

aiohttp collects a whole message before anybody sees it, and closes the socket if it is too large. The gate reads only
frame headers. It passes on the payload that the budget has room for and drops the rest, so that the sender gets an
error but keeps its connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.web_ws import WebSocketDataQueue, WebSocketReader

from fulgur.protocol.errors import ApiError
from fulgur.server.limits import READ_BYTES, SMALL, Lease, no_room

_END = b"\x80\x80\0\0\0\0"  # a last, empty fragment, masked as a client's must be
_PIECE = 64 << 10  # bytes: larger frames are cut. A multiple of 4, so that the same mask fits every piece
_LONGEST_HEAD = 14
_MANY_FRAMES = 64  # in one read
_QUEUED = 8 << 10  # bytes of messages that wait for the session; reading pauses at twice as many


class GatedSocket(web.WebSocketResponse):
    """A WebSocket behind a gate. `refused` is called when a message is dropped."""

    def __init__(self, limit: int, lease: Callable[[], Lease], refused: Callable[[ApiError], None], **options: Any):
        super().__init__(max_msg_size=0, **options)
        self._gate_options = limit, lease, refused

    def _post_start(self, request: web.BaseRequest, *rest: Any) -> None:
        protocol = request.protocol
        early, protocol._message_tail = protocol._message_tail, b""  # frames that came with the handshake
        super()._post_start(request, *rest)
        # aiohttp would queue half a megabyte per socket: thousands of tiny messages, all of which every garbage
        # collection visits.
        self._reader = WebSocketDataQueue(protocol, _QUEUED, loop=asyncio.get_running_loop())
        self._parser = WebSocketReader(self._reader, self._max_msg_size, compress=False, decode_text=False)
        self.gate = Gate(self._parser, *self._gate_options, request.transport)
        protocol._payload_parser = self.gate
        if early:
            self.gate.feed_data(early)


class Gate:
    """Counts the bytes of messages. `leases` has one entry for each message that came through, in order.

    An entry is the lease of a large message, None for a small one, or the error of a message that was cut short.
    """

    def __init__(
        self,
        reader: Any,
        limit: int,
        lease: Callable[[], Lease],
        refused: Callable[[ApiError], None],
        transport: Any = None,
    ) -> None:
        self.leases: deque[Lease | ApiError | None] = deque()
        self._reader = reader
        self._transport = transport
        self._limit = limit
        self._lease = lease
        self._refused = refused
        self._head = bytearray()  # a frame's header, until all of it is here
        self._left = 0  # bytes still to come of the frame's payload, or of its current piece
        self._rest = 0  # bytes of a cut frame after the current piece
        self._cut_head = b""  # the header of the cut frame
        self._dropping = False  # this frame
        self._size = 0  # of the message so far
        self._open: Lease | None = None
        self._lost = False  # the rest of this message is dropped
        self._closed = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        out: list[bytes] = []
        at = frames = 0
        whole = not self._head
        while at < len(data):
            if self._rest and not self._left:
                out.append(self._next_piece(0))
                whole = False
            if self._left:
                taken = min(self._left, len(data) - at)
                if self._dropping:
                    whole = False
                else:
                    out.append(data[at : at + taken])
                self._left -= taken
                at += taken
                continue
            head, at = self._read_head(data, at)
            if head:
                frames += 1
                passed = self._begin(head)
                whole &= passed == head
                out.append(passed)
        if self._head:
            whole = False
        if self._transport is not None:
            # The cost of tiny frames is per frame, not per byte, so read a flood of them in even smaller portions.
            self._transport.max_size = READ_BYTES if frames <= _MANY_FRAMES else READ_BYTES // 8
        passed_on = data if whole else b"".join(out)
        return self._reader.feed_data(passed_on) if passed_on else (False, b"")

    def feed_eof(self) -> None:
        self.close()
        self._reader.feed_eof()

    def close(self) -> None:
        """Release the leases of messages that nobody will read; later messages are not counted."""
        self._closed = True
        for lease in (self._open, *self.leases):
            if isinstance(lease, Lease):
                lease.release()
        self.leases.clear()

    def _read_head(self, data: bytes, at: int) -> tuple[bytes, int]:
        """The next frame's header, empty until all of it is here, and where its payload begins."""
        if not self._head and len(data) - at >= _LONGEST_HEAD:
            end = at + _head_size(data[at : at + 2])
            return data[at:end], end
        while at < len(data) and len(self._head) < _head_size(self._head):
            taken = data[at : at + _head_size(self._head) - len(self._head)]
            self._head += taken
            at += len(taken)
        if len(self._head) < _head_size(self._head):
            return b"", at
        head, self._head = bytes(self._head), bytearray()
        return head, at

    def _begin(self, head: bytes) -> bytes:
        """Begin a frame: return what the reader gets of it, and decide whether its payload follows."""
        last, kind = bool(head[0] & 0x80), head[0] & 0x0F
        self._left = _payload_size(head)
        self._dropping = False
        if kind >= 8:  # ping, pong, close: small by the protocol, and checked by the reader
            return head
        if kind:
            if self._open is not None:  # a message inside another: the reader will refuse it
                self._open.release()
            self._size, self._open, self._lost = 0, None, False
        began = bool(self._size)
        self._size += self._left
        error = None if self._lost else self._take(self._left)
        if error is not None:
            self._lost = True
            if self._open is not None:
                self._open.release()
            if began or not kind:  # the reader has its beginning: end it there
                self.leases.append(error)
                self._dropping = True
                return _END
            self._refused(error)
        if self._lost:
            self._dropping = True
            return b""
        if last and not self._closed:
            self.leases.append(self._open)
            self._open = None
        if self._left <= _PIECE:
            return head
        self._rest, self._left, self._cut_head = self._left, 0, head
        return self._next_piece(head[0] & 0x7F)

    def _next_piece(self, first: int) -> bytes:
        """A header for the next piece of a large frame.

        The reader unmasks and copies a frame once it is whole; cutting the frame spreads that work over its pieces.
        """
        head = self._cut_head
        self._left = min(self._rest, _PIECE)
        self._rest -= self._left
        last = 0 if self._rest else head[0] & 0x80
        mask = head[-4:] if head[1] & 0x80 else b""
        return bytes([first | last, head[1] | 0x7F]) + self._left.to_bytes(8, "big") + mask

    def _take(self, size: int) -> ApiError | None:
        if self._size > self._limit:
            return ApiError(
                413, "message_too_big", f"The message is larger than {self._limit / (1 << 20):g} MB; it was not read."
            )
        if self._size > SMALL and not self._closed:
            self._open = self._open or self._lease()
            if not self._open.grow(self._size - self._open.size):
                return no_room()
        return None


def _head_size(head: bytes | bytearray) -> int:
    """The size of a frame's header that begins with these bytes; it is known from the second byte on."""
    if len(head) < 2:
        return 2
    length = head[1] & 0x7F
    return 2 + (2 if length == 126 else 8 if length == 127 else 0) + (4 if head[1] & 0x80 else 0)


def _payload_size(head: bytes) -> int:
    length = head[1] & 0x7F
    if length == 126:
        return int.from_bytes(head[2:4], "big")
    return int.from_bytes(head[2:10], "big") if length == 127 else length
