"""`fulgur bench cluster`: what a front and a replica between client and engine cost.

- CPU: the time of all processes per token of 20 streams through a front and a replica, beside the same streams through
  one server with its own engine. The engine processes' own time is excluded from both, and so are the clients.
- affinity: 200 sessions of 10 turns over three replicas; how many later turns went to their session's replica.
- steer: from the steer to the first token of the new direction, sent to the front that runs the response and to another
  one (needs Redis: `--live URL`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from fulgur.bench.chat_model import write_chat_model
from fulgur.bench.report import Report
from fulgur.bench.transport import process
from fulgur.client import Connection
from fulgur.cluster.engine import ClusterEngine, members
from fulgur.cluster.fingerprint import fingerprint
from fulgur.engine.events import Started
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError
from fulgur.sandbox import start

STREAMS, TOKENS = 20, 400
SESSIONS, TURNS = 200, 10
ADDED = 40  # tokens a turn
TICK = os.sysconf("SC_CLK_TCK")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", default="", metavar="URL", help="a Redis server: steering across fronts is measured")
    parser.add_argument(
        "--store", default="", metavar="URL", help="PostgreSQL for both fronts (default: a SQLite file)"
    )
    parser.add_argument("--repeats", type=int, default=15, help="steers on each side")
    parser.add_argument("--sessions", type=int, default=SESSIONS)


def run(args: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder), args))


async def measure(folder: Path, args: argparse.Namespace) -> Report:
    report = Report("cluster: a front and a replica between client and engine, beside one server")
    model = write_chat_model(folder / "model", context=8192, d_model=64, n_layers=1)
    key = folder / "key"
    key.write_text(secrets.token_hex(16))
    key.chmod(0o600)
    addresses = [f"unix:{folder}/replica{slot}" for slot in range(3)]
    _configs(folder, model, addresses, args)
    async with contextlib.AsyncExitStack() as parts:
        for slot in range(3):
            words = ("cluster", "replica", "--file", str(folder / "front0.toml"), "--slot", str(slot))
            await parts.enter_async_context(replica(start.python("fulgur", *words)))
        urls = []
        for name in ("front0", "front1", "alone"):
            command = start.python("fulgur", "serve", "--file", str(folder / f"{name}.toml"))
            urls.append(await parts.enter_async_context(process(command, "listens on ")))
        here, there, alone = urls
        await cpu(report, here, alone)
        await affinity(report, addresses, key.read_bytes(), model, args.sessions)
        await steers(report, here, there, args)
    report.notes.append("random weights; CPU without the engine processes' own and without the clients'")
    return report


@contextlib.asynccontextmanager
async def replica(command: list[str]) -> AsyncIterator[None]:
    child = await start.spawn(command, start.ROOT, stdout=start.PIPE, stderr=start.DEVNULL)
    try:
        assert child.stdout is not None
        if b"listens" not in await asyncio.wait_for(child.stdout.readline(), 60):
            raise FulgurError("A replica did not start.")
        yield
    finally:
        child.terminate()
        await child.wait()


def _configs(folder: Path, model: Path, addresses: list[str], args: argparse.Namespace) -> None:
    store = args.store or str(folder / "store.sqlite")
    tail = f'path = "{model}"\nthreads = 1\ncontext = 4096\nkv_tokens = 131072\n'
    for number in range(2):
        (folder / f"front{number}.toml").write_text(
            f'[server]\nport = 0\nstore = "{store}"\nlive = "{args.live}"\n[cluster]\nsecret_file = "{folder}/key"\n'
            f'[models.m]\nbackend = "cluster"\nreplicas = {json.dumps(addresses)}\n{tail}'
        )
    (folder / "alone.toml").write_text(f'[server]\nport = 0\nstore = ":memory:"\n[models.m]\nbackend = "local"\n{tail}')


# --- CPU ---


async def cpu(report: Report, front: str, alone: str) -> None:
    for url in (front, alone):
        await streams(url, 2, 50)  # warm
    ours, one = await cpu_of(front), await cpu_of(alone)
    report.add("cluster.cpu_us_per_token", ours, "µs", bar=80, at_most=True)
    report.add("cluster.cpu_us_per_token_alone", one, "µs")


async def cpu_of(url: str) -> float:
    """CPU microseconds of the server and its replicas per token that clients received; engine workers do not count."""
    before = seconds_by_process()
    tokens = await streams(url, STREAMS, TOKENS)
    after = seconds_by_process()
    spent = sum(after[name] - before.get(name, 0.0) for name in after if name[1] != "worker")
    return spent / tokens * 1e6


def seconds_by_process() -> dict[tuple[int, str], float]:
    """CPU seconds of this process's descendants, by (pid, kind)."""
    found = {}
    mine = os.getpid()
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICK
    for pid in parents:
        above = parents[pid]
        while above in parents and above != mine and above > 1:
            above = parents[above]
        if above == mine and pid != mine:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid, "worker" if b"fulgur.engine.worker" in words else "server"] = times[pid]
    return found


