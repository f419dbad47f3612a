"""One table of kernel cases: every operation, with its inputs, the reference's result and how to run it.

The tests run each case on every instruction set and compare; `fulgur bench kernels` times the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cpu import _native
from fulgur.kernels.reference import quantise_activations, rms_norm, rotate, silu
from fulgur.model.bfloat16 import from_bfloat16, to_bfloat16
from fulgur.model.pack import Packed, pack
from fulgur.model.quantise import QuantMatrix, quantise

Float = npt.NDArray[np.float32]
EPS = 1e-6
KV8 = 2e-2  # attention over keys and values of 8 bits, against floats


@dataclass(frozen=True)
class Case:
    """`run(isa)` and `expected` give the same arrays up to `tolerance`, relative to their norm.

    `macs` is the work of one call in multiply-adds, for the timing mode; 0 where they are not what costs time.
    """

    name: str
    run: Callable[[str], Float]
    expected: Float
    tolerance: float = 1e-6
    bf16_tolerance: float | None = None  # where the CPU multiplies bf16, its factors are rounded too
    macs: int = 0

    def allowed(self, isa: str) -> float:
        rounded = self.bf16_tolerance is not None and ("bf16" in isa or "amx" in isa)
        return self.bf16_tolerance if rounded and self.bf16_tolerance is not None else self.tolerance


def cases(seed: int = 0) -> Iterator[Case]:
    """Small and odd sizes, both widths, every number of rows where the kernels change their path."""
    rng = np.random.default_rng(seed)
    for bits, group in ((4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 256)):
        yield _norm_quantise(rng, bits, group)
        for rows in (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 17, 24, 25, 33, 64):
            yield _linear(rng, "store", bits, group, rows, 48, 256)
        for rows in (1, 6, 40):
            yield _linear(rng, "add", bits, group, rows, 80, 512)
            yield _linear(rng, "swiglu", bits, group, rows, 96, 256)
            yield _linear(rng, "argmax", bits, group, rows, 301, 256)
        for rows in (1, 3, 5, 40):  # with many threads the tiles may be laid out differently
            yield _linear(rng, "store", bits, group, rows, 208, 256, threads=7)
    for heads, length, dim in (
        (1, 1, 64),
        (2, 15, 16),
        (6, 64, 64),
        (7, 65, 64),
        (8, 127, 128),
        (3, 300, 96),
        (12, 77, 32),
    ):
        yield _attention(rng, heads, length, dim)
        yield _attention(rng, heads, length, dim, kv_bits=8)
    for dim in (16, 64, 96, 128):
        for normed in (False, True):
            yield _norm_rope(rng, dim, normed)


def timing_cases(seed: int = 0) -> Iterator[Case]:
    """The same operations at the sizes of the embedded model."""
    rng = np.random.default_rng(seed)
    for bits in (4, 8):
        for rows in (1, 4, 8, 16, 64, 256):
            yield _linear(rng, "store", bits, 64, rows, 1536, 768)


def _activations(x: Float, group: int, bits: int) -> tuple[npt.NDArray[np.int8], Float, npt.NDArray[np.int32]]:
    q, scale = quantise_activations(x, group)
    offset = 128 if bits == 8 else 8
    correction = (-offset * q.sum(axis=2)).astype(np.int32)
    return q.reshape(len(x), -1).astype(np.int8), scale.astype(np.float32), correction


def _product(matrix: QuantMatrix, x: Float) -> Float:
    """The reference's matrix product: exact integer dots, groups added in ascending order in fp32."""
    q, scale = quantise_activations(x, matrix.group)
    weights = matrix.q.reshape(matrix.rows, -1, matrix.group).astype(np.float32)
    out = np.zeros((len(x), matrix.rows), np.float32)
    for g in range(weights.shape[1]):
        dots = q[:, g] @ weights[:, g].T
        out += dots * (matrix.scale[:, g].astype(np.float32)[None, :] * scale[:, g, None])
    return out


