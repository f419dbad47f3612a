"""`POST /v1/completions`: raw text on, or with `suffix` the code between (fill in the middle)."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from fulgur.backends.base import Completion, Sampling
from fulgur.protocol.errors import invalid
from fulgur.protocol.ids import new_id
from fulgur.protocol.request import CompletionRequest
from fulgur.server.answers import json_answer, owner_of, read_request, server_of
from fulgur.server.chat_input import stops
from fulgur.server.choices import add, collect, counted, encode, stream, usage_object
from fulgur.server.parse import at_least, in_range
from fulgur.server.registry import ServedModel, require
from fulgur.text.parts import Finish, Part, TextDelta, Usage


async def create(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, CompletionRequest)
    entry = server.models.get(body.model)
    backend = await entry.ready()
    check(body, entry)
    async with counted(server, entry, body.model) as total:
        asked = to_completion(body)
        asked.owner = server.cache_owner(owner_of(request))
        generation, frame = backend.complete(asked), _frame(body.model)
        if not body.stream:
            whole = await collect(generation)
            add(total, whole.finish.usage)
            choices = [_choice(whole.text, _reason(whole.finish))]
            return json_answer({**frame, "choices": choices, "usage": usage_object(total, entry)})

        def write(part: Part) -> bytes | None:
            if isinstance(part, TextDelta):
                return encode({**frame, "choices": [_choice(part.text, None)]})
            return encode({**frame, "choices": [_choice("", _reason(part))]}) if isinstance(part, Finish) else None

        def last(usage: Usage) -> bytes:
            return encode({**frame, "choices": [], "usage": usage_object(usage, entry)})

        told = body.stream_options is not None and body.stream_options.include_usage
        usage, answer = await stream(server, request, generation, write, last if told else None)
        add(total, usage)
        return answer


def check(body: CompletionRequest, entry: ServedModel) -> None:
    in_range(body.temperature, 0, 2, "temperature")
    in_range(body.top_p, 0, 1, "top_p")
    at_least(body.max_tokens, 1, "max_tokens")
    if body.suffix is not None:
        require(entry, "fim", "fill in code between a prompt and a suffix")
    for name in ("n", "best_of"):
        if (getattr(body, name) or 1) != 1:
            raise invalid(f"'{name}' above 1 is not offered here.", name, "unsupported_parameter")
    for name in ("logprobs", "echo"):
        if getattr(body, name):
            raise invalid(f"'{name}' is not offered here.", name, "unsupported_parameter")
    if isinstance(body.prompt, list) and any(isinstance(part, str) for part in body.prompt) and len(body.prompt) != 1:
        raise invalid("Send one prompt a request: a text or a list of tokens.", "prompt", "unsupported_parameter")
    if body.suffix is not None and not isinstance(_prompt(body), str):
        raise invalid("With 'suffix' the prompt must be text.", "prompt", "invalid_type")


def to_completion(body: CompletionRequest) -> Completion:
    sampling = Sampling(
        max_tokens=body.max_tokens or 16 if body.suffix is None else body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=body.seed,
        stop=stops(body.stop),
    )
    return Completion(_prompt(body), body.suffix, body.path, sampling)


def _prompt(body: CompletionRequest) -> str | list[int]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return prompt
    if prompt and isinstance(prompt[0], str):
        return prompt[0]
    return [token for token in prompt if isinstance(token, int)]


def _frame(model: str) -> dict[str, Any]:
    return {"id": new_id("cmpl"), "object": "text_completion", "created": int(time.time()), "model": model}


def _choice(text: str, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


def _reason(finish: Finish) -> str:
    return "length" if finish.reason == "length" else "stop"
