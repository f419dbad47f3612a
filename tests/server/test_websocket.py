"""WebSocket mode over raw sockets: lanes, state, errors, limits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from serving import backend_of, script, serving, text
from waiting import PATIENCE, until

from fulgur.server import run
from fulgur.server.config import Pool, ServerConfig
from fulgur.server.pools import PoolState


class Raw:
    """A socket that speaks JSON and keeps what it saw."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def send(self, **frame: Any) -> None:
        await self.socket.send_json({"type": "response.create", "model": "m", "store": False, **frame})

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = await self.socket.receive_json(timeout=PATIENCE)
        self.seen.append(event)
        return event

    async def until(self, *kinds: str) -> dict[str, Any]:
        while True:
            event = await self.next()
            if event["type"] in kinds:
                return event

    async def turn(self, **frame: Any) -> dict[str, Any]:
        """Send a create and return its terminal event (or the error)."""
        await self.send(**frame)
        return await self.until("response.completed", "response.incomplete", "response.failed", "error")


@asynccontextmanager
async def connected(*args: Any, **options: Any) -> Any:
    async with serving(*args, **options) as running, aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{running.base_url}/responses") as socket:
            yield running, Raw(socket)


async def test_chain_without_store_lives_on_the_connection() -> None:
    async with connected() as (running, raw):
        first = await raw.turn(input="one")
        second = await raw.turn(input="two", previous_response_id=first["response"]["id"])
        assert second["response"]["previous_response_id"] == first["response"]["id"]
        assert second["response"]["usage"]["input_tokens_details"]["cached_tokens"] > 0
        # Only the latest response of the lane is held.
        gone = await raw.turn(input="x", previous_response_id=first["response"]["id"])
        assert gone["type"] == "error" and gone["error"]["code"] == "previous_response_not_found"
        assert gone["status"] == 400 and gone["error"]["param"] == "previous_response_id"
        # Another connection knows none of it.
        async with aiohttp.ClientSession() as session:
            async with session.ws_connect(f"{running.base_url}/responses") as other:
                error = await Raw(other).turn(input="x", previous_response_id=second["response"]["id"])
                assert error["error"]["code"] == "previous_response_not_found"


async def test_a_failed_continuation_evicts_in_its_lane_and_not_across() -> None:
    async with connected() as (_, raw):
        parent = (await raw.turn(input="one"))["response"]["id"]
        fork = await raw.turn(input="x", previous_response_id=parent, stream_id="fork", temperature=99)
        assert fork["type"] == "error" and fork["stream_id"] == "fork"
        kept = await raw.turn(input="two", previous_response_id=parent, stream_id="fork")
        assert kept["type"] == "response.completed"
        wrong = await raw.turn(input="x", previous_response_id=parent, temperature=99)
        assert wrong["error"]["param"] == "temperature"
        evicted = await raw.turn(input="x", previous_response_id=parent)
        assert evicted["error"]["code"] == "previous_response_not_found"


async def test_lanes_are_fifo_inside_and_concurrent_across() -> None:
    slow = {"match": "slow", "steps": [{"delay": 0.3}, {"text": "slow"}]}
    async with connected(script(slow)) as (_, raw):
        await raw.send(input="slow", stream_id="a")
        await raw.send(input="second", stream_id="a")
        await raw.send(input="quick", stream_id="b")
        ended = []
        while len(ended) < 3:
            event = await raw.until("response.completed")
            ended.append((event["stream_id"], event["response"]["output"][0]["content"][0]["text"]))
        assert ended == [("b", "You said: quick"), ("a", "slow"), ("a", "You said: second")]
        for lane in ("a", "b"):
            numbers = [event["sequence_number"] for event in raw.seen if event["stream_id"] == lane]
            starts = [index for index, number in enumerate(numbers) if number == 0]
            for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
                assert numbers[start:end] == list(range(end - start))


