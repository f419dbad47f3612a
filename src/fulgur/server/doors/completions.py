"""`POST /v1/completions`: continues raw text, or with `suffix` fills in the middle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from fulgur.backends.base import Completion
from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.ids import new_id
from fulgur.protocol.request import CompletionRequest
from fulgur.server import fields
from fulgur.server.answers import IGNORED, json_answer, owner_of, read_request, server_of
from fulgur.server.doors.answer import DONE, collect, counted, numbered, sse, stream, usage_object
from fulgur.server.parse import in_range
from fulgur.server.registry import ServedModel, require
from fulgur.server.sampling import to_sampling
from fulgur.text.parts import Begin, Finish, Part, TextDelta, Usage

MOST_ANSWERS = 64  # of one request


async def create(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, CompletionRequest)
    entry = server.models.get(body.model)
    backend = await entry.ready()
    prompts = check(body, entry)
    passed, request[IGNORED] = fields.settle(body, entry)
    async with counted(request, entry, body.service_tier) as total:
        total.each = body.n or 1
        sampling = to_sampling(body, _limit(body), "max_tokens", top_logprobs=body.logprobs)
        owner = server.cache_owner(owner_of(request))
        asked = [
            Completion(prompt, body.suffix, body.path, sampling, passed, owner, body.min_probability)
            for prompt in prompts
        ]
        generations = [backend.complete(each) for one in asked for each in numbered(one, body.n or 1)]
        echoes = [str(prompt) if body.echo else "" for prompt in prompts for _ in range(body.n or 1)]
        frame = _frame(body.model)
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            writer = CompletionWriter(frame, echoes, (lambda: usage_object(total)) if with_usage else None)
            return await stream(request, generations, writer, total)
        answers = await asyncio.gather(*map(collect, generations))
        choices = []
        for index, (whole, before) in enumerate(zip(answers, echoes, strict=True)):
            total.add(whole.finish.usage, index)
            logprobs = whole.logprobs if body.logprobs is not None else None
            listed = _logprobs(logprobs, whole.text, len(before))
            choices.append(_choice(index, before + whole.text, _reason(whole.finish), listed))
        return json_answer({**frame, "choices": choices, "usage": usage_object(total)})


def check(body: CompletionRequest, entry: ServedModel) -> list[str | list[int]]:
    """The prompts of the request; each is answered `n` times."""
    in_range(body.n, 1, 8, "n")
    in_range(body.logprobs, 0, 20, "logprobs")
    in_range(body.min_probability, 0, 1, "min_probability")
    prompts = _prompts(body.prompt)
    if not prompts:
        raise invalid("'prompt' is an empty list.", "prompt", "invalid_value")
    if not 1 <= len(prompts) * (body.n or 1) <= MOST_ANSWERS:
        raise invalid(
            f"A request may ask for at most {MOST_ANSWERS} answers ('n' for each prompt).", "prompt", "invalid_value"
        )
    if body.suffix is not None:
        require(entry, "fim", "fill in code between a prompt and a suffix")
    if body.logprobs is not None:
        require(entry, "logprobs", "give log-probabilities")
    if (body.best_of or 1) > (body.n or 1):
        raise invalid("'best_of' above 'n' is not offered here.", "best_of", "unsupported_parameter")
    if body.echo and body.logprobs is not None:
        raise invalid("Log-probabilities of a prompt are not offered here.", "echo", "unsupported_parameter")
    text = all(isinstance(prompt, str) for prompt in prompts)
    if not text and (body.suffix is not None or body.echo):
        raise invalid("With 'suffix' or 'echo' the prompt must be text.", "prompt", "invalid_type")
    return prompts


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    tokens = [part for part in prompt if isinstance(part, int)]
    if tokens and len(tokens) < len(prompt):
        raise invalid("'prompt' must be a string, a list of tokens, or a list of either.", "prompt", "invalid_type")
    return [tokens] if tokens else [part for part in prompt if not isinstance(part, int)]


def _limit(body: CompletionRequest) -> int | None:
    """OpenAI's default is 16; code that is filled in had better end where the model ends it."""
    return body.max_tokens if body.suffix is not None or body.max_tokens is not None else 16


class CompletionWriter:
    content_type = "text/event-stream"

    def __init__(self, frame: dict[str, Any], echoes: list[str], used: Callable[[], dict[str, Any]] | None) -> None:
        self._frame = frame
        self._echoes = echoes
        self._used = used
        self._written = [0] * len(echoes)  # characters, for the offsets of tokens

    def part(self, index: int, part: Part) -> bytes | None:
        if isinstance(part, TextDelta):
            logprobs = _logprobs(part.logprobs, part.text, self._written[index])
            self._written[index] += len(part.text)
            return self._chunk(_choice(index, part.text, None, logprobs))
        if isinstance(part, Begin) and self._echoes[index]:
            self._written[index] = len(self._echoes[index])
            return self._chunk(_choice(index, self._echoes[index], None))
        return self._chunk(_choice(index, "", _reason(part))) if isinstance(part, Finish) else None

    def end(self, usage: Usage) -> bytes:
        last = b"" if self._used is None else sse({**self._frame, "choices": [], "usage": self._used()})
        return last + DONE

    def failed(self, error: ApiError) -> bytes:
        return sse({"error": error.as_dict()}) + DONE

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return sse({**self._frame, "choices": [choice]})


def _frame(model: str) -> dict[str, Any]:
    return {"id": new_id("cmpl"), "object": "text_completion", "created": int(time.time()), "model": model}


def _choice(index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(found: list[dict[str, Any]] | None, text: str, start: int) -> dict[str, Any] | None:
    """The older form: one list per property; offsets count characters from the start of the text.

    The first tokens may repeat the end of the prompt. A token that holds part of the text stays whole; those before it
    are left out, as in the usage.
    """
    if found is None:
        return None
    at = -max(0, "".join(token["token"] for token in found).find(text))
    offsets, tokens = [], []
    for token in found:
        after = at + len(token["token"])
        if at >= 0 or after > 0:
            tokens.append(token)
            offsets.append(start + max(0, at))
        at = after
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens],
        "text_offset": offsets,
    }


def _reason(finish: Finish) -> str:
    return "length" if finish.reason == "length" else "stop"
