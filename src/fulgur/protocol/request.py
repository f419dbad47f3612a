"""Request bodies: the fields that are honoured. A wrong type or value is a 400 that names the field.

`rest` holds all other fields until `server/fields.py` decides what becomes of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from fulgur.protocol.items import Item

Tool = dict[str, Any]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Tier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Verbosity = Literal["low", "medium", "high"]


class Body(msgspec.Struct, kw_only=True):
    rest: dict[str, Any] = {}


class SamplingFields(Body, kw_only=True):
    """Sampling settings under OpenAI's names; those that OpenAI does not have carry vLLM's."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class Reasoning(msgspec.Struct):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: Verbosity | None = None


class PromptCacheOptions(msgspec.Struct):
    prewarm: bool = False


class CreateRequest(SamplingFields, kw_only=True):
    """`POST /v1/responses` and the `response.create` frame. `store` is true unless said otherwise."""

    model: str
    input: str | list[Item] = []
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None  # of hosted tools
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    service_tier: Tier | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    client_metadata: dict[str, Any] | None = None  # Codex's own
    chat_template_kwargs: dict[str, Any] | None = None
    generate: bool | None = None
    stream_id: str | None = None


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


class CompactRequest(Body, kw_only=True):
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


class ChatRequest(SamplingFields, kw_only=True):
    """`POST /v1/chat/completions`. The `guided_` fields and `structured_outputs` are vLLM's."""

    model: str
    messages: list[ChatMessage]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prediction: Prediction | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    service_tier: Tier | None = None
    prompt_cache_key: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class Position(msgspec.Struct):
    """A position in a text, both counted from 0, as editors do."""

    line: Annotated[int, msgspec.Meta(ge=0)]
    character: Annotated[int, msgspec.Meta(ge=0)] = 0


class Range(msgspec.Struct):
    """From `start` up to and not including `end`."""

    start: Position
    end: Position


class SuggestRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/edits/suggest`: edits of a buffer, saved or not."""

    model: str
    path: str
    text: str
    position: Position
    previous: str | None = None  # the text before the last changes: what follows from them?
    instruction: str | None = None  # or: what to change
    range: Range | None = None  # and where; without it around the position


class CompletionRequest(SamplingFields, kw_only=True):
    """`POST /v1/completions`; with `suffix` the text is filled in between."""

    model: str
    prompt: str | list[str | int | list[int]]  # a text, texts, tokens, or lists of tokens
    suffix: str | None = None
    path: str | None = None  # ours: the file's name
    min_probability: float | None = None  # ours: a completion ends where the model is less sure than this
    service_tier: Tier | None = None  # ours
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