async def test_sixteen_in_flight_and_the_rest_waits() -> None:
    async with connected(script({"steps": [{"tokens": 10_000}]}, rate=20)) as (running, raw):
        for number in range(20):
            await raw.send(input="x", stream_id=f"lane-{number}")
        await until(lambda: backend_of(running).running >= 16)
        await raw.socket.send_str("{}")
        await raw.until("error")  # so all twenty were read
        assert backend_of(running).running == 16
        begun = [event for event in raw.seen if event["type"] == "response.created"]
        for _ in range(20):
            created = begun.pop(0) if begun else await raw.until("response.created")
            await raw.socket.send_json({"type": "response.cancel", "response_id": created["response"]["id"]})
        await until(lambda: backend_of(running).running == 0)


async def test_lane_names_and_number_are_limited() -> None:
    async with connected() as (_, raw):
        for name in ("", "ä", "x" * 257, 5):
            error = await raw.turn(input="x", stream_id=name)
            assert error["error"]["code"] == "invalid_stream_id" and "stream_id" not in error
        for number in range(32):
            await raw.turn(input="x", stream_id=f"lane-{number}")
        error = await raw.turn(input="x", stream_id="one-too-many")
        assert error["error"]["code"] == "websocket_stream_limit_reached"
        assert (await raw.turn(input="the default lane is not counted"))["type"] == "response.completed"


async def test_warm_up_prefills_and_its_id_goes_on() -> None:
    async with connected() as (_, raw):
        warm = await raw.turn(input="a long beginning", generate=False)
        assert warm["type"] == "response.completed" and warm["response"]["output"] == []
        tokens = warm["response"]["usage"]["input_tokens"]
        turn = await raw.turn(input="go", previous_response_id=warm["response"]["id"])
        assert turn["response"]["usage"]["input_tokens_details"]["cached_tokens"] == tokens > 0
        empty = await raw.turn(generate=False)
        assert empty["response"]["status"] == "completed"


async def test_type_ahead_is_in_the_cache_when_the_create_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (running, raw):
        first = await raw.turn(input="one")
        typed = {"input": "a long wish, half ty", "previous_response_id": first["response"]["id"]}
        backend, begun, go_on = backend_of(running), asyncio.Event(), asyncio.Event()

        async def take_time_to_prefill(tokens: int) -> None:
            begun.set()
            await go_on.wait()

        monkeypatch.setattr(backend, "take_time_to_prefill", take_time_to_prefill)
        await raw.send(type="response.prefill", prefill_id="p0", **typed)
        await begun.wait()
        for number in (1, 2):
            await raw.send(type="response.prefill", prefill_id=f"p{number}", **typed)
        superseded = await raw.until("response.prefilled")
        assert (superseded["prefill_id"], superseded["input_tokens"]) == ("p1", 0), "while the first is under way"
        go_on.set()
        done = {(await raw.until("response.prefilled"))["prefill_id"]: raw.seen[-1] for _ in range(2)}
        assert done["p0"]["input_tokens"] > 0 and done["p2"]["input_tokens"] > 0
        wrong = await raw.socket.send_json({"type": "response.prefill", "model": "none", "prefill_id": "w"})
        assert wrong is None and (await raw.until("response.prefilled"))["input_tokens"] == 0


async def test_bad_frames_leave_the_socket_alive() -> None:
    async with connected() as (_, raw):
        for frame in ("", "{", "[]", "5", '"x"', '{"type":"response.fly"}', "{}", "[" * 5000, '{"type":5}'):
            await raw.socket.send_str(frame)
            error = await raw.until("error")
            assert error["status"] == 400 and error["error"]["code"], frame
        deep = '{"type":"response.create","model":"m","input":' + "[" * 200 + "]" * 200 + "}"
        await raw.socket.send_str(deep)
        assert (await raw.until("error"))["error"]["code"] == "too_deeply_nested"
        await raw.socket.send_bytes(b"\x00\x01")
        assert (await raw.until("error"))["error"]["code"] == "invalid_frame"
        assert (await raw.turn(input="alive", stream=True))["type"] == "response.completed"


async def test_background_is_refused_and_unknown_things_are_tolerated() -> None:
    async with connected() as (_, raw):
        assert (await raw.turn(input="x", background=True))["error"]["param"] == "background"
        tools = [
            {"type": "web_search"},
            {"type": "hologram", "x": 1},
            {"type": "namespace", "name": "n", "tools": []},
        ]
        done = await raw.turn(input="x", tools=tools, client_metadata={"a": 1}, whatever=[1])
        assert done["response"]["status"] == "completed" and done["response"]["tools"] == []


