"""Steering: the documented contract, and ours at the next token."""

from __future__ import annotations

from typing import Any

from serving import script, text
from test_websocket import Raw, connected

LONG = {"match": "long", "steps": [{"tokens": 3000}]}
CALL = {
    "match": "tool",
    "after": "message",
    "times": 1,
    "steps": [{"text": "On it. " * 30}, {"call": "look", "arguments": {"at": "x"}}],
}


async def begin(raw: Raw, kind: str, **frame: Any) -> str:
    """Start a response and read until the first event of a kind; its id."""
    await raw.send(**frame)
    created = await raw.until("response.created")
    await raw.until(kind)
    return str(created["response"]["id"])


async def steer(raw: Raw, response_id: str, words: Any = "turn", **fields: Any) -> None:
    await raw.socket.send_json(
        {"type": "response.steer", "previous_response_id": response_id, "input": words, **fields}
    )


async def test_at_the_next_token_the_partial_is_kept_and_only_the_steer_is_prefilled() -> None:
    async with connected(script(LONG, rate=500)) as (_, raw):
        first = await begin(raw, "response.output_text.delta", input="long", instructions="Be brief.")
        await steer(raw, first, boundary="token")
        accepted = await raw.until("response.steer.accepted")
        assert accepted["steer"]["id"].startswith("steer_")
        old = (await raw.until("response.incomplete"))["response"]
        assert old["id"] == first and old["incomplete_details"] == {"reason": "steered"}
        partial = old["output"][0]
        assert partial["status"] == "incomplete" and partial["content"][0]["text"].startswith(" w0000")
        created = await raw.next()
        assert created["type"] == "response.created" and created["sequence_number"] == 0
        assert created["response"]["previous_response_id"] == first
        assert created["response"]["instructions"] == "Be brief.", "settings are inherited"
        new = (await raw.until("response.completed"))["response"]
        assert new["output"][0]["content"][0]["text"] == "You said: turn"
        held = old["usage"]["input_tokens"] + old["usage"]["output_tokens"]
        assert new["usage"]["input_tokens_details"]["cached_tokens"] == held
        numbers = [event["sequence_number"] for event in raw.seen]
        second = numbers.index(0, 1)
        assert numbers == [*range(second), *range(len(numbers) - second)]
        on = await raw.turn(input="and on", previous_response_id=new["id"])
        assert on["type"] == "response.completed"


async def test_contract_mode_ends_the_current_item_first() -> None:
    both = {"match": "both", "steps": [{"reasoning": "hm " * 50}, {"tokens": 3000}]}
    async with connected(script(both, rate=500)) as (_, raw):
        first = await begin(raw, "response.reasoning_summary_text.delta", input="both")
        await steer(raw, first)
        old = (await raw.until("response.incomplete"))["response"]
        assert [item["type"] for item in old["output"]] == ["reasoning"]
        assert old["output"][0]["summary"][0]["text"] == "hm " * 50, "the item is whole"
        assert (await raw.until("response.completed"))["response"]["output"][0]["content"][0][
            "text"
        ] == "You said: turn"


async def test_an_answer_that_ends_first_stays_completed_and_the_successor_follows() -> None:
    async with connected(script(text("word " * 40, match="short"), rate=500)) as (_, raw):
        first = await begin(raw, "response.output_text.delta", input="short")
        await steer(raw, first)
        assert (await raw.until("response.completed"))["response"]["id"] == first
        successor = await raw.until("response.created")
        assert successor["response"]["previous_response_id"] == first
        await raw.until("response.completed")


async def test_a_steer_waits_for_tool_outputs_and_is_put_before_them() -> None:
    async with connected(script(CALL, rate=500)) as (running, raw):
        first = await begin(raw, "response.function_call_arguments.delta", input="tool")
        await steer(raw, first, "turn one")
        await steer(raw, first, "turn two")
        ended = (await raw.until("response.completed"))["response"]
        call = ended["output"][1]
        pending = [await raw.until("response.steer.pending") for _ in range(2)]
        stub = {"type": "function_call_output", "call_id": call["call_id"], "name": "look"}
        assert all(event["required_input"] == [stub] for event in pending)
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "seen"}
        done = await raw.turn(input=[output], previous_response_id=first, store=True)
        assert done["type"] == "response.completed"
        stored = await running.server.store.get("anonymous", done["response"]["id"])
        assert stored is not None
        kinds = [item["type"] for item in stored.input]
        assert kinds == ["message", "message", "function_call", "message", "message", "function_call_output"]


async def test_several_steers_at_tokens_keep_their_order() -> None:
    async with connected(script(LONG, {"match": "again", "steps": [{"tokens": 3000}]}, rate=500)) as (_, raw):
        response_id = await begin(raw, "response.output_text.delta", input="long")
        for words in ("again 1", "again 2", "stop"):
            await steer(raw, response_id, words, boundary="token")
            response_id = (await raw.until("response.created"))["response"]["id"]
        done = (await raw.until("response.completed"))["response"]
        assert done["output"][0]["content"][0]["text"] == "You said: stop"


async def test_what_cannot_be_steered_comes_back_with_its_words() -> None:
    async with connected(script(LONG, rate=500)) as (_, raw):
        done = (await raw.turn(input="quick"))["response"]["id"]
        await steer(raw, done, "too late")
        failed = await raw.until("response.steer.failed")
        assert failed["error"]["code"] == "response_already_completed"
        assert failed["steer"] == {"previous_response_id": done, "input": "too late"}
        await steer(raw, "resp_none", "x")
        assert (await raw.until("response.steer.failed"))["error"]["code"] == "response_not_found"
        running = await begin(raw, "response.output_text.delta", input="long")
        wrong: list[Any] = [
            "",
            [],
            [{"type": "function_call_output", "call_id": "c", "output": "x"}],
            [{"role": "system", "content": "x"}],
            [{"role": "user", "content": "x", "id": "mine"}],
            [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}],
            5,
        ]
        for words in wrong:
            await steer(raw, running, words)
            failed = await raw.until("response.steer.failed")
            assert failed["error"]["code"] == "invalid_input" and failed["steer"]["input"] == words
        await raw.socket.send_json({"type": "response.cancel", "response_id": running})
        await raw.until("response.incomplete")


async def test_a_cancelled_response_gives_its_steers_back() -> None:
    async with connected(script(LONG, rate=500)) as (_, raw):
        running = await begin(raw, "response.output_text.delta", input="long")
        await steer(raw, running, "never")
        accepted = await raw.until("response.steer.accepted")
        await raw.socket.send_json({"type": "response.cancel", "response_id": running})
        failed = await raw.until("response.steer.failed")
        assert failed["steer"]["id"] == accepted["steer"]["id"] and failed["steer"]["input"] == "never"
