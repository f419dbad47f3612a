"""Which drafter speaks, and how long its draft may be."""

from __future__ import annotations

from typing import Protocol

from fulgur.engine.speculate.adapt import Acceptance, StepCost
from fulgur.engine.speculate.ngram import NgramDrafter
from fulgur.engine.speculate.source import SourceDrafter


class Drafter(Protocol):
    """Follows a sequence's token list (which only grows) and guesses what comes next.

    `run` is how many guesses in a row were right, -1 without a guess. A drafter counts in `acceptance` whether each
    next token was the one it expected, asked or not: the length of a draft needs no experiment.
    """

    run: int
    acceptance: Acceptance

    def follow(self) -> None: ...

    def draft(self, limit: int) -> list[int]: ...


class Speculator:
    """The drafters of one sequence: the source region first if there is one, else repetition in the context."""

    def __init__(self, tokens: list[int], source: list[int] | None, cost: StepCost, max_draft: int) -> None:
        self._cost = cost
        self._max_draft = max_draft
        self.drafters: list[Drafter] = [NgramDrafter(tokens)]
        if source:
            self.drafters.insert(0, SourceDrafter(source, tokens))

    def draft(self, limit: int, others: int = 0) -> list[int]:
        """At most `limit` guesses that are worth their rows, when the step already has `others` sequences besides."""
        limit = min(limit, self._max_draft)
        best: list[int] = []
        best_gain = 0.0
        for drafter in self.drafters:
            drafter.follow()
            if drafter.run >= 0 and limit > 0:
                chance = drafter.acceptance.chance(drafter.run)
                length, gain = self._cost.best_length(chance, limit, others)
                if gain > best_gain:
                    draft = drafter.draft(length)
                    if draft:
                        best, best_gain = draft, gain
        return best

    def restart(self) -> None:
        """After a steer the answer begins anew: the source region is followed from its start."""
        for drafter in self.drafters:
            if isinstance(drafter, SourceDrafter):
                drafter.restart()
