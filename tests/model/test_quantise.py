"""Quantisation keeps its error bound; packing is exactly invertible and laid out as written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulgur.errors import FulgurError
from fulgur.model.pack import Packed, pack, scale_bytes, tile_bytes, unpack, unpack_rows
from fulgur.model.quantise import QuantMatrix, choose_group, dequantise, quantise


def matrix(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, cols), np.float32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_error_is_within_half_a_step(bits: int, group: int) -> None:
    weight = matrix(24, 256)
    quantised = quantise(weight, bits, group)
    limit = 7 if bits == 4 else 127
    assert quantised.q.min() >= (-8 if bits == 4 else -127) and quantised.q.max() <= limit
    peak = np.abs(weight.reshape(24, -1, group)).max(axis=2)
    np.testing.assert_array_equal(quantised.scale, (peak / np.float32(limit)).astype(np.float16))
    # Half a step for rounding; the scale's own fp16 rounding moves the largest value by up to limit * 2^-11 steps.
    error = np.abs(dequantise(quantised) - weight).reshape(24, -1, group).max(axis=2)
    assert (error <= quantised.scale.astype(np.float32) * (0.5 + limit * 2.0**-11)).all()


def test_zero_and_tiny_groups_become_zero() -> None:
    weight = np.zeros((16, 64), np.float32)
    weight[1] = 1e-9  # below fp16: its scale is 0
    quantised = quantise(weight, 8, 64)
    assert not quantised.q.any() and not quantised.scale.any()


def test_values_that_cannot_be_held_are_refused() -> None:
    with pytest.raises(FulgurError, match="not finite"):
        quantise(np.full((16, 64), np.nan, np.float32), 8, 64, "w")
    with pytest.raises(FulgurError, match="w: the weights reach"):
        quantise(np.full((16, 64), 1e9, np.float32), 8, 64, "w")
    with pytest.raises(FulgurError, match="3 bits"):
        quantise(matrix(16, 64), 3, 64)


def test_group_falls_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_group(256, 64) == 64 and not caplog.records
    assert choose_group(96, 128, "down") == 32
    assert "down" in caplog.text and "32" in caplog.text
    with pytest.raises(FulgurError, match="48 columns"):
        choose_group(48, 64, "odd")


@settings(deadline=None, max_examples=40)
@given(
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from([32, 64]),
    groups=st.integers(1, 5),
    rows=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
)
def test_unpack_inverts_pack(bits: int, group: int, groups: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = (-8, 8) if bits == 4 else (-128, 128)
    q = rng.integers(low, high, (rows, groups * group)).astype(np.int8)
    scale = rng.standard_normal((rows, groups)).astype(np.float16)
    before = QuantMatrix(bits, group, rows, groups * group, q, scale)
    packed = pack(before)
    after = unpack(packed)
    np.testing.assert_array_equal(after.q, q)
    np.testing.assert_array_equal(after.scale, scale)
    picked = rng.integers(0, rows, 7)
    np.testing.assert_array_equal(unpack_rows(packed, picked), dequantise(before)[picked])


@pytest.mark.parametrize("bits", [4, 8])
def test_layout_byte_by_byte(bits: int) -> None:
    """The layout written out with plain loops, as the comment of pack.py states it."""
    rows, cols, group = 20, 96, 32
    quantised = quantise(matrix(rows, cols), bits, group)
    packed = pack(quantised)
    assert packed.data.ctypes.data % 64 == 0
    size, head = tile_bytes(cols, bits, group), scale_bytes(cols, group)
    assert head == 128 and packed.data.nbytes == 2 * size  # 3 groups x 32 bytes, padded to 128
    for tile in range(2):
        base = tile * size
        for lane in range(16):
            row = tile * 16 + lane
            for g in range(3):
                at = base + (g * 16 + lane) * 2
                want = quantised.scale[row, g] if row < rows else np.float16(0)
                assert packed.data[at : at + 2].view(np.float16)[0] == want
            for k in range(cols):
                q = int(quantised.q[row, k]) if row < rows else 0
                if bits == 8:
                    assert packed.data[base + head + k // 4 * 64 + lane * 4 + k % 4] == q + 128
                else:
                    byte = packed.data[base + head + k // 8 * 64 + lane * 4 + k % 4]
                    assert (byte >> 4 if k % 8 >= 4 else byte & 15) == q + 8


def test_packed_counts_tiles() -> None:
    assert Packed(np.zeros(0, np.uint8), 8, 32, 33, 32).tiles == 3
