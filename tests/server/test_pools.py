"""Pools, tiers and limits: who waits, who is told what, and what is charged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from serving import backend_of, script, serving, text
from waiting import PATIENCE

from fulgur.bench import fairness
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.server import app, auth, pools
from fulgur.server.config import Model, Pool, Price, ServerConfig, TierLimits
from fulgur.server.fair_queue import FairQueue, Ticket, TierShare
from fulgur.server.pools import PoolState
from fulgur.server.rates import Bucket, Rates, headers_of
from fulgur.text.parts import Usage
from fulgur.ui.cli import main


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Socket:
    """A raw client of the WebSocket that keeps what it has seen."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def create(self, **fields: Any) -> None:
        await self.socket.send_json({"type": "response.create", "model": "m", "store": False, **fields})

    async def until(self, *kinds: str, lane: str | None = None) -> dict[str, Any]:
        while True:
            event: dict[str, Any] = json.loads((await self.socket.receive(timeout=PATIENCE)).data)
            self.seen.append(event)
            if event["type"] in kinds and lane in (None, event.get("stream_id")):
                return event


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[app.Running, Socket]]:
    async with serving(**options) as running, aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{running.base_url}/responses") as socket:
            yield running, Socket(socket)


# --- the queue ---


def served(queue: FairQueue, count: int, cost: float = 10.0) -> list[str]:
    """Who comes next, one after the other, when each answer costs the same."""
    order = []
    for _ in range(count):
        ticket = queue.next()
        if ticket is None:
            break
        order.append(f"{ticket.tier} {ticket.owner}")
        queue.done(ticket, cost)
    return order


def test_keys_take_turns_whatever_they_queue() -> None:
    queue = FairQueue(1, {"default": TierShare()})
    for owner in ["heavy"] * 6 + ["light"] * 2:
        queue.add(Ticket(owner, "default"))
    assert [each.owner for each in queue.order()] == [
        "heavy", "light", "heavy", "light", "heavy", "heavy", "heavy", "heavy"
    ]  # fmt: skip
    assert served(queue, 4) == ["default heavy", "default light", "default heavy", "default light"]


def test_long_answers_count_for_more() -> None:
    queue = FairQueue(1, {"default": TierShare()})
    for _ in range(4):
        queue.add(Ticket("long", "default"))
        queue.add(Ticket("short", "default"))
    for expected, cost in [("long", 300.0), ("short", 100.0), ("short", 100.0), ("short", 100.0), ("long", 1.0)]:
        ticket = queue.next()
        assert ticket is not None and ticket.owner == expected
        queue.done(ticket, cost)


def test_who_was_away_has_saved_nothing_up() -> None:
    queue = FairQueue(1, {"default": TierShare()})
    for _ in range(40):
        queue.add(Ticket("steady", "default"))
    served(queue, 20)
    for _ in range(20):
        queue.add(Ticket("back", "default"))
    assert served(queue, 10).count("default back") in (5, 6)


def test_tiers_share_by_weight_and_flex_takes_what_is_left() -> None:
    queue = FairQueue(1, {"flex": TierShare(1), "default": TierShare(4), "priority": TierShare(16)})
    for tier in queue.tiers:
        for _ in range(60):
            queue.add(Ticket("k", tier))
    first = served(queue, 50)
    assert first.count("priority k") == 40 and first.count("default k") == 10
    assert "flex k" not in served(queue, 70)
    assert served(queue, 5) == ["flex k"] * 5


def test_reserved_slots_and_the_most_of_a_tier() -> None:
    queue = FairQueue(
        4, {"default": TierShare(4), "priority": TierShare(16, reserved=1), "ultrafast": TierShare(64, most=1)}
    )
    for _ in range(6):
        queue.add(Ticket("k", "default"))
    assert [queue.next() is not None for _ in range(4)] == [True, True, True, False], "one slot is kept"
    queue.add(Ticket("k", "ultrafast"))
    assert queue.next() is None
    queue.add(Ticket("k", "priority"))
    started = queue.next()
    assert started is not None and started.tier == "priority"