async def test_tools_offered_in_the_input_stay_offered() -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    offered = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "f", "tools": [tool]}],
    }
    async with connected() as (_, raw):
        first = await raw.turn(input=[offered, {"role": "user", "content": "hi"}])
        again = await raw.turn(
            input="more",
            previous_response_id=first["response"]["id"],
            tool_choice={"type": "function", "name": "look"},
        )
        assert again["type"] == "response.completed"
        other = await raw.turn(input="more", tool_choice={"type": "function", "name": "look"})
        assert other["error"]["param"] == "tool_choice"


async def test_the_connection_ends_after_its_time() -> None:
    config = ServerConfig()
    config.server.connection_minutes = 0.3 / 60
    async with connected(config=config) as (_, raw):
        error = await raw.until("error")
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        assert (await raw.socket.receive(timeout=PATIENCE)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING)


async def test_a_vanished_client_frees_the_engine() -> None:
    async with connected(script({"steps": [{"tokens": 100_000}]}, rate=500)) as (running, raw):
        await raw.send(input="x")
        await raw.until("response.output_text.delta")
        assert backend_of(running).running == 1
        raw.socket._response.connection.transport.abort()
        await until(lambda: not backend_of(running).running)


async def test_a_stored_response_outlives_its_socket_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes back replays it live; when nobody does, it stops and keeps what was written."""
    async with serving(
        script({"match": "short", "steps": [{"tokens": 60}]}, {"steps": [{"tokens": 100_000}]}, rate=300)
    ) as running:
        async with aiohttp.ClientSession() as session:

            async def begun_and_left(asked: str) -> str:
                socket = await session.ws_connect(f"{running.base_url}/responses")
                raw = Raw(socket)
                await raw.send(input=asked, store=True)
                name: str = (await raw.until("response.created"))["response"]["id"]
                await raw.until("response.output_text.delta")
                socket._response.connection.transport.abort()  # type: ignore[union-attr]
                return name

            monkeypatch.setattr(run, "GRACE_S", PATIENCE)
            short = await begun_and_left("short")
            async with session.get(f"{running.base_url}/responses/{short}?stream=true&starting_after=3") as answer:
                events = (await answer.text()).split("\n\n")
            assert events[-3].startswith("event: response.completed")
            monkeypatch.setattr(run, "GRACE_S", 0.1)
            long = await begun_and_left("long")
            await until(lambda: not running.server.runs)
            async with session.get(f"{running.base_url}/responses/{long}") as answer:
                left = await answer.json()
            assert left["incomplete_details"] == {"reason": "disconnected"} and left["output"]
            assert backend_of(running).running == 0


async def test_a_vanished_client_ends_its_warm_up_and_its_compaction() -> None:
    async with connected(script(text("note " * 5000), prefill_rate=100, rate=500)) as (running, raw):
        await raw.send(input="a long beginning " * 50, generate=False, stream_id="warm")
        await raw.until("response.in_progress")
        await raw.send(input=[{"type": "compaction_trigger"}], stream_id="compact")
        await until(lambda: backend_of(running).running)
        raw.socket._response.connection.transport.abort()
        await until(lambda: not running.server.runs and not backend_of(running).running)


async def test_a_stopping_server_says_goodbye_at_once() -> None:
    async with aiohttp.ClientSession() as session:
        async with serving(script({"steps": [{"tokens": 100_000}]}, rate=200)) as running:
            socket = await session.ws_connect(f"{running.base_url}/responses")
            raw = Raw(socket)
            await raw.send(input="x")
            await raw.until("response.output_text.delta")
        while (message := await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.TEXT:
            pass
        assert message.type is aiohttp.WSMsgType.CLOSE and message.data == 1001


async def test_cancel_keeps_what_was_written() -> None:
    async with connected(script({"match": "count", "steps": [{"tokens": 5000}]}, rate=500)) as (_, raw):
        await raw.send(input="count")
        created = await raw.until("response.created")
        await raw.until("response.output_text.delta")
        await raw.socket.send_json({"type": "response.cancel", "response_id": created["response"]["id"]})
        ended = (await raw.until("response.incomplete"))["response"]
        assert ended["status"] == "cancelled" and ended["output"][0]["status"] == "incomplete"
        assert ended["output"][0]["content"][0]["text"].startswith(" w0000")
        on = await raw.turn(input="go on", previous_response_id=ended["id"])
        assert on["type"] == "response.completed"


async def test_interrupt_discards_the_open_item() -> None:
    reply = {"match": "count", "steps": [{"reasoning": "first"}, {"tokens": 5000}]}
    async with connected(script(reply, rate=500)) as (_, raw):
        await raw.send(input="count")
        created = await raw.until("response.created")
        delta = await raw.until("response.output_text.delta")
        frame = {
            "type": "response.interrupt",
            "response_id": created["response"]["id"],
            "mode": "discard_partial_items",
        }
        await raw.socket.send_json(frame)
        await raw.until("response.interrupt.accepted")
        dropped = await raw.until("response.output_item.interrupted")
        assert (dropped["item_id"], dropped["output_index"]) == (delta["item_id"], 1)
        ended = (await raw.until("response.incomplete"))["response"]
        assert ended["incomplete_details"] == {"reason": "interrupted"}
        assert [item["type"] for item in ended["output"]] == ["reasoning"]


async def test_compaction_trigger_gives_one_compaction_item() -> None:
    async with connected() as (_, raw):
        first = await raw.turn(input="remember the colour blue")
        done = await raw.turn(input=[{"type": "compaction_trigger"}], previous_response_id=first["response"]["id"])
        (item,) = done["response"]["output"]
        assert item["type"] == "compaction"
        on = await raw.turn(input=[item, {"role": "user", "content": "go on"}])
        assert on["type"] == "response.completed"
        broken = await raw.turn(input=[{"type": "compaction", "encrypted_content": "nonsense"}])
        assert broken["error"]["param"] == "input[0].encrypted_content"


async def test_pools_queue_limit_and_tell_codex() -> None:
    pool = PoolState("p", Pool(concurrent=1, requests_per_minute=3))
    async with connected(script({"steps": [{"delay": 0.1}, {"text": "x"}]}), pool=pool) as (_, raw):
        await raw.send(input="a", stream_id="a")
        await raw.until("response.in_progress")
        await raw.send(input="b", stream_id="b")
        queued = await raw.until("response.queued")
        assert queued["stream_id"] == "b" and queued["response"]["status"] == "queued"
        assert queued["queue"] == {"position": 1, "expected_wait_seconds": None}
        await raw.until("response.completed")
        await raw.until("response.completed")
        meters = [event for event in raw.seen if event["type"] == "codex.rate_limits"]
        used = [meter["rate_limits"]["primary"]["used_percent"] for meter in meters]
        assert used == pytest.approx([33.3, 66.7], abs=2)
        await raw.turn(input="c")
        error = await raw.turn(input="d")
        assert error["status"] == 429 and int(error["error"]["headers"]["retry-after"]) > 0


@pytest.mark.parametrize("count", [200])
async def test_many_idle_sockets_and_some_that_stream(count: int) -> None:
    async with serving(script({"steps": [{"tokens": 100}]})) as running:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            sockets = [await session.ws_connect(f"{running.base_url}/responses") for _ in range(count)]
            results = await asyncio.gather(*(Raw(socket).turn(input="go") for socket in sockets[:16]))
            assert all(result["type"] == "response.completed" for result in results)
            assert len(running.server.sockets) == count
            await asyncio.gather(*(socket.close() for socket in sockets))


async def test_the_text_is_the_script_token_by_token() -> None:
    words = "naïve “quotes” \\ \n tabs\t 東京 🙂 end"
    async with connected(script(text(words))) as (_, raw):
        done = await raw.turn(input="x")
        deltas = [event["delta"] for event in raw.seen if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == words == done["response"]["output"][0]["content"][0]["text"]
