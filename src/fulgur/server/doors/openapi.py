"""Describes the API for machines (`/openapi.json`) and for people (`/docs`), from the requests' own types."""

from __future__ import annotations

import functools
import html
from typing import Any

import msgspec
from aiohttp import web

from fulgur import __version__ as VERSION
from fulgur.protocol import request as bodies
from fulgur.server.answers import json_answer
from fulgur.server.doors import fill, messages, ollama, tokens
from fulgur.server.doors.page import page

Operation = tuple[str, str, str, type[msgspec.Struct] | None]
OPERATIONS: tuple[Operation, ...] = (
    ("post", "/v1/responses", "Create a response; JSON, or server-sent events with `stream`", bodies.CreateRequest),
    ("get", "/v1/responses/{id}", "A stored response; `?stream=true&starting_after=N` replays its events", None),
    ("delete", "/v1/responses/{id}", "Delete a stored response", None),
    ("post", "/v1/responses/{id}/cancel", "Cancel a running response", None),
    ("get", "/v1/responses/{id}/input_items", "The input items of a response", None),
    ("post", "/v1/responses/input_tokens", "Count the tokens of an input", bodies.CreateRequest),
    ("post", "/v1/responses/compact", "A compacted conversation to continue from", bodies.CompactRequest),
    ("get", "/v1/models", "The models, and what each can do", None),
    ("post", "/v1/chat/completions", "OpenAI's Chat Completions", bodies.ChatRequest),
    ("post", "/v1/completions", "Text completions; with `suffix`, fill in the middle", bodies.CompletionRequest),
    ("post", "/v1/edits/suggest", "Suggested edits of a buffer, saved or not", bodies.SuggestRequest),
    ("post", "/v1/embeddings", "Always refused: no model here provides embeddings", tokens.EmbeddingRequest),
    ("post", "/v1/fim/completions", "Fill in the middle as Codestral offers it", fill.FimRequest),
    ("post", "/infill", "Fill in the middle as llama.cpp offers it", fill.InfillRequest),
    ("post", "/v1/messages", "Anthropic's Messages", messages.MessagesRequest),
    ("post", "/v1/messages/count_tokens", "Count the tokens of Anthropic's messages", messages.MessagesRequest),
    ("get", "/api/tags", "The models as Ollama lists them", None),
    ("get", "/api/ps", "The models as Ollama lists running ones", None),
    ("get", "/api/version", "The server's version", None),
    ("post", "/api/show", "One model as Ollama shows it", ollama.ShowBody),
    ("post", "/api/generate", "Ollama's generate", ollama.GenerateBody),
    ("post", "/api/chat", "Ollama's chat", ollama.ChatBody),
    ("post", "/tokenize", "Text to tokens", tokens.TokenizeRequest),
    ("post", "/detokenize", "Tokens to text", tokens.DetokenizeRequest),
    ("get", "/props", "Settings in llama.cpp's format", None),
    ("get", "/status", "The figures of the status page", None),
    ("get", "/health", "Health check", None),
    ("get", "/metrics", "Metrics for Prometheus", None),
)


@functools.cache
def document() -> dict[str, Any]:
    kinds = sorted({body for *_, body in OPERATIONS if body is not None}, key=lambda kind: kind.__qualname__)
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for schema in schemas.values():
        schema.get("properties", {}).pop("rest", None)
    paths: dict[str, Any] = {}
    for method, path, summary, body in OPERATIONS:
        operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "The answer."}}}
        if body is not None:
            schema = {"$ref": f"#/components/schemas/{_name(body, schemas)}"}
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        if "{id}" in path:
            named = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [named]
        paths.setdefault(path, {})[method] = operation
    keys = {"bearer": {"type": "http", "scheme": "bearer"}, "header": _HEADER_KEY}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fulgur", "version": VERSION},
        "security": [{"bearer": []}, {"header": []}, {}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": keys},
    }


_HEADER_KEY = {"type": "apiKey", "in": "header", "name": "x-api-key"}


def _name(body: type[msgspec.Struct], schemas: dict[str, Any]) -> str:
    """The name of a type's schema: msgspec adds the module where two types share a name."""
    full = f"{body.__module__}.{body.__qualname__}".replace(".", "_")
    return body.__qualname__ if body.__qualname__ in schemas else full


async def description(request: web.Request) -> web.Response:
    return json_answer(document())


async def docs(request: web.Request) -> web.Response:
    schemas = document()["components"]["schemas"]
    rows: list[str] = []
    for method, path, summary, body in OPERATIONS:
        fields = ""
        if body is not None:
            schema = schemas[_name(body, schemas)]
            required = set(schema.get("required", ()))
            names = (f"<b>{name}</b>" if name in required else name for name in schema["properties"])
            fields = f"<details><summary>fields</summary><p>{', '.join(names)}</p></details>"
        rows.append(
            f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
            f"<td>{html.escape(summary)}{fields}</td></tr>"
        )
    body_text = (
        '<p>Machine-readable: <a href="/openapi.json">openapi.json</a>. Fields in bold are required; '
        "<code>GET /v1/responses</code> opens the WebSocket.</p>"
        f"<table>{''.join(rows)}</table>"
    )
    return page("Fulgur: API reference", body_text)
