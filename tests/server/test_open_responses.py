"""The cases of the Open Responses compliance suite (2026-04-24), by its names, against the server as it runs.

The suite holds every object against its schema; `item` and `response` say here what those schemas require.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from serving import script, serving
from waiting import PATIENCE

KEYS = frozenset(
    [
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "incomplete_details",
        "model",
        "previous_response_id",
        "instructions",
        "output",
        "error",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "temperature",
        "reasoning",
        "usage",
        "max_output_tokens",
        "max_tool_calls",
        "store",
        "background",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
    ]
)
EVENTS = frozenset(
    "response." + name
    for name in [
        "created",
        "queued",
        "in_progress",
        "completed",
        "failed",
        "incomplete",
        "output_item.added",
        "output_item.done",
        "content_part.added",
        "content_part.done",
        "output_text.delta",
        "output_text.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "reasoning_summary_part.added",
        "reasoning_summary_part.done",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
    ]
) | {"error"}
ITEMS = {
    "message": {"id", "status", "role", "content"},
    "function_call": {"id", "call_id", "name", "arguments", "status"},
    "reasoning": {"id", "summary"},
    "compaction": {"id", "encrypted_content"},
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
PNG = "data:image/png;base64,iVBORw0KGgo="


def item(value: dict[str, Any]) -> None:
    assert ITEMS[value["type"]] <= value.keys(), value
    if value["type"] == "message":
        assert isinstance(value["content"], list) and value["status"] in ("in_progress", "completed", "incomplete")
        for part in value["content"]:
            assert part["type"] in ("input_text", "output_text", "input_image", "refusal")
            if part["type"] == "output_text":
                assert isinstance(part["annotations"], list)


def response(value: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    assert value.keys() >= KEYS and value["object"] == "response" and value["status"] == status
    for name in ("top_p", "presence_penalty", "frequency_penalty", "temperature", "top_logprobs", "created_at"):
        assert isinstance(value[name], int | float)
    assert value["text"]["format"]["type"] == "text" and "verbosity" not in value["text"]
    for tool in value["tools"]:
        assert {"type", "name", "description", "parameters", "strict"} <= tool.keys()
    if value["usage"] is not None:
        assert {"input_tokens", "output_tokens", "total_tokens"} <= value["usage"].keys()
    for each in value["output"]:
        item(each)
    return value


def events(values: list[dict[str, Any]]) -> dict[str, Any]:
    """The final response of a stream, every event of which is one that the specification knows."""
    assert values and {value["type"] for value in values} <= EVENTS
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    for value in values:
        if "item" in value:
            item(value["item"])
        if value["type"].startswith("response.output_text"):
            assert {"item_id", "output_index", "content_index"} <= value.keys()
    return response(values[-1]["response"])


@dataclass
class Api:
    session: aiohttp.ClientSession
    url: str

    async def post(self, body: dict[str, Any], path: str = "/responses", status: int = 200) -> dict[str, Any]:
        async with self.session.post(self.url + path, json=body) as answer:
            assert answer.status == status, await answer.text()
            value: dict[str, Any] = await answer.json()
            return value

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Callable[..., Awaitable[list[dict[str, Any]]]]]:
        async with self.session.ws_connect(self.url + "/responses") as socket:

            async def turn(**body: Any) -> list[dict[str, Any]]:
                await socket.send_json({"type": "response.create", "model": "m", **body})
                seen: list[dict[str, Any]] = []
                while not seen or seen[-1]["type"] not in ("response.completed", "response.failed", "error"):
                    seen.append(await socket.receive_json(timeout=PATIENCE))
                return seen

            yield turn


def user(content: Any) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": content}]


async def basic_response(api: Api) -> None:
    assert response(await api.post({"model": "m", "input": user("Say hello in exactly 3 words.")}))["output"]


async def assistant_phase(api: Api) -> None:
    said = [
        {"type": "message", "role": "assistant", "phase": p, "content": "x"} for p in ("commentary", "final_answer")
    ]
    assert response(await api.post({"model": "m", "input": [*said, *user("Repeat only the number.")]}))["output"]


async def response_output_phase_schema(api: Api) -> None:
    """The suite only looks at its own fixture here: a response whose messages have phases is a response."""
    value = await api.post({"model": "m", "input": "x"})
    for each in value["output"]:
        each["phase"] = "final_answer"
    response(value)


async def streaming_response(api: Api) -> None:
    body = {"model": "m", "input": user("Count from 1 to 5."), "stream": True}
    async with api.session.post(f"{api.url}/responses", json=body) as answer:
        text = await answer.text()
    blocks = text.removesuffix("data: [DONE]\n\n").strip().split("\n\n")
    assert text.endswith("data: [DONE]\n\n") and len(blocks) > 5
    values = [json.loads(block.split("\ndata: ")[1]) for block in blocks]
    assert [block.split("\n")[0] for block in blocks] == [f"event: {value['type']}" for value in values]
    events(values)


async def websocket_response(api: Api) -> None:
    async with api.socket() as turn:
        events(await turn(input=user("Count from 1 to 3.")))


async def websocket_sequential_responses(api: Api) -> None:
    async with api.socket() as turn:
        for word in ("first", "second"):
            events(await turn(store=False, input=f"Reply with exactly: {word}"))


async def websocket_continuation(api: Api) -> None:
    async with api.socket() as turn:
        first = events(await turn(store=False, input="Remember the code word: cobalt."))
        events(await turn(store=False, input="What is it?", previous_response_id=first["id"]))


def not_found(seen: list[dict[str, Any]]) -> None:
    assert seen[-1]["type"] == "error" and seen[-1]["error"]["code"] == "previous_response_not_found"
    assert isinstance(seen[-1]["status"], int)


async def websocket_reconnect_store_false_recovery(api: Api) -> None:
    async with api.socket() as turn:
        first = events(await turn(store=False, input="Remember the code word: copper."))
    async with api.socket() as turn:
        not_found(await turn(store=False, input="x", previous_response_id=first["id"]))
        events(await turn(store=False, input=user("Start anew.")))


async def websocket_previous_response_not_found(api: Api) -> None:
    async with api.socket() as turn:
        not_found(await turn(store=False, input="x", previous_response_id="resp_missing"))


async def websocket_failed_continuation_evicts_cache(api: Api) -> None:
    async with api.socket() as turn:
        first = events(await turn(store=False, input="Remember the code word: ember."))
        output = {"type": "function_call_output", "call_id": "call_missing", "output": "no call"}
        failed = await turn(store=False, input=[output], previous_response_id=first["id"])
        assert failed[-1]["type"] == "error" and failed[-1]["error"]["code"] == "call_not_found"
        assert failed[-1]["error"]["param"] == "input[0].call_id"
        not_found(await turn(store=False, input="x", previous_response_id=first["id"]))


async def websocket_compact_new_chain(api: Api) -> None:
    compacted = await api.post(
        {"model": "m", "input": user([{"type": "input_text", "text": "x"}])}, "/responses/compact"
    )
    async with api.socket() as turn:
        events(await turn(store=False, input=[*compacted["output"], *user("Continue.")], tools=[]))


async def system_prompt(api: Api) -> None:
    system = {"type": "message", "role": "system", "content": "You are a pirate."}
    assert response(await api.post({"model": "m", "input": [system, *user("Say hello.")]}))["output"]


async def tool_calling(api: Api) -> None:
    value = response(await api.post({"model": "m", "input": user("What's the weather like?"), "tools": [WEATHER]}))
    assert [each["type"] for each in value["output"]] == ["function_call"]


async def image_input(api: Api) -> None:
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PNG}]
    assert response(await api.post({"model": "m", "input": user(parts)}))["output"]


async def multi_turn(api: Api) -> None:
    said = {"type": "message", "role": "assistant", "content": "Hello Alice!"}
    body = {"model": "m", "input": [*user("My name is Alice."), said, *user("What is my name?")]}
    assert response(await api.post(body))["output"]


async def compact_response(api: Api) -> None:
    said = {"type": "message", "role": "assistant", "content": "Understood."}
    body = {"model": "m", "prompt_cache_key": "k", "input": [*user("We launch on Tuesday."), said]}
    value = await api.post(body, "/responses/compact")
    assert value["object"] == "response.compaction" and {"id", "created_at", "usage"} <= value.keys()
    assert [each["type"] for each in value["output"]] == ["message", "compaction"]
    for each in value["output"]:
        item(each)
        assert each["id"] and each["status"] == "completed"


async def compact_missing_model(api: Api) -> None:
    await api.post({"input": user("Compact this.")}, "/responses/compact", status=400)


CASES = (
    basic_response,
    assistant_phase,
    response_output_phase_schema,
    streaming_response,
    websocket_response,
    websocket_sequential_responses,
    websocket_continuation,
    websocket_reconnect_store_false_recovery,
    websocket_previous_response_not_found,
    websocket_failed_continuation_evicts_cache,
    websocket_compact_new_chain,
    system_prompt,
    tool_calling,
    image_input,
    multi_turn,
    compact_response,
    compact_missing_model,
)
SCRIPT = script({"match": "weather", "steps": [{"call": "get_weather", "arguments": {"location": "San Francisco"}}]})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.replace("_", "-"))
async def test_open_responses(case: Callable[[Api], Awaitable[None]]) -> None:
    async with serving(SCRIPT) as running, aiohttp.ClientSession() as session:
        await case(Api(session, running.base_url))