def test_a_light_key_waits_little_beside_a_heavy_one() -> None:
    fifo, fair = (fairness.simulate(fair=each, seconds=1200, seed=0) for each in (False, True))
    assert fair.light_wait() <= 0.05 * fifo.light_wait()
    assert fair.work["heavy"] >= 0.95 * fifo.work["heavy"]


# --- limits ---


def test_tokens_of_a_long_answer_count_when_it_ends() -> None:
    clock = Clock()
    rates = Rates("x", tokens_per_minute=100, clock=clock)
    rates.check()
    clock.now += 300  # the answer takes five minutes
    rates.spend(150)
    with pytest.raises(ApiError) as refused:
        rates.check()
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.headers is not None and refused.value.headers["retry-after"] == "31"
    clock.now += 31
    rates.check()


def test_a_reset_is_when_the_limit_is_whole_again() -> None:
    clock = Clock()
    bucket = Bucket(60, clock=clock)
    bucket.take(15)
    assert (bucket.left(), bucket.wait(60), bucket.used_percent()) == (45, 15.0, 25.0)
    clock.now += 10
    assert bucket.wait(60) == pytest.approx(5.0)
    clock.now += 100
    assert bucket.left() == 60


def test_headers_name_the_tightest_limit() -> None:
    clock = Clock()
    wide, tight = Rates("a", 100, 1000, clock=clock), Rates("b", 10, tokens_per_day=1000, clock=clock)
    for each in (wide, tight):
        each.request()
        each.spend(250)
    headers = headers_of([wide, tight])
    assert headers["x-ratelimit-limit-requests"] == "10" and headers["x-ratelimit-remaining-requests"] == "9"
    assert headers["x-ratelimit-reset-requests"] == "6s"
    assert headers["x-ratelimit-remaining-tokens"] == "750" and headers["x-ratelimit-reset-tokens"] == "15s"
    assert headers["x-codex-primary-used-percent"] == "25" and headers["x-codex-primary-window-minutes"] == "1"
    assert headers["x-codex-secondary-used-percent"] == "25" and headers["x-codex-secondary-window-minutes"] == "1440"


async def test_http_answers_carry_the_limits_and_keys_have_their_own() -> None:
    keys = {name: auth.new_key(name) for name in ("a", "b")}
    config = ServerConfig(keys=[record for _, record in keys.values()])
    config.keys[0].requests_per_minute = 2
    config.keys[1].tokens_per_day = 5
    async with serving(script(text("one two three four five six")), config=config) as running:
        async with aiohttp.ClientSession() as session:

            async def post(name: str, path: str = "/responses") -> tuple[int, Any, Any]:
                headers = {"Authorization": f"Bearer {keys[name][0]}"}
                body = {"model": "m", "input": "x", "messages": [{"role": "user", "content": "x"}], "store": False}
                body.pop("messages" if path == "/responses" else "input")
                async with session.post(f"{running.base_url}{path}", json=body, headers=headers) as answer:
                    return answer.status, answer.headers, await answer.json()

            status, headers, _ = await post("a")
            assert status == 200 and headers["x-ratelimit-remaining-requests"] == "1"
            assert (await post("a", "/chat/completions"))[0] == 200
            status, headers, body = await post("a")
            assert status == 429 and body["error"]["code"] == "rate_limit_exceeded" and "key 'a'" in str(body)
            assert int(headers["retry-after"]) <= 30 and headers["x-ratelimit-remaining-requests"] == "0"
            assert (await post("b"))[0] == 200
            assert (await post("b"))[2]["error"]["code"] == "usage_limit_reached"


# --- slots ---


