"""The engine process, driven as the server drives it: real processes, a real (tiny) model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from drive import generate
from waiting import PATIENCE, wait_until

from fulgur.engine.engine import Engine
from fulgur.engine.errors import ContextLengthExceeded, EngineDied, InvalidRequest
from fulgur.engine.events import Finished, Started, SteerOutcome, Token
from fulgur.engine.load import EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.process import EngineClient, Generation
from fulgur.errors import FulgurError

LONG = SamplingParams(max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(max_tokens=6, ignore_eos=True)


def with_client(model: Path, body: Callable[[EngineClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await EngineClient.start(model, runtime="reference", kv_tokens=4096) as client:
            await asyncio.wait_for(body(client), PATIENCE)

    asyncio.run(main())


async def tokens_of(generation: Generation) -> list[int]:
    return [event.token async for event in generation if isinstance(event, Token)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def local(model_folder: Path) -> Engine:
    engine, _ = open_engine(EngineOptions(model_folder, kv_tokens=4096, runtime="reference"))
    return engine


def test_events_come_in_order_and_equal_the_engine_in_this_process(model_folder: Path, local: Engine) -> None:
    async def body(client: EngineClient) -> None:
        info = client.info
        assert (info.context, info.kv_tokens, info.vocab_size, info.runtime) == (512, 4096, 300, "reference")
        assert info.pid == client.pid and info.memory > 0
        request = GenerateRequest([5, 6, 7], SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2))
        events = [event async for event in client.generate(request)]
        assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
        expected = generate(local, request)
        told = [event for event in events if isinstance(event, Token)]
        assert [event.token for event in told] == expected.tokens
        assert [event.logprob for event in told] == expected.logprobs
        assert "".join(event.text for event in told) == expected.text

    with_client(model_folder, body)


def test_many_generations_at_once_and_in_batches(model_folder: Path, local: Engine) -> None:
    async def body(client: EngineClient) -> None:
        requests = [GenerateRequest([i + 1, 2, 3], SHORT) for i in range(12)]
        answers = await asyncio.gather(*(tokens_of(client.generate(request)) for request in requests))
        assert answers == [generate(local, request).tokens for request in requests]
        batched = client.generate(GenerateRequest([9, 9], SHORT, n=3))
        events = [event async for batch in batched.batches() for event in batch]
        assert sum(isinstance(event, Finished) for event in events) == 3
        assert client._generations == {}

    with_client(model_folder, body)


def test_cancel_ends_it_early(model_folder: Path) -> None:
    async def body(client: EngineClient) -> None:
        generation = client.generate(GenerateRequest([1, 2, 3], LONG))
        events = []
        async for event in generation:
            events.append(event)
            if len(events) == 4:
                generation.cancel()
        assert isinstance(events[-1], Finished) and events[-1].reason == "cancelled"
        assert events[-1].usage.completion_tokens < 400

    with_client(model_folder, body)


def test_steer_of_a_running_and_of_a_kept_generation(model_folder: Path, local: Engine) -> None:
    async def body(client: EngineClient) -> None:
        generation = client.generate(GenerateRequest([1, 2, 3], SHORT, keep=True))
        first = await tokens_of(generation)
        generation.steer([7, 8])
        events = [event async for event in generation]
        assert isinstance(events[0], SteerOutcome) and events[0].message is None
        more = [event.token for event in events if isinstance(event, Token)]
        assert more == generate(local, GenerateRequest([1, 2, 3, *first, 7, 8], SHORT)).tokens
        generation.steer([1] * 600)
        refused = [event async for event in generation]
        assert isinstance(refused[0], SteerOutcome) and "context" in str(refused[0].message) and len(refused) == 1
        generation.cancel()
        assert client._generations == {}

        running = client.generate(GenerateRequest([4, 5], LONG))
        seen = []
        async for event in running:
            seen.append(event)
            if len(seen) == 3:
                running.steer([9, 10, 11])
        at = next(i for i, event in enumerate(seen) if isinstance(event, SteerOutcome))
        before = [event.token for event in seen[:at] if isinstance(event, Token)]
        after = [event.token for event in seen[at:] if isinstance(event, Token)]
        assert len(before) == seen[at].completion_tokens
        again = GenerateRequest([4, 5, *before, 9, 10, 11], SamplingParams(max_tokens=len(after), ignore_eos=True))
        assert after == generate(local, again).tokens

    with_client(model_folder, body)


def test_a_request_that_cannot_be_served_is_refused_and_harms_nobody(model_folder: Path) -> None:
    async def body(client: EngineClient) -> None:
        running = client.generate(GenerateRequest([1], SHORT))
        with pytest.raises(ContextLengthExceeded, match="600 tokens; the context holds 512"):
            await tokens_of(client.generate(GenerateRequest([1] * 600, SHORT)))
        with pytest.raises(InvalidRequest, match="top_p"):
            await tokens_of(client.generate(GenerateRequest([1], SamplingParams(top_p=0))))
        assert len(await tokens_of(running)) == 6

    with_client(model_folder, body)


def test_after_a_kill_the_running_fail_and_the_next_works(model_folder: Path, local: Engine) -> None:
    async def body(client: EngineClient) -> None:
        for _ in range(2):
            generation = client.generate(GenerateRequest([1, 2, 3], LONG))
            got = []
            with pytest.raises(EngineDied, match="SIGKILL"):
                async for event in generation:
                    got.append(event)
                    if len(got) == 3:
                        killed = client.pid
                        assert killed is not None
                        os.kill(killed, signal.SIGKILL)
            assert len(got) >= 3  # what had arrived was not lost
            request = GenerateRequest([3, 2, 1], SHORT)
            assert await tokens_of(client.generate(request)) == generate(local, request).tokens
            assert client.pid != killed and not alive(killed)

    with_client(model_folder, body)


def test_a_kill_while_idle_goes_unnoticed(model_folder: Path) -> None:
    async def body(client: EngineClient) -> None:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        while client.pid is not None:
            await asyncio.sleep(0.01)
        assert len(await tokens_of(client.generate(GenerateRequest([1], SHORT)))) == 6

    with_client(model_folder, body)


async def test_close_ends_the_process_and_what_runs(model_folder: Path) -> None:
    client = await EngineClient.start(model_folder, runtime="reference", kv_tokens=4096)
    pid = client.pid
    assert pid is not None
    generation = client.generate(GenerateRequest([1, 2, 3], LONG))
    await anext(generation)
    await client.close()
    await client.close()
    assert not alive(pid)
    with pytest.raises(EngineDied, match="closed"):
        await tokens_of(generation)
    with pytest.raises(EngineDied, match="closed"):
        client.generate(GenerateRequest([1], SHORT))


async def test_a_model_that_does_not_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(FulgurError, match="nowhere"):
        await EngineClient.start(tmp_path / "nowhere", runtime="reference")


async def test_a_model_that_vanishes_fails_the_next_request_and_may_return(model_folder: Path, tmp_path: Path) -> None:
    folder, away = tmp_path / "model", tmp_path / "away"
    folder.symlink_to(model_folder)
    async with await EngineClient.start(folder, runtime="reference", kv_tokens=4096) as client:
        folder.rename(away)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        while client.pid is not None:
            await asyncio.sleep(0.01)
        with pytest.raises(FulgurError, match="no such model"):
            await tokens_of(client.generate(GenerateRequest([1], SHORT)))
        away.rename(folder)
        assert len(await tokens_of(client.generate(GenerateRequest([1], SHORT)))) == 6


def test_the_engine_ends_when_its_client_is_killed(model_folder: Path) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from fulgur.engine.process import EngineClient\n"
        "from fulgur.engine.params import GenerateRequest, SamplingParams\n"
        "async def main():\n"
        "    client = await EngineClient.start(pathlib.Path(sys.argv[1]), runtime='reference', kv_tokens=4096)\n"
        "    generation = client.generate(GenerateRequest([1], SamplingParams(max_tokens=400, ignore_eos=True)))\n"
        "    await anext(generation)\n"
        "    print(client.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(model_folder)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert running(pid)
        parent.kill()
    wait_until(lambda: not running(pid))


def running(pid: int) -> bool:
    """Whether a process that is not ours to reap still does something (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
