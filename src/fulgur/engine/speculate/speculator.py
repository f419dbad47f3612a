"""Chooses the drafter of each step and the length of its draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from fulgur.engine.speculate.acceptance import LEVEL, SETTLED, Acceptance
from fulgur.engine.speculate.cost import StepCost
from fulgur.engine.speculate.head import PRIOR as HEAD_PRIOR
from fulgur.engine.speculate.head import HeadDrafter
from fulgur.engine.speculate.ngram import PRIOR as NGRAM_PRIOR
from fulgur.engine.speculate.ngram import NgramDrafter
from fulgur.engine.speculate.source import PRIOR as SOURCE_PRIOR
from fulgur.engine.speculate.source import SourceDrafter

_TRUSTED = 8  # right guesses in a row after which no other drafter is asked
_VALID = 16  # steps for which a choice of length is reused,
_MISSES = 4  # if no more guesses than these were wrong and no step was a surprise
_Choice: TypeAlias = tuple[tuple[int, int, int], int, int, float]  # what it depends on, its last turn, length, gain


class Drafter(Protocol):
    """Follows a sequence's token list (which only grows) and guesses what comes next.

    `run` is how many guesses in a row were right, -1 without a guess. A drafter counts in `acceptance` whether each
    next token was the one it expected, even when it was not asked for a draft. So only the cost of a step has to be
    learnt by experiment, not what would be accepted.
    """

    run: int
    acceptance: Acceptance

    def follow(self) -> None: ...

    def draft(self, limit: int) -> list[int]: ...


class Speculator:
    """The drafters of one sequence: the source region first if there is one, repetition in the context, then the
    model's own head (`own`) if it has one. Each step takes the draft that promises the most tokens a second."""

    def __init__(
        self,
        tokens: list[int],
        source: list[int] | None,
        cost: StepCost,
        max_draft: int,
        own: Callable[[int], list[int]] | None = None,
    ) -> None:
        self._cost = cost
        self._max_draft = max_draft
        self.drafters: list[Drafter] = [NgramDrafter(tokens, cost.acceptance("ngram", NGRAM_PRIOR))]
        if source:
            self.drafters.insert(0, SourceDrafter(source, tokens, cost.acceptance("source", SOURCE_PRIOR)))
        self._head = None if own is None else HeadDrafter(own, tokens, cost, cost.acceptance("head", HEAD_PRIOR))
        if self._head is not None:  # last: its guesses cost time, so it is asked only when it is the best
            self.drafters.append(self._head)
        self._choices: list[dict[int, _Choice]] = [{} for _ in self.drafters]

    def draft(self, limit: int, others: int = 0) -> list[int]:
        """At most `limit` guesses that are worth their rows, in a step that has `others` further sequences."""
        best: list[int] = []
        best_gain = 0.0
        for drafter, length, gain in self._options(limit, others):
            if gain > best_gain and (draft := drafter.draft(length)):
                best, best_gain = draft, gain
        if not best and limit > 0 and self._max_draft > 0 and self._head is not None and self._head.due():
            return self._head.draft(1)
        return best

    def worth(self, limit: int, others: int = 0) -> int:
        """How long the next draft would be. Works while the device is busy: the model's own head does not run."""
        best, best_gain = 0, 0.0
        for drafter, length, gain in self._options(limit, others):
            if gain > best_gain:
                length = length if drafter is self._head else len(drafter.draft(length))
                best, best_gain = (length, gain) if length else (best, best_gain)
        return best

    def _options(self, limit: int, others: int) -> Iterator[tuple[Drafter, int, float]]:
        """The drafters that may be asked, each with the best length of its draft and what it gains."""
        limit = min(limit, self._max_draft)
        for drafter, choices in zip(self.drafters, self._choices, strict=True):
            if limit <= 0:
                return
            drafter.follow()
            run = drafter.run
            if run < 0:
                continue
            each = self._cost.draft_seconds if drafter is self._head else 0.0
            yield (drafter, *self._choose(drafter.acceptance, choices, run, limit, others, each))
            if run >= _TRUSTED:
                return

    def _choose(
        self, acceptance: Acceptance, choices: dict[int, _Choice], run: int, limit: int, others: int, each: float
    ) -> tuple[int, float]:
        """The best length and its gain; an earlier choice is reused where little has changed."""
        level = LEVEL[run] if run < SETTLED else -1
        cost = self._cost
        state = (acceptance.misses // _MISSES, cost.surprises, others)
        known = choices.get(level)
        if known is not None and known[0] == state and cost.turn < known[1]:
            return min(known[2], limit), known[3]
        trials = cost.trials
        length, gain = cost.best_length(acceptance, run, self._max_draft, others, each)
        if cost.trials == trials:  # a trial is made once, so it is not remembered
            choices[level] = (state, cost.turn + _VALID, length, gain)
        return min(length, limit), gain

    def restart(self) -> None:
        """After a steer the answer starts over: follow the source region from its start."""
        for drafter in self.drafters:
            if isinstance(drafter, SourceDrafter):
                drafter.restart()
