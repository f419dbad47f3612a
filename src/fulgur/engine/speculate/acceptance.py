"""How likely a drafter's next guesses are to be right.

An estimate that may be wrong; only speed depends on it, never the output.
"""

from __future__ import annotations

_STARTS = (0, 1, 2, 3, 5, 8, 16, 32)  # lengths of a run of right guesses at which its chances change
_MEMORY = 64.0  # outcomes that an estimate remembers
_INHERITED = 12.0  # outcomes of earlier requests that a new one starts with
_WEIGHT = 4.0  # outcomes that a first guess counts for
_MOST = 0.988  # upper bound of a chance: the next edit will come, and a few dozen outcomes cannot tell how soon
SETTLED = _STARTS[-1]  # from here on the length of a run says nothing more
LEVEL = tuple(sum(run >= start for start in _STARTS) - 1 for run in range(SETTLED + 1))


class Acceptance:
    """The chance that the next guess is right, by how many were right before it."""

    __slots__ = ("_hits", "_trials", "misses")

    def __init__(self, prior: tuple[float, ...] | Acceptance) -> None:
        """`prior`: a chance for each level of runs, or what an earlier sequence has seen."""
        self.misses = 0
        if isinstance(prior, Acceptance):
            keep = [min(_INHERITED / trials, 1.0) for trials in prior._trials]
            self._trials: list[float] = [trials * k for trials, k in zip(prior._trials, keep, strict=True)]
            self._hits: list[float] = [hits * k for hits, k in zip(prior._hits, keep, strict=True)]
        else:
            self._trials = [_WEIGHT] * len(_STARTS)
            self._hits = [_WEIGHT * chance for chance in prior]

    def note(self, run: int, hit: bool) -> None:
        """After `run` right guesses, one more was right or not."""
        level = LEVEL[run] if run < SETTLED else -1
        trials = self._trials[level]
        if trials >= _MEMORY:
            self._hits[level] *= (_MEMORY - 1) / trials
            trials = _MEMORY - 1
        self._trials[level] = trials + 1
        if hit:
            self._hits[level] += 1
        else:
            self.misses += 1

    def note_hits(self, run: int, count: int) -> None:
        """After `run` right guesses, `count` more were right."""
        while count and run < SETTLED:
            self.note(run, True)
            run, count = run + 1, count - 1
        if count:
            total = self._trials[-1] + count
            keep = min(_MEMORY / total, 1.0)
            self._trials[-1] = total * keep
            self._hits[-1] = (self._hits[-1] + count) * keep

    def chance(self, run: int) -> float:
        """That the guess after `run` right ones is right."""
        level = LEVEL[run] if run < SETTLED else -1
        return min(self._hits[level] / self._trials[level], _MOST)

    def chances(self) -> list[float]:
        """By level."""
        return [min(hits / trials, _MOST) for hits, trials in zip(self._hits, self._trials, strict=True)]
