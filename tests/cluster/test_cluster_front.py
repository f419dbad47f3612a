"""A server in front of replicas: every door works as with an engine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cluster_world import SECRET, World, cluster

from fulgur.backends.base import Completion, Conversation, Turn
from fulgur.backends.cluster import affinity
from fulgur.bench.chat_model import write_chat_model
from fulgur.client import Connection
from fulgur.protocol import events as ev
from fulgur.protocol.items import user_message
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig

ASKED = {"model": "r", "max_output_tokens": 300, "temperature": 0.8, "seed": 5}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "random", context=4096, d_model=64, n_layers=1)


@asynccontextmanager
async def front(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[app.Running]:
    monkeypatch.setenv("FULGUR_CLUSTER_SECRET", SECRET.decode())
    replicas = [str(address) for address in world.addresses.values()]
    config = ServerConfig(models={"r": Model(backend="cluster", path=str(world.model), replicas=replicas)})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    try:
        yield running
    finally:
        await running.close()


async def test_a_replica_dies_under_a_response(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(model, 3) as world, front(world, monkeypatch) as running:
        connection = await Connection.open(running.base_url)
        plain = await (await connection.create({**ASKED, "input": "Tell me."})).final()
        stream = await connection.create({**ASKED, "input": "Tell me."})
        numbers: list[int] = []
        deltas = 0
        async for event in stream:
            numbers.append(event.sequence_number)
            deltas += isinstance(event, ev.OutputTextDelta)
            if deltas in (20, 60) and isinstance(event, ev.OutputTextDelta) and world.where():
                await world.kill(world.where()[0])
        answer = await stream.final()
        assert len(world.replicas) < 3, "one was killed"
        assert answer.output_text == plain.output_text and len(plain.output_text) > 100
        assert numbers == list(range(len(numbers)))
        assert answer.usage.output_tokens == plain.usage.output_tokens  # type: ignore[union-attr]
        steered = await connection.create({**ASKED, "input": "Tell me more."})
        successors = []
        async for event in steered:
            if isinstance(event, ev.OutputTextDelta) and not successors:
                successors.append("")
                await steered.steer("No, less.", boundary="token")
            elif isinstance(event, ev.ResponseCreated) and successors:
                successors.append(event.response.id)
        assert len(successors) == 2, "the steer opened a successor"
        await connection.close()


async def test_other_doors(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(model, 1) as world, front(world, monkeypatch) as running, aiohttp.ClientSession() as http:
        body: dict[str, Any] = {"model": "r", "max_tokens": 8}
        said = [{"role": "user", "content": "Hello"}]
        async with http.post(f"{running.base_url}/chat/completions", json={**body, "messages": said}) as answer:
            assert (await answer.json())["usage"]["completion_tokens"] == 8
        async with http.post(f"{running.base_url}/completions", json={**body, "prompt": "def f("}) as answer:
            assert answer.status == 200
        too_long = {"model": "r", "input": "x y " * 9000}
        async with http.post(f"{running.base_url}/responses", json=too_long) as answer:
            assert answer.status == 400 and (await answer.json())["error"]["code"] == "context_length_exceeded"
        while world.where():
            await asyncio.sleep(0.001)


def test_turns_of_one_session_have_one_key() -> None:
    first = Conversation([{"type": "message", "role": "developer", "content": "Be brief."}, user_message("Mend it.")])
    output = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    second = first.extend([output, user_message("And the test?")])
    resent = Conversation([*first.items, output, user_message("And the test?")])
    assert affinity(Turn(first)) == affinity(Turn(second)) == affinity(Turn(resent))
    assert affinity(Turn(first, owner="a")) != affinity(Turn(first, owner="b"))
    assert affinity(Turn(first, cache_key="k")) == affinity(Turn(Conversation([user_message("x")]), cache_key="k"))
    other = Conversation([first.items[0], user_message("Mend another.")])
    assert affinity(Turn(first)) != affinity(Turn(other))
    assert affinity(Completion("def f", path="a.py")) == affinity(Completion("def g", path="a.py"))
    edits = [Conversation([{"type": "edit", "path": "a.py", "region": region}]) for region in ("x", "y")]
    assert affinity(Turn(edits[0])) == affinity(Turn(edits[1])) != affinity(Completion("", path="b.py"))
