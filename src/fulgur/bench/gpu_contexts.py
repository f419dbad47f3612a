"""Edits and long contexts on the GPU engine: the edits of the replay with drafts; decoding and verifying a draft far
into a context, decoding also with 8-bit keys and values. Random weights; the keys and values of long contexts are
random too; medians.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from fulgur.bench.gpu_decode import context_rates
from fulgur.bench.gpu_streams import rows_ratio
from fulgur.bench.report import Report
from fulgur.kernels.cuda.kv_cache import OLDEST as FP8_FROM

if TYPE_CHECKING:
    from fulgur.kernels.cuda.runtime import Runtime

FAR, RUNS = 64, 3  # tokens decoded there; replays of all edits
BARS: dict[str, dict[str, float]] = {
    "qwen3-coder-30b-a3b.fp8": {"edit": 2200, "rows8.32768": 3.6, "32768": 540, "131072": 230},
    "qwen2.5-coder-7b.fp8": {"edit": 1900},
    "llama-3.2-1b.bf16": {"edit": 5500, "rows8.32768": 1.6, "32768": 950, "131072": 520},
}


def measure_edits(runtime: Runtime, name: str, report: Report) -> None:
    report.add(f"gpu.edit_tok_s.{name}", edit_rate(runtime), "tok/s", bar=BARS.get(name, {}).get("edit"))


def measure(runtime: Runtime, name: str, report: Report, contexts: list[int]) -> None:
    """Measure decoding with keys and values in the runtime's format, and in 8 bits if the GPU can."""
    bars = BARS.get(name, {})
    rates = context_rates(runtime, [context - FAR for context in contexts], FAR)
    for position, rate in rates.items():
        context = position + FAR
        report.add(f"gpu.decode_tok_s.{name}.at_{context}", rate, "tok/s", bar=bars.get(str(context)))
    if rates and runtime.gpu.capability >= FP8_FROM:
        for position, rate in _rates_in_8_bits(runtime, list(rates)).items():
            report.add(f"gpu.decode_tok_s.{name}.at_{position + FAR}.fp8_keys", rate, "tok/s")
    first = contexts[0]
    if first <= runtime.max_context:
        bar = bars.get(f"rows8.{first}")
        report.add(f"gpu.rows8_ratio.{name}.{first}", rows_ratio(runtime, first - FAR), "", bar=bar, at_most=True)


def _rates_in_8_bits(runtime: Runtime, positions: list[int]) -> dict[int, float]:
    from fulgur.kernels.cuda.runtime import Runtime

    blocks = -(-(max(positions) + FAR) // runtime.block_tokens)
    narrow = Runtime(runtime.weights, kv_blocks=blocks, kv_dtype="fp8", driver=runtime.driver, gpu=runtime.gpu)
    try:
        return context_rates(narrow, positions, FAR)
    finally:
        narrow.close()


def edit_rate(runtime: Runtime) -> float:
    """Tokens a second of all edits, each verified as the engine drafts it."""
    from fulgur.bench.edits import EDITS
    from fulgur.bench.replay import Replay, write_tokenizer
    from fulgur.engine.speculate import measure_cost

    with tempfile.TemporaryDirectory(prefix="fulgur-bench-") as folder:
        write_tokenizer(Path(folder))
        replay = Replay(runtime, Path(folder), measure_cost(runtime))
        rates = []
        for _ in range(RUNS + 1):  # the first warms up
            done = [replay.run(edit, speculate=True) for edit in EDITS]
            rates.append(sum(run.tokens for run in done) / sum(run.seconds for run in done))
    return median(rates[1:])