async def test_the_response_names_the_tier_that_served_and_its_price() -> None:
    price = Model(backend="scripted", price=Price(input=0.0, output=100.0))
    pool = PoolState("p", Pool(concurrent=2, tiers={"ultrafast": TierLimits(slots=1, price=10)}))
    async with connected(played=script(text("a b c d")), pool=pool, model=price) as (_, raw):
        found = {}
        for asked in ("flex", "auto", None, "fast", "ultrafast"):
            await raw.create(input="x", **({} if asked is None else {"service_tier": asked}))
            ended = (await raw.until("response.completed"))["response"]
            found[asked] = ended["service_tier"], ended["usage"]["cost"] / ended["usage"]["output_tokens"]
    per = 100 / 1e6
    assert found == {
        "flex": ("flex", pytest.approx(per / 2)),
        "auto": ("default", pytest.approx(per)),
        None: ("default", pytest.approx(per)),
        "fast": ("priority", pytest.approx(2 * per)),
        "ultrafast": ("ultrafast", pytest.approx(10 * per)),
    }


async def test_chat_costs_what_its_tier_costs() -> None:
    price, pool = Model(backend="scripted", price=Price(output=1e6)), PoolState("p", Pool(concurrent=1))
    async with serving(script(text("a b c d")), pool=pool, model=price) as running:
        async with aiohttp.ClientSession() as session:
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "service_tier": "flex"}
            async with session.post(f"{running.base_url}/chat/completions", json=body) as answer:
                usage = (await answer.json())["usage"]
    assert usage["cost"] == usage["completion_tokens"] / 2


async def test_who_waits_hears_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "NOTIFY_S", 0.01)
    pool = PoolState("p", Pool(concurrent=1))
    async with connected(played=script({"steps": [{"tokens": 20}]}, rate=200), pool=pool) as (_, raw):
        await raw.create(input="x")
        await raw.until("response.completed")
        for lane in ("a", "b", "c"):
            await raw.create(input="x", stream_id=lane)
        for _ in range(3):
            await raw.until("response.completed")
    places = [event["queue"] for event in raw.seen if event["type"] == "response.queued" and event["stream_id"] == "c"]
    assert [place["position"] for place in places] == [2, 1]
    assert all(place["expected_wait_seconds"] > 0 for place in places)


async def test_a_cancel_ends_the_wait_and_the_place_is_free() -> None:
    pool = PoolState("p", Pool(concurrent=1, queue=1))
    async with connected(played=script({"steps": [{"tokens": 100_000}]}, rate=100), pool=pool) as (running, raw):
        await raw.create(input="x", stream_id="a")
        await raw.until("response.in_progress")
        await raw.create(input="x", stream_id="b")
        waiting = await raw.until("response.queued")
        await raw.create(input="x", stream_id="c")
        failed = await raw.until("response.failed", lane="c")
        assert failed["response"]["error"]["code"] == "queue_full"
        await raw.socket.send_json({"type": "response.cancel", "response_id": waiting["response"]["id"]})
        ended = await raw.until("response.incomplete", lane="b")
        assert ended["response"]["status"] == "cancelled" and not ended["response"]["output"]
        assert backend_of(running).running == 1, "the one that runs goes on"


