"""The Responses dialect of an upstream: items go through as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fulgur.backends.base import Turn
from fulgur.backends.opaque import unseal
from fulgur.backends.upstream_chat import plain_sampling
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import Item, item_type
from fulgur.text.parts import CallDelta, CallEnd, CallStart, Part, ReasoningDelta, TextDelta, Usage

if TYPE_CHECKING:
    from fulgur.backends.upstream import UpstreamBackend

path = "/responses"


def body(backend: UpstreamBackend, turn: Turn) -> dict[str, Any]:
    """The request, stateless: this server holds the conversation."""
    request: dict[str, Any] = {
        "model": backend.model_there,
        "input": [_item(item) for item in turn.conversation.all() if item.get("type") != "additional_tools"],
        "stream": True,
        "store": False,
    }
    sampling = turn.sampling
    wanted = {
        "instructions": turn.instructions,
        "max_output_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        **plain_sampling(sampling),
        "prompt_cache_key": turn.cache_key,
        "service_tier": turn.service_tier,
    }
    request |= {name: value for name, value in wanted.items() if value is not None}
    if turn.tools or turn.hosted:
        offered = [{key: value for key, value in tool.items() if key != "namespace"} for tool in turn.tools]
        request["tools"] = offered + turn.hosted
        request["tool_choice"] = turn.tool_choice
        request["parallel_tool_calls"] = turn.parallel_tool_calls
    text = {key: value for key, value in (("format", turn.format), ("verbosity", turn.verbosity)) if value is not None}
    if text:
        request["text"] = text
    if backend.capabilities.reasoning and (turn.reasoning_effort or turn.reasoning_summary):
        wishes = (("effort", turn.reasoning_effort), ("summary", turn.reasoning_summary))
        request["reasoning"] = {key: value for key, value in wishes if value is not None}
    return request | turn.passed


def _item(item: Item) -> Item:
    """The item as another server can read it: what only this one understands is spelled out or left out."""
    kind = item_type(item)
    if kind == "compaction":
        summary = str(unseal(item["encrypted_content"]).get("summary", ""))
        return {"type": "message", "role": "developer", "content": f"Notes on the conversation so far:\n{summary}"}
    if kind == "reasoning":
        return {key: value for key, value in item.items() if key != "encrypted_content"}
    return item


class Reader:
    """Turns Responses events into parts."""

    def __init__(self, backend: UpstreamBackend, turn: Turn) -> None:
        self.usage = Usage()
        self.reason: str | None = None
        self._backend = backend
        self._spaces = {tool["name"]: tool.get("namespace") for tool in turn.tools}
        self._called = False

    def read(self, event: dict[str, Any]) -> list[Part]:
        kind = event.get("type")
        if kind == "response.output_text.delta":
            return [TextDelta(event["delta"])]
        if kind in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
            return [CallDelta(event["delta"])]
        if kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            return [ReasoningDelta(event["delta"])]
        if kind in ("response.output_item.added", "response.output_item.done"):
            return self._item(event.get("item") or {}, added=kind.endswith("added"))
        if kind == "response.created":
            self._backend.check_model((event.get("response") or {}).get("model"))
        elif kind in ("response.completed", "response.incomplete"):
            self._end(event.get("response") or {})
        elif kind in ("response.failed", "error"):
            error = (event.get("response") or event).get("error") or event
            code = str(error.get("code") or "upstream_error")
            raise ApiError(502, code, f"'{self._backend.name}': {error.get('message')}")
        return []

    def end(self) -> list[Part]:
        return []

    def _item(self, item: dict[str, Any], *, added: bool) -> list[Part]:
        if item.get("type") not in ("function_call", "custom_tool_call"):
            return []
        if not added:
            return [CallEnd()]
        self._called = True
        custom = item["type"] == "custom_tool_call"
        return [CallStart(item["name"], custom, self._spaces.get(item["name"]), item.get("call_id"))]

    def _end(self, response: dict[str, Any]) -> None:
        usage = response.get("usage") or {}
        given, made = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
        self.usage = Usage(
            input_tokens=int(usage.get("input_tokens") or 0),
            cached_tokens=int(given.get("cached_tokens") or 0),
            output_tokens=int(usage.get("output_tokens") or 0),
            reasoning_tokens=int(made.get("reasoning_tokens") or 0),
        )
        reason = (response.get("incomplete_details") or {}).get("reason")
        if reason == "max_output_tokens":
            self.reason = "length"
        else:
            self.reason = "content_filter" if reason == "content_filter" else "tool_calls" if self._called else "stop"
