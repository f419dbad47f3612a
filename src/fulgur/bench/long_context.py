"""Decoding after a long text, for `fulgur bench engine`: keys and values in bf16 and in 8 bits, in turn.

The time of attention is the difference between a step after 8,192 tokens and one after 64. Its bandwidth share is the
bytes of the keys and values in between, over that time and over the read bandwidth for as many bytes in the same round.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from fulgur.bench.report import Report
from fulgur.engine.device import CPU_KV_DTYPES, KV_DTYPES
from fulgur.engine.load import kv_bytes_per_token
from fulgur.kernels.cpu import _native
from fulgur.kernels.cpu.native import Runtime
from fulgur.model.weights import load

LONG, SHORT = 8192, 64
SHARE_BAR = 0.75  # of the bandwidth, by attention
_STEPS = 8


@dataclass
class _Samples:
    long: list[float] = field(default_factory=list)  # seconds of a step
    share: list[float] = field(default_factory=list)


def measure_long(folder: Path, name: str, rounds: int, report: Report) -> None:
    """Add the rows of one packed model."""
    weights = load(folder)
    weights.config = config = replace(weights.config, max_context=LONG + Runtime.block_tokens)
    blocks = LONG // Runtime.block_tokens + 1
    runtimes = {dtype: Runtime(weights, kv_blocks=blocks, kv_bits=KV_DTYPES[dtype]) for dtype in CPU_KV_DTYPES}
    samples = {dtype: _Samples() for dtype in runtimes}
    for number in range(rounds + 1):
        for dtype, runtime in runtimes.items():
            short, long = _step(runtime, SHORT), _step(runtime, LONG)
            size = (LONG - SHORT) * kv_bytes_per_token(config, KV_DTYPES[dtype])
            bandwidth = _native.read_bandwidth(size, runtime.threads, 0.02) * 1e9
            if number and long > short:  # the first round reads cold pages
                samples[dtype].long.append(long)
                samples[dtype].share.append(size / (long - short) / bandwidth)
    for dtype, found in samples.items():
        runtimes[dtype].close()
        if not found.long:
            report.notes.append(f"{name}: nothing measured at {LONG} tokens in {dtype}: the machine was too busy")
            continue
        report.add(f"engine.long.tok_s.{name}.{dtype}", 1 / median(found.long), "tok/s")
        report.add(f"engine.long.attention_share.{name}.{dtype}", median(found.share), "of 1", bar=SHARE_BAR)


def _step(runtime: Runtime, position: int) -> float:
    """Seconds per step of one token; the cache's contents do not affect it."""
    table, zero = np.arange(runtime.kv_blocks, dtype=np.int32)[None], np.zeros(1, np.int32)
    seconds = []
    for _ in range(_STEPS):
        start = perf_counter()
        runtime.step(zero, zero + position, zero, table, zero)
        seconds.append(perf_counter() - start)
    return median(seconds)
