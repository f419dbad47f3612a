"""What Chat Completions and text completions share: an answer read whole or streamed, and what it used."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from fulgur.backends.base import Generation
from fulgur.protocol.errors import ApiError
from fulgur.server.accounting import cost
from fulgur.server.registry import ServedModel
from fulgur.server.sinks import SseSink
from fulgur.text.parts import CallDelta, CallStart, Finish, Part, ReasoningDelta, TextDelta, Usage

if TYPE_CHECKING:
    from fulgur.server.state import Server

encode = msgspec.json.Encoder().encode


@dataclass
class Answer:
    """One choice, whole."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[CallStart, str]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: Finish = field(default_factory=lambda: Finish("stop", Usage()))


async def collect(generation: Generation) -> Answer:
    answer = Answer()
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[CallStart, list[str]]] = []
    try:
        async for part in generation:
            if isinstance(part, TextDelta):
                text.append(part.text)
                answer.logprobs += part.logprobs or []
            elif isinstance(part, ReasoningDelta):
                reasoning.append(part.text)
            elif isinstance(part, CallStart):
                calls.append((part, []))
            elif isinstance(part, CallDelta):
                calls[-1][1].append(part.text)
            elif isinstance(part, Finish):
                answer.finish = part
    finally:
        generation.cancel()
    answer.text, answer.reasoning = "".join(text), "".join(reasoning)
    answer.calls = [(start, "".join(pieces)) for start, pieces in calls]
    return answer


async def stream(
    server: Server,
    request: web.Request,
    generation: Generation,
    write: Callable[[Part], bytes | None],
    last: Callable[[Usage], bytes] | None,
) -> tuple[Usage, web.StreamResponse]:
    """Server-sent events: what `write` makes of each part, and `last` of the usage.

    The stream begins when the first part is there: what is refused (an input too long) is refused before.
    """
    parts = generation.__aiter__()
    part: Part | None = await anext(parts)
    sink = await SseSink.open(request)
    usage = Usage()
    try:
        while part is not None:
            data = write(part)
            if data is not None:
                sink.data(data)
            if isinstance(part, Finish):
                usage = part.usage
            if sink.full():
                await sink.drain()
            part = await anext(parts, None)
        if last is not None:
            sink.data(last(usage))
    except ApiError as error:
        sink.data(encode({"error": error.as_dict()}))
    except Exception as error:
        server.log_exception(error)
        said = ApiError(500, "server_error", str(error) or "The server failed on this request.")
        sink.data(encode({"error": said.as_dict()}))
    finally:
        generation.cancel()
    return usage, await sink.close()


@contextlib.asynccontextmanager
async def counted(server: Server, entry: ServedModel, model: str) -> AsyncIterator[Usage]:
    """A place in the model's pool; what is added to the usage meanwhile is recorded."""
    usage = Usage()
    if entry.pool is not None:
        entry.pool.admit()
        await entry.pool.enter()
    try:
        yield usage
        server.metrics.record(model, "completed", usage, cost(entry.model.price, usage))
    finally:
        if entry.pool is not None:
            entry.pool.leave(usage.input_tokens + usage.output_tokens)


def add(total: Usage, usage: Usage) -> None:
    for name in fields(Usage):
        setattr(total, name.name, getattr(total, name.name) + getattr(usage, name.name))


def usage_object(usage: Usage, entry: ServedModel, *, predicted: bool = False) -> dict[str, Any]:
    result: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    if predicted:
        result["completion_tokens_details"]["accepted_prediction_tokens"] = usage.accepted_tokens
        result["completion_tokens_details"]["rejected_prediction_tokens"] = usage.draft_tokens - usage.accepted_tokens
    price = cost(entry.model.price, usage)
    if price is not None:
        result["cost"] = price
    if usage.seconds:
        result["seconds"] = round(usage.seconds, 6)
    return result
