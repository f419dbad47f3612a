"""`POST /v1/chat/completions`: messages in, choices out; `prediction` feeds the edit drafter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from fulgur.backends.base import Backend, Generation, Turn
from fulgur.protocol.errors import ApiError
from fulgur.protocol.ids import CALL, new_id
from fulgur.protocol.request import ChatRequest
from fulgur.server.answers import json_answer, owner_of, read_object, server_of
from fulgur.server.chat_input import to_turn
from fulgur.server.parse import convert, in_range
from fulgur.server.prices import cost
from fulgur.server.registry import ServedModel, require
from fulgur.server.sinks import SseSink
from fulgur.server.state import Server
from fulgur.text.parts import (
    Begin,
    CallDelta,
    CallEnd,
    CallStart,
    Finish,
    Malformed,
    Part,
    ReasoningDelta,
    TextDelta,
    Usage,
)

_encode = msgspec.json.Encoder().encode
_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


@dataclass
class Answer:
    """One choice while it grows."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: Finish | None = None


async def create(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = convert(await read_object(request), ChatRequest)
    entry = server.models.get(body.model)
    backend = await entry.ready()
    check(body, entry)
    if entry.pool is not None:
        entry.pool.admit()
        await entry.pool.enter()
    tokens = 0
    try:
        turn = to_turn(body)
        turn.owner = server.cache_owner(owner_of(request))
        usage, answer = await (_stream if body.stream else _whole)(server, request, body, entry, backend, turn)
        tokens = usage.input_tokens + usage.output_tokens
        server.metrics.record(body.model, "completed", usage, cost(entry.model.price, usage))
        return answer
    finally:
        if entry.pool is not None:
            entry.pool.leave(tokens)


def check(body: ChatRequest, entry: ServedModel) -> None:
    require(entry, "chat", "chat")
    in_range(body.temperature, 0, 2, "temperature")
    in_range(body.top_p, 0, 1, "top_p")
    in_range(body.n, 1, 8, "n")
    in_range(body.top_logprobs, 0, 20, "top_logprobs")
    if not body.messages:
        raise ApiError(400, "invalid_value", "'messages' is empty.", param="messages")
    if body.logprobs:
        require(entry, "logprobs", "give log-probabilities")
    if body.stream and (body.n or 1) > 1:
        raise ApiError(400, "unsupported_parameter", "'n' above 1 cannot be streamed.", param="n")


async def _whole(
    server: Server, request: web.Request, body: ChatRequest, entry: ServedModel, backend: Backend, turn: Turn
) -> tuple[Usage, web.StreamResponse]:
    answers = await asyncio.gather(*(_collect(backend, turn) for _ in range(body.n or 1)))
    total = Usage()
    for answer in answers:
        if answer.finish is not None:
            _add(total, answer.finish.usage)
    choices = [
        {
            "index": index,
            "message": _message(answer),
            "logprobs": {"content": answer.logprobs, "refusal": None} if body.logprobs else None,
            "finish_reason": _reason(answer),
        }
        for index, answer in enumerate(answers)
    ]
    result = _frame("chat.completion", body.model, choices) | {"usage": usage_object(total, body, entry)}
    return total, json_answer(result)


async def _collect(backend: Backend, turn: Turn) -> Answer:
    answer = Answer()
    generation = backend.generate(turn)
    try:
        async for part in generation:
            if isinstance(part, TextDelta):
                answer.text.append(part.text)
                answer.logprobs += part.logprobs or []
            elif isinstance(part, ReasoningDelta):
                answer.reasoning.append(part.text)
            elif isinstance(part, CallStart):
                answer.calls.append(_call(part, ""))
            elif isinstance(part, CallDelta):
                inner = answer.calls[-1][answer.calls[-1]["type"]]
                inner["arguments" if "arguments" in inner else "input"] += part.text
            elif isinstance(part, Finish):
                answer.finish = part
    finally:
        generation.cancel()
    return answer


async def _stream(
    server: Server, request: web.Request, body: ChatRequest, entry: ServedModel, backend: Backend, turn: Turn
) -> tuple[Usage, web.StreamResponse]:
    generation = backend.generate(turn)
    parts = await begun(generation)
    sink = await SseSink.open(request)
    frame = _frame("chat.completion.part", body.model, [])
    head, tail = _encode(frame)[:-3], b',"logprobs":null,"finish_reason":null}]}'  # up to `"choices":`
    usage, calls = Usage(), 0

    def delta(fields: dict[str, Any], reason: str | None = None) -> None:
        choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": reason}
        sink.data(_encode({**frame, "choices": [choice]}))

    delta({"role": "assistant", "content": ""})
    try:
        async for part in parts:
            if isinstance(part, TextDelta) and part.logprobs is None:
                sink.data(b'%b[{"index":0,"delta":{"content":%b}%b' % (head, _encode(part.text), tail))
            elif isinstance(part, TextDelta):
                logprobs = {"content": part.logprobs, "refusal": None}
                choice = {"index": 0, "delta": {"content": part.text}, "logprobs": logprobs, "finish_reason": None}
                sink.data(_encode({**frame, "choices": [choice]}))
            elif isinstance(part, ReasoningDelta):
                delta({"reasoning_content": part.text})
            elif isinstance(part, CallStart):
                delta({"tool_calls": [{"index": calls, **_call(part, "")}]})
                name = ("custom", "input") if part.custom else ("function", "arguments")
                calls += 1
            elif isinstance(part, CallDelta):
                delta({"tool_calls": [{"index": calls - 1, name[0]: {name[1]: part.text}}]})
            elif isinstance(part, Finish):
                usage = part.usage
                delta({}, _FINISH.get(part.reason, "stop"))
            elif not isinstance(part, Begin | CallEnd | Malformed):
                raise AssertionError(part)
            if sink.full():
                await sink.drain()
        if body.stream_options is not None and body.stream_options.include_usage:
            sink.data(_encode({**frame, "usage": usage_object(usage, body, entry)}))
    except Exception as error:
        sink.data(_encode({"error": stream_error(server, error).as_dict()}))
    finally:
        generation.cancel()
    return usage, await sink.close()


async def begun(generation: Generation) -> AsyncIterator[Part]:
    """The parts, once the first is there: what is refused (an input too long) is refused before a stream begins."""
    parts = generation.__aiter__()
    first = await anext(parts)

    async def from_first() -> AsyncIterator[Part]:
        yield first
        async for part in parts:
            yield part

    return from_first()


def stream_error(server: Server, error: Exception) -> ApiError:
    """What is said when a stream breaks after it began."""
    if isinstance(error, ApiError):
        return error
    server.log_exception(error)
    return ApiError(500, "server_error", str(error) or "The server failed on this request.")


def usage_object(usage: Usage, body: ChatRequest | None, entry: ServedModel) -> dict[str, Any]:
    result: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    if body is None or body.prediction is not None:
        result["completion_tokens_details"]["accepted_prediction_tokens"] = usage.accepted_tokens
        result["completion_tokens_details"]["rejected_prediction_tokens"] = usage.draft_tokens - usage.accepted_tokens
    price = cost(entry.model.price, usage)
    if price is not None:
        result["cost"] = price
    if usage.seconds:
        result["seconds"] = round(usage.seconds, 6)
    return result


def _frame(kind: str, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": new_id("chatcmpl"), "object": kind, "created": int(time.time()), "model": model, "choices": choices}


def _call(start: CallStart, text: str) -> dict[str, Any]:
    kind, field_name = ("custom", "input") if start.custom else ("function", "arguments")
    return {"id": start.call_id or new_id(CALL), "type": kind, kind: {"name": start.name, field_name: text}}


def _message(answer: Answer) -> dict[str, Any]:
    text = "".join(answer.text)
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if answer.calls else ""), "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = "".join(answer.reasoning)
    if answer.calls:
        message["tool_calls"] = answer.calls
    return message


def _reason(answer: Answer) -> str:
    return _FINISH.get(answer.finish.reason if answer.finish else "stop", "stop")


def _add(total: Usage, usage: Usage) -> None:
    for name in Usage.__slots__:
        setattr(total, name, getattr(total, name) + getattr(usage, name))
