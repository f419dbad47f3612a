"""Bytes to requests: bodies in bounded pieces, one decode, limits on nesting, and errors that name the field."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.items import split_validation_error
from fulgur.protocol.request import Body
from fulgur.server.event_loop import off_loop
from fulgur.server.limits import SMALL, Lease

T = TypeVar("T")
Bytes = bytes | bytearray
LARGE = 128 << 10  # bytes: larger bodies are decoded and checked on a thread, so that other streams go on
MAX_VALUES = 200_000  # of a body: each takes about a hundred bytes, and time in which no other stream advances
BODY_S = 120.0  # for a whole body to arrive
_PIECE = 1 << 18
_WINDOWS = {"gzip": 31, "deflate": 47}  # zlib's window bits; 47 takes either header
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def read_body(request: web.Request, lease: Lease, limit_mb: float) -> Bytes:
    """The body, unpacked; its bytes are counted as they come. 400, 408, 413, 415 or 429 when it cannot be had."""
    limit = int(limit_mb * (1 << 20))
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", *_WINDOWS):
        raise ApiError(
            415, "unsupported_encoding", f"The encoding '{encoding}' is not supported; send gzip, or no encoding."
        )
    unpack = zlib.decompressobj(_WINDOWS[encoding]) if encoding in _WINDOWS else None
    body = bytearray()
    length = request.content_length or 0
    if length > limit:
        raise _too_large(limit_mb)
    if length > SMALL:
        await lease.wait(length)
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.content.iter_any():
                while piece:
                    data = piece if unpack is None else await asyncio.to_thread(unpack.decompress, piece, _PIECE)
                    if len(body) + len(data) > limit:
                        raise _too_large(limit_mb)
                    if len(body) + len(data) > max(lease.size, SMALL):
                        await lease.wait(max(len(data), min(len(body), limit - lease.size)))
                    body += data
                    piece = b"" if unpack is None else unpack.unconsumed_tail
    except TimeoutError:
        raise ApiError(408, "body_too_slow", f"The body did not arrive within {BODY_S:g} s.") from None
    except zlib.error as error:
        raise invalid(f"The body is not valid {encoding}: {error}.", code="invalid_encoding") from None
    if unpack is not None and not unpack.eof:
        raise invalid(f"The {encoding} body is truncated.", code="invalid_encoding")
    return body


def _too_large(limit_mb: float) -> ApiError:
    return ApiError(413, "body_too_large", f"The body is larger than {limit_mb:g} MB.")


async def decode(data: Bytes, max_nesting: int) -> dict[str, Any]:
    """`decode_object`, off the event loop for a large body."""
    if len(data) < LARGE:
        return decode_object(data, max_nesting)
    return await off_loop(decode_object, data, max_nesting)


async def decode_request(data: Bytes, max_nesting: int, kind: type[T]) -> T:
    """The typed request in a body."""

    def work() -> T:
        return convert(decode_object(data, max_nesting), kind)

    return work() if len(data) < LARGE else await off_loop(work)


def decode_object(data: Bytes, max_nesting: int) -> dict[str, Any]:
    """A JSON object of bounded depth and number of values, or a 400."""
    if len(data) > MAX_VALUES and _values(data) > MAX_VALUES:
        raise invalid(f"The body has more than {MAX_VALUES:,} values.", code="too_many_values")
    try:
        value = _decode(data) if len(data) < LARGE else _decode_large(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise _too_deep(max_nesting) from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    _check_depth(value, max_nesting)
    return value


def _decode_large(data: Bytes) -> Any:
    """The same as `_decode`, in calls of a few milliseconds each, because a call cannot be interrupted."""
    try:
        return {name: _decode_piece(raw) for name, raw in _decode_fields(data).items()}
    except msgspec.DecodeError:
        return _decode(data)  # not an object, or an error: this call says at which byte


def _decode_piece(raw: msgspec.Raw) -> Any:
    if len(raw) < LARGE or bytes(memoryview(raw)[:1]) != b"[":
        return _decode(raw)
    return [_decode(item) for item in _decode_items(raw)]


def convert(value: dict[str, Any], kind: type[T]) -> T:
    """The typed request; a wrong or missing field is a 400 that names it."""
    rest: dict[str, Any] = {}
    if issubclass(kind, Body):
        known = kind.__struct_fields__
        rest = {name: given for name, given in value.items() if name not in known or name == "rest"}
        value = {name: given for name, given in value.items() if name not in rest} if rest else value
    try:
        request = msgspec.convert(value, kind)
        if isinstance(request, Body):
            request.rest = rest
        return request
    except msgspec.ValidationError as error:
        message, field = split_validation_error(error)
        name = field.lstrip(".") or None
        code = "missing_required_parameter" if "missing required" in message else "invalid_type"
        raise invalid(f"Invalid '{name}': {message}." if name else f"{message}.", name, code) from None


def in_range(value: float | None, low: float, high: float, name: str) -> None:
    if value is not None and not low <= value <= high:
        raise invalid(f"Invalid '{name}': {value} is not between {low} and {high}.", name, "invalid_value")


def at_least(value: int | None, low: int, name: str) -> None:
    if value is not None and value < low:
        raise invalid(f"Invalid '{name}': {value} is below the minimum, {low}.", name, "invalid_value")


def _values(data: Bytes) -> int:
    """Count commas and brackets outside strings: decoding millions of objects would stall every other thread."""
    starts = range(0, len(data), _PIECE)
    marks = sum(data.count(mark, at, at + _PIECE) for mark in (b",", b"[", b"{") for at in starts)
    if marks <= MAX_VALUES:
        return marks
    import numpy as np

    if b"\\" in data:
        data = data.replace(rb"\\", b"__").replace(rb"\"", b"__")
    total, inside = 0, 0
    for at in range(0, len(data), _PIECE):
        piece = np.frombuffer(data, np.uint8, min(_PIECE, len(data) - at), at)
        within = np.cumsum(piece == ord('"'), dtype=np.uint32) + inside
        marks_here = (piece == ord(",")) | (piece == ord("[")) | (piece == ord("{"))
        total += int(np.count_nonzero(marks_here & (within % 2 == 0)))
        inside = int(within[-1]) % 2
    return total


def _check_depth(value: Any, limit: int) -> None:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep(limit)


def _too_deep(limit: int) -> ApiError:
    return invalid(f"The body is nested more than {limit} levels deep.", code="too_deeply_nested")
