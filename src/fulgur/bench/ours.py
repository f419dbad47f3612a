"""The engine's side of a comparison: one packed model in one process, timed operation by operation."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cpu.native import Runtime
from fulgur.model.weights import load

if TYPE_CHECKING:
    from fulgur.engine.speculate import StepCost

RAW_CONTEXT, RAW_TOKENS, RAW_REPEAT = 512, 16, 3  # the single steps before every edit of the replay
Int = npt.NDArray[np.int32]


def open_worker(folder: str, threads: int, context: int) -> dict[str, Callable[..., Any]]:
    """Load a packed folder with room for `context` tokens; returns the operations by name."""
    weights = load(Path(folder))
    blocks = -(-context // Runtime.block_tokens)
    runtime = Runtime(weights, kv_blocks=blocks, threads=threads)
    vocab = weights.config.vocab_size
    del weights
    gc.collect()
    bench = Measurement(runtime, vocab)
    return {
        "decode": bench.decode,
        "prefill": bench.prefill,
        "verify": bench.verify,
        "bare": bench.bare,
        "replay": bench.replay,
        "about": bench.about,
        "faults": page_faults,
    }


def page_faults() -> tuple[int, int]:
    """The minor and the major page faults of this process so far; the major ones read from disk."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt, used.ru_majflt


class Measurement:
    """Every operation returns a list of seconds, one per repetition, and leaves the runtime ready for the next."""

    def __init__(self, runtime: Runtime, vocab: int) -> None:
        self.runtime = runtime
        self.tokens = np.random.default_rng(0).integers(0, vocab, runtime.max_context).astype(np.int32)
        self.table = np.arange(runtime.kv_blocks, dtype=np.int32)
        self.filled = 0
        self.saved = -1  # tokens in the saved state
        self.cost: StepCost | None = None

    def about(self) -> dict[str, Any]:
        runtime = self.runtime
        return {
            "isa": runtime.isa,
            "threads": runtime.threads,
            "weight_bytes": runtime.weight_bytes,
            "kv_bytes": runtime.kv_bytes,
        }

    def decode(self, context: int, count: int, repeat: int) -> list[float]:
        """Seconds for `count` greedy tokens, each a full step, the first one at position `context`; `repeat` times."""
        self._fill(context)
        return self._decode(context, count, repeat)

    def _decode(self, context: int, count: int, repeat: int) -> list[float]:
        step, tables, zero = self.runtime.step, self.table[None, :], np.zeros(1, np.int32)
        seconds = []
        for _ in range(repeat):
            self._rewind(context)
            token, position = self.tokens[context : context + 1], np.array([context], np.int32)
            start = perf_counter()
            for _ in range(count):
                token = step(token, position, zero, tables, zero)
                position += 1
            seconds.append(perf_counter() - start)
        return seconds

    def prefill(self, count: int, repeat: int) -> list[float]:
        """Seconds until `count` tokens are in the cache and the first answer token is known."""
        seconds = []
        for _ in range(repeat):
            start = perf_counter()
            self._run(0, count)
            seconds.append(perf_counter() - start)
        self.filled = count
        return seconds

    def verify(self, context: int, width: int, repeat: int) -> list[float]:
        """Seconds per step that checks `width` tokens at `context`."""
        self._fill(context)
        self._rewind(context)
        wanted, seconds = np.arange(width, dtype=np.int32), []
        for _ in range(repeat):
            start = perf_counter()
            self._step(context, width, wanted)
            seconds.append(perf_counter() - start)
        return seconds

    def bare(self, context: int, count: int, repeat: int) -> list[tuple[float, float]]:
        """Time a plain pass over what a token reads, and one that multiplies it too (see `Runtime.scan`), relative to a
        greedy step. `repeat` times `count` of each in turn, so that all three meet the machine in the same state."""
        self._fill(context)
        ratios = []
        for _ in range(repeat):
            read, scan = (
                sum(self.runtime.scan(context, multiply=multiply) for _ in range(count)) for multiply in (False, True)
            )
            step = self._decode(context, count, 1)[0]
            ratios.append((read / step, scan / step))
        return ratios

    def replay(self, tokenizer: str, speculate: bool) -> list[dict[str, float]]:
        """Replay every edit once (see `replay`), each right after a few single steps, so that both run at the same
        speed of the machine: `raw` is the steps' seconds a token."""
        from fulgur.bench.edits import EDITS
        from fulgur.bench.replay import Replay
        from fulgur.engine.speculate import measure_cost

        if self.cost is None:
            self.cost = measure_cost(self.runtime)
        replay = Replay(self.runtime, Path(tokenizer), self.cost)
        result = []
        for edit in EDITS:
            # What the cache holds there does not affect the time of a step.
            raw = self._decode(RAW_CONTEXT, RAW_TOKENS, RAW_REPEAT)
            run = replay.run(edit, speculate=speculate)
            result.append(asdict(run) | {"raw": median(raw) / RAW_TOKENS})
        self.filled = 0
        return result

    def _fill(self, context: int) -> None:
        if self.filled < context:
            # A recurrent state cannot be cut back to what is filled: start over.
            self._run(0 if self.runtime.states else self.filled, context)
            self.filled = context
            if self.runtime.states:
                self.runtime.states.save(0, context, 0)
                self.saved = context

    def _rewind(self, context: int) -> None:
        """Return to the state after `context` tokens, if there is one. (At the start there is none.)"""
        if not self.runtime.states or not context:
            return
        if self.saved != context:
            self.filled = 0
            self._fill(context)
        self.runtime.states.restore(0, 0)

    def _run(self, start: int, stop: int) -> None:
        for at in range(start, stop, self.runtime.max_rows):
            width = min(self.runtime.max_rows, stop - at)
            last = at + width == stop
            self._step(at, width, np.array([width - 1] if last else [], np.int32))

    def _step(self, at: int, width: int, wanted: Int) -> None:
        positions = np.arange(at, at + width, dtype=np.int32)
        rows = self.tokens[at : at + width]
        self.runtime.step(rows, positions, np.zeros(width, np.int32), self.table[None, :], wanted)
