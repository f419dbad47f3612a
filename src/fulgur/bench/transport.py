"""`fulgur bench transport`: what the wire costs. A warm socket beside new HTTP connections, and beside a plain server.

Three measurements, each with both sides on the same backend in the same run:
- overhead: a tool loop of 30 turns whose history grows to 30k tokens, on the local engine with a random model. A
  turn's time minus the engine's is the client's and the server's work: JSON, template, tokens, sockets. A warm socket
  sends only what is new; new HTTP connections send the whole history each turn. `wire` is the same on a backend that
  takes no time and needs no tokens.
- first token: such a history on the same engine; a warm session beside a cold one.
- CPU: the server process's time per token of one stream, one turn of the event loop a token, beside a pydantic + SSE
  server. A stream at 2,000 tokens a second is checked to arrive whole and in order; its CPU, most of it the kernel
  waking the reader for every token, is shown too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from fulgur.bench.chat_model import write_chat_model
from fulgur.bench.report import Report
from fulgur.client import Connection
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.items import user_message
from fulgur.sandbox import start

TURNS = 30
ITEM_CHARS = 2_050  # about 1,000 tokens a turn in the random model's vocabulary: 30k at the end
RATE = 2000
TOOL = {
    "type": "function",
    "name": "run_tests",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
CHOICE = {"type": "function", "name": "run_tests"}  # random weights call a tool only when they must
TOOL_LOOP = """
[[reply]]
match = "stream"
steps = [{tokens = %d}]
[[reply]]
steps = [{call = "run_tests", arguments = {}}]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=10_000, help="length of the stream whose CPU is measured")
    parser.add_argument("--repeats", type=int, default=3, help="how often the tool loop is run")


def run(args: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder), args.tokens, args.repeats))


async def measure(folder: Path, tokens: int, repeats: int) -> Report:
    report = Report("transport: one warm socket beside new HTTP connections and a plain server")
    (folder / "loop.toml").write_text(TOOL_LOOP % tokens)
    (folder / "paced.toml").write_text(f"rate = {RATE}\n" + TOOL_LOOP % tokens)
    write_chat_model(folder / "model", context=65_536, d_model=64, n_layers=1)
    (folder / "server.toml").write_text(
        f'[server]\nport = 0\nstore = ":memory:"\n'
        f'[models.scripted]\nbackend = "scripted"\npath = "{folder}/loop.toml"\n'
        f'[models.paced]\nbackend = "scripted"\npath = "{folder}/paced.toml"\n'
        f'[models.local]\nbackend = "local"\npath = "{folder}/model"\ncontext = 40960\nkv_tokens = 200000\n'
    )
    command = start.python("fulgur", "serve", "--file", str(folder / "server.toml"))
    async with process(command, "listens on ") as base_url:
        await overhead(report, base_url, repeats)
        await first_token(report, base_url)
        ours = await stream_cpu(report, base_url, tokens)
    plain_command = start.python("fulgur.bench.transport_plain", str(folder / "loop.toml"))
    async with process(plain_command, "") as base_url:
        plain = await plain_cpu(base_url, tokens)
    report.add("transport.cpu_us_per_token_pydantic", plain, "µs")
    report.add("transport.cpu_ratio_pydantic", ours / plain, "ratio", bar=0.70, at_most=True)
    report.notes.append("overhead and first token on the local engine with random weights; CPU on the scripted backend")
    return report


# --- the tool loop ---


def tool_output(turn: int, call_id: str) -> dict[str, Any]:
    line = f"line {turn}: the test of module {turn * 7} took its time and passed in the end.\n"
    return {"type": "function_call_output", "call_id": call_id, "output": (line * 80)[:ITEM_CHARS]}


