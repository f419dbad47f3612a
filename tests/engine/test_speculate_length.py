"""How long drafts are: what is accepted, what steps cost, and that speculation never costs more than it brings."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from toy import ToyRuntime

from fulgur.engine.speculate.acceptance import SETTLED, Acceptance
from fulgur.engine.speculate.cost import WIDTHS, StepCost, measure_cost
from fulgur.engine.speculate.source import PRIOR
from fulgur.engine.speculate.speculator import Speculator

AROUND = 40e-6  # seconds
Table = Callable[[int], float]  # rows -> seconds


def memory_bound(rows: int) -> float:
    """A model that streams from memory: a few rows ride along, then arithmetic counts."""
    return max(0.8e-3, 0.15e-3 + 0.22e-3 * rows)


def in_cache(rows: int) -> float:
    """The same one in the cache."""
    return max(0.43e-3, 0.15e-3 + 0.22e-3 * rows)


def dear(rows: int) -> float:
    """Every row costs as much as the first: no draft can ever pay."""
    return 0.5e-3 * rows


def cheap(rows: int) -> float:
    return 1e-3 * (1 + 0.01 * (rows - 1))


TABLES = {"memory": memory_bound, "cache": in_cache, "dear": dear, "cheap": cheap}


def measured(table: Table, factor: float = 1.0) -> StepCost:
    """As `measure_cost` leaves it; `factor`: how wrong wide steps were measured."""
    return StepCost({rows: table(rows) * (factor if rows > 1 else 1.0) for rows in (1, 2, 3, 4, 8, 12, 16, 24, 32)})


def speedup(
    source: list[int], output: list[int], table: Table, cost: StepCost, widths: Counter[int] | None = None
) -> float:
    """Write `output` as an engine would, on a clock that the table moves; times faster than single steps.

    The engine's own work around a step is on the clock too, with drafts and without.
    """
    tokens = [900, 901, *source, 902]
    speculator = Speculator(tokens, source, cost, 32)
    clock, done = 0.0, 0
    while done < len(output):
        draft = speculator.draft(len(output) - done - 1)
        seconds = table(len(draft) + 1)
        cost.observe(len(draft) + 1, seconds)
        clock += seconds + AROUND
        right = 0
        while right < len(draft) and draft[right] == output[done + right]:
            right += 1
        tokens += output[done : done + right + 1]
        done += right + 1
        if widths is not None:
            widths[len(draft) + 1] += 1
    return len(output) * (table(1) + AROUND) / clock


def code(rng: random.Random, length: int) -> list[int]:
    return [rng.choice((1, 2, 3, 4)) if rng.random() < 0.4 else rng.randrange(10, 200) for _ in range(length)]


def edited(rng: random.Random, source: list[int], every: int) -> list[int]:
    """Insertions, deletions and changes, one in about `every` tokens."""
    output: list[int] = []
    at = 0
    while at < len(source):
        stretch = rng.randrange(1, 2 * every)
        output += source[at : at + stretch]
        at += stretch
        output += [rng.randrange(10, 400) for _ in range(rng.choice((0, 1, 3, 10)))]
        at += rng.choice((0, 1, 3))
    return output


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("every", [0, 3, 10, 40, 200])
@pytest.mark.parametrize("factor", [1.0, 0.3, 3.0])
def test_speculation_never_costs(name: str, every: int, factor: float) -> None:
    """Whatever verifying costs, whatever is accepted (nothing at `every` 0), however wrong the first measurement: that
    one may slow the first answer a little, and no other."""
    rng = random.Random(f"{name} {every}")
    source = code(rng, 600)
    output = edited(rng, source, every) if every else [rng.randrange(1000, 90000) for _ in range(600)]
    cost = measured(TABLES[name], factor)
    ratios = [speedup(source, output, TABLES[name], cost) for _ in range(4)]
    assert ratios[0] >= (0.97 if factor >= 1 else 0.9) and min(ratios[1:]) >= 0.97


@pytest.mark.parametrize(("name", "least"), [("memory", 2.5), ("cache", 1.5), ("cheap", 7.0)])
def test_it_pays_where_verifying_is_cheap(name: str, least: float) -> None:
    rng = random.Random(7)
    source = code(rng, 800)
    assert speedup(source, edited(rng, source, 60), TABLES[name], measured(TABLES[name])) >= least


def test_a_copy_goes_wide_at_once() -> None:
    widths: Counter[int] = Counter()
    source = code(random.Random(1), 300)
    assert speedup(source, source, cheap, measured(cheap), widths) > 15
    assert sum(widths.values()) <= 14 and widths[1] <= 1
    assert set(widths) - {1} <= {*WIDTHS, 300 - 31 * 9, *range(2, 32)}


def test_a_change_of_what_steps_cost_is_noticed() -> None:
    """A neighbour takes the cache and leaves it again: one row becomes dearer, wide steps hardly, and back."""
    rng = random.Random(2)
    source = code(rng, 400)
    output = edited(rng, source, 60)
    cost = measured(dear)
    assert speedup(source, output, dear, cost) >= 0.97
    for _ in range(3):
        speedup(source, output, memory_bound, cost)
    assert speedup(source, output, memory_bound, cost) >= 2.2
    assert speedup(source, output, dear, cost) >= 0.9  # the first steps after the change were chosen for the old costs
    assert speedup(source, output, dear, cost) >= 0.97


def sure(chance: float) -> Acceptance:
    return Acceptance((chance,) * len(PRIOR))


def test_longer_drafts_when_more_is_accepted_and_steps_are_cheap() -> None:
    cheap, dear = StepCost({1: 1.0, 32: 2.0}), StepCost({1: 1.0, 32: 32.0})
    lengths = [cheap.best_length(sure(chance), 0, 32)[0] for chance in (0.0, 0.3, 0.6, 0.9, 0.99)]
    assert lengths == sorted(lengths) and lengths[0] == 0 and lengths[-1] >= 23
    assert dear.best_length(sure(0.9), 0, 32) == (0, 0.0)
    assert cheap.best_length(sure(0.99), 0, 5)[0] <= 5
    assert cheap.best_length(sure(0.9), 0, 32, others=7)[0] <= cheap.best_length(sure(0.9), 0, 32)[0]


def test_a_longer_run_makes_a_longer_draft() -> None:
    cost = measured(memory_bound)
    lengths = [cost.best_length(Acceptance(PRIOR), run, 32)[0] for run in (0, 2, 5, 10, 40)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1] and lengths[-1] + 1 in WIDTHS


def test_costs_are_learnt_from_steps() -> None:
    cost = StepCost()
    cost.observe(1, 0.001)
    assert cost.seconds(1) == pytest.approx(0.001) and cost.seconds(10) < 0.003
    for _ in range(400):
        cost.observe(1, 0.001)
        cost.observe(8, 0.008)
    assert cost.seconds(1) == pytest.approx(0.001, rel=0.1) and cost.seconds(8) == pytest.approx(0.008, rel=0.1)
    assert cost.seconds(64) == pytest.approx(2 * cost.seconds(32))
    assert cost.seconds(8) <= cost.seconds(9) <= cost.seconds(10)
    before = cost.seconds(1)
    cost.observe(1, 5.0)  # a pause of the machine
    assert cost.seconds(1) < 1.2 * before
    for _ in range(200):  # the machine is slower from now on, for one row as for eight
        cost.observe(1, 0.003)
        cost.observe(8, 0.024)
    assert cost.seconds(1) == pytest.approx(0.003, rel=0.15) and cost.seconds(8) == pytest.approx(0.024, rel=0.2)


def test_more_rows_never_cost_less() -> None:
    cost = StepCost({1: 0.9e-3, 2: 0.8e-3, 4: 3e-3, 8: 2e-3, 32: 8e-3})
    costs = [cost.seconds(rows) for rows in range(1, 40)]
    assert costs == sorted(costs) and costs[0] == pytest.approx(0.8e-3) and costs[3] == pytest.approx(2e-3)


def test_a_wrong_first_measurement_does_not_last() -> None:
    cost = StepCost({1: 0.001, 32: 0.1})
    acceptance = sure(0.95)
    steps = 0
    while cost.best_length(acceptance, 0, 32)[0] == 0:
        cost.observe(1, 0.001)
        steps += 1
        assert steps < 10_000
    for _ in range(1500):
        width = cost.best_length(acceptance, 0, 32)[0] + 1
        cost.observe(width, 0.001 * (1 + 0.02 * (width - 1)))
    assert cost.best_length(acceptance, 0, 32)[0] >= 11


def test_trying_what_seems_too_dear_is_cheap() -> None:
    cost, acceptance = measured(dear), sure(0.6)
    spent = tokens = 0.0
    for _ in range(5000):
        length = cost.best_length(acceptance, 0, 32)[0]
        cost.observe(length + 1, dear(length + 1))
        spent += dear(length + 1)
        tokens += sum(0.6**i for i in range(length + 1))
    assert spent <= 1.015 * tokens * dear(1)


def test_acceptance_follows_what_happens_and_forgets() -> None:
    acceptance = Acceptance(PRIOR)
    for _ in range(200):
        acceptance.note(0, False)
    assert acceptance.chance(0) < 0.05 and acceptance.chance(20) == pytest.approx(PRIOR[6])
    for _ in range(200):
        acceptance.note(0, True)
    assert acceptance.chance(0) > 0.9


@pytest.mark.parametrize("run", [0, 5, SETTLED, SETTLED + 9])
def test_hits_in_bulk_are_hits(run: int) -> None:
    one, bulk = Acceptance(PRIOR), Acceptance(PRIOR)
    for i in range(10):
        one.note(run + i, True)
    bulk.note_hits(run, 10)
    assert bulk.chances() == pytest.approx(one.chances(), abs=1e-3)


def test_a_new_sequence_starts_from_what_the_last_one_saw() -> None:
    cost = StepCost()
    first = cost.acceptance("source", PRIOR)
    for _ in range(100):
        first.note(0, False)
    second = cost.acceptance("source", PRIOR)
    assert second.chance(0) == pytest.approx(first.chance(0)) and cost.acceptance("ngram", PRIOR).chance(0) == PRIOR[0]
    for _ in range(20):
        second.note(0, True)
    assert second.chance(0) > 0.5  # it is free to differ


def test_measuring_leaves_a_usable_cost() -> None:
    runtime = ToyRuntime()
    cost = measure_cost(runtime, budget=0.01)
    assert runtime.steps >= 1 and cost.seconds(1) > 0 and cost.seconds(33) > 0
    assert measure_cost(ToyRuntime(max_context=16)).seconds(1) > 0
    assert measure_cost(ToyRuntime(), budget=0.0).seconds(8) > 0
