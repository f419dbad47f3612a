"""Prompts on the GPU engine: time to first token, with and without a cached prefix, alone and beside a stream.

Random tokens, no prompt twice, through the engine as a server would use it; medians. transformers times the same
lengths on the same GPU (bf16, its fastest attention and experts) in a separate process.
"""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from fulgur.bench.report import Report
from fulgur.sandbox import start

if TYPE_CHECKING:
    from fulgur.engine.engine import Engine
    from fulgur.kernels.cuda.runtime import Runtime
    from fulgur.text.tokenizer import Tokenizer

CACHED, RUNS, SPARE = 8192, 3, 8
LONG = 65536  # tokens of a prompt that is timed only once, because it takes seconds
JOINING, STREAM = 4096, 512  # tokens of the request that joins, and of the stream's prompt
PEER_SECONDS = 240.0
# Milliseconds to the first token, and tokens a second that a stream keeps while another request joins.
BARS: dict[str, dict[str, float]] = {
    "qwen3-coder-30b-a3b.fp8": {
        "512": 50, "2048": 90, "8192": 200, "32768": 1200, "131072": 12000, "8192+200": 40, "8192+2000": 110,
        "join": 400,
    },
    "llama-3.2-1b.bf16": {"2048": 14, "8192": 45, "32768": 270, "131072": 2600},
    "qwen2.5-coder-7b.fp8": {"512": 40, "513": 40},
}  # fmt: skip


class Prompts:
    """One engine and fresh prompts for it."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer) -> None:
        from fulgur.engine.engine import Engine

        self.engine: Engine = Engine(runtime, tokenizer, max_draft=0)
        self._noise, self._vocab = np.random.default_rng(11), runtime.vocab_size

    def fresh(self, count: int) -> list[int]:
        return [int(t) for t in self._noise.integers(0, self._vocab, count)]

    def first_token(self, prompt: list[int], *, joins: bool = False) -> tuple[float, int]:
        """Seconds until the prompt's first token, and how many tokens other requests got meanwhile."""
        from fulgur.engine.params import GenerateRequest, SamplingParams

        start = perf_counter()
        name = self.engine.submit(GenerateRequest(prompt, SamplingParams(max_tokens=2, ignore_eos=True)))
        others, first = 0, 0.0
        while not first:
            for event in self.engine.step():
                if hasattr(event, "token"):
                    if event.request_id == name:
                        first = first or perf_counter() - start
                    else:
                        others += 1
        while not joins and self.engine.busy:
            self.engine.step()
        return first, others

    def stream(self) -> str:
        """Start a request that decodes for long; return once it is under way."""
        from fulgur.engine.params import GenerateRequest, SamplingParams

        params = SamplingParams(max_tokens=2000, ignore_eos=True)
        name = self.engine.submit(GenerateRequest(self.fresh(STREAM), params))
        told = 0
        while told < 32:
            told += sum(hasattr(event, "token") for event in self.engine.step())
        return name

    def finish(self, name: str) -> None:
        self.engine.cancel(name)
        while self.engine.busy:
            self.engine.step()


def measure(runtime: Runtime, tokenizer: Tokenizer, name: str, report: Report, lengths: list[int]) -> None:
    prompts, bars = Prompts(runtime, tokenizer), BARS.get(name, {})

    def add(row: str, seconds: list[float]) -> None:
        report.add(f"gpu.ttft_ms.{name}.{row}", 1e3 * median(seconds), "ms", bar=bars.get(row), at_most=True)

    room = min(runtime.max_context, runtime.kv_blocks * runtime.block_tokens) - SPARE
    for length in (length for length in lengths if length <= room + SPARE):  # a full context leaves room for an answer
        runs = RUNS if length < LONG else 1
        add(str(length), [prompts.first_token(prompts.fresh(min(length, room)))[0] for _ in range(runs + 1)][1:])
    for more in (200, 2000):
        if CACHED + more <= room:
            prefix = prompts.fresh(CACHED)
            prompts.first_token(prefix)
            times = [prompts.first_token(prefix + prompts.fresh(more))[0] for _ in range(RUNS + 1)][1:]
            add(f"{CACHED}+{more}", times)
    if room < JOINING + STREAM + 2000:
        return
    alone = [prompts.first_token(prompts.fresh(JOINING))[0] for _ in range(RUNS + 1)][1:]
    beside, rates = [], []
    for _ in range(RUNS):
        stream = prompts.stream()
        seconds, others = prompts.first_token(prompts.fresh(JOINING), joins=True)
        prompts.finish(stream)
        beside.append(seconds)
        rates.append(others / seconds)
    add(str(JOINING), alone)
    add(f"{JOINING}.joining", beside)
    report.add(f"gpu.join_tok_s.{name}", median(rates), "tok/s", bar=bars.get("join"))


def measure_peer(model: str, name: str, report: Report, lengths: list[int]) -> None:
    """Time transformers on the same lengths; if that fails, a note says why."""
    wanted = ",".join([*map(str, lengths), f"{CACHED}+200", f"{CACHED}+2000"])
    command = start.python("fulgur.bench.gpu_peer", model, wanted, "prompts")
    try:
        done = start.run(command, start.ROOT, seconds=PEER_SECONDS)
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except start.TimeoutExpired:
        report.notes.append(f"transformers did not finish within {PEER_SECONDS:.0f} s")
    except (ValueError, IndexError):
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        report.notes.append(f"transformers failed: {words[-1][:200]}")
    else:
        for length, milliseconds in found.items():
            report.add(f"transformers.ttft_ms.{name}.{length}", milliseconds, "ms")
