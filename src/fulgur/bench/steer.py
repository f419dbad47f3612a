"""`fulgur bench steer`: from a steer to the first token of the new direction, beside stopping and sending all again.

The local engine with a random model answers on a history of some thousand tokens. In mid-answer the client steers with
`boundary: "token"`; the time runs from the steer's frame to the first token of the successor. It is compared with a
client without steering, which drops the HTTP stream and posts the whole history with the partial answer and the new
wish. `steer.steps_p50` is the steer's time minus the engine's time to prefill the steer's own tokens, in decode steps.
All three are measured right after each other and compared round by round: on a machine whose speed changes, the
difference of two medians says little.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from fulgur.backends.base import Conversation, Turn
from fulgur.backends.prompts import Prompts
from fulgur.bench.chat_model import write_chat_model
from fulgur.bench.quiet import Watch, too_far
from fulgur.bench.report import Report
from fulgur.bench.transport import process, sse, tool_output
from fulgur.client import Connection
from fulgur.engine.events import Counts, Finished
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.process import EngineClient
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.items import user_message
from fulgur.sandbox import start
from fulgur.text.tokenizer import Tokenizer

WISH = "Change {}: not that way, keep the old signature and add a keyword argument."  # new each time
AFTER = 24  # tokens of the answer before the steer
TEMPERATURE = 1.0  # greedy, random weights repeat one word, and the drafter would make every step a long one
HISTORY = 3  # items of about 1,000 tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, help="how often each side is measured")


def run(args: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder), args.repeats))


async def measure(folder: Path, repeats: int) -> Report:
    watch = Watch()
    report = Report("steer: from the steer to the first token of the new direction")
    model = write_chat_model(folder / "model", context=32_768, d_model=1024, n_layers=8)
    (folder / "server.toml").write_text(
        f'[server]\nport = 0\nstore = ":memory:"\n'
        f'[models.local]\nbackend = "local"\npath = "{model}"\ncontext = 16384\nkv_tokens = 32768\n'
    )
    command = start.python("fulgur", "serve", "--file", str(folder / "server.toml"))
    steered, resent, steps, prefills = [], [], [], []
    prompts = Prompts(Tokenizer.from_folder(model), "local")
    async with process(command, "listens on ") as base_url, await EngineClient.start(model, kv_tokens=32_768) as engine:
        connection = await Connection.open(base_url)
        for number in range(repeats + 2):  # in turn, so that a busy moment of the machine hits all of them
            steered.append(await long_enough(lambda wish: steer_time(connection, wish), number))
            step, prefill = await engine_times(engine, prompts, number)
            resent.append(await long_enough(lambda wish: resend_time(base_url, wish), 1000 + number))
            steps.append(step)
            prefills.append(prefill)
        await connection.close()
    # The first ones meet a cold cache and cold code.
    p50, step, prefill = (statistics.median(values[2:]) for values in (steered, steps, prefills))
    report.add("steer.step_ms", step * 1000, "ms")
    report.add("steer.prefill_ms", prefill * 1000, "ms")
    report.add("steer.tokens", len(prompts.steer([user_message(WISH.format(10))]).tokens), "tokens")
    report.add("steer.p50_ms", p50 * 1000, "ms", bar=(2 * step + prefill) * 1000, at_most=True)
    waits = [(steer - own) / one for steer, own, one in zip(steered[2:], prefills[2:], steps[2:], strict=True)]
    report.add("steer.steps_p50", max(0.0, statistics.median(waits)), "steps", bar=2, at_most=True)
    report.add("steer.resend_p50_ms", statistics.median(resent[2:]) * 1000, "ms")
    report.notes += watch.notes()
    if too_far(steered[2:]):
        report.notes.append("the rounds lie far apart: not to be quoted")
    return report


def history() -> list[dict[str, Any]]:
    items = [user_message(tool_output(turn, "x")["output"]) for turn in range(HISTORY)]
    return [*items, user_message("Rename the function.")]


async def long_enough(measured: Callable[[str], Awaitable[float | None]], number: int) -> float:
    """Retry if random weights end an answer before it can be steered."""
    for attempt in range(20):
        seconds = await measured(WISH.format(f"{number}.{attempt}"))
        if seconds is not None:
            return seconds
    raise FulgurError("The answers were too short to be steered.")


async def steer_time(connection: Connection, wish: str) -> float | None:
    body = {"model": "local", "input": history(), "store": False, "max_output_tokens": 4000, "temperature": TEMPERATURE}
    stream = await connection.create(body)
    began, tokens, successor = 0.0, 0, False
    seconds: float | None = None
    async for event in stream:
        if isinstance(event, ev.ResponseCreated):
            successor = tokens > 0
        elif isinstance(event, ev.OutputTextDelta):
            tokens += 1
            if successor:
                seconds = time.perf_counter() - began
                await stream.cancel()
                successor = False
            elif tokens == AFTER:
                began = time.perf_counter()
                await stream.steer(wish, boundary="token")
    return seconds


async def resend_time(base_url: str, wish: str) -> float | None:
    partial = await read_partial(base_url, history())
    began = time.perf_counter()
    said = {"type": "message", "role": "assistant", "content": partial}
    first = await read_partial(base_url, [*history(), said, user_message(wish)], stop_after=1)
    return time.perf_counter() - began if partial and first else None


async def read_partial(base_url: str, items: list[dict[str, Any]], stop_after: int = AFTER) -> str:
    """Read that many tokens of an answer over a new connection, then drop the connection."""
    body = {"model": "local", "input": items, "store": False, "stream": True, "temperature": TEMPERATURE}
    pieces: list[str] = []
    async with aiohttp.ClientSession() as session:
        async for event in sse(session, base_url, msgspec.json.encode(body)):
            if isinstance(event, ev.OutputTextDelta):
                pieces.append(event.delta)
                if len(pieces) == stop_after:
                    return "".join(pieces)
    return ""  # the answer ended early


async def engine_times(engine: EngineClient, prompts: Prompts, number: int) -> tuple[float, float]:
    """Seconds per decode step and for prefilling the steer's tokens, from the engine itself."""
    base = prompts.of(Turn(Conversation(history()))).tokens
    held = [*base, *([number + 10] * 70)]  # a distinct tail, so that the steer's tokens are new each time
    steer = prompts.steer([user_message(WISH.format(f"{number}.0"))]).tokens
    before = await usage(engine, held)
    after = await usage(engine, [*held, *steer])
    return before.decode_seconds / (AFTER - 1), after.prefill_seconds


async def usage(engine: EngineClient, prompt: list[int]) -> Counts:
    params = SamplingParams(max_tokens=AFTER, ignore_eos=True, temperature=TEMPERATURE)
    async for event in engine.generate(GenerateRequest(prompt, params, speculate=False)):
        if isinstance(event, Finished):
            return event.usage
    raise FulgurError("The engine ended without a report.")
