"""`POST /v1/chat/completions`: messages in, choices out; `prediction` feeds the edit drafter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from fulgur.protocol.errors import ApiError
from fulgur.protocol.ids import CALL, new_id
from fulgur.protocol.request import ChatRequest
from fulgur.server.answers import json_answer, owner_of, read_request, server_of
from fulgur.server.chat_input import to_turn
from fulgur.server.choices import Answer, add, collect, counted, encode, stream, usage_object
from fulgur.server.parse import in_range
from fulgur.server.registry import ServedModel, require
from fulgur.text.parts import Begin, CallDelta, CallStart, Finish, Part, ReasoningDelta, TextDelta, Usage

_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


async def create(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, ChatRequest)
    entry = server.models.get(body.model)
    backend = await entry.ready()
    check(body, entry)
    async with counted(server, entry, body.model) as total:
        turn = to_turn(body)
        turn.owner = server.cache_owner(owner_of(request))

        def used(usage: Usage) -> dict[str, Any]:
            return usage_object(usage, entry, predicted=body.prediction is not None)

        if body.stream:
            frame = _frame("chat.completion.chunk", body.model, [])
            told = body.stream_options is not None and body.stream_options.include_usage
            last = (lambda usage: encode({**frame, "usage": used(usage)})) if told else None
            usage, answer = await stream(server, request, backend.generate(turn), _writer(frame), last)
            add(total, usage)
            return answer
        answers = await asyncio.gather(*(collect(backend.generate(turn)) for _ in range(body.n or 1)))
        for whole in answers:
            add(total, whole.finish.usage)
        choices = [_choice(index, whole, logprobs=bool(body.logprobs)) for index, whole in enumerate(answers)]
        return json_answer({**_frame("chat.completion", body.model, choices), "usage": used(total)})


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


def _writer(frame: dict[str, Any]) -> Callable[[Part], bytes | None]:
    """Parts as chunks of a stream. Plain text, the chunk sent for every token, is a prebuilt template."""
    head, tail = encode(frame)[:-3], b',"logprobs":null,"finish_reason":null}]}'  # up to `"choices":`
    calls = 0
    kind, text_field = "function", "arguments"

    def chunk(delta: dict[str, Any], reason: str | None = None, logprobs: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return encode({**frame, "choices": [choice]})

    def write(part: Part) -> bytes | None:
        nonlocal calls, kind, text_field
        if isinstance(part, TextDelta):
            if part.logprobs is None:
                return b'%b[{"index":0,"delta":{"content":%b}%b' % (head, encode(part.text), tail)
            return chunk({"content": part.text}, logprobs={"content": part.logprobs, "refusal": None})
        if isinstance(part, ReasoningDelta):
            return chunk({"reasoning_content": part.text})
        if isinstance(part, CallStart):
            calls += 1
            kind, text_field = _fields(part)
            return chunk({"tool_calls": [{"index": calls - 1, **_call(part, "")}]})
        if isinstance(part, CallDelta):
            return chunk({"tool_calls": [{"index": calls - 1, kind: {text_field: part.text}}]})
        if isinstance(part, Begin):
            return chunk({"role": "assistant", "content": ""})
        if isinstance(part, Finish):
            return chunk({}, _FINISH.get(part.reason, "stop"))
        return None

    return write


def _frame(kind: str, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": new_id("chatcmpl"), "object": kind, "created": int(time.time()), "model": model, "choices": choices}


def _fields(start: CallStart) -> tuple[str, str]:
    return ("custom", "input") if start.custom else ("function", "arguments")


def _call(start: CallStart, text: str) -> dict[str, Any]:
    kind, text_field = _fields(start)
    return {"id": start.call_id or new_id(CALL), "type": kind, kind: {"name": start.name, text_field: text}}


def _choice(index: int, answer: Answer, *, logprobs: bool) -> dict[str, Any]:
    content = answer.text or (None if answer.calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_call(start, text) for start, text in answer.calls]
    return {
        "index": index,
        "message": message,
        "logprobs": {"content": answer.logprobs, "refusal": None} if logprobs else None,
        "finish_reason": _FINISH.get(answer.finish.reason, "stop"),
    }
