"""Request bodies. Unknown fields are tolerated; a known field of a wrong type is a 400 that names it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fulgur.protocol.items import Item

Tool = dict[str, Any]


class Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    context: str | None = None


class TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class PromptCacheOptions(msgspec.Struct):
    prewarm: bool = False


class CreateRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/responses` and the `response.create` frame. `store` is true unless said otherwise."""

    model: str
    input: str | list[Item] = []
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    context_management: list[dict[str, Any]] | None = None
    generate: bool | None = None
    stream_id: str | None = None
    stream_options: dict[str, Any] | None = None
    user: str | None = None


class SteerRequest(msgspec.Struct, kw_only=True):
    """The `response.steer` frame. `boundary: "token"` is ours: apply at the next token, not at the item's end."""

    previous_response_id: str
    input: str | list[Item]
    boundary: Literal["item", "token"] = "item"


class InterruptRequest(msgspec.Struct, kw_only=True):
    """`response.interrupt` (Codex) and `response.cancel` (ours)."""

    response_id: str | None = None
    mode: str | None = None
    stream_id: str | None = None


class CompactRequest(msgspec.Struct, kw_only=True):
    model: str
    input: str | list[Item] = []
    instructions: str | None = None
    previous_response_id: str | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Prediction(msgspec.Struct, kw_only=True):
    content: str | list[dict[str, Any]]
    type: Literal["content"] = "content"


class ChatRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/chat/completions`."""

    model: str
    messages: list[ChatMessage]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    prediction: Prediction | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/completions`; with `suffix` the text is filled in between."""

    model: str
    prompt: str | list[str | int]  # a text, a list of one text, or tokens
    suffix: str | None = None
    path: str | None = None  # ours: the file's name
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
