from __future__ import annotations

import msgspec
import pytest

from fulgur.protocol import events as ev
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import check_item, text_of
from fulgur.protocol.response import Response

KEYS = (
    "id object created_at completed_at status incomplete_details model previous_response_id instructions output error "
    "tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs "
    "temperature reasoning usage max_output_tokens max_tool_calls store background service_tier metadata "
    "safety_identifier prompt_cache_key"
)


def test_a_response_has_all_31_keys_even_when_empty() -> None:
    assert len(KEYS.split()) == 31
    assert sorted(msgspec.to_builtins(Response(id="resp_1"))) == sorted(KEYS.split())


def test_events_come_back_as_they_went() -> None:
    sent = ev.OutputTextDelta(sequence_number=7, item_id="msg_1", delta='a "quoted"\nü', stream_id="lane")
    data = msgspec.json.encode(sent)
    assert ev.decode_event(data) == sent
    assert ev.decode_event(data).type == "response.output_text.delta"


def test_an_unknown_event_is_kept_whole() -> None:
    event = ev.decode_event(b'{"type":"response.shell.new","sequence_number":3,"thing":{"a":1}}')
    assert isinstance(event, ev.UnknownEvent)
    assert event.name == "response.shell.new" and event.data["thing"] == {"a": 1}


def test_a_response_of_another_server_may_lack_keys_and_hold_unknown_items() -> None:
    data = b'{"type":"response.completed","response":{"id":"r","output":[{"type":"hologram","x":1}],"extra":2}}'
    event = ev.decode_event(data)
    assert isinstance(event, ev.ResponseCompleted)
    assert event.response.output == [{"type": "hologram", "x": 1}]


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "message", "role": "wizard", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_text", "text": 5}]}, "input[0].content[0].text"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"nothing": 1}, "input[0].type"),
        ({"type": 5}, "input[0].type"),
    ],
)
def test_a_wrong_item_names_its_field(item: dict[str, object], field: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_item(item, "input[0]")
    assert caught.value.param == field and caught.value.status == 400


def test_unknown_items_and_fields_pass() -> None:
    check_item({"type": "hologram", "anything": [1]}, "input[0]")
    check_item({"role": "user", "content": "x", "extra": {"deep": []}}, "input[0]")
    assert text_of({"content": [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]}) == "ab"
