"""What a step costs by its number of rows, and which draft length pays off.

Only speed depends on these estimates, never the output.
"""

from __future__ import annotations

from bisect import bisect
from math import log2
from time import perf_counter

import numpy as np

from fulgur.engine.runtime import Runtime
from fulgur.engine.speculate.acceptance import LEVEL, SETTLED, Acceptance

# Step widths (rows) that are considered. Kernels take rows in blocks of 4, 12 or 16; these widths fill them.
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_INDEX = {width: i for i, width in enumerate(WIDTHS)}
_DEFAULT_SLOPE = 0.08  # each further row costs this fraction of a step, until it is measured
_OVERHEAD = 50e-6  # seconds of the engine's own work around a step
_LEAST = 1.05  # a draft must be this much faster than none, since estimates are no better than that,
_WORTH = 1.01  # and a longer one this much faster than a shorter one
_GAIN = 0.1  # weight of a new measurement of a width,
_AGING = 400.0  # plus the steps since the last one divided by this
_USUAL = 0.1  # relative change up to which a measurement says nothing about other widths
_GREAT = 0.25  # relative change above which every choice is made again
_OLD, _LONG = 96, 4096  # steps after which a width's cost may have changed; doubled at each trial, up to the second
_CLIMB = 2  # a step may be this many widths beyond the widest one with a fresh cost
_EXPLORE = 0.01  # fraction of the time that may be lost to trying widths that seem too expensive
_RISK = 0.1  # a trial is charged at least this fraction of its own cost, even if it promises a gain
_HOPE = 0.2  # a width is tried again if it promises this fraction of the best rate or more
_HOPELESS = 0.05  # a draft whose chance of being all right is below this gets no longer
# A measurement says something about neighbouring widths too: whether memory or arithmetic was slow then.
_SHARED = [[1.0 if a == b else 0.8 * 0.6 ** abs(log2(a / b)) for b in WIDTHS] for a in WIDTHS]
_TIMES = [[-(-b // a) for b in WIDTHS] for a in WIDTHS]  # steps of width a that do the work of one of width b


class StepCost:
    """Seconds of a step by width: measured at the start, then learnt from every step that runs.

    Each width has a separate estimate, because a change seldom affects all of them alike: losing the cache to a
    neighbour makes a step of one row slower and leaves one of twelve as it was. A width that seems too expensive and
    has not run for a long time is tried again, within a small budget. So a bad measurement does not last, and the
    search for one costs little.
    """

    def __init__(self, seconds: dict[int, float] | None = None) -> None:
        """`seconds`: measured times of some widths, with that of one row among them."""
        self.turn = 0  # steps observed
        self.surprises = 0  # and those among them that took far longer or shorter than expected
        self.trials = 0  # lengths chosen only to learn what they cost
        self._known = seconds is not None
        self._seconds = _interpolate(seconds or {1: 1.0})
        self._seen = [0] * len(WIDTHS)  # steps of that width, counted while they are few
        self._last = [0] * len(WIDTHS)  # the turn of the last one
        self._patience = [_OLD] * len(WIDTHS)  # turns without one after which it is tried again
        self._budget = 0.0  # seconds
        self._heirs: dict[str, Acceptance] = {}
        self._draft: float | None = None  # seconds that the model's own head takes for a guess

    def acceptance(self, kind: str, prior: tuple[float, ...]) -> Acceptance:
        """The acceptance of a new sequence's drafter; it starts from what the last drafter of its kind has seen."""
        made = Acceptance(self._heirs.get(kind, prior))
        self._heirs[kind] = made
        return made

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows, all of them decoding, took this long."""
        i = _INDEX.get(rows)
        if i is None:
            return
        costs = self._seconds
        if not self._known:
            self._known = True
            scale = seconds / costs[i]
            for j, cost in enumerate(costs):
                costs[j] = cost * scale
        else:
            # A pause of the machine is not a cost: one outlier moves the estimate a little, never much.
            surprise = min(seconds / costs[i], 2.0) - 1.0
            gain = _GAIN + (self.turn - self._last[i]) / _AGING
            if (seen := self._seen[i]) < 1 / _GAIN:
                self._seen[i] = seen + 1
                gain += 1 / (seen + 2)
            move = surprise * min(gain, 0.7)
            if abs(surprise) > _USUAL:
                self.surprises += abs(surprise) > _GREAT
                self._seconds = costs = [c + c * move * share for c, share in zip(costs, _SHARED[i], strict=True)]
                if surprise < 0:
                    self._patience = [_OLD] * len(WIDTHS)
            else:
                costs[i] += costs[i] * move
            self._hold(i)
        self.turn += 1
        self._last[i] = self.turn
        self._budget = min(self._budget + _EXPLORE * seconds, 4 * self._seconds[-1])

    @property
    def draft_seconds(self) -> float:
        """What one guess of the model's own head takes; a tenth of a step until it is measured."""
        return 0.1 * self._seconds[0] if self._draft is None else self._draft

    def observe_draft(self, tokens: int, seconds: float) -> None:
        """The model's own head took this long for `tokens` guesses."""
        # The head has one layer: a guess that took longer than a step of the model met a pause of the machine.
        each = min(seconds / tokens, self._seconds[0])
        known = each if self._draft is None else self._draft
        self._draft = known + (each - known) * (_GAIN if each > known else 0.5)

    def _hold(self, i: int) -> None:
        """Where older estimates contradict the one of this width, correct them: more rows never cost less, nor more
        than the steps of this width that would do the same work."""
        costs = self._seconds
        here = costs[i]
        if i and costs[i - 1] > here:
            costs[:i] = [min(cost, here) for cost in costs[:i]]
        if i + 1 < len(costs) and not here <= costs[i + 1] <= 2 * here:
            bounds = [here * times for times in _TIMES[i][i:]]
            costs[i:] = [min(max(cost, here), most) for cost, most in zip(costs[i:], bounds, strict=True)]

    def seconds(self, rows: int) -> float:
        """The estimate for any number of rows; never more than for a wider step."""
        i = _INDEX.get(rows)
        if i is not None:
            return self._seconds[i]
        if rows > WIDTHS[-1]:
            return self._seconds[-1] * rows / WIDTHS[-1]
        i = bisect(WIDTHS, rows)
        low, high = self._seconds[i - 1], self._seconds[i]
        return low + (high - low) * (rows - WIDTHS[i - 1]) / (WIDTHS[i] - WIDTHS[i - 1])

    def best_length(
        self, acceptance: Acceptance, run: int, limit: int, others: int = 0, each: float = 0.0
    ) -> tuple[int, float]:
        """The draft length with the most tokens a second, and how much it gains over none (0 when it gains nothing).

        The draft comes after `run` right guesses, and each guess in it takes `each` seconds to make. The `others`
        further sequences in the step are assumed to draft as much.
        """
        costs = [self.seconds((others + 1) * width) for width in WIDTHS] if others else self._seconds
        chances = acceptance.chances()
        base = costs[0] + _OVERHEAD
        tokens = reached = 1.0  # what the step is expected to yield; the chance that all of the draft is right
        best, most, bar = 0, 1.0, _LEAST
        trial, hope, yielded = 0, _HOPE, 0.0
        at = run
        fresh = 0  # the widest step that ran recently; one much wider is only tried
        for i in range(1, len(WIDTHS)):
            length = WIDTHS[i] - 1
            if length > limit or reached < _HOPELESS:
                break
            while at < run + length:
                reached *= chances[LEVEL[at] if at < SETTLED else -1]
                tokens += reached
                at += 1
            rate = tokens * base / (costs[i] + _OVERHEAD + length * each * (others + 1))
            age = self.turn - self._last[i]
            if age <= _OLD:
                fresh = i
            if rate > bar and i <= fresh + _CLIMB:
                best, most, bar = length, rate, rate * _WORTH
            elif rate > hope * most and age > self._patience[i]:
                trial, hope, yielded = i, rate / most, tokens
        if trial and not others:
            loss = max(yielded * base / most * (1 / hope - 1), _RISK * costs[trial])
            if loss < self._budget:
                self._budget -= loss
                self.trials += 1
                self._patience[trial] = min(2 * self._patience[trial], _LONG)
                return WIDTHS[trial] - 1, most
        return best, most - 1.0


def _interpolate(seconds: dict[int, float]) -> list[float]:
    """Estimates of all widths from the measured ones; beyond those, each row adds the average slope between them."""
    rows = sorted(seconds)
    last = seconds[rows[-1]]
    slope = (last - seconds[rows[0]]) / (rows[-1] - rows[0]) if len(rows) > 1 else _DEFAULT_SLOPE * last
    known = [min(seconds[other] for other in rows if other >= row) for row in rows]  # a wider step bounds a narrower
    return [float(np.interp(width, rows, known)) + slope * max(width - rows[-1], 0) for width in WIDTHS]


def measure_cost(runtime: Runtime, budget: float = 0.1) -> StepCost:
    """Time steps of a few widths on an idle runtime (its cache holds nothing yet), within about `budget` seconds."""
    order = (1, 1, 4, 12, 2, 8, 24, 3, 16, 32)  # a large model gets through only some: the telling widths first
    most = max(order)
    blocks = -(-most // runtime.block_tokens)
    if runtime.kv_blocks < blocks or runtime.max_context < most:
        return StepCost()
    table = np.arange(blocks, dtype=np.int32)[None, :]
    position = np.arange(most, dtype=np.int32)
    zeros = np.zeros(most, np.int32)
    best: dict[int, float] = {}
    end = perf_counter() + budget
    for _ in range(6):
        for width in order:
            rows = slice(0, width)
            start = perf_counter()
            runtime.step(zeros[rows], position[rows], zeros[rows], table, position[rows])
            now = perf_counter()
            best[width] = min(best.get(width, now - start), now - start)
            if now > end:
                return StepCost(best)
    return StepCost(best)
