"""Messages between the engine process and its client: a length, then a pickle. Both ends are this program.

To the engine: ("open", EngineOptions) once, ("submit", id, GenerateRequest), ("cancel", id), ("steer", id, tokens).
From it: ("ready", EngineInfo) or ("failed", error) once, ("events", [packed…]), ("refused", id, error).
An error is (code, message, hint). Events travel together, those of a step and more; tokens as plain tuples.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

from fulgur.engine.errors import ERRORS, EngineError
from fulgur.engine.events import Event, Token, TokenLogprob
from fulgur.errors import FulgurError

Message: TypeAlias = tuple[Any, ...]
_LENGTH = struct.Struct("<I")


def frame(message: Message) -> bytes:
    payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Puts messages together from bytes as they come."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                message: Message = pickle.loads(view[at + _LENGTH.size : end])
            at = end
            yield message
        del buffer[:at]


def pack_events(events: list[Event]) -> list[Any]:
    return [_pack_token(event) if type(event) is Token else event for event in events]


def unpack_events(packed: list[Any]) -> list[Event]:
    return [_unpack_token(event) if type(event) is tuple else event for event in packed]


def _pack_token(event: Token) -> tuple[Any, ...]:
    if event.logprob is None:
        return (event.request_id, event.index, event.token, event.text)
    return (event.request_id, event.index, event.token, event.text, event.logprob.logprob, event.logprob.top)


def _unpack_token(packed: tuple[Any, ...]) -> Token:
    request_id, index, token, text, *rest = packed
    return Token(request_id, index, token, text, TokenLogprob(*rest) if rest else None)


def pack_error(error: FulgurError) -> tuple[str, str, str | None]:
    return (getattr(error, "code", EngineError.code), error.message, error.hint)


def unpack_error(packed: tuple[str, str, str | None]) -> FulgurError:
    code, message, hint = packed
    return ERRORS.get(code, EngineError)(message, hint=hint)