@pytest.mark.parametrize("spoken", [True, False])
async def test_a_flex_answer_makes_room_at_a_token_and_goes_on(spoken: bool) -> None:
    """Its text is that of an undisturbed run, its usage counts each token once."""
    pool = PoolState("p", Pool(concurrent=1))
    words = " ".join(f"word{number}" for number in range(60))
    first = {"match": "^long", "steps": [*([] if spoken else [{"delay": 0.3}]), {"text": words}]}
    async with connected(played=script(first, text("quick"), rate=400), pool=pool) as (_, raw):
        await raw.create(input="long", stream_id="flex", service_tier="flex", max_output_tokens=500)
        await raw.until("response.output_text.delta" if spoken else "response.in_progress")
        await raw.create(input="now", stream_id="fast", service_tier="priority")
        quick = await raw.until("response.completed", "response.failed")
        assert quick["stream_id"] == "fast"
        ended = await raw.until("response.completed", "response.failed", lane="flex")
        mine = [event for event in raw.seen if event.get("stream_id") == "flex"]
        assert "response.queued" in {event["type"] for event in mine}
        [item] = ended["response"]["output"]
        assert item["content"][0]["text"] == words
        deltas = [event["delta"] for event in mine if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == words and ended["response"]["usage"]["output_tokens"] == len(deltas)
        assert [event["sequence_number"] for event in mine] == list(range(len(mine)))


async def test_a_steered_answer_is_charged_with_what_came_before_the_steer() -> None:
    pool = PoolState("p", Pool(concurrent=1, tokens_per_minute=10_000), Clock())
    played = script({"match": "go", "steps": [{"tokens": 100}]}, text("ok"), rate=500)
    async with connected(played=played, pool=pool) as (_, raw):
        await raw.create(input="go")
        created = (await raw.until("response.created"))["response"]["id"]
        await raw.until("response.output_text.delta")
        steer = {"type": "response.steer", "previous_response_id": created, "boundary": "token", "input": "stop"}
        await raw.socket.send_json(steer)
        first = await raw.until("response.incomplete")
        last = await raw.until("response.completed")
    spent = sum(event["response"]["usage"]["total_tokens"] for event in (first, last))
    assert headers_of(pool.rates("default"))["x-ratelimit-remaining-tokens"] == str(10_000 - spent)


async def test_default_answers_do_not_make_room() -> None:
    pool = PoolState("p", Pool(concurrent=1))
    async with connected(played=script({"steps": [{"tokens": 30}]}, rate=400), pool=pool) as (_, raw):
        await raw.create(input="x", stream_id="first")
        await raw.until("response.output_text.delta")
        await raw.create(input="x", stream_id="fast", service_tier="priority")
        assert (await raw.until("response.completed"))["stream_id"] == "first"


async def test_a_wait_that_is_given_up_frees_its_place() -> None:
    pool = PoolState("p", Pool(concurrent=1))
    first = await pool.ask("a", "default")
    second = await pool.ask("b", "default")
    waiting = asyncio.create_task(pool.wait(second))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    pool.leave(second, Usage())
    third = await pool.ask("c", "default")
    pool.leave(first, Usage(output_tokens=3))
    assert third.running and not second.running
    pool.leave(third, Usage())


def test_reserved_slots_must_leave_some(tmp_path: Any) -> None:
    config = ServerConfig(pools={"p": Pool(concurrent=2, tiers={"priority": TierLimits(reserved=2)})})
    with pytest.raises(FulgurError, match="tiers reserve 2 slots"):
        config.check("server.toml")


async def test_what_a_key_used_is_kept_and_counts_after_a_restart(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, record = auth.new_key("laptop")
    record.tokens_per_day = 12
    price = Model(backend="scripted", price=Price(output=1e6))
    (home / "server.toml").write_text(f'[[keys]]\nname = "laptop"\nsha256 = "{record.sha256}"\ntokens_per_day = 12\n')
    statuses = []
    for _ in range(2):
        config = ServerConfig(keys=[record])
        config.server.store = str(home / "responses.sqlite")
        async with serving(script(text("a b c d")), config=config, model=price) as running:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
                for path, body in (
                    ("responses", {"model": "m", "input": "x"}),
                    ("chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
                ):
                    async with session.post(f"{running.base_url}/{path}", json=body) as answer:
                        statuses.append(answer.status)
    assert statuses[0] == 200 and statuses[2:] == [429, 429], "the second server knows what the first one counted"
    done = statuses.count(200)
    assert await asyncio.to_thread(main, ["admin", "usage", "--json"]) == 0
    [line] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (line["owner"], line["model"], line["tier"], line["answers"]) == ("laptop", "m", "default", done)
    assert line["output"] == 4 * done and line["cost"] == pytest.approx(4 * done)
    assert await asyncio.to_thread(main, ["admin", "keys"]) == 0
    shown = capsys.readouterr().out
    assert "laptop" in shown and "12" in shown and record.sha256 not in shown
