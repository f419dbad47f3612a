"""Chooses the kernels for rows of several sequences: `few_step.py` for a few, `batch_step.py` for many, or passes of
the decode kernels. The thresholds are measured when the model opens.

A single sequence keeps the decode kernels, whatever the length of a draft: k rows then have the bits of k single steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fulgur.kernels.cuda.batch_step import ROWS, BatchStep, Int, StepInput, possible
from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.few_step import FewStep, few_step
from fulgur.kernels.cuda.plan import KV_BLOCK, MAX_ROWS
from fulgur.kernels.cuda.prefill import Prefill
from fulgur.kernels.cuda.weights import GpuWeights

# From how many rows on; None: measured.
FEW_FROM: int | None = None
BATCH_FROM: int | None = None
TRIED = (2, 3, 4, 6, 8, 12, 16)  # numbers of rows to time
CONTEXT = 256  # tokens of each sequence before those rows
NEVER = ROWS + 1

Step = Callable[[Int, Int, Int, Int, Int], object]


class Together:
    def __init__(self, weights: GpuWeights, prefill: Prefill, table_width: int, gpu: Gpu, stream: Any) -> None:
        given = self.given = StepInput(table_width, weights.arena.device, stream)
        self.batch = BatchStep(prefill, given, stream) if possible(prefill) else None
        self.few = few_step(weights, given, prefill.kv, prefill.rope, gpu, stream)
        self.few_from = self.batch_from = NEVER
        self.timed: dict[int, dict[str, float]] = {}  # seconds of a step, by rows and way

    @property
    def rows(self) -> int:
        """The most rows of a pass."""
        return MAX_ROWS if self.batch is None else ROWS

    def choose(self, sequences: Int) -> FewStep | BatchStep | None:
        """The kernels for these rows, if they belong to several sequences and are enough."""
        n = len(sequences)
        if n < self.few_from and n < self.batch_from:
            return None
        if not bool((sequences != sequences[0]).any()):
            return None
        return self.batch if n >= self.batch_from else self.few

    def measure(self, step: Step, vocab: int, tokens: int) -> None:
        """Warm everything up, and time steps over cached sequences; the cache holds `tokens`."""
        ways = {"decode": (NEVER, NEVER)}
        if self.few is not None:
            self.few.warm()
            ways["few"] = (2, NEVER)
        if self.batch is not None:
            self.batch.warm(ROWS)
            ways["batch"] = (NEVER, 2)
        context, fastest = min(CONTEXT, tokens - ROWS), dict[int, str]()
        unknown = ("few" in ways and FEW_FROM is None) or ("batch" in ways and BATCH_FROM is None)
        if context >= 0 and unknown:
            tables = np.tile(np.arange(-(-(context + ROWS) // KV_BLOCK), dtype=np.int32), (ROWS, 1))
            for rows in TRIED:
                seconds = self.timed[rows] = {}
                for way, (self.few_from, self.batch_from) in ways.items():
                    seconds[way] = _seconds(step, rows, context, tables, vocab)
                fastest[rows] = min(seconds, key=lambda way: seconds[way])
                if fastest[rows] == "batch":
                    break

        def first(wanted: str) -> int:
            return min((rows for rows, way in fastest.items() if way == wanted), default=NEVER)

        self.few_from = (FEW_FROM or first("few")) if self.few is not None else NEVER
        self.batch_from = (BATCH_FROM or first("batch")) if self.batch is not None else NEVER

    def close(self) -> None:
        for kernels in (self.batch, self.few):
            if kernels is not None:
                kernels.close()


def _seconds(step: Step, rows: int, context: int, tables: Int, vocab: int) -> float:
    """The time of the fastest of a few steps over rows of as many sequences."""
    each = np.arange(rows, dtype=np.int32)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        step(each * 97 % vocab, context + each, each, tables, each)
        times.append(time.perf_counter() - start)
    return min(times)
