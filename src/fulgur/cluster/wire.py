"""Messages between a front and a replica, as bytes: a length, then MessagePack.

The first three prove that both sides know the cluster's secret (`secret.py`); until then no frame may be larger than
`HANDSHAKE`. Requests and events are those of the engine (`engine/wire.py`); token ids are 32-bit integers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from fulgur.engine import wire
from fulgur.engine.errors import InvalidRequest
from fulgur.engine.events import Event
from fulgur.engine.load import EngineInfo
from fulgur.engine.params import GenerateRequest
from fulgur.errors import FulgurError

PROTOCOL = 2  # sides that speak another version refuse each other
HANDSHAKE = 1024  # bytes of a frame from a peer that has not proven anything yet
LARGEST = 1 << 28
_LENGTH = struct.Struct("<I")


class Message(msgspec.Struct, tag=True, array_like=True):
    """Any of the following."""


class Challenge(Message):
    """Replica to front, the first message."""

    protocol: int
    nonce: bytes


class Proof(Message):
    """Front to replica: the answer to the challenge, and one for the replica."""

    proof: bytes
    nonce: bytes


class Ready(Message):
    """Replica to front: its own proof, and what it serves. `epoch` changes with each start: the cache is cold."""

    proof: bytes
    info: EngineInfo
    fingerprint: str
    epoch: str


class Submit(Message):
    """A request: its fields, and the tokens of the prompt and the draft. `cached` of them are probably cached there."""

    id: str
    fields: dict[str, Any]
    tokens: bytes
    cached: int = 0


class Steer(Message):
    id: str
    tokens: bytes


class Cancel(Message):
    id: str


class Events(Message):
    """What the engine reported, as rows: consecutive tokens share one."""

    rows: list[Any]


class Refused(Message):
    """The request cannot be served here. `code` is the engine's; `engine_died`: another replica may continue it."""

    id: str
    code: str
    message: str
    hint: str | None


class Load(Message):
    """How busy the replica is. `others`: prompt tokens of other fronts that wait to be computed."""

    others: int
    running: int
    draining: bool = False


class Drain(Message):
    """Take no new requests, finish the running ones."""


AnyMessage: TypeAlias = Challenge | Proof | Ready | Submit | Steer | Cancel | Events | Refused | Load | Drain
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


_encode = msgspec.msgpack.Encoder().encode


def frame(message: Message) -> bytes:
    try:
        data = _encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidRequest(f"the request cannot be serialised: {error}") from None
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Assembles messages from bytes as they come. `largest` grows once the other side has proven itself."""

    def __init__(self) -> None:
        self.largest = HANDSHAKE
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[AnyMessage]:
        """Raises FulgurError for bytes that are not a message; the connection is then unusable."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, at)
                if length > self.largest:
                    raise FulgurError(f"received a frame of {length} bytes; at most {self.largest} are allowed here")
                start = at + _LENGTH.size
                if len(buffer) < start + length:
                    break
                at = start + length
                with memoryview(buffer) as view:
                    message = _decoder.decode(view[start:at])
                yield message
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FulgurError(f"received an invalid frame: {error}") from None
        finally:
            del buffer[:at]


def submit(request_id: str, request: GenerateRequest, cached: int = 0) -> Submit:
    tokens, fields = wire.request_fields(request)
    return Submit(request_id, fields, pack_tokens(tokens), cached)


def request_of(message: Submit) -> GenerateRequest:
    """Raises InvalidRequest for fields that do not make a request."""
    try:
        return wire.request_of(message.fields, unpack_tokens(message.tokens))
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidRequest(f"the request cannot be read: {error}") from None


def events(reported: list[Event]) -> Events:
    return Events(wire.event_rows(reported))


def events_of(message: Events) -> Iterable[Event]:
    return (event for row in message.rows for event in wire.row_events(row))


def pack_tokens(tokens: list[int]) -> bytes:
    try:
        return struct.pack(f"<{len(tokens)}i", *tokens)
    except struct.error:
        raise InvalidRequest("a token is far outside the vocabulary") from None


def unpack_tokens(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}i", data))
