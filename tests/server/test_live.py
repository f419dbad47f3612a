"""What passes, the same in memory and Redis; and what several fronts share in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

import pytest
from databases import RedisServer
from waiting import PATIENCE, until

from fulgur.protocol.errors import ApiError
from fulgur.server.config import ServerConfig
from fulgur.server.live import base
from fulgur.server.live.base import Events, Live, LiveAway, Running
from fulgur.server.rates import Rates, headers_of

KINDS = ["memory", pytest.param("redis", marks=pytest.mark.cluster)]


def make(url: str) -> Live:
    config = ServerConfig()
    config.server.live = url
    return base.make(config)


@pytest.fixture(params=KINDS)
async def live(request: pytest.FixtureRequest) -> AsyncIterator[Live]:
    front = make("" if request.param == "memory" else request.getfixturevalue("redis").url)
    await front.open()
    yield front
    await front.close()


@pytest.fixture
async def fronts(redis: RedisServer) -> AsyncIterator[tuple[Live, Live]]:
    async with AsyncExitStack() as stack:
        both = make(redis.url), make(redis.url)
        for front in both:
            await front.open()
            stack.push_async_callback(front.close)
        yield both


async def spent(live: Live, rates: list[Rates], tokens: int) -> None:
    """Count, and wait until it is counted."""
    live.spend(rates, tokens)
    buckets = [bucket for each in rates for bucket in each.buckets().values()]
    await until(lambda: all(bucket.left() < bucket.most for bucket in buckets))


# --- limits ---


async def test_a_request_counts_against_all_its_limits_or_none(live: Live) -> None:
    pool, key = Rates("pool", requests_per_minute=5), Rates("key", requests_per_minute=2)
    for _ in range(2):
        await live.admit([pool, key])
    with pytest.raises(ApiError) as refused:
        await live.admit([pool, key])
    assert refused.value.status == 429 and "key has reached its limit of requests per minute" in refused.value.message
    assert 10 <= float(refused.value.headers["retry-after"]) <= 31, "30 s, less what has passed"
    assert headers_of([pool])["x-ratelimit-remaining-requests"] == "3", "the refused one took nothing"
    await live.admit([pool])


async def test_tokens_count_when_an_answer_ends_and_may_be_owed(live: Live) -> None:
    rates = Rates("key", tokens_per_minute=600, tokens_per_day=1000)
    await live.admit([rates])
    await spent(live, [rates], 900)
    with pytest.raises(ApiError, match="tokens per minute") as refused:
        await live.admit([rates])
    assert refused.value.code == "rate_limit_exceeded"
    assert 10 <= float(refused.value.headers["retry-after"]) <= 31, "for 300 tokens, less what has passed"
    day = Rates("another key", tokens_per_day=1000)
    await spent(live, [day], 1100)
    with pytest.raises(ApiError, match="tokens per day") as used_up:
        await live.admit([day])
    assert used_up.value.code == "usage_limit_reached"


async def test_what_is_not_limited_costs_nothing(live: Live) -> None:
    await live.admit([Rates("pool")])
    live.spend([Rates("pool")], 10)


async def test_the_tokens_of_today_are_counted_on(live: Live) -> None:
    rates = Rates("key", tokens_per_day=1000)
    await live.restore(rates, 1000)
    await asyncio.sleep(0.05)
    with pytest.raises(ApiError, match="tokens per day"):
        await live.admit([rates])


@pytest.mark.cluster
async def test_fronts_share_a_limit_to_the_last_request(fronts: tuple[Live, Live]) -> None:
    rates = [Rates("key", requests_per_minute=50) for _ in fronts]

    async def ask(number: int) -> bool:
        try:
            await fronts[number % 2].admit([rates[number % 2]])
        except ApiError:
            return False
        return True

    results = await asyncio.gather(*map(ask, range(120)))
    assert 50 <= sum(results) <= 52, "what refills meanwhile is little"


@pytest.mark.cluster
async def test_the_tokens_of_today_are_restored_once(fronts: tuple[Live, Live]) -> None:
    rates = [Rates("key", tokens_per_day=1000) for _ in fronts]
    for front, each in zip(fronts, rates, strict=True):
        await front.restore(each, 600)
    await asyncio.sleep(0.05)
    await fronts[1].admit([rates[1]])
    assert rates[1].day is not None and 399 <= rates[1].day.left() <= 401


# --- runs and events ---


async def test_a_run_has_one_owner_and_its_events_are_dense(live: Live) -> None:
    run = Running("resp_1", "laptop", live.front, request=b"\x00\xff")
    assert await live.find("resp_1") is None and await live.events("resp_1", 0) is None
    assert await live.begin(run)
    assert not await live.begin(Running("resp_1", "laptop", "front-other"))
    assert await live.find("resp_1") == run
    assert await live.events("resp_1", 0) == Events([], False)
    assert await live.append("resp_1", 1, 0, [b"e0", b"e1"]) == 2
    assert await live.append("resp_1", 1, 2, [b"e2"]) == 3
    assert await live.append("resp_1", 1, 5, [b"e5"]) == 3, "two were lost: nothing is added"
    assert await live.append("resp_1", 1, 1, [b"e1", b"e2", b"e3"]) == 4, "what was there already is not there twice"
    assert await live.events("resp_1", 0) == Events([b"e0", b"e1", b"e2", b"e3"], False)
    assert await live.events("resp_1", 1) == Events([b"e1", b"e2", b"e3"], False)
    assert await live.events("resp_1", 4) == Events([], False)
    await live.end("resp_1", 1)
    assert await live.events("resp_1", 3) == Events([b"e3"], True)
    assert await live.events("resp_1", 4, wait_s=PATIENCE) == Events([], True)
    assert await live.find("resp_1") is None
    assert await live.append("resp_1", 1, 4, [b"late"]) is None


async def test_a_stale_attempt_adds_and_ends_nothing(live: Live) -> None:
    await live.begin(Running("resp_1", "laptop", "front-dead", request=b"r"))
    await live.append("resp_1", 1, 0, [b"e0"])
    taken = await live.take("resp_1", 1)
    assert taken == Running("resp_1", "laptop", live.front, 2, b"r")
    assert await live.take("resp_1", 3) is None and await live.take("unknown", 1) is None
    assert await live.append("resp_1", 1, 1, [b"stale"]) is None
    await live.end("resp_1", 1)
    assert await live.append("resp_1", 2, 1, [b"e1"])
    assert await live.events("resp_1", 0) == Events([b"e0", b"e1"], False)


async def test_who_waits_gets_events_as_they_come_and_hears_of_the_end(live: Live) -> None:
    await live.begin(Running("resp_1", "laptop", live.front))
    seen: list[bytes] = []

    async def follow() -> None:
        while True:
            found = await live.events("resp_1", len(seen), wait_s=PATIENCE)
            assert found is not None
            seen.extend(found.data)
            if found.ended:
                return

    following = asyncio.create_task(follow())
    for number in range(30):
        await live.append("resp_1", 1, number, [b"e%d" % number])
        if number % 7 == 0:
            await asyncio.sleep(0.003)
    await live.end("resp_1", 1)
    await asyncio.wait_for(following, PATIENCE)
    assert seen == [b"e%d" % number for number in range(30)]


@pytest.mark.cluster
async def test_one_front_takes_a_run_over(fronts: tuple[Live, Live]) -> None:
    one, two = fronts
    await one.begin(Running("resp_1", "laptop", one.front))
    assert await two.find("resp_1") == Running("resp_1", "laptop", one.front)
    assert not await two.begin(Running("resp_1", "laptop", two.front))
    taken = await asyncio.gather(one.take("resp_1", 1), two.take("resp_1", 1))
    assert sum(each is not None for each in taken) == 1
    assert set(await one.alive("fronts")) == {one.front, two.front}


@pytest.mark.cluster
async def test_events_of_many_runs_are_followed_at_another_front(fronts: tuple[Live, Live]) -> None:
    one, two = fronts

    async def write(name: str) -> None:
        await one.begin(Running(name, "laptop", one.front))
        for number in range(50):
            assert await one.append(name, 1, number, [f"{name} {number}".encode()])
        await one.end(name, 1)

    async def read(name: str) -> list[bytes]:
        seen: list[bytes] = []
        while True:
            found = await two.events(name, len(seen), wait_s=5)
            if found is None:
                await asyncio.sleep(0.001)
                continue
            seen += found.data
            if found.ended:
                return seen

    names = [f"r{number}" for number in range(12)]
    done = await asyncio.gather(*map(write, names), *map(read, names))
    for name, seen in zip(names, done[12:], strict=True):
        assert seen == [f"{name} {number}".encode() for number in range(50)]


# --- mail, tables, values ---


async def test_mail_comes_in_order_and_once(live: Live) -> None:
    for number in range(3):
        await live.send(live.front, b"%d" % number)
    await live.send("front-gone", b"lost")
    async with aclosing(live.letters()) as letters:
        assert [await asyncio.wait_for(anext(letters), PATIENCE) for _ in range(3)] == [b"0", b"1", b"2"]
        soon = asyncio.ensure_future(anext(letters))
        await asyncio.sleep(0.01)
        await live.send(live.front, b"later")
        assert await asyncio.wait_for(soon, PATIENCE) == b"later"


@pytest.mark.cluster
async def test_mail_goes_to_the_front_that_it_names(fronts: tuple[Live, Live]) -> None:
    one, two = fronts
    async with aclosing(one.letters()) as letters:
        await two.send(two.front, b"not for one")
        await two.send(one.front, b"steer")
        assert await asyncio.wait_for(anext(letters), PATIENCE) == b"steer"


async def test_entries_of_a_table_last_as_long_as_they_are_told(live: Live) -> None:
    assert await live.alive("replicas") == {}
    await live.beat("replicas", "m/0", b"unix:/a", 60)
    await live.beat("replicas", "m/1", b"unix:/b", 0)
    assert await live.alive("replicas") == {"m/0": b"unix:/a"}
    await live.beat("replicas", "m/0", b"unix:/c", 60)
    assert await live.alive("replicas") == {"m/0": b"unix:/c"}
    assert live.front in await live.alive("fronts")


async def test_values_expire_unless_they_are_asked_for(live: Live) -> None:
    await live.put("pin:m:k", b"3", 60)
    await live.put("pin:m:gone", b"3", 0)
    await asyncio.sleep(0.005)
    assert await live.get("pin:m:k") == b"3" and await live.get("pin:m:gone") is None
    await live.put("pin:m:short", b"1", 0.2)
    while await live.get("pin:m:short", renew_s=60) is None:  # this machine was too slow: it had expired
        await live.put("pin:m:short", b"1", 0.2)
    await asyncio.sleep(0.25)
    assert await live.get("pin:m:short") == b"1"
    await live.drop("pin:m:k")
    assert await live.get("pin:m:k") is None


# --- Redis goes and comes back ---


@pytest.mark.cluster
async def test_without_redis_each_front_gives_its_part_of_the_limits(
    fronts: tuple[Live, Live], redis: RedisServer
) -> None:
    one, two = fronts
    rates = [Rates("key", requests_per_minute=20) for _ in fronts]
    await asyncio.sleep(1.2)  # both have heard of each other
    await one.admit([rates[0]])
    await two.admit([rates[1]])
    await one.begin(Running("resp_1", "laptop", one.front))
    assert await one.append("resp_1", 1, 0, [b"e0"])
    redis.kill()
    try:
        with pytest.raises(LiveAway, match="Redis cannot be reached"):
            await one.find("resp_1")
        assert one.problem()
        with pytest.raises(LiveAway):
            await one.append("resp_1", 1, 1, [b"e1"])
        served = [0, 0]
        for number, (front, each) in enumerate(zip(fronts, rates, strict=True)):
            for _ in range(30):
                try:
                    await front.admit([each])
                    served[number] += 1
                except ApiError:
                    break
        assert 16 <= sum(served) <= 22 and all(served), served
    finally:
        redis.start()
    await until(lambda: not one.problem() and not two.problem())
    assert set(await one.alive("fronts")) == {one.front, two.front}
    # Redis has lost its memory: the run is found again by itself, and its events are told from the start.
    async with asyncio.timeout(PATIENCE):
        while await two.find("resp_1") is None:
            await asyncio.sleep(0.01)
    assert await one.append("resp_1", 1, 2, [b"e2"]) == 0, "those before are lost"
    assert await one.append("resp_1", 1, 0, [b"e0", b"e1", b"e2"]) == 3
    assert await two.events("resp_1", 0) == Events([b"e0", b"e1", b"e2"], False)


@pytest.mark.cluster
async def test_a_late_attempt_that_redis_forgot_is_not_overtaken_by_an_early_one(fronts: tuple[Live, Live]) -> None:
    one, two = fronts
    await one.begin(Running("resp_1", "laptop", one.front))
    assert (await two.take("resp_1", 1)) is not None
    await one._command("flushall")  # type: ignore[attr-defined]
    assert await one.append("resp_1", 1, 0, [b"e0"]) == 0, "who was overtaken tells it first"
    await one.end("resp_1", 1)
    assert await two.append("resp_1", 2, 0, [b"e0"]) == 1
    assert await one.append("resp_1", 1, 0, [b"e0"]) is None
    found = await one.find("resp_1")
    assert found is not None and (found.front, found.attempt) == (two.front, 2)
    assert set(await one.alive("fronts")) >= {one.front}, "and that it lives, or its runs would be taken over"


@pytest.mark.cluster
async def test_a_redis_that_hangs_holds_nobody_up(fronts: tuple[Live, Live], redis: RedisServer) -> None:
    one, _ = fronts
    rates = Rates("key", requests_per_minute=20)
    await one.admit([rates])
    redis.pause(on=True)
    try:
        await asyncio.gather(*(one.admit([rates]) for _ in range(5)))
        assert one.problem()
    finally:
        redis.pause(on=False)


@pytest.mark.cluster
async def test_a_server_that_is_not_there_is_a_clear_error(tmp_path: object) -> None:
    for url, message in ((f"unix://{tmp_path}/none.sock", "Redis cannot be reached"), ("http://x", "server.live")):
        live = make(url)
        with pytest.raises(Exception, match=message) as refused:
            await live.open()
        assert getattr(refused.value, "hint", None)
