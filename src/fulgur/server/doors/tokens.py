"""`/tokenize` and `/detokenize` as llama.cpp and vLLM have them, `/props`, and `/v1/embeddings`, which is refused."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.request import Body
from fulgur.server import fields
from fulgur.server.answers import IGNORED, json_answer, read_request, server_of
from fulgur.server.doors.fill import filling
from fulgur.server.registry import ADD_A_MODEL, Registry, ServedModel
from fulgur.text.tokenizer import Tokenizer

MAX_TEXT = 1 << 20  # characters: the answer is larger than the text


class TokenizeRequest(Body, kw_only=True):
    """`content` is llama.cpp's name for the text, `prompt` vLLM's."""

    content: str | None = None
    prompt: str | None = None
    model: str = ""
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Body, kw_only=True):
    tokens: list[int]
    model: str = ""


class EmbeddingRequest(Body, kw_only=True):
    model: str = ""


DOOR = fields.Door(
    "tokens", frozenset(), {"parse_special": "special tokens are read as plain text", "messages": "send 'content'"}, {}
)


async def tokenize(request: web.Request) -> web.Response:
    body = await read_request(request, TokenizeRequest)
    entry, tokenizer = await _tokenizer(server_of(request).models, body.model)
    _, request[IGNORED] = fields.settle(body, entry, DOOR)
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise invalid("'content' (or 'prompt') is missing.", "content", "missing_required_parameter")
    if len(text) > MAX_TEXT:
        raise invalid(f"The text has more than {MAX_TEXT:,} characters.", "content", "invalid_value")
    # Special tokens in user text are encoded as plain text; otherwise a file could forge the prompt's structure.
    tokens = await asyncio.to_thread(tokenizer.encode, text, special=False)
    if body.add_special and tokenizer.bos_id is not None:
        tokens = [tokenizer.bos_id, *tokens]
    answer: dict[str, Any] = {"tokens": tokens}
    if body.with_pieces:
        answer["tokens"] = [
            {"id": token, "piece": tokenizer.token_bytes(token).decode("utf-8", "replace")} for token in tokens
        ]
    if body.content is None:
        answer |= {"count": len(tokens), "max_model_len": entry.backend.capabilities.context}
    return json_answer(answer)


async def detokenize(request: web.Request) -> web.Response:
    body = await read_request(request, DetokenizeRequest)
    entry, tokenizer = await _tokenizer(server_of(request).models, body.model)
    _, request[IGNORED] = fields.settle(body, entry, DOOR)
    if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < tokenizer.vocab_size:
        raise invalid(f"A token must be between 0 and {tokenizer.vocab_size - 1}.", "tokens", "invalid_value")
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special=False, continuation=True)
    return json_answer({"content": text, "prompt": text})


async def props(request: web.Request) -> web.Response:
    models = server_of(request).models
    await models.describe()
    entry = filling(models)
    abilities = entry.backend.capabilities
    return json_answer(
        {
            "default_generation_settings": {"n_ctx": abilities.context, "params": {}},
            "total_slots": 1,
            "model_path": entry.name,
            "model_alias": entry.name,
            "modalities": {"vision": abilities.vision, "audio": False},
            "chat_template": "",
        }
    )


async def embeddings(request: web.Request) -> web.Response:
    """`POST /v1/embeddings`: none of the backends gives vectors."""
    body = await read_request(request, EmbeddingRequest)
    entry = server_of(request).models.get(body.model)
    raise ApiError(
        400,
        "model_not_capable",
        f"The model '{entry.name}' provides no embeddings; use a server of embedding models.",
        param="model",
    )


async def _tokenizer(models: Registry, name: str) -> tuple[ServedModel, Tokenizer]:
    from fulgur.backends.local import LocalBackend

    entry = models.get(name) if name else filling(models)
    if not isinstance(entry.backend, LocalBackend):
        message = f"The tokenizer of '{entry.name}' is not available on this server. {ADD_A_MODEL}"
        raise ApiError(400, "model_not_capable", message, param="model")
    await entry.backend.describe()
    return entry, entry.backend.prompts.tokenizer
