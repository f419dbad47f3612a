"""Guesses of the model's own head (MTP).

Unlike the other drafters it has to compute its guesses. So it counts right and wrong ones only when it was asked, and
its time is part of the cost of a draft. When its guesses are too bad to be worth that, it is still asked for one token
now and then, within a small fraction of the time: text changes, and prose is followed by code.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from fulgur.engine.speculate.acceptance import Acceptance
from fulgur.engine.speculate.cost import StepCost

PRIOR = (0.75, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3, 0.2)
_EXPLORE = 0.01  # fraction of the time for guesses that do not seem worth it


class HeadDrafter:
    """Follows `tokens`. `ask(n)` returns at most n guesses of what comes next. `run` is always 0: the chance of a guess
    depends on how many of the same draft come before it."""

    run = 0

    def __init__(
        self, ask: Callable[[int], list[int]], tokens: list[int], cost: StepCost, acceptance: Acceptance | None = None
    ) -> None:
        self.acceptance = acceptance or Acceptance(PRIOR)
        self._ask, self._tokens, self._cost = ask, tokens, cost
        self._guess: list[int] = []
        self._at = 0  # where in the tokens the guess begins
        self._budget = 0.0  # seconds
        self._counted = len(tokens)  # tokens that have been counted towards it

    def follow(self) -> None:
        """See how far the last guess was right."""
        for place, (guess, token) in enumerate(zip(self._guess, self._tokens[self._at :], strict=False)):
            self.acceptance.note(place, guess == token)
            if guess != token:
                break
        self._guess = []

    def draft(self, limit: int) -> list[int]:
        start = perf_counter()
        self._counted = len(self._tokens)
        self._at, self._guess = len(self._tokens), self._ask(limit)
        if self._guess:
            self._cost.observe_draft(len(self._guess), perf_counter() - start)
        return list(self._guess)

    def due(self) -> bool:
        """Whether one guess may be tried, after a step without any or a run of the device's loop."""
        cost = self._cost
        price = cost.draft_seconds + cost.seconds(2) - cost.seconds(1)
        made, self._counted = max(len(self._tokens) - self._counted, 1), len(self._tokens)
        self._budget += _EXPLORE * cost.seconds(1) * made
        if self._budget < price:
            return False
        self._budget = 0.0
        return True