async def overhead(report: Report, base_url: str, repeats: int) -> None:
    """Turn time that is not the engine's: on the local engine, and on a backend that takes no time at all."""
    warm, cold = [], []
    for repeat in range(repeats):
        warm.append(await without_engine(base_url, warm_loop, f"socket {repeat}"))
        cold.append(await without_engine(base_url, http_loop, f"http {repeat}"))
    report.add("transport.overhead.socket_ms", min(warm) * 1000, "ms")
    report.add("transport.overhead.http_ms", min(cold) * 1000, "ms")
    report.add("transport.overhead.ratio", min(warm) / min(cold), "ratio", bar=0.20, at_most=True)
    # For each turn take the fastest repeat: these are fractions of a millisecond.
    wires = [(await warm_loop(base_url, "scripted", ""), await http_loop(base_url, "scripted", "")) for _ in range(8)]
    socket = statistics.mean(map(min, zip(*(pair[0] for pair in wires), strict=True)))
    http = statistics.mean(map(min, zip(*(pair[1] for pair in wires), strict=True)))
    report.add("transport.wire.socket_ms", socket * 1000, "ms")
    report.add("transport.wire.http_ms", http * 1000, "ms")


async def without_engine(base_url: str, loop: Any, session: str) -> float:
    """Mean seconds per turn, minus the engine's own."""
    before = await counter(base_url, 'fulgur_engine_seconds_total{model="local"}')
    seconds = await loop(base_url, "local", session)
    engine = await counter(base_url, 'fulgur_engine_seconds_total{model="local"}') - before
    return (sum(seconds) - engine) / TURNS


