"""The official Python client: typed events, its strict accumulator, lanes, steering, structured output, replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from live_server import LiveServer
from openai.lib.responses_websocket import (
    ResponsesWebSocketAccumulator,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent

LIMITS = ResponsesWebSocketLimits(
    max_lanes=8, max_events=20_000, max_bytes=1 << 26, max_events_per_lane=20_000, max_bytes_per_lane=1 << 26
)
WEATHER = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
REPLIES = (
    {"match": "weather", "after": "message", "steps": [{"call": "weather", "arguments": {"city": "Oslo", "days": 2}}]},
    {"after": "function_call_output", "steps": [{"text": "It will rain."}]},
    {"match": "both", "steps": [{"reasoning": "hm " * 40}, {"tokens": 2000}]},
    {"match": "think", "steps": [{"reasoning": "Let me see."}, {"text": "Seen."}]},
    {"match": "long", "steps": [{"tokens": 2000}]},
    {"match": "turn", "steps": [{"text": "Turned round."}]},
)


@pytest.fixture(scope="module")
def live(chat_model: Path) -> Iterator[LiveServer]:
    with LiveServer(*REPLIES, rate=400, folder=chat_model) as server:
        yield server


@pytest.fixture
def client(live: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=live.base_url, api_key="none", max_retries=0)


def create(**body: Any) -> dict[str, Any]:
    return {"type": "response.create", "model": "scripted", **body}


def test_create_and_chain(client: openai.OpenAI) -> None:
    first = client.responses.create(model="scripted", input="hello")
    assert first.output_text == "You said: hello"
    assert first.model == "scripted" and first.usage is not None and first.usage.output_tokens > 0
    call = client.responses.create(model="scripted", input="weather?", tools=[WEATHER], previous_response_id=first.id)
    asked = call.output[0]
    assert asked.type == "function_call" and json.loads(asked.arguments) == {"city": "Oslo", "days": 2}
    output = {"type": "function_call_output", "call_id": asked.call_id, "output": "rain"}
    done = client.responses.create(model="scripted", input=[output], previous_response_id=call.id)
    assert done.output_text == "It will rain."
    items = client.responses.input_items.list(done.id, order="asc").data
    assert [item.type for item in items] == ["message", "message", "message", "function_call", "function_call_output"]


def test_stream_is_typed_and_replays(client: openai.OpenAI) -> None:
    with client.responses.create(model="scripted", input="think", stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert "response.reasoning_summary_text.delta" in [event.type for event in events]
    text = "".join(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent))
    assert text == "Seen."
    response_id = events[-1].response.id
    again = list(client.responses.retrieve(response_id, stream=True, starting_after=4))
    assert [event.model_dump() for event in again] == [event.model_dump() for event in events[5:]]
    client.responses.delete(response_id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response_id)


def test_stream_helper_accumulates(client: openai.OpenAI) -> None:
    with client.responses.stream(model="scripted", input="think") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Seen."


def test_strict_accumulator_over_the_socket(client: openai.OpenAI) -> None:
    accumulator = ResponsesWebSocketAccumulator()
    with client.responses.connect() as connection:
        for body in (create(input="think"), create(input="weather", tools=[WEATHER])):
            accumulator.reset()
            connection.send(body)
            while True:
                event = connection.recv()
                accumulator.add_event(event)
                if event.type == "response.completed":
                    break
            final = accumulator.get_final_response()
            assert final.status == "completed"
        assert final.output[0].type == "function_call"


def test_lanes_run_side_by_side(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection, ResponsesWebSocketSession(connection, limits=LIMITS) as session:
        slow, quick = session.lane("slow"), session.lane("quick")
        slow.send(create(input="long"))
        quick.send(create(input="hello"))
        assert quick.get_final_response(timeout=10).output_text == "You said: hello"
        while slow.recv(timeout=10).type != "response.output_text.delta":
            pass  # still going while the other has ended


def test_steer_as_documented(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.send(create(input="both", store=False))
        seen: list[Any] = []
        while not any(event.type == "response.reasoning_summary_text.delta" for event in seen):
            seen.append(connection.recv())
        first = seen[0].response.id
        connection.send({"type": "response.steer", "previous_response_id": first, "input": "now turn"})
        while sum(event.type in ("response.completed", "response.incomplete") for event in seen) < 2:
            seen.append(connection.recv())
    kinds = [event.type for event in seen]
    assert (
        "response.steer.accepted" in kinds
        and "response.output_text.delta" not in kinds[: kinds.index("response.incomplete")]
    )
    steered = next(event.response for event in seen if event.type == "response.incomplete")
    assert steered.incomplete_details.reason == "steered"
    successor = [event.response for event in seen if event.type == "response.created"][1]
    assert successor.previous_response_id == first
    assert seen[-1].response.output_text == "Turned round."


def test_errors_are_typed_and_name_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.responses.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="scripted", input="x", temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="scripted", input="x", previous_response_id="resp_gone")
    assert caught.value.code == "previous_response_not_found"
    with client.responses.connect() as connection:
        connection.send(create(input="x", previous_response_id="resp_gone"))
        error = connection.recv()
        assert error.type == "error" and error.error.code == "previous_response_not_found"
        connection.send(create(input="still alive"))
        while connection.recv().type != "response.completed":
            pass


def test_structured_output_on_the_local_engine(client: openai.OpenAI) -> None:
    """Random weights say nothing sensible, and yet the answer parses: the grammar sees to it."""
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }
    form: Any = {"format": {"type": "json_schema", "name": "verdict", "schema": schema, "strict": True}}
    answer = client.responses.create(model="local", input="Is it so?", text=form, max_output_tokens=1000)
    parsed = json.loads(answer.output_text)
    assert parsed["answer"] in ("yes", "no") and isinstance(parsed["sure"], bool)
    call = client.responses.create(
        model="local",
        input="weather",
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=1500,
    )
    assert set(json.loads(call.output[0].arguments)) == {"city", "days"}


def test_chat_and_completions(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="local",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=8,
        prediction={"type": "content", "content": "missing missing missing"},
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 8
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens is not None
    chunks = list(
        client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "weather"}],
            tools=[{"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].usage is not None and chunks[-2].choices[0].finish_reason == "tool_calls"
    pieces = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert json.loads("".join(piece.function.arguments or "" for piece in pieces)) == {"city": "Oslo", "days": 2}
    fill = client.completions.create(model="scripted", prompt="def f(", suffix="): pass", max_tokens=50)
    assert fill.choices[0].text == "You said: def f(␣): pass"


def test_background_cancel_and_count(client: openai.OpenAI) -> None:
    running = client.responses.create(model="scripted", input="long", background=True)
    assert running.status in ("queued", "in_progress")
    cancelled = client.responses.cancel(running.id)
    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(running.id).status == "cancelled"
    assert client.responses.input_tokens.count(model="local", input="hello there").input_tokens > 5
    compacted = client.responses.compact(model="scripted", input="a long talk")
    assert compacted.output[-1].type == "compaction"
    told = client.responses.create(model="scripted", input=[*compacted.output, {"role": "user", "content": "go on"}])
    assert told.output_text == "You said: go on"