def _norm_quantise(rng: np.random.Generator, bits: int, group: int) -> Case:
    n = 512
    x, weight = rng.standard_normal(n, np.float32), 1 + 0.1 * rng.standard_normal(n, np.float32)
    expected, scale, correction = _activations(rms_norm(x[None], weight, EPS), group, bits)

    def run(isa: str) -> Float:
        q, s, c = np.empty(n, np.int8), np.empty(n // group, np.float32), np.empty(n // group, np.int32)
        _native.op_norm_quantise(isa, x, weight, EPS, bits, group, q, s, c)
        return np.concatenate([q, s, c]).astype(np.float32)

    # A value on the edge between two integers may round either way when the norm differs in its last bit.
    wanted = np.concatenate([expected[0], scale[0], correction[0]]).astype(np.float32)
    return Case(f"norm_quantise.int{bits}.g{group}", run, wanted, tolerance=2e-3)


def _linear(
    rng: np.random.Generator, kind: str, bits: int, group: int, m: int, rows: int, cols: int, threads: int = 1
) -> Case:
    matrix = quantise(rng.standard_normal((rows, cols), np.float32), bits, group)
    packed: Packed = pack(matrix)
    x = rng.standard_normal((m, cols), np.float32)
    q, scale, correction = _activations(x, group, bits)
    product = _product(matrix, x)
    start = rng.standard_normal((m, rows), np.float32)
    tolerance = 1e-6
    arranged: dict[str, _native.ArrangedMatrix] = {}  # by instruction set, arranged once each
    if kind == "add":
        expected = start + product
    elif kind == "swiglu":
        both = product.reshape(m, -1, 2, 16)
        expected, tolerance = (silu(both[:, :, 0]) * both[:, :, 1]).reshape(m, -1), 2e-6
    elif kind == "argmax":
        expected = np.concatenate([product, product.argmax(axis=1)[:, None]], axis=1)
    else:
        expected = product

    def run(isa: str) -> Float:
        out = (
            start.copy() if kind == "add" else np.full((m, rows // (2 if kind == "swiglu" else 1)), np.nan, np.float32)
        )
        index = np.full(m, -1, np.int32) if kind == "argmax" else None
        if isa not in arranged:
            arranged[isa] = _native.ArrangedMatrix(isa, packed.data, bits, group, rows, cols, threads)
        _native.op_linear(arranged[isa], kind, q, scale, correction, out, index)
        return out if index is None else np.concatenate([out, index[:, None].astype(np.float32)], axis=1)

    name = f"linear_{kind}.int{bits}.g{group}.{rows}x{cols}.m{m}{f'.t{threads}' if threads > 1 else ''}"
    return Case(name, run, expected.astype(np.float32), tolerance, macs=m * rows * cols)


def _attention(rng: np.random.Generator, heads: int, length: int, dim: int, kv_bits: int = 16) -> Case:
    keys, values = (rng.standard_normal((length, dim), np.float32) for _ in range(2))
    q = rng.standard_normal((heads, dim), np.float32)
    k, v = keys, values
    if kv_bits == 16:
        k, v = from_bfloat16(to_bfloat16(keys)), from_bfloat16(to_bfloat16(values))
    scores = (q @ k.T) * np.float32(dim**-0.5)
    weight = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = (weight / weight.sum(axis=1, keepdims=True)) @ v

    def run(isa: str) -> Float:
        out = np.full((heads, dim), np.nan, np.float32)
        _native.op_attention(isa, keys, values, q, out, kv_bits=kv_bits)
        return out

    name = f"attention.heads{heads}.length{length}.dim{dim}" + (".kv8" if kv_bits == 8 else "")
    near, rounded = (3e-6, 1e-2) if kv_bits == 16 else (KV8, KV8)
    return Case(name, run, expected, near, bf16_tolerance=rounded, macs=2 * heads * length * dim)


def _norm_rope(rng: np.random.Generator, dim: int, normed: bool) -> Case:
    head = rng.standard_normal(dim, np.float32)
    weight = 1 + 0.1 * rng.standard_normal(dim, np.float32) if normed else None
    angle = rng.uniform(0, 6, dim // 2)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    x = head if weight is None else rms_norm(head, weight, EPS)
    expected = rotate(x[None, None], cos[None], sin[None])[0, 0]

    def run(isa: str) -> Float:
        out = head.copy()
        _native.op_norm_rope(isa, out, weight, EPS, cos, sin)
        return out

    return Case(f"norm_rope.dim{dim}{'.normed' if normed else ''}", run, expected)
