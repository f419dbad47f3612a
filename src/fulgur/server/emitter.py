"""Events to bytes. A delta, the event sent for every token, is a prebuilt template with one escaped string."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from fulgur.protocol.response import Response

_encode = msgspec.json.Encoder().encode


class Sink(Protocol):
    """Where events go: a socket, an SSE stream, a log. `drain` waits when `full`; the others never wait.

    `send` is for tokens and writes at once; `send_soon` may combine events that are made together into one write.
    """

    def send(self, kind: bytes, data: bytes) -> None: ...
    def send_soon(self, kind: bytes, data: bytes) -> None: ...
    def full(self) -> bool: ...
    async def drain(self) -> None: ...


class NullSink:
    """For answers that are read whole at the end."""

    def send(self, kind: bytes, data: bytes) -> None:
        pass

    def send_soon(self, kind: bytes, data: bytes) -> None:
        pass

    def full(self) -> bool:
        return False

    async def drain(self) -> None:
        pass


class EventLog:
    """Every event of a stored response, in order: the index is the sequence number."""

    def __init__(self) -> None:
        self.events: list[tuple[bytes, bytes]] = []
        self.ended = False
        self.followers: set[Callable[[], None]] = set()
        self.followed_until = 0.0  # monotonic: until then a client follows it at another front
        self.copied: Callable[[], None] | None = None  # wakes the journal, which copies it for other fronts
        self.known = 0  # events that an earlier attempt wrote

    def append(self, kind: bytes, data: bytes) -> None:
        self.events.append((kind, data))
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    def followed(self) -> bool:
        return bool(self.followers) or time.monotonic() < self.followed_until

    def _wake(self) -> None:
        if self.copied is not None:
            self.copied()
        for wake in self.followers:
            wake()


class Emitter:
    """Numbers and encodes the events of one response."""

    def __init__(self, sink: Sink, stream_id: str | None, log: EventLog | None) -> None:
        self.sequence = 0
        self.more_follows = False  # another token is ready: send both in one write
        self.sink = sink
        self.log = log
        self._lane = {} if stream_id is None else {"stream_id": stream_id}
        self._tail = b"}" if stream_id is None else b"," + _encode(self._lane)[1:]
        self._kind = b""
        self._head = b""

    def emit(self, kind: str, **fields: Any) -> None:
        """Any event but a delta."""
        self._emit(self.sink.send_soon, kind, fields)

    def last(self, kind: str, response: Response) -> None:
        """Send the terminal event at once: nothing follows that could share its write."""
        self._emit(self.sink.send, kind, {"response": response})

    def _emit(self, put: Callable[[bytes, bytes], None], kind: str, fields: dict[str, Any]) -> None:
        name, data = kind.encode(), _encode({"type": kind, "sequence_number": self.sequence, **fields, **self._lane})
        self.sequence += 1
        put(name, data)
        if self.log is not None:
            self.log.append(name, data)

    def response(self, kind: str, response: Response) -> None:
        self.emit(kind, response=response)

    def preview(self, kind: str, response: Response) -> bytes:
        """The bytes `response` would send now, to be stored before they are sent."""
        return _encode({"type": kind, "sequence_number": self.sequence, "response": response, **self._lane})

    def open(self, kind: str, **fields: Any) -> None:
        """Prepare the deltas of one part: encode once what they have in common."""
        self._kind = kind.encode()
        self._head = _encode({"type": kind, **fields})[:-1] + b',"sequence_number":'

    def delta(self, text: str) -> None:
        """One token. The hot path: nothing is built here but the bytes."""
        data = b'%b%d,"delta":%b%b' % (self._head, self.sequence, _encode(text), self._tail)
        self.sequence += 1
        if self.more_follows:
            self.sink.send_soon(self._kind, data)
        else:
            self.sink.send(self._kind, data)
        if self.log is not None:
            self.log.append(self._kind, data)
