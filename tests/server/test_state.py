"""A server on its store and live state: what is counted, what survives, and what goes on when one of them is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from databases import Postgres, RedisServer
from serving import script, serving, text
from waiting import PATIENCE

from fulgur.server import auth, state
from fulgur.server.app import Running
from fulgur.server.config import Key, ServerConfig
from fulgur.server.store import base, patient
from fulgur.server.store.base import Store

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.cluster)]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    server: Postgres = request.getfixturevalue("postgres")
    return server.url()


def config(place: str, live: str = "") -> ServerConfig:
    settings = ServerConfig()
    settings.server.store, settings.server.live = place, live
    return settings


@asynccontextmanager
async def opened(place: str) -> AsyncIterator[Store]:
    store = base.make(config(place))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def ask(running: Running, key: str = "", **fields: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": "m", "input": "x", **fields}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(f"{running.base_url}/responses", json=body) as answer:
            return answer.status, await answer.json()


async def health(running: Running) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session:
        async with session.get(running.base_url.replace("/v1", "/healthz")) as answer:
            assert answer.status == 200
            found: dict[str, Any] = await answer.json()
            return found


# --- keys ---


async def test_a_key_of_the_store_counts_at_once_and_is_forgotten(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "KEYS_S", 0.0)
    monkeypatch.setattr(state, "NEW_KEYS_S", 0.0)
    async with serving(script(text("a b")), config=config(place)) as running, opened(place) as admin:
        assert (await ask(running))[0] == 200, "no keys: this machine is served"
        key, record = auth.new_key("laptop")
        record.requests_per_minute = 2
        await admin.add_key(record)
        assert (await ask(running))[0] == 401
        assert [(await ask(running, key))[0] for _ in range(3)] == [200, 200, 429]
        await admin.add_key(Key("other", auth.digest("other")))
        assert await admin.revoke_key("laptop")
        assert (await ask(running, key))[0] == 401 and (await ask(running, "other"))[0] == 200
        assert [used.owner for used in await admin.usage(1)] == ["laptop", "anonymous", "other"]


# --- attempts ---


async def test_an_attempt_that_was_overtaken_ends_without_a_word(place: str) -> None:
    """Another front has taken the response over: only what that one commits is ever seen to end."""
    async with serving(script(text("a b c d e f g h"), rate=100), config=config(place)) as running:
        async with aiohttp.ClientSession() as session:
            body = {"model": "m", "input": "x", "stream": True}
            async with session.post(f"{running.base_url}/responses", json=body) as answer:
                seen, name = b"", ""
                async for line in answer.content:
                    if not name and line.startswith(b"data: {"):
                        name = json.loads(line[6:])["response"]["id"]
                        assert await running.server.store.fence(name, 2)
                    seen += line
        assert b"output_text.delta" in seen
        assert not any(b"event: response.%b" % end in seen for end in (b"completed", b"incomplete", b"failed"))
        assert await running.server.store.get("anonymous", name) is None
        assert await running.server.store.usage(1) == [] and not running.server.runs


# --- a kill -9 ---

SERVER = """
[server]
port = 0
store = "{place}"
[models.m]
backend = "scripted"
path = "{script}"
"""
SCRIPT = """
rate = 400.0
[[reply]]
steps = [{text = "one two three four five six seven eight nine ten eleven twelve"}]
"""


async def test_what_was_seen_to_end_was_counted_though_the_server_is_killed(place: str, home: Path) -> None:
    (home / "script.toml").write_text(SCRIPT)
    (home / "server.toml").write_text(SERVER.format(place=place, script=home / "script.toml"))
    command = [sys.executable, "-m", "fulgur", "serve"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    address = re.search(rb"http://\S+", await asyncio.wait_for(process.stdout.readline(), PATIENCE))
    assert address is not None
    seen: dict[str, dict[str, Any]] = {}

    async def follow(number: int) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                body = {"model": "m", "input": "x", "stream": True, "store": number % 2 == 0}
                async with session.post(f"{address[0].decode()}/responses", json=body) as answer:
                    async for line in answer.content:
                        if line.startswith(b"data: {") and b'"response.completed"' in line:
                            response = json.loads(line[6:])["response"]
                            seen[response["id"]] = response

    clients = [asyncio.create_task(follow(number)) for number in range(8)]
    while len(seen) < 60:
        await asyncio.sleep(0.005)
        assert not any(client.done() for client in clients)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    results = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(result, aiohttp.ClientError) for result in results), results
    async with serving(script(text("x")), config=config(place)) as running:  # it takes up what the other one left
        store = running.server.store
        [used] = await store.usage(1)
        tokens = {name: each["usage"]["output_tokens"] for name, each in seen.items()}
        assert set(tokens.values()) == {12}
        assert used.answers >= len(seen) and used.output == 12 * used.answers, "every row is a whole answer"
        assert used.answers <= len(seen) + 8, "and those that were not seen were under way"
        for name, response in seen.items():
            kept = await store.get("anonymous", name)
            assert (kept is not None) == response["store"]


# --- a database that is away ---


@pytest.mark.cluster
async def test_answers_go_on_without_postgresql_and_nothing_is_lost(
    postgres: Postgres, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "RETRY_S", 0.05)
    place = postgres.url()
    async with serving(script(text("a b c")), config=config(place, redis.url)) as running:
        assert (await ask(running))[0] == 200 and (await health(running))["status"] == "ok"
        postgres.kill()
        try:
            status, answer = await ask(running, store=False)
            assert status == 200 and answer["status"] == "completed"
            held = [asyncio.create_task(ask(running)) for _ in range(3)]
            await asyncio.sleep(0.3)
            assert not any(task.done() for task in held), "the end of a stored response waits"
            found = await health(running)
            assert found["status"] == "degraded" and "store" in found["problems"]
        finally:
            await asyncio.to_thread(postgres.start)
        for task in held:
            status, answer = await asyncio.wait_for(task, PATIENCE)
            assert status == 200 and answer["store"] is True
            stored = await running.server.store.store.get("anonymous", answer["id"])
            assert stored is not None
        for _ in range(200):
            [used] = await running.server.store.usage(1)
            if used.answers == 5:
                break
            await asyncio.sleep(0.02)
        assert used.answers == 5 and used.output == 15
        assert (await health(running))["status"] == "ok"


@pytest.mark.cluster
async def test_a_stored_answer_that_cannot_be_stored_says_so(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "RETRY_S", 0.05)
    monkeypatch.setattr(patient, "PATIENCE_S", 0.2)
    place = postgres.url()
    async with serving(script(text("a b c")), config=config(place)) as running:
        assert (await ask(running))[0] == 200
        postgres.kill()
        try:
            status, answer = await ask(running)
            assert status == 200 and answer["store"] is False and answer["output"]
            status, _ = await ask(running, previous_response_id=answer["id"], store=False)
            assert status == 200, "it can be gone on with here"
        finally:
            await asyncio.to_thread(postgres.start)
        for _ in range(200):
            with contextlib.suppress(Exception):
                if await running.server.store.store.get("anonymous", answer["id"]) is not None:
                    break
            await asyncio.sleep(0.05)
        assert await running.server.store.store.get("anonymous", answer["id"]) is not None, "and is stored in the end"


@pytest.mark.cluster
async def test_answers_go_on_without_redis(postgres: Postgres, redis: RedisServer) -> None:
    settings = config(postgres.url(), redis.url)
    key, record = auth.new_key("laptop")
    record.tokens_per_minute = 10_000
    settings.keys = [record]
    async with serving(script(text("a b c")), config=settings) as running:
        assert (await ask(running, key))[0] == 200
        redis.kill()
        try:
            for _ in range(3):
                status, answer = await ask(running, key)
                assert status == 200 and answer["store"] is True
            found = await health(running)
            assert found["status"] == "degraded" and found["problems"] == ["live"]
        finally:
            redis.start()


@pytest.mark.cluster
async def test_two_servers_share_responses_limits_and_usage(postgres: Postgres, redis: RedisServer) -> None:
    place = postgres.url()
    key, record = auth.new_key("laptop")
    record.requests_per_minute = 4

    def settings() -> ServerConfig:
        shared = config(place, redis.url)
        shared.keys = [record]
        return shared

    async with serving(script(text("a b c")), config=settings()) as one:
        async with serving(script(text("a b c")), config=settings()) as two:
            status, first = await ask(one, key)
            assert status == 200
            status, second = await ask(two, key, previous_response_id=first["id"])
            assert status == 200 and second["previous_response_id"] == first["id"]
            statuses = [(await ask(server, key))[0] for server in (one, two, one)]
            assert statuses == [200, 200, 429]
            [used] = await one.server.store.usage(1)
            assert (used.owner, used.answers, used.output) == ("laptop", 4, 12)
