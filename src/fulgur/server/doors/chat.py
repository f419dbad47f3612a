"""`POST /v1/chat/completions`: messages in, choices out; `prediction` feeds the edit drafter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.ids import CALL, new_id
from fulgur.protocol.request import ChatRequest
from fulgur.server.answers import IGNORED, json_answer, owner_of, read_request, server_of
from fulgur.server.doors.answer import DONE, Answer, collect, counted, encode, numbered, sse, stream, usage_object
from fulgur.server.doors.chat_input import to_turn
from fulgur.server.parse import in_range
from fulgur.server.prepare import check_verbosity
from fulgur.server.registry import ServedModel, require
from fulgur.text.parts import Begin, CallDelta, CallStart, Finish, Part, ReasoningDelta, TextDelta, Usage

_TAIL = b',"logprobs":null,"finish_reason":null}]}\n\n'
_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


async def create(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, ChatRequest)
    entry = server.models.get(body.model)
    backend = await entry.ready()
    check(body, entry)
    async with counted(request, entry, body.service_tier) as total:
        turn, request[IGNORED] = to_turn(body, entry)
        turn.owner = server.cache_owner(owner_of(request))
        total.each = body.n or 1
        generations = [backend.generate(each) for each in numbered(turn, body.n or 1)]

        def used() -> dict[str, Any]:
            return usage_object(total, predicted=body.prediction is not None)

        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            writer = ChatWriter(chat_frame("chat.completion.chunk", body.model, []), used if with_usage else None)
            return await stream(request, generations, writer, total)
        answers = await asyncio.gather(*map(collect, generations))
        for index, whole in enumerate(answers):
            total.add(whole.finish.usage, index)
        choices = [chat_choice(index, whole, logprobs=bool(body.logprobs)) for index, whole in enumerate(answers)]
        return json_answer(
            {**chat_frame("chat.completion", body.model, choices), "usage": used(), "service_tier": total.tier}
        )


def check(body: ChatRequest, entry: ServedModel) -> None:
    require(entry, "chat", "chat")
    in_range(body.n, 1, 8, "n")
    if not body.messages:
        raise invalid("'messages' is empty.", "messages", "invalid_value")
    if body.logprobs:
        require(entry, "logprobs", "give log-probabilities")
    if body.top_logprobs and not body.logprobs:
        raise invalid("'top_logprobs' needs 'logprobs'.", "top_logprobs", "invalid_value")
    if body.verbosity in ("low", "high"):
        check_verbosity(entry, "verbosity")


class ChatWriter:
    """Parts as chunks of a stream. Plain text, the chunk sent for every token, is a prebuilt template."""

    content_type = "text/event-stream"

    def __init__(self, frame: dict[str, Any], used: Callable[[], dict[str, Any]] | None) -> None:
        self._frame = frame
        self._head = b"data: " + encode(frame)[:-3]  # up to `"choices":`
        self._used = used
        self._calls: dict[
            int, tuple[int, str, str]
        ] = {}  # of each choice: calls so far, the kind of the last, its field

    def part(self, index: int, part: Part) -> bytes | None:
        if isinstance(part, TextDelta):
            if part.logprobs is None:
                return b'%b[{"index":%d,"delta":{"content":%b}%b' % (self._head, index, encode(part.text), _TAIL)
            return self._chunk(index, {"content": part.text}, logprobs={"content": part.logprobs, "refusal": None})
        if isinstance(part, ReasoningDelta):
            return self._chunk(index, {"reasoning_content": part.text})
        if isinstance(part, CallStart):
            place = self._calls[index][0] + 1 if index in self._calls else 0
            self._calls[index] = (place, *_fields(part))
            return self._chunk(index, {"tool_calls": [{"index": place, **_call(part, "")}]})
        if isinstance(part, CallDelta):
            place, kind, text_field = self._calls[index]
            return self._chunk(index, {"tool_calls": [{"index": place, kind: {text_field: part.text}}]})
        if isinstance(part, Begin):
            return self._chunk(index, {"role": "assistant", "content": ""})
        if isinstance(part, Finish):
            return self._chunk(index, {}, _FINISH.get(part.reason, "stop"))
        return None

    def end(self, usage: Usage) -> bytes:
        last = b"" if self._used is None else sse({**self._frame, "usage": self._used()})
        return last + DONE

    def failed(self, error: ApiError) -> bytes:
        return sse({"error": error.as_dict()}) + DONE

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return sse({**self._frame, "choices": [choice]})


def chat_frame(kind: str, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": new_id("chatcmpl"), "object": kind, "created": int(time.time()), "model": model, "choices": choices}


def _fields(start: CallStart) -> tuple[str, str]:
    return ("custom", "input") if start.custom else ("function", "arguments")


def _call(start: CallStart, text: str) -> dict[str, Any]:
    kind, text_field = _fields(start)
    return {"id": start.call_id or new_id(CALL), "type": kind, kind: {"name": start.name, text_field: text}}


def chat_choice(index: int, answer: Answer, *, logprobs: bool) -> dict[str, Any]:
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
