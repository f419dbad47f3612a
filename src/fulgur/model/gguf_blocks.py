"""GGUF's block formats, decoded to float32 or, where our format can hold them bit by bit, to q and scale.

Each function takes blocks as uint8 [n, bytes per block] and returns float32 [n, elements per block].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fulgur.model.bfloat16 import from_bfloat16
from fulgur.model.stored import MXFP4_VALUES, mxfp4_scale

Bytes = npt.NDArray[np.uint8]
Float = npt.NDArray[np.float32]


def _half(blocks: Bytes, at: int) -> Float:
    """The fp16 at byte `at` of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """16 bytes to 32 values: the low halves, then the high halves."""
    return np.concatenate((raw & 15, raw >> 4), axis=1)


def _fifth_bits(raw: Bytes) -> Bytes:
    """4 bytes to 32 single bits, in order."""
    return np.unpackbits(raw, axis=1, bitorder="little")


def _f32(blocks: Bytes) -> Float:
    return np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: Bytes) -> Float:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _bf16(blocks: Bytes) -> Float:
    return from_bfloat16(np.ascontiguousarray(blocks).view(np.uint16))


def _q8_0(blocks: Bytes) -> Float:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _q4_0(blocks: Bytes) -> Float:
    return (_nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)) * _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Float:
    return _nibbles(blocks[:, 4:]).astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Float:
    q = _nibbles(blocks[:, 6:]) | (_fifth_bits(blocks[:, 2:6]) << 4)
    return (q.astype(np.float32) - np.float32(16)) * _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Float:
    q = _nibbles(blocks[:, 8:]) | (_fifth_bits(blocks[:, 4:8]) << 4)
    return q.astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _scales_and_minima(raw: Bytes) -> tuple[Bytes, Bytes]:
    """The 12 bytes of a K block: eight 6-bit scales and eight 6-bit minima.

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in their low six bits; the two bits above them are the top of scales
    and minima 4-7, whose low four bits share bytes 8-11.
    """
    first, second, third = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scales = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=1)
    minima = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=1)
    return scales, minima


def _k_values(blocks: Bytes, q: Bytes) -> Float:
    """d * scale * q - dmin * minimum, for q [n, 8, 32]."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    d = (_half(blocks, 0) * scales)[:, :, None]
    low = (_half(blocks, 2) * minima)[:, :, None]
    return (q.astype(np.float32) * d - low).reshape(len(blocks), 256)


def _k_nibbles(raw: Bytes) -> Bytes:
    """128 bytes to [n, 8, 32]: each run of 32 bytes holds two groups, low halves first."""
    runs = raw.reshape(len(raw), 4, 1, 32)
    return np.concatenate((runs & 15, runs >> 4), axis=2).reshape(len(raw), 8, 32)


def _q4_k(blocks: Bytes) -> Float:
    return _k_values(blocks, _k_nibbles(blocks[:, 16:144]))


def _q5_k(blocks: Bytes) -> Float:
    # Bit g of byte j is the fifth bit of value j of group g.
    top = np.unpackbits(np.ascontiguousarray(blocks[:, 16:48, None]), axis=2, bitorder="little").transpose(0, 2, 1)
    return _k_values(blocks, _k_nibbles(blocks[:, 48:176]) | (top << np.uint8(4)))


def _q6_k(blocks: Bytes) -> Float:
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 1, 64)
    low = np.concatenate((low & 15, low >> 4), axis=2).reshape(n, 2, 4, 32)
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = (low | (high << 4)).reshape(n, 16, 16).astype(np.float32) - np.float32(32)
    scale = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    return (q * scale[:, :, None]).reshape(n, 256)


def _mxfp4(blocks: Bytes) -> Float:
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127)
    return MXFP4_VALUES[_nibbles(blocks[:, 1:])] * scale


TO_FLOAT: dict[str, Callable[[Bytes], Float]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
}

# Formats that ours can hold: symmetric integers in groups of 32 with an fp16 scale. (For MXFP4, twice the values.)
NATIVE: dict[str, tuple[int, int]] = {"Q8_0": (8, 32), "Q4_0": (4, 32), "MXFP4": (8, 32)}


def to_quantised(kind: str, blocks: Bytes) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """q int8 [n, 32] and scale fp16 [n, 1] of a NATIVE format, bit by bit."""
    if kind == "MXFP4":
        return (2 * MXFP4_VALUES).astype(np.int8)[_nibbles(blocks[:, 1:])], mxfp4_scale(blocks[:, :1])
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16)
    if kind == "Q8_0":
        return blocks[:, 2:].view(np.int8), scale
    return _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8), scale
