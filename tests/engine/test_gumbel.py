"""Drawing with Gumbel noise: the distribution that the other sampler inverts, of nothing but seed and position."""

from __future__ import annotations

import numpy as np
import pytest

from fulgur.engine.gumbel import Gumbel, mix, natural_log
from fulgur.engine.params import SamplingParams
from fulgur.engine.runtime import Sampling
from fulgur.engine.sample import Sampler, Scratch, gumbel_choice, uniform

DRAWS = 20_000


def counts(tokens: list[int], size: int) -> np.ndarray:
    return np.bincount(tokens, minlength=size)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_the_distribution_is_the_softmax_and_that_of_the_plain_sampler(temperature: float) -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, 24).astype(np.float32)
    params = SamplingParams(temperature=temperature)
    device, host = (Sampler(params, 17, Scratch(24, device_samples=own), []) for own in (True, False))
    assert device.on_device is not None and host.on_device is None
    weights = np.exp(logits.astype(np.float64) / temperature)
    expected = DRAWS * weights / weights.sum()
    for sampler in (device, host):
        found = counts([sampler.choose(logits, position, None)[0] for position in range(DRAWS)], 24)
        # Chi-squared with 23 degrees of freedom: 58 is exceeded once in ten thousand. The seed is fixed.
        assert ((found - expected) ** 2 / expected).sum() < 58


def test_rare_tokens_come_as_often_as_they_should() -> None:
    """One likely token and 50,000 that share a thousandth: the tail of the noise is as long as it has to be."""
    size = 50_001
    logits = np.zeros(size, np.float32)
    logits[0] = np.log(1e3 * (size - 1))
    gumbel, sampling = Gumbel(size), Sampling(sharpness=1.0, seed=5)
    rare = sum(gumbel_choice(logits, sampling, position, gumbel) != 0 for position in range(1000 * 4))
    assert 0 < rare < 16  # 4 are expected; more than 15 once in a hundred thousand


def test_noise_differs_by_seed_position_and_token_and_is_gumbels() -> None:
    gumbel = Gumbel(40_000)
    one, other = gumbel.noise(mix(1)), gumbel.noise(mix(2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02 and abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.02
    assert len(np.unique(one)) > 39_900
    ordered = np.sort(one.astype(np.float64))
    distance = np.abs(np.exp(-np.exp(-ordered)) - (np.arange(40_000) + 0.5) / 40_000).max()
    assert distance < 0.0097  # Kolmogorov and Smirnov: once in a thousand for this many
    assert uniform(1, 2) == uniform(1, 2) != uniform(1, 3)


def test_the_logarithm() -> None:
    x = np.exp(np.linspace(-23, 3, 100_001)).astype(np.float32)
    exact = np.log(x.astype(np.float64))
    assert np.abs(natural_log(x) - exact).max() < 3e-6
    assert (np.diff(natural_log(x)) >= 0).all()
