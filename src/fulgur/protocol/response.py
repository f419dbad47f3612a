"""The response object: all 31 keys of the Open Responses specification, every one always present."""

from __future__ import annotations

from typing import Any

import msgspec

from fulgur.protocol.items import Item, text_of


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0
    # Of drafts, when there were any; named as in Chat Completions.
    accepted_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET
    rejected_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET


class ResponseUsage(msgspec.Struct):
    """Token counts. Ours: `cost` from the price table, when the model has a price; `seconds` from the prompt's tokens
    reaching the engine to its last output token, when the model runs here."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: int = 0
    cost: float | msgspec.UnsetType = msgspec.UNSET
    seconds: float | msgspec.UnsetType = msgspec.UNSET


class Response(msgspec.Struct, kw_only=True):
    """One answer of a model. Output items are dicts (see `protocol.items`)."""

    id: str
    object: str = "response"
    created_at: int | float = 0
    completed_at: int | float | None = None
    status: str = "in_progress"
    incomplete_details: dict[str, Any] | None = None
    model: str = ""
    previous_response_id: str | None = None
    instructions: Any = None
    output: list[Item] = msgspec.field(default_factory=list)
    error: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: Any = "auto"
    truncation: str | None = "disabled"
    parallel_tool_calls: bool | None = True
    text: dict[str, Any] | None = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    top_p: float | None = 1.0
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    top_logprobs: int | None = 0
    temperature: float | None = 1.0
    reasoning: dict[str, Any] | None = None
    usage: ResponseUsage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    store: bool | None = True
    background: bool | None = False
    service_tier: str | None = "default"
    metadata: dict[str, str] | None = msgspec.field(default_factory=dict)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def output_text(self) -> str:
        """The text of all message items together."""
        return "".join(text_of(item) for item in self.output if item.get("type") == "message")