def turn_body(model: str, given: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": model, "input": given, "store": False, "tools": [TOOL], "tool_choice": CHOICE}


async def warm_loop(base_url: str, model: str, session: str) -> list[float]:
    """Seconds of each turn on one socket, only the new items sent."""
    connection = await Connection.open(base_url)
    previous: str | None = None
    given = [user_message(f"{session} Make the tests pass.")]
    seconds = []
    for turn in range(TURNS):
        began = time.perf_counter()
        stream = await connection.create({**turn_body(model, given), "previous_response_id": previous})
        answer = await stream.final()
        seconds.append(time.perf_counter() - began)
        previous = answer.id
        given = [tool_output(turn, answer.output[0]["call_id"])]
    await connection.close()
    return seconds


async def http_loop(base_url: str, model: str, session: str) -> list[float]:
    """Seconds of each turn over a new connection with the whole history."""
    history: list[dict[str, Any]] = [user_message(f"{session} Make the tests pass.")]
    seconds = []
    for turn in range(TURNS):
        began = time.perf_counter()
        body = msgspec.json.encode({**turn_body(model, history), "stream": True})
        output: list[dict[str, Any]] = []
        async with aiohttp.ClientSession() as client:
            async for event in sse(client, base_url, body):
                if isinstance(event, ev.ResponseCompleted):
                    output = event.response.output
        seconds.append(time.perf_counter() - began)
        history += [*output, tool_output(turn, output[0]["call_id"])]
    return seconds


async def sse(session: aiohttp.ClientSession, base_url: str, body: bytes) -> AsyncIterator[ev.Event]:
    headers = {"Content-Type": "application/json"}
    async with session.post(f"{base_url}/responses", data=body, headers=headers) as answer:
        if answer.status != 200:
            raise FulgurError(f"The server answers {answer.status}: {await answer.text()}")
        async for line in answer.content:
            if line.startswith(b"data: {"):
                yield ev.decode_event(line[6:])


# --- first token ---


async def first_token(report: Report, base_url: str) -> None:
    """Time the last turns of a long session, and the same history in a session that starts cold."""
    connection = await Connection.open(base_url)
    warm, cold = [], []
    previous: str | None = None
    history: list[dict[str, Any]] = []
    for turn in range(TURNS):
        given = [user_message(tool_output(turn, "x")["output"])]
        body = {"model": "local", "max_output_tokens": 4, "store": False}
        stream = await connection.create({**body, "input": given, "previous_response_id": previous})
        seconds, answer = await until_first(stream)
        previous = answer.id
        history += [*given, *answer.output]
        if turn >= TURNS - 3:
            warm.append(seconds)
            other = await Connection.open(base_url)
            nonce = user_message(f"Session {turn} of {time.time_ns()}.")
            fresh = await other.create({**body, "input": [nonce, *history]})
            cold.append((await until_first(fresh))[0])
            used = (await fresh.final()).usage
            await other.close()
    await connection.close()
    assert used is not None
    report.add("transport.ttft.tokens", used.input_tokens, "tokens")
    report.add("transport.ttft.warm_ms", statistics.median(warm) * 1000, "ms")
    report.add("transport.ttft.cold_ms", statistics.median(cold) * 1000, "ms")
    report.add(
        "transport.ttft.ratio", statistics.median(warm) / statistics.median(cold), "ratio", bar=0.5, at_most=True
    )


async def until_first(stream: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    seconds = 0.0
    async for event in stream:
        if not seconds and isinstance(event, ev.OutputItemAdded):
            seconds = time.perf_counter() - began
    return seconds, await stream.final()


# --- CPU ---


async def stream_cpu(report: Report, base_url: str, tokens: int) -> float:
    """Run one stream at RATE, then one at full speed for the server's CPU per token; both must arrive whole and in
    order."""
    connection = await Connection.open(base_url)
    results = {}
    for model in ("paced", "scripted", "scripted"):
        before, began = await cpu_seconds(base_url), time.perf_counter()
        stream = await connection.create({"model": model, "input": "stream", "store": False})
        numbers, pieces = [], []
        async for event in stream:
            numbers.append(event.sequence_number)
            if isinstance(event, ev.OutputTextDelta):
                pieces.append(event.delta)
        results[model] = time.perf_counter() - began, (await cpu_seconds(base_url) - before) / tokens * 1e6
        if numbers != list(range(len(numbers))) or "".join(pieces) != expected(tokens) or len(pieces) != tokens:
            raise FulgurError("The stream did not arrive whole and in order.")
    await connection.close()
    report.add("transport.stream_tokens_per_s", tokens / results["paced"][0], "tok/s", bar=RATE * 0.97)
    report.add("transport.cpu_us_per_token_paced", results["paced"][1], "µs")
    report.add("transport.cpu_us_per_token", results["scripted"][1], "µs", bar=12.5, at_most=True)
    return results["scripted"][1]


async def plain_cpu(base_url: str, tokens: int) -> float:
    async with aiohttp.ClientSession() as session:

        async def stream(text: str) -> int:
            body = msgspec.json.encode({"model": "scripted", "input": [user_message(text)]})
            return sum([1 async for event in sse(session, base_url, body) if isinstance(event, ev.OutputTextDelta)])

        await stream("stream")
        before = await cpu_seconds(base_url)
        if await stream("stream") != tokens:
            raise FulgurError("The plain server's stream did not arrive whole.")
        return (await cpu_seconds(base_url) - before) / tokens * 1e6


def expected(tokens: int) -> str:
    return "".join(f" w{index % 10000:04d}" for index in range(tokens))


async def cpu_seconds(base_url: str) -> float:
    """CPU time of the server's process, as it reports itself."""
    return await counter(base_url, "process_cpu_seconds_total")


async def counter(base_url: str, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(base_url.removesuffix("/v1") + "/metrics") as answer:
        text = await answer.text()
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


@contextlib.asynccontextmanager
async def process(command: list[str], marker: str) -> AsyncIterator[str]:
    """Run a server in its own process; it prints its address after `marker`."""
    child = await start.spawn(command, start.ROOT, stdout=start.PIPE, stderr=start.DEVNULL)
    try:
        assert child.stdout is not None
        line = (await asyncio.wait_for(child.stdout.readline(), 30)).decode().strip()
        if "http" not in line:
            raise FulgurError(f"{' '.join(command[2:4])} did not start")
        yield line.removeprefix("Fulgur ").removeprefix(marker)
    finally:
        child.terminate()
        await child.wait()
