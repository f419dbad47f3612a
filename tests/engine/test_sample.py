"""Choosing tokens, against plain definitions."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from fulgur.engine.draw import Room, draw
from fulgur.engine.params import SamplingParams
from fulgur.engine.sample import Sampler, Scratch, mix, token_logprob, uniform

VOCAB = 40


def row(seed: int, ties: bool = False) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(0, 2, VOCAB).astype(np.float32)
    return np.round(logits) if ties else logits


def plain_distribution(logits: np.ndarray, params: SamplingParams) -> dict[int, float]:
    """Token → probability, by the definitions, one token at a time."""
    peak = max(logits.tolist())
    weights = {i: math.exp((x - peak) / params.temperature) for i, x in enumerate(logits.tolist())}
    weights = {i: w for i, w in weights.items() if w >= params.min_p - 1e-12}
    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    if params.top_k:
        ranked = ranked[: params.top_k]
    total, mass, kept = sum(weights[i] for i in ranked), 0.0, []
    for i in ranked:
        kept.append(i)
        mass += weights[i]
        if mass >= params.top_p * total - 1e-12:
            break
    return {i: weights[i] / mass for i in kept}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.3),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.3, top_k=7),
        SamplingParams(temperature=1.0, top_p=0.5),
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(temperature=2.0, top_k=12, top_p=0.8, min_p=0.02),
        SamplingParams(temperature=1.0, top_k=1000),
    ],
)
def test_draw_inverts_the_distribution(params: SamplingParams, ties: bool) -> None:
    for seed in range(5):
        logits = row(seed, ties)
        expected = plain_distribution(logits, params)
        steps = 4000
        drawn = [draw(logits, params, (i + 0.5) / steps) for i in range(steps)]
        assert set(drawn) <= set(expected)
        for token, probability in expected.items():
            assert abs(drawn.count(token) / steps - probability) < 3 / steps


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_top_p_of_a_large_vocabulary(scale: float) -> None:
    """With a sharp distribution only its head is sorted, with a flat one everything: the choice is the same."""
    logits = np.random.default_rng(1).normal(0, scale, 9000).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.6)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    order = np.argsort(-weights, kind="stable")
    mass = np.cumsum(weights[order])
    kept = int(np.searchsorted(mass, 0.6 * mass[-1])) + 1
    for u in np.linspace(0, 0.9999, 50):
        assert draw(logits, params, float(u)) == order[np.searchsorted(mass[:kept], u * mass[kept - 1], side="right")]


def test_all_of_a_large_vocabulary_is_inverted_in_order() -> None:
    logits = np.random.default_rng(2).normal(0, 3, 1000).astype(np.float32)
    logits[[0, 255, 256, 999]] = -np.inf
    params, room = SamplingParams(temperature=0.7), Room(1000)
    mass = np.cumsum(np.exp((logits.astype(np.float64) - logits.max()) / 0.7))
    middles = (mass - np.diff(mass, prepend=0.0) / 2) / mass[-1]  # of each token's part
    draw(row(1), params, 0.5, Room(VOCAB))
    for token in np.flatnonzero(np.diff(mass, prepend=0.0) > 1e-5 * mass[-1]):
        assert draw(logits, params, float(middles[token]), room) == token
    assert draw(logits, params, 0.0, room) == 1
    assert logits[draw(logits, params, math.nextafter(1.0, 0.0), room)] > -np.inf


def test_draw_at_the_edges() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[[3, 9]] = 1.0
    params = SamplingParams(temperature=0.7)
    assert draw(logits, params, 0.0) == 3
    assert draw(logits, params, math.nextafter(1.0, 0.0)) == 9
    assert draw(logits, SamplingParams(temperature=0.7, top_k=5), 0.999) == 9
    assert draw(row(1), SamplingParams(temperature=1e-6), 0.5) == int(row(1).argmax())


def test_numbers_of_a_seed_are_even_and_its_own() -> None:
    numbers = [uniform(7, position) for position in range(20000)]
    assert all(0.0 <= u < 1.0 for u in numbers)
    assert abs(np.mean(numbers) - 0.5) < 0.01 and abs(np.var(numbers) - 1 / 12) < 0.005
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03
    other = [uniform(8, position) for position in range(20000)]
    assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.03
    assert uniform(7, 3) == numbers[3] and len({mix(i) for i in range(1000)}) == 1000


def test_penalties_follow_their_formulas() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0)
    sampler = Sampler(params, 0, Scratch(VOCAB), prompt=[1, 2])
    for token in (5, 5, 6):
        sampler.note(token)
    for seed in range(50):
        logits = row(seed)
        expected = []
        for i, x in enumerate(logits.tolist()):
            if i in (1, 2, 5, 6):
                x = x / 2.0 if x > 0 else x * 2.0
            count = {5: 2, 6: 1}.get(i, 0)
            expected.append(x - 0.25 * count - 0.5 * (count > 0))
        before = logits.copy()
        assert sampler.choose(logits, 0, None) == (int(np.argmax(np.float32(expected))), None)
        assert (logits == before).all()


def test_a_bias_is_added_to_its_tokens() -> None:
    logits = row(1)
    best, other = int(logits.argmax()), int(logits.argmin())
    for bias, chosen in (((other, 100.0),), other), (((best, -100.0), (other, 100.0)), other), (((best, 1.0),), best):
        params = SamplingParams(logit_bias=bias)
        assert params.needs_logits
        assert Sampler(params, 0, Scratch(VOCAB), []).choose(logits, 0, None) == (chosen, None)
    biased = SamplingParams(temperature=1.0, logit_bias=((best, -100.0),))
    hot = Sampler(biased, 0, Scratch(VOCAB, device_samples=True), [])
    assert hot.on_device is not None and not hot.on_device.plain
    assert best not in {hot.choose(logits, position, None)[0] for position in range(200)}


def test_logprobs_are_those_of_the_model() -> None:
    logits = row(3)
    probabilities = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()
    told = token_logprob(logits, 7, 3)
    assert told.logprob == pytest.approx(math.log(probabilities[7]))
    best = sorted(range(VOCAB), key=lambda i: -probabilities[i])[:3]
    assert [token for token, _ in told.top] == best
    assert [value for _, value in told.top] == pytest.approx([math.log(probabilities[i]) for i in best])
    assert token_logprob(logits, 7, 0).top == ()
    assert len(token_logprob(logits, 7, 100).top) == VOCAB
    hot = Sampler(SamplingParams(temperature=5.0, frequency_penalty=1.0, logprobs=1), 1, Scratch(VOCAB), [])
    token, logprob = hot.choose(logits, 4, None)
    assert logprob == token_logprob(logits, token, 1)


def test_a_choice_depends_on_seed_and_position_only() -> None:
    params = SamplingParams(temperature=1.0)
    first, second = Sampler(params, 11, Scratch(VOCAB), []), Sampler(params, 11, Scratch(VOCAB), [1, 2, 3])
    positions = list(range(60))
    answers = [first.choose(row(p), p, None) for p in positions]
    random.Random(0).shuffle(positions)
    assert {p: second.choose(row(p), p, None) for p in positions} == dict(enumerate(answers))
    other = Sampler(params, 12, Scratch(VOCAB), [])
    assert [other.choose(row(p), p, None) for p in range(60)] != answers
