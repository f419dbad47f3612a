"""How long a draft should be: what is usually accepted, against what a wider step costs.

Both are estimates and may be wrong or differ from run to run; only speed depends on them, never the output.
"""

from __future__ import annotations

from bisect import bisect
from time import perf_counter

import numpy as np

from fulgur.engine.runtime import Runtime

_RUNS = (2, 6, 16)  # lengths of a run of right guesses at which its chances change
_PRIOR = (0.4, 0.6, 0.8, 0.9)
_MEMORY = 24.0  # outcomes that an estimate remembers
WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)  # the rows of steps that are considered
_INDEX = {width: i for i, width in enumerate(WIDTHS)}
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
    """What a step costs by its number of rows, relative to one row: measured at start, then learnt from what is run.

    A change that all widths share (a busier machine, a longer context) moves the speed, one that is peculiar to a width
    its ratio. A width that is never run grows cheaper in the books, little by little, until it is tried again: a bad
    measurement does not last.
    """

    def __init__(self, seconds: dict[int, float] | None = None) -> None:
        """`seconds`: measured times of some widths, with that of one row among them."""
        self._speed = 0.0 if seconds is None else seconds[1]  # seconds of one row; 0: not known yet
        self._ratio = [1 + _DEFAULT_SLOPE * (width - 1) for width in WIDTHS]
        if seconds is not None:
            rows = sorted(seconds)
            for i, width in enumerate(WIDTHS):
                known = float(np.interp(min(width, rows[-1]), rows, [seconds[r] / seconds[1] for r in rows]))
                beyond = (1 + _DEFAULT_SLOPE * (width - 1)) / (1 + _DEFAULT_SLOPE * (min(width, rows[-1]) - 1))
                self._ratio[i] = max(known * beyond, 1.0)
        self._stale = [False] * len(WIDTHS)
        self._turn = 0

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows, all of them decoding, took this long."""
        i = _INDEX.get(rows)
        if i is None:
            return
        if self._speed == 0.0:
            self._speed = seconds / self._ratio[i]
        # A pause of the machine is not a cost: one outlier moves the estimate a little, never much.
        surprise = min(max(seconds / (self._speed * self._ratio[i]), 0.25), 4.0)
        self._speed *= surprise**0.1
        if i:
            self._ratio[i] = max(self._ratio[i] * surprise ** (0.8 if self._stale[i] else 0.05), 1.0)
        self._stale[i] = False
        self._turn = turn = (self._turn + 1) % len(WIDTHS)
        if turn and turn != i:
            self._ratio[turn] = max(self._ratio[turn] * 0.97, 1.0)
            self._stale[turn] = True

    def seconds(self, rows: int) -> float:
        """The estimate for any number of rows."""
        return (self._speed or 1.0) * self.ratio(rows)

    def ratio(self, rows: int) -> float:
        """The cost of that many rows relative to one."""
        i = _INDEX.get(rows)
        if i is not None:
            return self._ratio[i]
        if rows > WIDTHS[-1]:
            return self._ratio[-1] * rows / WIDTHS[-1]
        i = bisect(WIDTHS, rows)
        low, high = self._ratio[i - 1], self._ratio[i]
        return low + (high - low) * (rows - WIDTHS[i - 1]) / (WIDTHS[i] - WIDTHS[i - 1])

    def best_length(self, chance: float, limit: int, others: int = 0) -> tuple[int, float]:
        """The draft length with the most tokens a second, and how much it gains over none (0 when it gains nothing).

        `others` further sequences in the step are taken to draft as much as this one.
        """
        sequences = others + 1
        base = self.ratio(sequences)
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
            rate = expected * base / self.ratio(sequences * width)
            if rate > gain:
                best, gain = length, rate
        return best, gain - 1.0


def measure_cost(runtime: Runtime, budget: float = 0.1) -> StepCost:
    """Time steps of a few widths on an idle runtime (its cache holds nothing yet), within about `budget` seconds."""
    widths = (1, 2, 4, 8, 16, 32)
    blocks = -(-widths[-1] // runtime.block_tokens)
    if runtime.kv_blocks < blocks or runtime.max_context < widths[-1]:
        return StepCost()
    table = np.arange(blocks, dtype=np.int32)[None, :]
    position = np.arange(widths[-1], dtype=np.int32)
    zeros = np.zeros(widths[-1], np.int32)
    best: dict[int, float] = {}
    end = perf_counter() + budget
    for attempt in range(6):
        for width in widths:
            rows = slice(0, width)
            start = perf_counter()
            runtime.step(zeros[rows], position[rows], zeros[rows], table, position[rows])
            now = perf_counter()
            if attempt or now > end:  # the first round warms up
                best[width] = min(best.get(width, now - start), now - start)
            if now > end:
                return StepCost(best if 1 in best else None)
    return StepCost(best)
