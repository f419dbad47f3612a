"""Shared by the doors: collects or streams answers, several per request, and counts what they use."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from fulgur.backends.base import Completion, Generation, Turn
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.server import tracing
from fulgur.server.accounting import at_tier, cost
from fulgur.server.answers import admit, owner_of, server_of
from fulgur.server.registry import ServedModel
from fulgur.server.sinks import SseSink
from fulgur.text.parts import Begin, CallDelta, CallStart, Finish, Part, ReasoningDelta, TextDelta, Usage

if TYPE_CHECKING:
    from fulgur.server.state import Server

encode = msgspec.json.Encoder().encode
Asked = TypeVar("Asked", Turn, Completion)
DONE = b"data: [DONE]\n\n"
# Backends name fields as Responses does; this is what each door calls them.
_FIELDS = {
    "/chat/completions": {
        "input": "messages",
        "text.format.schema": "response_format",
        "max_output_tokens": "max_tokens",
    },
    "/completions": {"input": "prompt"},
}
_QUEUED = 64  # parts of several answers that wait to be written


class Pace:
    """When a request began and when its first output came: clients of Ollama and llama.cpp show speeds."""

    def __init__(self) -> None:
        self._began = time.perf_counter_ns()
        self._first = 0

    def see(self, part: Part) -> None:
        if not self._first and not isinstance(part, Begin | Finish):
            self._first = time.perf_counter_ns()

    def spans(self) -> tuple[int, int]:
        """Nanoseconds before and after the first output; never 0, because clients divide by them."""
        now = time.perf_counter_ns()
        first = self._first or now
        return max(1, first - self._began), max(1, now - first)


@dataclass
class Answer:
    """One complete choice."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[CallStart, str]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: Finish = field(default_factory=lambda: Finish("stop", Usage()))


def numbered(asked: Asked, count: int) -> list[Asked]:
    """The same request `count` times; a seed is incremented for each, or all answers would be the same."""
    seed = asked.sampling.seed
    if seed is None or count == 1:
        return [asked] * count
    return [replace(asked, sampling=replace(asked.sampling, seed=seed + index)) for index in range(count)]


async def collect(generation: Generation, pace: Pace | None = None) -> Answer:
    answer = Answer()
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[CallStart, list[str]]] = []
    try:
        async for part in generation:
            if pace is not None:
                pace.see(part)
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


def sse(value: Any) -> bytes:
    """An event without a name, as OpenAI's older streams have them."""
    return b"data: %b\n\n" % encode(value)


class Writer(Protocol):
    """Turns a streamed answer into a door's bytes, with their framing and the end of the stream."""

    content_type: str

    def part(self, index: int, part: Part) -> bytes | None: ...
    def end(self, usage: Usage) -> bytes: ...
    def failed(self, error: ApiError) -> bytes: ...


async def stream(
    request: web.Request, generations: Sequence[Generation], writer: Writer, count: Count
) -> web.StreamResponse:
    """Write every part as it comes.

    The stream begins with the first part, so that a refusal (an input too long) is still an HTTP error. Its last bytes
    are sent after its usage was recorded.
    """
    usage = count.usage
    parts = _numbered(generations)
    try:
        index, part = await anext(parts)
        sink = await SseSink.open(request, writer.content_type)
        try:
            while True:
                data = writer.part(index, part)
                if data is not None:
                    sink.write(data)
                if isinstance(part, Finish):
                    count.add(part.usage, index)
                if sink.full():
                    await sink.drain()
                index, part = await anext(parts)
        except StopAsyncIteration:
            await count.book()
            last = writer.end(usage)
        except ApiError as error:
            last = writer.failed(error)
        except Exception as error:
            server_of(request).log_exception(error)
            said = (
                str(error) if isinstance(error, FulgurError) else "The server failed on this request; its log says why."
            )
            last = writer.failed(ApiError(500, "server_error", said))
    finally:
        for generation in generations:
            generation.cancel()
        await parts.aclose()
    return await sink.close(last)


async def _numbered(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Part], None]:
    """Merge the parts of all generations as they come, each with the number of its generation."""
    if len(generations) == 1:
        async for part in generations[0]:
            yield 0, part
        return
    queue: asyncio.Queue[tuple[int, Part | BaseException | None]] = asyncio.Queue(_QUEUED)

    async def pump(index: int, generation: Generation) -> None:
        try:
            async for part in generation:
                await queue.put((index, part))
            await queue.put((index, None))
        except Exception as error:
            await queue.put((index, error))

    tasks = [asyncio.create_task(pump(index, generation)) for index, generation in enumerate(generations)]
    try:
        left = len(tasks)
        while left:
            index, found = await queue.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield index, found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Count:
    """The usage of the answers to one request; it is recorded once, before the last bytes are sent."""

    def __init__(self, server: Server, owner: str, entry: ServedModel, tier: str) -> None:
        self.usage = Usage()
        self.each = 1  # answers to one prompt
        self.tier = tier
        self.price = at_tier(entry.model.price, entry.pool.price(tier))
        self._server, self._owner, self._entry = server, owner, entry
        self._booked = False

    def add(self, usage: Usage, index: int = 0) -> None:
        """Add the usage of the answer with this number; a prompt that is answered several times counts once."""
        if index % self.each:
            usage = replace(usage, input_tokens=0, cached_tokens=0)
        for name in fields(Usage):
            setattr(self.usage, name.name, getattr(self.usage, name.name) + getattr(usage, name.name))

    async def book(self) -> None:
        if not self._booked:
            self._booked = True
            paid = cost(self.price, self.usage)
            await self._server.book(self._owner, self._entry.name, self.tier, self.usage, paid)


@contextlib.asynccontextmanager
async def counted(request: web.Request, entry: ServedModel, asked: str | None) -> AsyncIterator[Count]:
    """Hold a slot of the model's pool in the requested tier, and record what is added to the count meanwhile."""
    server, owner = server_of(request), owner_of(request)
    began = time.perf_counter()
    count = Count(server, owner, entry, await admit(request, entry, asked))
    slot = await entry.pool.ask(owner, count.tier)
    server.slots.add(slot)
    entered, error = began, "cancelled"
    try:
        await entry.pool.wait(slot)
        entered = time.perf_counter()
        yield count
        error = ""
        await count.book()
    except FulgurError as failed:
        error = "server_error"
        if isinstance(failed, ApiError):
            error = failed.code
            names = next((names for end, names in _FIELDS.items() if request.path.endswith(end)), {})
            failed.param = names.get(failed.param or "", failed.param)
        raise
    finally:
        server.slots.discard(slot)
        server.leave(entry.pool, slot, count.usage)
        if server.tracer is not None:
            operation = "chat" if "chat" in request.path or "messages" in request.path else "text_completion"
            phases = [("queue", began, entered), ("generate", entered, time.perf_counter())]
            used = tracing.usage_attributes(entry.name, count.usage, count.tier)
            server.tracer.answer(operation, tracing.parent.get(), used, phases, error)


def usage_object(count: Count, *, predicted: bool = False) -> dict[str, Any]:
    usage = count.usage
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
    paid = cost(count.price, usage)
    if paid is not None:
        result["cost"] = paid
    if usage.seconds:
        result["seconds"] = round(usage.seconds, 6)
    return result
