"""The Chat Completions dialect of an upstream (and its text completions)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fulgur.backends.base import Completion, Turn
from fulgur.backends.calls import call_start, custom_input
from fulgur.backends.messages import chat_tools, open_message, to_messages
from fulgur.protocol.errors import ApiError
from fulgur.text.parts import CallDelta, CallEnd, CallStart, Part, ReasoningDelta, TextDelta, Usage

if TYPE_CHECKING:
    from fulgur.backends.base import Sampling
    from fulgur.backends.upstream import UpstreamBackend

path = "/chat/completions"


def body(backend: UpstreamBackend, turn: Turn) -> dict[str, Any]:
    """The request; only what was asked for is sent."""
    request: dict[str, Any] = {
        "model": backend.model_there,
        "messages": to_messages(turn, images=backend.capabilities.vision),
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(turn.sampling, "max_tokens"),
    }
    if turn.tools and turn.tool_choice != "none":
        request["tools"] = chat_tools(turn.tools, strict=True)
        choice = turn.tool_choice
        named = isinstance(choice, dict) and "name" in choice
        request["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if named else choice  # type: ignore[index]
        request["parallel_tool_calls"] = turn.parallel_tool_calls
    if turn.format is not None:
        schema = {key: value for key, value in turn.format.items() if key != "type"}
        typed = {"type": turn.format["type"]}
        request["response_format"] = {**typed, "json_schema": schema} if schema else typed
    wishes = {"verbosity": turn.verbosity, "service_tier": turn.service_tier, "prompt_cache_key": turn.cache_key}
    request |= {name: value for name, value in wishes.items() if value is not None}
    if turn.template_values:
        request["chat_template_kwargs"] = turn.template_values
    if turn.reasoning_effort is not None and backend.capabilities.reasoning:
        request["reasoning_effort"] = turn.reasoning_effort
    if turn.prediction is not None:
        request["prediction"] = {"type": "content", "content": turn.prediction}
    if open_message(turn.conversation) is not None:
        if not backend.settings.continue_partial:
            raise ApiError(400, "model_not_capable", f"The backend of '{backend.name}' cannot continue a message.")
        request |= {"continue_final_message": True, "add_generation_prompt": False}
    return request | turn.passed


def completion_body(backend: UpstreamBackend, completion: Completion) -> dict[str, Any]:
    request: dict[str, Any] = {
        "model": backend.model_there,
        "prompt": completion.prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(completion.sampling, "max_tokens"),
    }
    if completion.suffix is not None:
        request["suffix"] = completion.suffix
    return request | completion.passed


def usage_of(usage: dict[str, Any] | None) -> Usage:
    usage = usage or {}
    prompt, output = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    accepted = int(output.get("accepted_prediction_tokens") or 0)
    return Usage(
        input_tokens=int(usage.get("prompt_tokens") or 0),
        cached_tokens=int(prompt.get("cached_tokens") or 0),
        output_tokens=int(usage.get("completion_tokens") or 0),
        reasoning_tokens=int(output.get("reasoning_tokens") or 0),
        draft_tokens=accepted + int(output.get("rejected_prediction_tokens") or 0),
        accepted_tokens=accepted,
    )


class Reader:
    """Turns chat chunks into parts. Tool calls come by index and end when the next begins or the answer does."""

    def __init__(self, backend: UpstreamBackend, asked: Turn | Completion) -> None:
        self.usage = Usage()
        self.reason: str | None = None
        self._backend = backend
        self._tools = {tool["name"]: tool for tool in (asked.tools if isinstance(asked, Turn) else [])}
        self._index: int | None = None
        self._custom: list[str] | None = None

    def read(self, event: dict[str, Any]) -> list[Part]:
        if event.get("error"):
            error = event["error"]
            raise ApiError(502, "upstream_error", str(error.get("message") if isinstance(error, dict) else error))
        self._backend.check_model(event.get("model"))
        if event.get("usage"):
            self.usage = usage_of(event["usage"])
        choices = event.get("choices") or []
        if not choices:
            return []
        parts: list[Part] = []
        delta = choices[0].get("delta") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought:
            parts.append(ReasoningDelta(thought))
        text = delta.get("content") or choices[0].get("text")  # `text`: text completions
        if text:
            parts += [*self._end_call(), TextDelta(text)]
        for call in delta.get("tool_calls") or []:
            parts += self._call(call)
        self.reason = choices[0].get("finish_reason") or self.reason
        return parts

    def end(self) -> list[Part]:
        return self._end_call()

    def _call(self, call: dict[str, Any]) -> list[Part]:
        parts: list[Part] = []
        function = call.get("function") or {}
        index = int(call.get("index") or 0)
        if index != self._index and function.get("name"):
            parts += self._end_call()
            self._index = index
            tool = self._tools.get(function["name"])
            start = call_start(tool) if tool is not None else CallStart(function["name"])
            start.call_id = call.get("id")
            self._custom = [] if start.custom else None
            parts.append(start)
        text = function.get("arguments")
        if text and self._custom is not None:
            self._custom.append(text)
        elif text:
            parts.append(CallDelta(text))
        return parts

    def _end_call(self) -> list[Part]:
        if self._index is None:
            return []
        self._index = None
        custom, self._custom = self._custom, None
        return [CallDelta(custom_input("".join(custom))), CallEnd()] if custom is not None else [CallEnd()]


def plain_sampling(sampling: Sampling) -> dict[str, Any]:
    """The settings that have one name in every dialect."""
    return {
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
    }


def _sampling(sampling: Sampling, limit: str) -> dict[str, Any]:
    wanted = {
        limit: sampling.max_tokens,
        "temperature": sampling.temperature,
        **plain_sampling(sampling),
    }
    return {name: value for name, value in wanted.items() if value is not None}
