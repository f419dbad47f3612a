"""How long a draft should be: what is usually accepted, against what a wider step costs.

Both are estimates and may be wrong or differ from run to run; only speed depends on them, never the output.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from fulgur.engine.runtime import Runtime

_RUNS = (2, 6, 16)  # lengths of a run of right guesses at which its chances change
_PRIOR = (0.4, 0.6, 0.8, 0.9)
_MEMORY = 24.0  # outcomes that an estimate remembers
WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)
_DEFAULT_SLOPE = 0.08  # a further row costs this share of a step, until it is measured


class Acceptance:
    """The chance that the next guess is right, by how many were right before it."""

    __slots__ = ("_hits", "_trials")

    def __init__(self) -> None:
        self._trials = [4.0] * len(_PRIOR)
        self._hits = [4.0 * chance for chance in _PRIOR]

    def note(self, run: int, hit: bool) -> None:
        level = _level(run)
        trials = self._trials[level]
        if trials >= _MEMORY:
            self._hits[level] *= (_MEMORY - 1) / trials
            trials = _MEMORY - 1
        self._trials[level] = trials + 1
        if hit:
            self._hits[level] += 1

    def chance(self, run: int) -> float:
        level = _level(run)
        return self._hits[level] / self._trials[level]


def _level(run: int) -> int:
    if run < _RUNS[0]:
        return 0
    if run < _RUNS[1]:
        return 1
    return 2 if run < _RUNS[2] else 3


class StepCost:
    """Seconds of a step by its number of rows: measured at start, then learnt from the steps that are run."""

    def __init__(self, seconds: dict[int, float] | None = None) -> None:
        known = seconds or {1: 1.0}
        base = known.get(1) or min(known.values())
        rows = sorted(known)
        self._seconds = [
            float(np.interp(width, rows, [known[r] for r in rows]))
            if len(rows) > 1 and width <= rows[-1]
            else known[rows[-1]] * (1 + _DEFAULT_SLOPE * (width - 1)) / (1 + _DEFAULT_SLOPE * (rows[-1] - 1))
            for width in WIDTHS
        ]
        self._seconds[0] = base
        self._measured = [seconds is not None] * len(WIDTHS)
        self._bucket = [0] * (WIDTHS[-1] + 1)
        for width in range(1, WIDTHS[-1] + 1):
            self._bucket[width] = max(i for i, w in enumerate(WIDTHS) if w <= width)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows, all of them decoding, took this long."""
        if rows > WIDTHS[-1]:
            return
        i = self._bucket[rows]
        if WIDTHS[i] != rows:
            return
        if self._measured[i]:
            # A pause of the machine is not a cost: one outlier moves the estimate a little, never much.
            old = self._seconds[i]
            self._seconds[i] = old + 0.1 * (min(seconds, 2 * old) - old)
            return
        self._measured[i] = True
        ratio = seconds / self._seconds[i]
        self._seconds = [
            seconds if j == i else old if self._measured[j] else old * ratio for j, old in enumerate(self._seconds)
        ]

    def seconds(self, rows: int) -> float:
        """The estimate for any number of rows."""
        if rows <= WIDTHS[-1]:
            i = self._bucket[rows]
            low = self._seconds[i]
            if WIDTHS[i] == rows:
                return low
            span = WIDTHS[i + 1] - WIDTHS[i]
            return low + (self._seconds[i + 1] - low) * (rows - WIDTHS[i]) / span
        return self._seconds[-1] * rows / WIDTHS[-1]

    def best_length(self, chance: float, limit: int, others: int = 0) -> tuple[int, float]:
        """The draft length with the most tokens a second, and how much it gains over none (0 when it gains nothing).

        `others` further sequences in the step are taken to draft as much as this one.
        """
        sequences = others + 1
        base = self.seconds(sequences)
        best, gain = 0, 1.0
        expected, power, done = 1.0, 1.0, 0
        for width in WIDTHS[1:]:
            length = width - 1
            if length > limit:
                break
            while done < length:
                power *= chance
                expected += power
                done += 1
            rate = expected * base / self.seconds(sequences * width)
            if rate > gain:
                best, gain = length, rate
        return best, gain - 1.0


def measure_cost(runtime: Runtime, budget: float = 0.1) -> StepCost:
    """Time steps of a few widths on an idle runtime (its cache holds nothing yet), within about `budget` seconds."""
    blocks = -(-WIDTHS[-1] // runtime.block_tokens)
    if runtime.kv_blocks < blocks or runtime.max_context < WIDTHS[-1]:
        return StepCost()
    table = np.arange(blocks, dtype=np.int32)[None, :]
    position = np.arange(WIDTHS[-1], dtype=np.int32)
    zeros = np.zeros(WIDTHS[-1], np.int32)
    best: dict[int, float] = {}
    end = perf_counter() + budget
    for _ in range(4):
        for width in (1, 2, 4, 8, 16, 32):
            rows = slice(0, width)
            start = perf_counter()
            runtime.step(zeros[rows], position[rows], zeros[rows], table, position[rows])
            now = perf_counter()
            best[width] = min(best.get(width, now - start), now - start)
            if now > end and 1 in best:
                return StepCost(best)
    return StepCost(best)