async def streams(url: str, count: int, tokens: int) -> int:
    """Run this many streams at once, one connection each; return the number of tokens received."""

    async def one(number: int) -> int:
        connection = await Connection.open(url)
        body = {"model": "m", "input": f"Stream {number}.", "store": False, "max_output_tokens": tokens}
        stream = await connection.create({**body, "temperature": 1.0, "seed": number})
        answer = await stream.final()
        await connection.close()
        return answer.usage.output_tokens if answer.usage is not None else 0

    return sum(await asyncio.gather(*(one(number) for number in range(count))))


# --- affinity ---


async def affinity(report: Report, addresses: list[str], secret: bytes, model: Path, sessions: int) -> None:
    """Run the sessions' turns round by round, 20 sessions at a time; a hit finds the session's tokens in the cache."""
    engine = await ClusterEngine.start(members(addresses), secret.strip(), fingerprint(model))
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    prompts = [[(7 * session + place) % 500 + 20 for place in range(130)] for session in range(sessions)]
    hits = total = 0

    async def turn(session: int) -> int:
        cached = 0
        async for event in engine.generate(GenerateRequest(list(prompts[session]), params), f"session {session}"):
            if isinstance(event, Started):
                cached = event.cached_tokens
        return cached

    for number in range(TURNS):
        for group in range(0, sessions, 20):
            found = await asyncio.gather(*(turn(session) for session in range(group, min(group + 20, sessions))))
            if number:
                total += len(found)
                hits += sum(cached >= (len(prompts[group]) - ADDED) // 64 * 64 for cached in found)
        for session, prompt in enumerate(prompts):
            prompt += [(session + number + place) % 500 + 20 for place in range(ADDED)]
    await engine.close()
    report.add("cluster.affinity_hit", hits / total, "", bar=0.95)


# --- steering ---


async def steers(report: Report, here: str, there: str, args: argparse.Namespace) -> None:
    """Alternate between local and remote, so that a busy moment of the machine hits both."""
    local, remote = [], []
    for _ in range(args.repeats + 1):
        local.append(await steer_ms(here, here))
        if args.live:
            remote.append(await steer_ms(here, there))
    del local[:1], remote[:1]  # the first ones run cold code
    report.add("cluster.steer_local_p50_ms", statistics.median(local), "ms")
    if not args.live:
        report.notes.append("steering across fronts needs Redis: --live redis://…")
        return
    report.add("cluster.steer_p50_ms", statistics.median(remote), "ms", bar=statistics.median(local) + 5, at_most=True)


async def steer_ms(here: str, at: str) -> float:
    """Milliseconds from a steer, sent at the front `at`, to the first new token at the front `here` that runs the
    response."""
    for attempt in range(20):
        async with aiohttp.ClientSession() as http, http.ws_connect(f"{here}/responses") as running:
            other = running if at == here else await http.ws_connect(f"{at}/responses")
            body = {"model": "m", "input": f"Go on and on {attempt}.", "max_output_tokens": 3000, "temperature": 1.0}
            await running.send_json({"type": "response.create", **body})
            first, deltas, began = "", 0, 0.0
            async for message in running:
                event: dict[str, Any] = json.loads(message.data)
                if event["type"] == "response.created":
                    if first:
                        deltas = 0
                    first = event["response"]["id"]
                elif event["type"] == "response.output_text.delta":
                    deltas += 1
                    if began and deltas == 1:
                        return (time.perf_counter() - began) * 1000
                    if deltas == 20 and not began:
                        began = time.perf_counter()
                        steer = {"type": "response.steer", "previous_response_id": first, "input": "No, shorter."}
                        await other.send_json({**steer, "boundary": "token"})
                elif event["type"] in ("response.completed", "response.failed"):
                    break
    raise FulgurError("The answers were too short to be steered.")
