"""Gumbel-max sampling: the token with the largest logit / temperature + noise.

With noise of Gumbel's distribution the choice follows the softmax. The noise is a function of (seed, position, token).
No sum over the vocabulary is needed, so a GPU can sample while it computes the logits: `cuda/csrc/finish.cuh` and
`noise.cuh` do the same operations in the same order, and both sides choose the same token for the same logits and seed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
COLDEST = 0.01  # below, float32 sums of logits and noise are too coarse; the choice is nearly the argmax anyway

Float = npt.NDArray[np.float32]
_F = np.float32


def mix(value: int) -> int:
    """Mix 64 bits well (the splitmix64 finaliser)."""
    value = (value + _GOLDEN) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def sharpness(temperature: float) -> np.float32:
    return _F(1.0 / temperature)


def base(seed: int) -> int:
    """The form of a seed that the device gets; mix(base + position) is the key of that position's noise."""
    return mix(seed)


class Gumbel:
    """The noise of every token of a vocabulary, computed in arrays that are allocated once."""

    def __init__(self, vocab_size: int) -> None:
        # The first addition of `mix` is done here, once.
        steps = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        self._steps: npt.NDArray[np.uint64] = steps
        self._bits: npt.NDArray[np.uint64] = np.empty_like(steps)
        self._shifted: npt.NDArray[np.uint64] = np.empty_like(steps)

    def noise(self, key: int, tokens: npt.NDArray[np.int64] | None = None) -> Float:
        """The noise of all tokens, or of the given ones."""
        if tokens is None:
            steps, bits, shifted = self._steps, self._bits, self._shifted
        else:
            steps = self._steps[tokens]
            bits, shifted = np.empty_like(steps), np.empty_like(steps)
        np.add(steps, np.uint64(key), out=bits)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            np.right_shift(bits, np.uint64(shift), out=shifted)
            np.bitwise_xor(bits, shifted, out=bits)
            np.multiply(bits, np.uint64(factor), out=bits)
        np.right_shift(bits, np.uint64(31), out=shifted)
        np.bitwise_xor(bits, shifted, out=bits)
        np.right_shift(bits, np.uint64(32), out=bits)
        v = (bits.astype(np.uint32).astype(np.float32) + _F(0.5)) * _F(2.0**-32)
        np.minimum(v, _F(0.99999994), out=v)
        # -ln(1 - v), exact for small v too: that is where unlikely tokens win.
        waited = -natural_log(_F(1) - v)
        few = np.flatnonzero(v < _F(0.0078125))
        small = v[few]
        waited[few] = small + small * small * (_F(0.5) + small * _F(0.33333334))
        return -natural_log(waited)


def weights_of(scaled: Float) -> npt.NDArray[np.uint64]:
    """exp of numbers that are at most 0, as integers in units of 2^-31, operation by operation as `cuda/csrc/noise.cuh`
    does it. Sums of integers do not depend on their order."""
    y = np.maximum(scaled * _F(1.44269504), _F(-64))
    whole = np.floor(y)
    f = y - whole
    power = _F(0.00015403530)
    for factor in (0.0013333558, 0.009618129, 0.05550411, 0.24022651, 0.6931472, 1.0):
        power = _F(factor) + f * power
    weights: npt.NDArray[np.uint64] = (power * _F(2147483648.0)).astype(np.uint64) >> (-whole).astype(np.uint64)
    weights[~(y > _F(-32))] = 0
    return weights


def natural_log(x: Float) -> Float:
    """The logarithm of normal positive numbers, operation by operation as the kernels do it."""
    bits = x.view(np.uint32)
    exponent = (bits >> np.uint32(23)).astype(np.int32) - np.int32(127)
    m = ((bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000)).view(np.float32)
    above = m > _F(1.41421356)
    m = np.where(above, m * _F(0.5), m)
    scale = (exponent + above).astype(np.float32)
    f = m - _F(1)
    s = f / (_F(2) + f)
    z = s * s
    series = _F(1) + z * (_F(0.33333334) + z * (_F(0.2) + z * (_F(0.14285715) + z * _F(0.11111111))))
    result: Float = scale * _F(0.6931472) + (s + s) * series
    return result
