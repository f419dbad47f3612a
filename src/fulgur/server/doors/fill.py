"""Fill in the middle as editors ask for it: llama.cpp's `/infill` (llama.vim, llama.vscode), Codestral's
`/v1/fim/completions` (Continue and others). Both are the completion that `fulgur complete` asks for."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from fulgur.backends.base import Completion
from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.request import Body, SamplingFields, Tier
from fulgur.server import fields
from fulgur.server.answers import IGNORED, json_answer, owner_of, read_request, server_of
from fulgur.server.doors.answer import Pace, collect, counted, sse, stream, usage_object
from fulgur.server.doors.chat import ChatWriter, chat_choice, chat_frame
from fulgur.server.registry import Registry, ServedModel, require
from fulgur.server.sampling import to_sampling
from fulgur.text.parts import Finish, Part, TextDelta, Usage


class InfillRequest(Body, kw_only=True):
    """The text before the cursor is `input_prefix` and `prompt` (of its line), the text after it `input_suffix`."""

    input_prefix: str
    input_suffix: str
    prompt: str = ""
    model: str = ""
    path: str | None = None  # ours: the file's name
    service_tier: Tier | None = None  # ours
    n_predict: int = -1
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    stream: bool = False
    response_fields: list[str] | None = None


INFILL = fields.Door(
    "infill",
    frozenset({"cache_prompt", "id_slot", "samplers", "timings_per_token", "t_max_prompt_ms", "n_cache_reuse"}),
    {"grammar": "use /v1/chat/completions", "json_schema": "use /v1/chat/completions"},
    {},
)


class FimRequest(SamplingFields, kw_only=True):
    """Codestral's; `random_seed` is its name for a seed."""

    model: str
    prompt: str
    suffix: str | None = None
    path: str | None = None  # ours: the file's name
    service_tier: Tier | None = None  # ours
    max_tokens: int | None = None
    random_seed: int | None = None
    stream: bool | None = None


FIM = fields.Door(
    "fim", frozenset({"metadata"}), {"min_tokens": "the model decides where an answer ends"}, {"min_tokens": 0}
)


async def infill(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, InfillRequest)
    entry = server.models.get(body.model) if body.model else filling(server.models)
    backend = await entry.ready()
    require(entry, "fim", "fill in code between a prompt and a suffix")
    _, request[IGNORED] = fields.settle(body, entry, INFILL)
    if body.n_predict == 0:  # how llama.vim warms the cache
        return json_answer(_infilled("", Finish("stop", Usage()), entry, Pace(), body.response_fields))
    # In llama.cpp a negative seed means none.
    wanted = SamplingFields(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repeat_penalty,
        seed=body.seed if body.seed is not None and body.seed >= 0 else None,
        stop=body.stop,
    )
    sampling = to_sampling(wanted, body.n_predict if body.n_predict > 0 else None, "n_predict")
    asked = Completion(body.input_prefix + body.prompt, body.input_suffix, body.path, sampling)
    asked.owner = server.cache_owner(owner_of(request))
    async with counted(request, entry, body.service_tier) as total:
        pace, generation = Pace(), backend.complete(asked)
        if body.stream:
            return await stream(request, [generation], InfillWriter(entry, pace), total)
        whole = await collect(generation, pace)
        total.add(whole.finish.usage)
        return json_answer(_infilled(whole.text, whole.finish, entry, pace, body.response_fields))


async def fim(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, FimRequest)
    entry = server.models.get(body.model)
    backend = await entry.ready()
    require(entry, "fim", "fill in code between a prompt and a suffix")
    _, request[IGNORED] = fields.settle(body, entry, FIM)
    sampling = to_sampling(body, body.max_tokens, "max_tokens")
    sampling.seed = body.random_seed if body.random_seed is not None else sampling.seed
    asked = Completion(body.prompt, body.suffix or "", body.path, sampling)
    asked.owner = server.cache_owner(owner_of(request))
    async with counted(request, entry, body.service_tier) as total:
        generation = backend.complete(asked)
        if body.stream:
            frame = chat_frame("chat.completion.chunk", body.model, [])
            writer = ChatWriter(frame, lambda: usage_object(total))
            return await stream(request, [generation], writer, total)
        whole = await collect(generation)
        total.add(whole.finish.usage)
        answer_object = chat_frame("chat.completion", body.model, [chat_choice(0, whole, logprobs=False)])
        return json_answer({**answer_object, "usage": usage_object(total)})


def filling(models: Registry) -> ServedModel:
    """The first model that fills in the middle, else the first: llama.cpp's clients name none, as it serves one."""
    for entry in models.entries.values():
        if entry.backend.capabilities.fim:
            return entry
    if not models.entries:
        raise invalid("This server has no model.", "model", "model_not_found")
    return next(iter(models.entries.values()))


class InfillWriter:
    content_type = "text/event-stream"

    def __init__(self, entry: ServedModel, pace: Pace) -> None:
        self._entry = entry
        self._pace = pace
        self._finish = Finish("stop", Usage())

    def part(self, index: int, part: Part) -> bytes | None:
        self._pace.see(part)
        if isinstance(part, Finish):
            self._finish = part
        return sse({"content": part.text, "stop": False}) if isinstance(part, TextDelta) else None

    def end(self, usage: Usage) -> bytes:
        return sse(_infilled("", self._finish, self._entry, self._pace, None))

    def failed(self, error: ApiError) -> bytes:
        return sse({"error": error.as_dict()})


def _infilled(text: str, finish: Finish, entry: ServedModel, pace: Pace, wanted: list[str] | None) -> dict[str, Any]:
    usage = finish.usage
    counts = {"prompt": usage.input_tokens - usage.cached_tokens, "predicted": usage.output_tokens}
    timings: dict[str, float] = {}
    for (name, tokens), span in zip(counts.items(), pace.spans(), strict=True):
        timings |= {
            f"{name}_n": tokens,
            f"{name}_ms": span / 1e6,
            f"{name}_per_token_ms": span / 1e6 / max(tokens, 1),
            f"{name}_per_second": tokens / span * 1e9,
        }
    answer: dict[str, Any] = {
        "content": text,
        "model": entry.name,
        "stop": True,
        "stop_type": "limit" if finish.reason == "length" else "word" if finish.stop else "eos",
        "stopping_word": finish.stop,
        "stopped_limit": finish.reason == "length",
        "tokens_predicted": usage.output_tokens,
        "tokens_evaluated": usage.input_tokens,
        "tokens_cached": usage.cached_tokens,
        "truncated": False,
        "timings": timings,
    }
    if wanted is None:
        return answer
    flat = {**answer, **{f"timings/{name}": value for name, value in timings.items()}}
    return {name: flat[name] for name in wanted if name in flat}
