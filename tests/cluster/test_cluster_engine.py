"""Fronts and replicas over real sockets: the events of one engine, whatever dies on the way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_world import LoopEngine, World, cluster

from fulgur.bench.chat_model import write_chat_model
from fulgur.cluster import wire
from fulgur.cluster.engine import ClusterEngine
from fulgur.engine.errors import ContextLengthExceeded, EngineDied, InvalidRequest
from fulgur.engine.events import Event, Finished, Started, SteerOutcome, Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, top_p=0.95, seed=11, presence_penalty=0.4)
PROMPT = list(range(20, 60))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "random", context=2048, d_model=64, n_layers=1)


async def events_of(engine: ClusterEngine | LoopEngine, request: GenerateRequest, key: str = "") -> list[Event]:
    made = engine.generate(request, key) if isinstance(engine, ClusterEngine) else engine.generate(request)
    return [event async for event in made]


def said(events: list[Event]) -> tuple[list[int], str]:
    tokens = [event.token for event in events if isinstance(event, Token)]
    return tokens, "".join(event.text for event in events if isinstance(event, Token | SteerOutcome | Finished))


async def killed_after(world: World, front: ClusterEngine, request: GenerateRequest, *counts: int) -> list[Event]:
    """The events, with the replica that works killed whenever so many tokens have come."""
    events: list[Event] = []
    left = list(counts)
    async for event in front.generate(request, "a session"):
        events.append(event)
        if left and sum(isinstance(event, Token) for event in events) >= left[0]:
            del left[0]
            while not world.where():  # the next one takes it up in a moment
                await asyncio.sleep(0.001)
            await world.kill(world.where()[0])
    assert not left
    return events


async def test_a_front_hears_what_the_engine_says(model: Path) -> None:
    async with cluster(model) as world:
        front = await world.front()
        assert front.info.vocab_size == world.replicas[0].engine.info.vocab_size
        for params in (GREEDY, replace(SAMPLED, logprobs=2), replace(GREEDY, stop=("e", "1"))):
            request = GenerateRequest(PROMPT, params)
            here = await events_of(LoopEngine(model), request)
            there = await events_of(front, request)
            assert said(there) == said(here)
            assert isinstance(there[0], Started) and isinstance(there[-1], Finished)
            tokens = [[event.logprob for event in events if isinstance(event, Token)] for events in (here, there)]
            assert tokens[0] == tokens[1]
        last = (await events_of(front, replace(request, prefill_only=True)))[-1]
        assert isinstance(last, Finished) and last.reason == "prefilled"
        assert front._flights == {} and world.where() == []


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_an_answer_outlives_its_replicas(model: Path, params: SamplingParams) -> None:
    async with cluster(model, 3) as world:
        front = await world.front()
        request = GenerateRequest(PROMPT, params)
        expected = said(await events_of(LoopEngine(model), request))
        events = await killed_after(world, front, request, 5, 17)
        assert said(events) == expected
        assert [type(event) for event in events if not isinstance(event, Token)] == [Started, Finished]
        assert front.counted.taken_up == 2


async def test_without_a_seed_the_text_goes_on_all_the_same(model: Path) -> None:
    async with cluster(model) as world:
        front = await world.front()
        request = GenerateRequest(PROMPT, replace(SAMPLED, seed=None))
        generation = front.generate(request)
        assert generation.request.params.seed is not None
        events = [event async for event in generation]
        assert said(events) == said(await events_of(front, generation.request))


async def test_a_steer_is_part_of_what_is_taken_up(model: Path) -> None:
    async def steered(engine: ClusterEngine | LoopEngine, world: World | None = None) -> list[Event]:
        generation = engine.generate(GenerateRequest(PROMPT, SAMPLED))
        events: list[Event] = []
        done = False
        async for event in generation:
            events.append(event)
            tokens = sum(isinstance(event, Token) for event in events)
            outcomes = sum(isinstance(event, SteerOutcome) for event in events)
            if tokens == 10 and not outcomes:
                hold(engine, world)
                generation.steer([7, 8, 9])
                release(engine, world)
            if world is not None and outcomes and tokens > 25 and not done:
                done = True
                await world.kill(world.where()[0])
        return events

    def hold(engine: ClusterEngine | LoopEngine, world: World | None) -> None:
        for one in [engine] if world is None else [replica.engine for replica in world.replicas.values()]:
            one.held.clear()  # type: ignore[union-attr]

    def release(engine: ClusterEngine | LoopEngine, world: World | None) -> None:
        for one in [engine] if world is None else [replica.engine for replica in world.replicas.values()]:
            asyncio.get_running_loop().call_later(0.02, one.held.set)  # type: ignore[union-attr]

    async with cluster(model) as world:
        there = await steered(await world.front(), world)
    outcome = next(event for event in there if isinstance(event, SteerOutcome))
    before = said(there)[0][: outcome.completion_tokens]
    past = [before, [7, 8, 9]]
    alone = await events_of(LoopEngine(model), GenerateRequest(PROMPT, SAMPLED, past=past))
    assert said(there)[0][len(before) :] == said(alone)[0] and len(said(alone)[0]) == 40


async def test_a_steer_that_dies_with_its_replica_is_sent_again(model: Path) -> None:
    async with cluster(model) as world:
        front = await world.front()
        generation = front.generate(GenerateRequest(PROMPT, GREEDY), "s")
        events: list[Event] = []
        async for event in generation:
            events.append(event)
            if sum(isinstance(event, Token) for event in events) == 3 and len(world.replicas) == 2:
                world.replicas[world.where()[0]].engine.held.clear()  # type: ignore[attr-defined]
                generation.steer([7, 8])
                await world.kill(world.where()[0])
        outcomes = [event for event in events if isinstance(event, SteerOutcome)]
        assert len(outcomes) == 1 and outcomes[0].message is None


async def test_cancel_frees_the_replica_and_so_does_a_front_that_goes(model: Path) -> None:
    async with cluster(model, 1) as world:
        front, other = await world.front(), await world.front()
        long = GenerateRequest(PROMPT, replace(GREEDY, max_tokens=1500))
        generation = front.generate(long)
        async for event in generation:
            if isinstance(event, Token):
                generation.cancel()
        assert isinstance(event, Finished) and event.reason == "cancelled"
        running = other.generate(long)
        async for event in running:
            if isinstance(event, Token):
                break
        assert world.replicas[0].running == 1
        await other.close()
        while world.replicas[0].running:
            await asyncio.sleep(0.001)
        assert world.replicas[0].queued == 0


async def test_a_prompt_weighs_on_its_replica_until_its_first_token(model: Path) -> None:
    """It weighed until the next beat, a second later: sessions left replicas that had nothing to do."""
    async with cluster(model, 1) as world:
        front = await world.front()
        link = front.links[0]
        for _ in range(3):
            generation = front.generate(GenerateRequest(PROMPT, GREEDY), "a session")
            assert 0 < link.queued <= len(PROMPT)
            async for event in generation:
                if isinstance(event, Token):
                    assert link.queued == 0
        with pytest.raises(ContextLengthExceeded):
            await events_of(front, GenerateRequest([1] * 5000))
        assert link.queued == 0
        generation = front.generate(GenerateRequest(PROMPT, GREEDY))
        await world.replicas[0].close()
        while front.links[0].ready:
            await asyncio.sleep(0.001)
        assert link.queued == 0


async def test_what_cannot_be_served_says_why(model: Path) -> None:
    async with cluster(model, 1) as world:
        front = await world.front()
        with pytest.raises(ContextLengthExceeded, match="the context holds 2048"):
            await events_of(front, GenerateRequest([1] * 5000))
        with pytest.raises(InvalidRequest, match="vocabulary"):
            await events_of(front, GenerateRequest([2**40]))
        with pytest.raises(InvalidRequest, match="cannot be serialised"):
            await events_of(front, GenerateRequest([1], replace(GREEDY, stop=("\ud800",))))
        with pytest.raises(InvalidRequest, match="keep"):
            front.generate(GenerateRequest([1], keep=True))
        assert front._flights == {}


async def test_draining_finishes_what_runs_and_takes_nothing_new(model: Path) -> None:
    async with cluster(model, 2) as world:
        front = await world.front()
        generation = front.generate(GenerateRequest(PROMPT, GREEDY), "s")
        first = await anext(aiter(generation))
        assert isinstance(first, Started)
        (old,) = world.where()
        draining = asyncio.create_task(world.replicas[old].drain())
        rest = [event async for event in generation]
        assert isinstance(rest[-1], Finished) and rest[-1].reason == "length" and await draining
        assert isinstance((await events_of(front, GenerateRequest(PROMPT, GREEDY), "s"))[-1], Finished)
        assert front.counted.taken_up == 0 and front.pins.get("s").slot != old  # type: ignore[union-attr]


async def test_requests_wait_for_a_replica_to_come_back(model: Path) -> None:
    async with cluster(model, 1) as world:
        front = await world.front()
        await world.kill(0)
        while front.links[0].ready:
            await asyncio.sleep(0.001)
        asked = asyncio.create_task(events_of(front, GenerateRequest(PROMPT, GREEDY)))
        dropped = front.generate(GenerateRequest(PROMPT, GREEDY))
        dropped.cancel()
        assert [event.reason async for event in dropped if isinstance(event, Finished)] == ["cancelled"]
        await world.replica(0)
        assert len(said(await asked)[0]) == 40


async def test_only_who_knows_the_secret_is_served(model: Path) -> None:
    async with cluster(model, 1) as world:
        with pytest.raises(FulgurError, match="No replica is ready"):
            await world.front(secret=b"some other secret", patience=0.3)
        with pytest.raises(FulgurError, match="another model"):
            await world.front(mark="0" * 64, patience=0.3)
        await world.kill(0)
        await world.replica(0, secret=b"a replica of somebody else")
        with pytest.raises(FulgurError, match="No replica is ready"):
            await world.front(patience=0.3)


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "submit": wire.frame(wire.Submit("x", {}, b"")),
    "junk": b"\x02\x00\x00\x00\xc1\xc1",
}


@pytest.mark.parametrize("who", STRANGERS)
async def test_strangers_are_hung_up_on(model: Path, who: str) -> None:
    async with cluster(model, 1) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.addresses[0].port)
        writer.write(STRANGERS[who])
        greeting = await asyncio.wait_for(reader.read(), 5)  # to the end: the replica has closed it
        assert len(greeting) < 200 and not world.replicas[0].running
        writer.close()


async def test_too_many_deaths_end_an_answer(model: Path) -> None:
    async with cluster(model, 4) as world:
        front = await world.front()
        with pytest.raises(EngineDied):
            await killed_after(world, front, GenerateRequest(PROMPT, replace(GREEDY, max_tokens=1500)), 3, 6, 9, 12)
        assert front._flights == {}
