"""Two fronts that share live state and store: what one runs, the other replays, steers, cancels, inherits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cluster_world import SECRET, World, cluster
from serving import script, serving, text
from shared_live import SharedLive
from waiting import PATIENCE, until

from fulgur.bench.chat_model import write_chat_model
from fulgur.client import Connection
from fulgur.client.stream import ResponseStream
from fulgur.protocol import events as ev
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.server.live.base import LiveAway
from fulgur.server.state import Server

NO_END = {str(token): -100 for token in range(5)}  # the model's special tokens: an answer ends at its limit
LONG = {
    "model": "r",
    "max_output_tokens": 600,
    "temperature": 0.8,
    "logit_bias": NO_END,
    "input": "Tell me a long story.",
}


class Two:
    """Two fronts over the same replicas: a response begins at `here`."""

    def __init__(self, world: World, running: list[app.Running], connection: Connection) -> None:
        self.world = world
        self.running = running
        self.here, self.there = (each.base_url for each in running)
        self.connection = connection

    async def begin(self, deltas: int, **body: Any) -> tuple[ResponseStream, list[Any]]:
        """A long answer that was read as far as so many deltas, and the events so far."""
        stream = await self.connection.create({**LONG, **body})
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if sum(isinstance(one, ev.OutputTextDelta) for one in events) == deltas:
                break
        return stream, events

    async def die(self, number: int) -> None:
        """What others see of kill -9: sockets drop, nothing more is written, the live state forgets the front."""
        running = self.running[number]
        live = running.server.live
        assert isinstance(live, SharedLive)
        live.fronts.pop(live.front)
        for name, does in (("append", _swallowed), ("end", _nothing), ("begin", _nothing)):
            setattr(live, name, does)
        await running.server.store.store.close()
        running.server.store.store = Dead()  # type: ignore[assignment]
        for run in list(running.server.runs.values()):
            run.stop("disconnected")


class Dead:
    """A store that a dead front cannot reach."""

    async def end(self, *_: Any) -> bool:
        return False

    async def keys(self) -> list[Any]:
        return []

    async def close(self) -> None:
        pass


async def _nothing(*_: Any) -> bool:
    return True


async def _swallowed(name: str, attempt: int, first: int, events: Any) -> int:
    return first + len(events)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "random", context=4096, d_model=64, n_layers=1)


@pytest.fixture
async def two(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    monkeypatch.setenv("FULGUR_CLUSTER_SECRET", SECRET.decode())
    async with cluster(model, 2) as world, AsyncExitStack() as open_parts:
        replicas = [str(address) for address in world.addresses.values()]
        running = []
        live: SharedLive | None = None
        for _ in range(2):
            config = ServerConfig(models={"r": Model(backend="cluster", path=str(model), replicas=replicas)})
            config.server.port, config.server.store = 0, str(tmp_path / "store.sqlite")
            live = SharedLive(live)
            monkeypatch.setattr("fulgur.server.live.base.make", lambda _, live=live: live)
            running.append(await app.start(config, Server(config)))
            open_parts.push_async_callback(running[-1].close)
        connection = await Connection.open(running[0].base_url)
        open_parts.push_async_callback(connection.close)
        yield Two(world, running, connection)


async def replayed(base_url: str, response_id: str, after: int = -1) -> list[dict[str, Any]]:
    url = f"{base_url}/responses/{response_id}?stream=true&starting_after={after}"
    events = []
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                events.append(json.loads(line[6:]))
    return events


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


async def test_a_response_is_replayed_at_the_other_front(two: Two) -> None:
    stream, seen = await two.begin(3)
    following = asyncio.create_task(replayed(two.there, seen[0].response.id))
    answer = await stream.final()
    events = await following
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert text_of(events) == answer.output_text and events[-1]["response"]["id"] == answer.id
    assert await replayed(two.there, answer.id, 10) == events[11:], "from the store, too"


async def test_the_other_front_inherits_a_response(two: Two) -> None:
    _, seen = await two.begin(40)
    await two.die(0)
    events = await replayed(two.there, seen[0].response.id, seen[-1].sequence_number)
    numbers = [event.sequence_number for event in seen] + [event["sequence_number"] for event in events]
    assert numbers == list(range(len(numbers)))
    text = "".join(event.delta for event in seen if isinstance(event, ev.OutputTextDelta)) + text_of(events)
    final = events[-1]["response"]
    assert sum(event["type"] in ("response.completed", "response.incomplete") for event in events) == 1
    assert text == final["output"][0]["content"][0]["text"]
    undisturbed = await plain(two.there, seed=two.running[1].server.live)
    assert text == undisturbed
    item = seen[2].item if hasattr(seen[2], "item") else None
    assert item is None or item["id"] == final["output"][0]["id"], "items keep their ids"
    used = await two.running[1].server.store.usage(1)
    stored = await two.running[1].server.store.events(used[0].owner, final["id"])
    assert stored is not None and len(stored) == len(numbers)
    assert used[0].output == 2 * final["usage"]["output_tokens"], "once, and once for the undisturbed one"


async def test_a_later_turn_is_inherited_with_the_models_own_tokens(two: Two) -> None:
    first = await (await two.connection.create({**LONG, "max_output_tokens": 60, "seed": 3})).final()
    second = {"input": "And then?", "seed": 4, "previous_response_id": first.id}
    undisturbed = await (await two.connection.create({**LONG, **second})).final()
    _, seen = await two.begin(20, **second)
    await two.die(0)
    events = await replayed(two.there, seen[0].response.id)
    assert events[-1]["response"]["status"] == undisturbed.status
    assert text_of(events) == undisturbed.output_text


async def plain(base_url: str, seed: Any) -> str:
    """The text of an undisturbed answer with the seed that was drawn for the first response."""
    from fulgur.server import journal

    (run, *_) = seed._runs.values()
    drawn = journal.read(run.run.request).turn.sampling.seed
    assert drawn is not None
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{base_url}/responses", json={**LONG, "seed": drawn}) as answer:
            body = await answer.json()
    return str(body["output"][0]["content"][0]["text"])


async def test_steer_and_cancel_at_the_other_front(two: Two) -> None:
    stream, seen = await two.begin(3)
    first = seen[0].response.id
    two.world.hold()  # or the answer may end before the steer comes
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{two.there}/responses") as socket:
        steer = {"type": "response.steer", "previous_response_id": first, "input": "Shorter, please."}
        await socket.send_json({**steer, "boundary": "token"})
        accepted = await socket.receive_json()
        assert accepted["type"] == "response.steer.accepted"
        two.world.go_on()
        successor = ""
        async for event in stream:
            if isinstance(event, ev.ResponseCreated):
                successor = event.response.id
                break
        assert successor and successor != first
        two.world.hold()
        cancelling = asyncio.create_task(http.post(f"{two.there}/responses/{successor}/cancel", json={}))
        run = two.running[0].server.runs[successor]
        while not run.stopped:
            await asyncio.sleep(0.001)
        two.world.go_on()
        async with await cancelling as answer:
            assert (await answer.json())["status"] == "cancelled"
        await socket.send_json({**steer, "previous_response_id": successor})
        failed = await socket.receive_json()
        assert failed["type"] == "response.steer.failed" and failed["steer"]["input"] == steer["input"]
        async with http.post(f"{two.there}/responses/resp_none/cancel", json={}) as answer:
            assert answer.status == 404


async def test_a_steer_that_died_with_its_front_gives_the_words_back(two: Two) -> None:
    stream, seen = await two.begin(3)
    two.world.hold()
    first = seen[0].response.id
    await stream.steer("At the end, say hello.")  # at an item's end: it waits
    while not await two.running[1].server.live.get(f"steers:{first}"):
        await asyncio.sleep(0.001)
    await two.die(0)
    two.world.go_on()
    events = await replayed(two.there, first)
    kinds = [event["type"] for event in events if "steer" in event["type"]]
    assert kinds in (["response.steer.accepted", "response.steer.failed"], ["response.steer.failed"])
    failed = next(event for event in events if event["type"] == "response.steer.failed")
    assert failed["steer"]["input"] == "At the end, say hello."


@asynccontextmanager
async def overtaking(two: Two, monkeypatch: pytest.MonkeyPatch, fence: Any) -> AsyncIterator[tuple[list[Any], Any]]:
    """A front that lives is taken for dead and stops at the next event; `fence` is what the other one meets then."""
    _, seen = await two.begin(40)
    here, there = (each.server for each in two.running)
    assert isinstance(here.live, SharedLive)
    asked = asyncio.Event()

    async def met(*args: Any) -> bool:
        asked.set()
        return bool(await fence(*args))

    monkeypatch.setattr(there.store.store, "fence", met)
    here.live.fronts.pop(here.live.front)
    asking = asyncio.create_task(replayed(two.there, seen[0].response.id, seen[-1].sequence_number))
    await asked.wait()
    await until(lambda: not here.runs)
    here.live.fronts[here.live.front] = here.live
    try:
        yield seen, asking
    finally:
        asking.cancel()


def whole(seen: list[Any], events: list[dict[str, Any]]) -> str:
    numbers = [event.sequence_number for event in seen] + [event["sequence_number"] for event in events]
    assert numbers == list(range(len(numbers)))
    assert [event["type"] for event in events].count("response.incomplete") == 1
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    return "".join(event.delta for event in seen if isinstance(event, ev.OutputTextDelta)) + text_of(events)


async def test_an_overtaken_front_does_not_end_the_response_before_the_store_knows(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, store = asyncio.Event(), two.running[1].server.store.store
    tell = store.fence

    async def late(*args: Any) -> bool:
        await known.wait()
        return await tell(*args)

    async with overtaking(two, monkeypatch, late) as (seen, asking):
        known.set()
        assert whole(seen, await asking) == await plain(two.there, seed=two.running[1].server.live)


async def test_a_client_that_leaves_does_not_stop_who_takes_a_response_over(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, store = asyncio.Event(), two.running[1].server.store.store
    tell = store.fence

    async def late(*args: Any) -> bool:
        await known.wait()
        return await tell(*args)

    async with overtaking(two, monkeypatch, late) as (seen, asking):
        asking.cancel()
        await asyncio.wait([asking])
        events = asyncio.create_task(replayed(two.here, seen[0].response.id, seen[-1].sequence_number))
        known.set()
        assert whole(seen, await events) == await plain(two.there, seed=two.running[1].server.live)


async def test_what_a_front_could_not_take_over_another_one_does(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> bool:
        raise ValueError("the store says something that nobody has thought of")

    async with overtaking(two, monkeypatch, away) as (seen, asking):
        with pytest.raises(aiohttp.ClientError):  # cut, not ended: its client knows that there is more
            await asking
        events = await replayed(two.here, seen[0].response.id, seen[-1].sequence_number)
        assert whole(seen, events) == await plain(two.here, seed=two.running[0].server.live)


async def test_a_run_that_began_while_the_live_state_was_away_is_told_later(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = two.running[0].server.live
    begin, away = live.begin, asyncio.Event()

    async def missing(*args: Any) -> bool:
        if not away.is_set():
            raise LiveAway("away")
        return await begin(*args)

    monkeypatch.setattr(live, "begin", missing)
    monkeypatch.setattr("fulgur.server.journal.AGAIN_S", 0.001)
    _, seen = await two.begin(3)
    two.world.hold()
    there = two.running[1].server.live
    monkeypatch.setattr(there, "problem", lambda: "away")
    async with aiohttp.ClientSession() as http, http.get(f"{two.there}/responses/{seen[0].response.id}") as answer:
        assert answer.status == 503, "not found would be wrong: it runs at the other front"
    away.set()
    async with asyncio.timeout(PATIENCE):
        while (written := await there.events(seen[0].response.id, 0)) is None or len(written.data) < len(seen):
            await asyncio.sleep(0.001)
    await two.die(0)
    two.world.go_on()
    assert whole(seen, await replayed(two.there, seen[0].response.id, seen[-1].sequence_number))


async def test_who_reads_elsewhere_keeps_an_answer_going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when there is never a pause in which a follower would be asked whether it lives."""
    monkeypatch.setattr("fulgur.server.run.GRACE_S", 0.3)
    monkeypatch.setattr("fulgur.server.fronts.FOLLOW_S", 0.1, raising=False)
    words = " ".join(f"word{number}" for number in range(200))
    played = script(text(words), rate=150)
    async with AsyncExitStack() as open_parts:
        running, live = [], None
        for _ in range(2):
            config = ServerConfig()
            config.server.store = str(tmp_path / "store.sqlite")
            live = SharedLive(live)
            monkeypatch.setattr("fulgur.server.live.base.make", lambda _, live=live: live)
            running.append(await open_parts.enter_async_context(serving(played, config=config)))
        connection = await Connection.open(running[0].base_url)
        stream = await connection.create({"model": "m", "input": "hi"})
        async for event in stream:
            if isinstance(event, ev.OutputTextDelta):
                break
        await connection.close()
        events = await replayed(running[1].base_url, stream.response_id)
        assert text_of(events) == words and events[-1]["type"] == "response.completed"
