"""What sampling settings and other users cost on the GPU engine: sampling, log-probabilities, a schema; many streams.

Random weights and prompts, no speculation, through the engine as a server uses it; medians.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from fulgur.bench.report import Report
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.text.grammar import GrammarSpec

if TYPE_CHECKING:
    from fulgur.engine.engine import Engine
    from fulgur.kernels.cuda.runtime import Runtime
    from fulgur.text.tokenizer import Tokenizer

PROMPT, TOKENS, RUNS = 512, 448, 3
STREAMS, EACH = (2, 8, 32), 160  # sequences at a time; tokens of each that are counted
ROOM = 32 * (PROMPT + EACH + 64)  # tokens of the cache that all of them need
SCHEMA = """{"type": "array", "minItems": 900, "items": {"type": "object", "additionalProperties": false,
"required": ["name", "count", "done"], "properties": {"name": {"type": "string", "maxLength": 24},
"count": {"type": "integer"}, "done": {"type": "boolean"}}}}"""
SETTINGS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=0.7, seed=1),
    "qwen": SamplingParams(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, seed=1),
    "top_p": SamplingParams(temperature=0.7, top_p=0.9, seed=1),
    "presence": SamplingParams(presence_penalty=0.5),
    "logprobs": SamplingParams(logprobs=5),
    "schema": SamplingParams(temperature=0.7, seed=1, grammar=GrammarSpec("json_schema", SCHEMA)),
}
BARS: dict[str, dict[str, float]] = {
    "qwen3-coder-30b-a3b.fp8": {
        "qwen": 870, "presence": 870, "logprobs": 870, "schema": 700, "2": 1250, "8": 2000, "32": 3500, "rows8": 3.4,
    },
    "llama-3.2-1b.bf16": {"8": 9000, "32": 20000, "rows8": 1.3},
    "qwen2.5-coder-7b.fp8": {"rows8": 1.3},
}  # fmt: skip


def measure(
    runtime: Runtime, tokenizer: Tokenizer, name: str, report: Report, *, prompt: int = PROMPT, tokens: int = TOKENS
) -> None:
    from fulgur.engine.engine import Engine

    bars, noise = BARS.get(name, {}), np.random.default_rng(7)
    engine = Engine(runtime, tokenizer, max_draft=0)

    def request(params: SamplingParams, count: int) -> GenerateRequest:
        text = [int(t) for t in noise.integers(0, runtime.vocab_size, prompt)]
        return GenerateRequest(text, replace(params, max_tokens=count, ignore_eos=params.grammar is None))

    for setting, params in SETTINGS.items():
        if params.grammar is not None and find_spec("llguidance") is None:
            report.notes.append("without llguidance, so without a schema")
            continue
        rates = [rate(engine, [request(params, tokens)]) for _ in range(RUNS + 1)][1:]
        report.add(f"gpu.sampled_tok_s.{name}.{setting}", median(rates), "tok/s", bar=bars.get(setting))
    for rows, seconds in runtime.together.timed.items():
        ways = ", ".join(f"{way} {1e3 * value:.2f} ms" for way, value in seconds.items())
        report.notes.append(f"a step over {rows} sequences, timed at the start: {ways}")
    room = runtime.kv_blocks * runtime.block_tokens // (prompt + EACH + 64)
    for streams in (count for count in STREAMS if count <= room):
        rates = [rate(engine, [request(SamplingParams(), EACH) for _ in range(streams)]) for _ in range(RUNS)][1:]
        report.add(f"gpu.total_tok_s.{name}.{streams}", median(rates), "tok/s", bar=bars.get(str(streams)))
    report.add(f"gpu.rows8_ratio.{name}", rows_ratio(runtime, prompt), "", bar=bars.get("rows8"), at_most=True)


def rate(engine: Engine, requests: list[GenerateRequest]) -> float:
    """Total tokens a second, from the moment that every stream has one until the first stream ends."""
    names = {engine.submit(request) for request in requests}
    begun: set[str] = set()
    told, counted, start, end = 0, 0, 0.0, 0.0
    while engine.busy:
        for event in engine.step():
            if hasattr(event, "token"):
                told += len(begun) == len(names)
                begun.add(event.request_id)
                if len(begun) == len(names) and not start:
                    start = perf_counter()
            elif hasattr(event, "reason") and not end:
                end = perf_counter()
                counted = told
    return counted / (end - start)


def rows_ratio(runtime: Runtime, position: int, rows: int = 8, runs: int = 30) -> float:
    """The time of a step over `rows` tokens of one sequence relative to a step over one."""
    table = np.arange(runtime.kv_blocks, dtype=np.int32)[None]
    seconds = []
    for count in (1, rows):
        at = np.arange(position, position + count, dtype=np.int32)
        tokens, first = at * 37 % runtime.vocab_size, np.zeros(count, np.int32)
        times = []
        for _ in range(runs):
            start = perf_counter()
            runtime.step(tokens, at, first, table, np.arange(count, dtype=np.int32))
            times.append(perf_counter() - start)
        seconds.append(median(times))
    return seconds[1] / seconds[0]
