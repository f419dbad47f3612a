"""Rotary positions: the cos and sin of every position and frequency, scaling included.

Pairs are (i, i + half of the rotated dimensions), the "rotate half" convention of Hugging Face's checkpoints.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig, RopeScaling


def rope_tables(config: ModelConfig, length: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """cos and sin, float32 [length, rotated dimensions // 2]; yarn's attention factor is folded in."""
    frequencies, attention = rope_frequencies(config)
    # Angles are float32, as in the training of the checkpoints; only their cos and sin are computed in double.
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies[None, :]
    wide = angles.astype(np.float64)
    return (np.cos(wide) * attention).astype(np.float32), (np.sin(wide) * attention).astype(np.float32)


def check_rope(config: ModelConfig) -> None:
    """Raise an error for a scaling that gives no angles: a logarithm of zero, one factor too few."""
    try:
        with np.errstate(all="ignore"):
            frequencies, attention = rope_frequencies(config)
        sane = bool(np.isfinite(frequencies).all()) and math.isfinite(attention)
    except (ArithmeticError, ValueError):
        sane = False
    if not sane:
        raise FulgurError(f"model config: invalid rope scaling {config.rope_scaling!r:.300}")


def query_scale(config: ModelConfig, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    """The factor on queries at these positions, besides 1 / sqrt(head_dim)."""
    if config.query_scaling is None:
        return np.ones(len(positions), np.float32)
    beta, context = config.query_scaling
    return (1 + beta * np.log1p(np.asarray(positions) // context)).astype(np.float32)


def rope_frequencies(config: ModelConfig) -> tuple[npt.NDArray[np.float32], float]:
    """The angle by which a position rotates each pair, float32 [pairs], and the factor on cos and sin."""
    dim = config.rotated
    plain = 1.0 / config.rope_theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    scaling, attention = config.rope_scaling, 1.0
    if scaling is None:
        scaled = plain
    elif scaling.kind == "linear":
        scaled = plain / scaling.factor
    elif scaling.kind == "llama3":
        scaled = _llama3(plain, scaling)
    elif scaling.kind == "yarn":
        scaled, attention = _yarn(plain, scaling, config), _yarn_attention(scaling)
    else:
        scaled = plain / np.asarray(scaling.factors, np.float64)
    return scaled.astype(np.float32), attention


def _llama3(plain: npt.NDArray[np.float64], scaling: RopeScaling) -> npt.NDArray[np.float64]:
    """Divide the frequencies of long waves by the factor, keep those of short ones, blend those between."""
    turns = scaling.original_context * plain / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1 - blend) * plain / scaling.factor + blend * plain


def _yarn(plain: npt.NDArray[np.float64], scaling: RopeScaling, config: ModelConfig) -> npt.NDArray[np.float64]:
    """Interpolate the dimensions that rotate rarely within the trained context, keep those that rotate often."""
    dim, base = config.rotated, config.rope_theta

    def dimension(turns: float) -> float:
        return dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)
    return plain / scaling.factor * ramp + plain * (1 - ramp)


def _yarn_attention(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def spread(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return spread(scaling.mscale) / spread(scaling.mscale_all_dim)
    return spread(1.0)
