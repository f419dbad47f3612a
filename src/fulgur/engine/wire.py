"""Messages between the engine process and its client, as bytes.

A frame is two lengths, JSON, and the token ids of a prompt or a steer as 32-bit integers, which need no parsing.
To the engine: ("open", EngineOptions) once, ("submit", id, GenerateRequest), ("cancel", id), ("steer", id, tokens).
From it: ("ready", EngineInfo) or ("failed", error) once, ("events", [Event…]), ("refused", id, error).
An error is (code, message, hint). One frame may carry the events of several steps.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from fulgur.engine.errors import ERRORS, EngineError, InvalidRequest
from fulgur.engine.events import Counts, Event, Finished, Started, SteerOutcome, Token, TokenLogprob
from fulgur.engine.load import EngineInfo, EngineOptions
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError

Message: TypeAlias = tuple[Any, ...]
_LENGTHS = struct.Struct("=II")


def frame(message: Message) -> bytes:
    kind, *body = message
    ids: list[int] = []
    if kind == "events":
        body = [event_rows(body[0])]
    elif kind == "steer":
        ids = body.pop()
    elif kind == "submit":
        ids, body[1] = request_fields(body[1])
    try:
        tail = struct.pack(f"={len(ids)}i", *ids)
    except struct.error:
        raise InvalidRequest("a token is far outside the vocabulary") from None
    head = _encode([kind, *body]).encode("ascii")
    return b"".join((_LENGTHS.pack(len(head), len(tail)), head, tail))


class FrameReader:
    """Assembles messages from bytes as they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTHS.size:
            head, tail = _LENGTHS.unpack_from(buffer, at)
            start = at + _LENGTHS.size
            if len(buffer) < start + head + tail:
                break
            at = start + head + tail
            with memoryview(buffer) as view:
                ids = view[start + head : at].cast("i").tolist()
            yield _message(json.loads(buffer[start : start + head]), ids)
        del buffer[:at]


def _message(body: list[Any], ids: list[int]) -> Message:
    match body:
        case ["events", rows]:
            return ("events", [event for row in rows for event in row_events(row)])
        case ["submit", request_id, fields]:
            return ("submit", request_id, request_of(fields, ids))
        case ["steer", request_id]:
            return ("steer", request_id, ids)
        case ["open", fields]:
            return ("open", EngineOptions(**{**fields, "model": Path(fields["model"])}))
        case ["ready", fields]:
            return ("ready", EngineInfo(**fields))
    return tuple(body)


def event_rows(events: list[Event]) -> list[Any]:
    """Consecutive tokens of one sequence share a row; any other event is a row under its name."""
    rows: list[Any] = []
    run: list[Any] | None = None
    for event in events:
        if type(event) is not Token:
            run = None
            rows.append({type(event).__name__: event})
            continue
        if run is None or run[0] != event.request_id or run[1] != event.index:
            run = [event.request_id, event.index, [], [], []]
            rows.append(run)
        run[2].append(event.token)
        run[3].append(event.text)
        if event.logprob is not None:
            run[4].append((event.logprob.logprob, event.logprob.top))
    return rows


def row_events(row: Any) -> Iterator[Event]:
    if type(row) is list:
        request_id, index, tokens, texts, logprobs = row
        if not logprobs:
            for token, text in zip(tokens, texts, strict=True):
                yield Token(request_id, index, token, text)
        for token, text, (logprob, top) in zip(tokens, texts, logprobs, strict=bool(logprobs)):
            yield Token(request_id, index, token, text, TokenLogprob(logprob, tuple(map(tuple, top))))
        return
    ((name, fields),) = row.items()
    if name == "Finished":
        yield Finished(**{**fields, "usage": Counts(**fields["usage"])})
    else:
        yield Started(**fields) if name == "Started" else SteerOutcome(**fields)


def request_fields(request: GenerateRequest) -> tuple[list[int], dict[str, Any]]:
    """The ids of a request, and its other fields with how many of the ids are the prompt."""
    fields = _plain(request)
    draft = fields.pop("draft_source")
    fields["prompt"] = len(request.prompt)
    return (request.prompt if draft is None else request.prompt + draft), fields


def request_of(fields: dict[str, Any], ids: list[int]) -> GenerateRequest:
    params = fields["params"]
    if params["grammar"] is not None:
        from fulgur.text.grammar import GrammarSpec

        params["grammar"] = GrammarSpec(**params["grammar"])
    params["stop"], params["stop_tokens"] = tuple(params["stop"]), tuple(params["stop_tokens"])
    params["logit_bias"] = tuple(map(tuple, params["logit_bias"]))
    fields["params"], fields["visible_tokens"] = SamplingParams(**params), tuple(fields["visible_tokens"])
    draft = ids[fields["prompt"] :]
    del ids[fields["prompt"] :]
    fields["prompt"], fields["draft_source"] = ids, draft or None
    return GenerateRequest(**fields)


def _plain(value: Any) -> Any:
    """Convert what JSON does not know: our dataclasses, and paths."""
    if isinstance(value, Path):
        return str(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def pack_error(error: FulgurError) -> tuple[str, str, str | None]:
    code = error.code if isinstance(error, EngineError) else EngineError.code
    return (code, error.message, error.hint)


def unpack_error(packed: tuple[str, str, str | None]) -> FulgurError:
    code, message, hint = packed
    return ERRORS.get(code, EngineError)(message, hint=hint)
