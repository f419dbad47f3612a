"""How long the model's own drafts are: by how often they are right and what they cost, on a simulated machine."""

from __future__ import annotations

import random

import pytest

from fulgur.engine.speculate import Speculator, StepCost, head

STEP, ROW, GUESS = 1.0, 0.12, 0.08  # seconds of a step, of a further row in it, of a guess


class Machine:
    """Plain text that n-grams cannot guess, of which the head knows each next token with some chance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> None:
        self.now, self.rng, self.chance = 0.0, random.Random(seed), 0.0
        self.tokens = [0]
        self.longest = 0
        self.cost = StepCost({1: STEP, 2: STEP + ROW, 4: STEP + 3 * ROW, 32: STEP + 31 * ROW})
        monkeypatch.setattr(head, "perf_counter", lambda: self.now)
        self.speculator = Speculator(self.tokens, None, self.cost, 32, self.guess)

    def truth(self, at: int) -> int:
        return at  # every token is new

    def guess(self, limit: int) -> list[int]:
        self.now += GUESS * limit
        at = len(self.tokens)
        return [self.truth(at + i) if self.rng.random() < self.chance else -1 for i in range(limit)]

    def speed(self, tokens: int, chance: float) -> float:
        """Tokens a second, over that of plain decoding."""
        self.chance, start, end = chance, self.now, len(self.tokens) + tokens
        first = len(self.tokens)
        while len(self.tokens) < end:
            draft = self.speculator.draft(32)
            self.longest = max(self.longest, len(draft))
            seconds = STEP + ROW * len(draft)
            self.now += seconds
            self.cost.observe(len(draft) + 1, seconds)
            for guess in [*draft, None]:
                self.tokens.append(self.truth(len(self.tokens)))
                if guess != self.tokens[-1]:
                    break
        return (len(self.tokens) - first) * STEP / (self.now - start)


@pytest.mark.parametrize("chance", [0.0, 0.05, 0.15])
def test_bad_guesses_cost_next_to_nothing(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machine(monkeypatch).speed(600, chance) > 0.97


@pytest.mark.parametrize(("chance", "least"), [(0.66, 1.25), (0.8, 1.5), (0.93, 2.0)])
def test_good_guesses_pay(chance: float, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.speed(200, chance)
    assert machine.speed(600, chance) > least
    assert machine.longest > 3


def test_the_length_follows_a_change_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.speed(400, 0.02)
    machine.speed(400, 0.93)  # prose gave way to code
    assert machine.speed(400, 0.93) > 2.0
    machine.speed(100, 0.02)
    assert machine.speed(400, 0.02) > 0.97


def test_a_copy_of_the_context_beats_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """One choice a step: what costs nothing to guess and is right as often is taken."""
    machine = Machine(monkeypatch)
    machine.truth = lambda at: at % 40  # type: ignore[method-assign]
    machine.speed(200, 0.9)
    before = machine.now
    asked = machine.rng.getstate()
    machine.speed(200, 0.9)
    assert machine.rng.getstate() == asked, "the head was asked"
    assert (machine.now - before) / 200 < 0.4


def test_a_pause_while_guessing_is_soon_forgotten() -> None:
    cost = StepCost({1: STEP})
    cost.observe_draft(1, 50.0)
    assert cost.draft_seconds <= STEP
    for _ in range(6):
        cost.observe_draft(2, 2 * GUESS)
    assert cost.draft_seconds < 1.3 * GUESS
