"""Steers at random moments of an answer, the worst ones included: while it ends, while another steer is applied."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from serving import script, serving

from fulgur.bench.chat_model import write_chat_model
from fulgur.client import Connection
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.items import text_of
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig

STEERS = int(os.environ.get("FULGUR_TEST_STEERS", "60"))  # of each case


async def steer_at_random(connection: Connection, limit: int, rng: random.Random) -> int:
    """One answer, steered one to three times. Each steer that was sent must be part of the conversation, in order."""
    stored = rng.random() < 0.3
    body = {"model": "m", "input": "long", "store": stored, "max_output_tokens": limit, "temperature": 1.0}
    stream = await connection.create(body)
    sent: list[str] = []

    async def steer() -> None:
        for number in range(rng.choice([1, 1, 2, 3])):
            await asyncio.sleep(rng.random() * 0.02)
            try:
                await stream.steer(f"long way {number}")
            except FulgurError:  # its end was seen before anything was sent
                return
            sent.append(f"long way {number}")

    steering = asyncio.create_task(steer())
    async for event in stream:
        assert not isinstance(event, ev.SteerFailed | ev.ResponseFailed), event
    await steering
    said = [text_of(item) for item in connection.turns[stream.response_id].items() if item.get("role") == "user"]
    assert said == ["long", *sent]
    return len(sent)


@pytest.mark.parametrize("limit", [15, 400])
async def test_no_steer_of_the_engine_fails(tmp_path: Path, limit: int) -> None:
    folder = write_chat_model(tmp_path / "random", d_model=64, n_layers=1)
    config = ServerConfig(models={"m": Model(backend="local", path=str(folder), context=4096)})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    connection = await Connection.open(running.base_url)
    rng, sent = random.Random(limit), 0
    try:
        while sent < STEERS:
            sent += await steer_at_random(connection, limit, rng)
    finally:
        await connection.close()
        await running.close()


async def test_no_steer_of_a_scripted_model_fails() -> None:
    long = {"match": "long", "steps": [{"tokens": 30}]}
    async with serving(script(long, rate=2000)) as running:
        connection = await Connection.open(running.base_url)
        rng, sent = random.Random(1), 0
        while sent < STEERS:
            sent += await steer_at_random(connection, 400, rng)
        await connection.close()
