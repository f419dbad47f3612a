"""The store under faults: a full disk, a killed engine or server, a clock that jumps, a damaged file."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from serving import script, serving, text

from fulgur.backends.local import LocalBackend
from fulgur.bench.chat_model import write_chat_model
from fulgur.errors import FulgurError
from fulgur.protocol.response import Response
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.server.store.base import Answer, Stored
from fulgur.server.store.sqlite import SqliteStore
from fulgur.text.parts import Usage

DAY = 86_400


def stored(name: str, created: float, size: int = 10) -> Stored:
    noise = random.Random(name).randbytes(size).hex()
    return Stored(Response(id=name, created_at=int(created), model="m"), [{"role": "user", "content": noise}], None)


async def opened(path: Path, **limits: float) -> SqliteStore:
    store = SqliteStore(path, **limits)
    await store.open()
    return store


async def put(store: SqliteStore, owner: str, ended: Stored, *events: bytes) -> bool:
    return await store.end(Answer(ended.response.id, owner, "m", "default", "completed", Usage()), ended, events)


async def test_a_full_disk_is_said_and_the_answer_is_whole(tmp_path: Path) -> None:
    """What says `store: true` is there afterwards, also after a restart; what could not be written says so."""
    config = ServerConfig()
    config.server.store = str(tmp_path / "store.sqlite")
    seen: dict[str, dict[str, Any]] = {}
    async with serving(script(text("an answer")), config=config) as running, aiohttp.ClientSession() as session:
        database = running.server.store.store
        assert isinstance(database, SqliteStore)
        await database._run(lambda: database._database.execute("PRAGMA max_page_count = 24"))  # type: ignore[union-attr]
        for place in range(14):
            body = {"model": "m", "input": random.Random(place).randbytes(4000).hex()}
            async with session.post(f"{running.base_url}/responses", json=body) as answer:
                response = await answer.json()
                assert answer.status == 200 and response["status"] == "completed"
                assert response["output"][0]["content"][0]["text"] == "an answer"
                seen[response["id"]] = response
        flags = [response["store"] for response in seen.values()]
        assert True in flags and False in flags, "the disk filled up in between"
        for response_id, response in seen.items():
            async with session.get(f"{running.base_url}/responses/{response_id}") as answer:
                assert answer.status == 200 and (await answer.json())["store"] == response["store"]
    store = await opened(tmp_path / "store.sqlite")
    for response_id, response in seen.items():
        assert (await store.get("anonymous", response_id) is not None) == response["store"]
    await store.close()


@pytest.mark.parametrize("jump", [0, 40 * 365 * DAY, -40 * 365 * DAY])
async def test_a_clock_that_jumps_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    now = time.time()
    store = await opened(tmp_path / "s", days=30)
    for place in range(10):
        await put(store, "o", stored(f"r{place}", now - place * DAY))
    await store.close()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    store = await opened(tmp_path / "s", days=30)
    await put(store, "o", stored("late", now + jump))
    await store.close()
    store = await opened(tmp_path / "s", days=30)
    assert all([await store.get("o", f"r{place}") for place in range(10)])
    await store.close()


async def test_old_responses_are_forgotten_all_the_same(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s")
    for place in range(6):
        await put(store, "o", stored(f"r{place}", time.time() - place * DAY))
    await store.close()
    store = await opened(tmp_path / "s", days=3)
    assert [bool(await store.get("o", f"r{place}")) for place in range(6)] == [True] * 3 + [False] * 3
    await store.close()


async def test_the_store_has_a_size_and_takes_from_who_has_most(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s", megabytes=2)
    await put(store, "quiet", stored("kept", 1000))
    for place in range(100):
        await put(store, "loud", stored(f"r{place}", 2000 + place, size=30_000))
    assert await store.get("quiet", "kept") is not None, "the oldest of all, but not the largest owner's"
    assert await store.get("loud", "r0") is None and await store.get("loud", "r99") is not None
    assert await store._run(store._size) <= (2 << 20) + 200_000
    await store.close()


@pytest.mark.parametrize("seed", range(20))
async def test_a_damaged_file_is_a_clear_error(tmp_path: Path, seed: int) -> None:
    """Bits flipped anywhere: each question is answered, or refused with a FulgurError; nothing hangs."""
    path = tmp_path / "s"
    store = await opened(path)
    for place in range(30):
        await put(store, "o", stored(f"r{place}", place, size=2000), b"{}")
    await store._run(lambda: store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)"))  # type: ignore[union-attr]
    await store.close()
    choose = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(choose.choice([1, 10, 200])):
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    path.write_bytes(data)
    store = SqliteStore(path)
    try:
        await store.open()
    except FulgurError as error:
        assert error.hint
        return
    for place in range(30):
        for question in (store.get, store.events, store.chain, store.delete):
            try:
                await question("o", f"r{place}")
            except FulgurError as error:
                assert error.hint
    await store.close()


def test_sqlite_is_the_kind_that_says_when_it_is_full(tmp_path: Path) -> None:
    """The test above rests on this: the limit on pages and a full disk are the same error."""
    database = sqlite3.connect(tmp_path / "s")
    database.execute("PRAGMA max_page_count = 2")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        database.execute("CREATE TABLE t AS SELECT randomblob(100000) AS a")


async def test_what_was_seen_to_end_is_there_though_the_engine_is_killed(tmp_path: Path) -> None:
    """The engine dies again and again under running answers: each response that ended can be read, as it ended."""
    folder = write_chat_model(tmp_path / "random", d_model=64, n_layers=1)
    config = ServerConfig(models={"r": Model(backend="local", path=str(folder), context=4096)})
    config.server.port, config.server.store = 0, str(tmp_path / "store.sqlite")
    running = await app.start(config)
    seen: dict[str, str] = {}
    try:
        async with aiohttp.ClientSession() as session:

            async def ask(place: int) -> None:
                body = {"model": "r", "input": f"question {place}", "max_output_tokens": 300}
                async with session.post(f"{running.base_url}/responses", json=body) as answer:
                    response = await answer.json()
                    assert answer.status == 200, response
                    seen[response["id"]] = response["status"]

            for round in range(3):
                tasks = [asyncio.create_task(ask(place)) for place in range(6)]
                while not running.server.runs:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05 * round)
                backend = running.server.models.entries["r"].backend
                assert isinstance(backend, LocalBackend)
                if backend.engine.pid is not None:
                    os.kill(backend.engine.pid, signal.SIGKILL)
                await asyncio.gather(*tasks)
    finally:
        await running.close()
    assert len(seen) == 18
    store = await opened(tmp_path / "store.sqlite")
    for response_id, status in seen.items():
        kept = await store.get("anonymous", response_id)
        assert kept is not None and kept.response.status == status
    await store.close()


async def test_a_later_attempt_does_not_write_over_what_was_seen_to_end(tmp_path: Path) -> None:
    store = await opened(tmp_path / "responses.sqlite")
    first, stale = stored("resp_1", time.time()), stored("resp_1", time.time(), size=20)
    await put(store, "a", first, b"first")
    await put(store, "a", stale, b"stale")
    kept = await store.get("a", "resp_1")
    assert kept is not None and kept.input == first.input
    assert await store.events("a", "resp_1") == [b"first"]
    await store.close()
