"""Rotary tables: plain frequencies by hand, scalings by their defining properties (parity covers the numbers)."""

import math

import numpy as np

from fulgur.model.config import RopeScaling
from fulgur.model.random import tiny_config
from fulgur.model.rope import rope_frequencies, rope_tables


def test_plain_table_by_hand() -> None:
    cos, sin = rope_tables(tiny_config(), 5)
    assert cos.shape == sin.shape == (5, 8) and cos.dtype == np.float32
    for position in range(5):
        for pair in range(8):
            angle = position * 10000.0 ** (-2 * pair / 16)
            assert math.isclose(cos[position, pair], math.cos(angle), abs_tol=1e-6)
            assert math.isclose(sin[position, pair], math.sin(angle), abs_tol=1e-6)


def test_linear_divides_every_frequency() -> None:
    plain, _ = rope_frequencies(tiny_config())
    scaled, factor = rope_frequencies(tiny_config(rope_scaling=RopeScaling("linear", factor=4.0)))
    np.testing.assert_allclose(scaled, plain / 4, rtol=1e-6)
    assert factor == 1.0


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    plain, _ = rope_frequencies(tiny_config())
    scaling = RopeScaling("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=256)
    scaled, _ = rope_frequencies(tiny_config(rope_scaling=scaling))
    wave = 2 * np.pi / plain
    np.testing.assert_allclose(scaled[wave < 64], plain[wave < 64], rtol=1e-6)
    np.testing.assert_allclose(scaled[wave > 256], plain[wave > 256] / 8, rtol=1e-6)
    between = (wave >= 64) & (wave <= 256)
    assert between.any() and ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_yarn_folds_its_attention_factor_into_the_tables() -> None:
    scaling = RopeScaling("yarn", factor=4.0, original_context=128)
    cos, sin = rope_tables(tiny_config(rope_scaling=scaling), 3)
    np.testing.assert_allclose(cos**2 + sin**2, (0.1 * math.log(4.0) + 1.0) ** 2, rtol=1e-5)
    fixed = RopeScaling("yarn", factor=4.0, original_context=128, attention_factor=0.5)
    cos, _ = rope_tables(tiny_config(rope_scaling=fixed), 1)
    np.testing.assert_allclose(cos, 0.5)
