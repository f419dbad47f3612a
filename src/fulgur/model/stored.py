"""The ways in which checkpoints store a matrix, each read row by row as float32.

    plain                fp32, fp16, bf16
    fp8                  e4m3, times `weight_scale_inv` (blocks, by default 128 x 128) or one scale per tensor
    mxfp4                blocks of 32 values: e2m1 codes, low half first, and a shared power of two
    gptq                 `qweight` int32 [cols / 8, rows], `scales` [groups, rows], `qzeros`, perhaps `g_idx`
    awq                  `qweight` int32 [cols, rows / 8] in its own order of nibbles, `scales`, `qzeros`
    compressed-tensors   `weight_packed` int32 [rows, cols / 8], `weight_scale` [rows, groups], perhaps zero points

A `View` says which part of a stored tensor is the matrix: files keep the experts of a layer in one tensor, gate and up
together, perhaps transposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.safetensors import SafetensorsFile, to_float32

Float = npt.NDArray[np.float32]
Index = npt.NDArray[np.integer]
Quantised = tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]

# e2m1: 0, 1/2, 1, 3/2, 2, 3, 4, 6, and the same below zero.
MXFP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_WIDE = ("F32", "F16", "BF16")
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # nibble of an int32 that holds column j of eight


class Matrix(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...

    def rows(self, index: Index) -> Float: ...

    @property
    def native(self) -> tuple[int, int] | None:
        """(bits, group) if our own format can hold these values bit by bit, else None."""
        ...

    def quantised(self, index: Index) -> Quantised:
        """Integers and scales of a `native` matrix."""
        ...


class Wide:
    """Base of a matrix that has to be rounded."""

    native: tuple[int, int] | None = None

    def quantised(self, index: Index) -> Quantised:
        raise NotImplementedError("not stored as integers and scales")


@dataclass(frozen=True)
class View:
    """Part of a tensor: one expert, some rows of it, the whole of it transposed."""

    expert: int | None = None
    rows: slice = field(default_factory=lambda: slice(None))
    transposed: bool = False

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.expert is not None:
            array = array[self.expert]
        if self.transposed:
            array = array.T
        return array[self.rows]


@dataclass
class Plain(Wide):
    array: npt.NDArray[Any]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def rows(self, index: Index) -> Float:
        return to_float32(self.array[index], self.dtype)


def _e4m3() -> Float:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    value = np.where((code & 127) == 127, np.nan, value)
    return np.where(code & 128, -value, value).astype(np.float32)


FP8_VALUES = _e4m3()


@dataclass
class Fp8(Wide):
    """`scale`: one value, or one per block of the matrix."""

    codes: npt.NDArray[np.uint8]
    scale: Float
    numbers: Index  # of the rows in the stored tensor, which the blocks cover
    total: int  # rows of the stored tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def rows(self, index: Index) -> Float:
        values = FP8_VALUES[self.codes[index]]
        if self.scale.size == 1:
            return values * self.scale.reshape(())
        cols = self.codes.shape[1]
        height, width = self.block_size
        scale = self.scale[self.numbers[index] // height]
        return values * np.repeat(scale, width, axis=1)[:, :cols]

    @property
    def block_size(self) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        total, cols = self.total, self.codes.shape[1]
        sizes = tuple(
            128 if -(-size // 128) == count else -(-size // count)
            for size, count in zip((total, cols), self.scale.shape, strict=True)
        )
        return sizes[0], sizes[1]


@dataclass
class Mxfp4:
    blocks: npt.NDArray[np.uint8]  # [rows, blocks, 16]
    scales: npt.NDArray[np.uint8]  # [rows, blocks]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.blocks), self.blocks.shape[1] * 32

    def rows(self, index: Index) -> Float:
        scale = np.ldexp(np.float32(1), self.scales[index].astype(np.int32) - 127)
        return (MXFP4_VALUES[self._codes(index)] * scale[:, :, None]).reshape(len(index), -1)

    @property
    def native(self) -> tuple[int, int] | None:
        return 8, 32  # doubled, the values are integers, but they do not fit into 4 bits

    def quantised(self, index: Index) -> Quantised:
        q = (2 * MXFP4_VALUES).astype(np.int8)[self._codes(index)].reshape(len(index), -1)
        return q, mxfp4_scale(self.scales[index])

    def _codes(self, index: Index) -> npt.NDArray[np.uint8]:
        raw = self.blocks[index]
        return np.stack((raw & 15, raw >> 4), axis=-1).reshape(*raw.shape[:2], 32)


def mxfp4_scale(exponents: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16]:
    """The scale for doubled values. fp16 reaches down to 2 ** -24; a block below that is as good as zero."""
    return np.ldexp(np.float32(1), np.minimum(exponents.astype(np.int32), 143) - 128).astype(np.float16)


def _nibbles(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Eight values of each int32, lowest first, in a new last axis."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return (words.view(np.uint32)[..., None] >> shifts & 15).astype(np.uint8)


@dataclass
class Grouped:
    """Integers of 4 bits with one scale and one zero point per group of columns."""

    words: npt.NDArray[np.int32]
    scales: Float  # [groups, rows]
    zeros: npt.NDArray[np.uint8]  # [groups, rows]
    groups: Index  # of each column
    layout: str
    shape: tuple[int, ...]

    def rows(self, index: Index) -> Float:
        q = self._integers(index)
        scale, zero = (part[:, index].T[:, self.groups] for part in (self.scales, self.zeros))
        return (q.astype(np.float32) - zero.astype(np.float32)) * scale

    @property
    def native(self) -> tuple[int, int] | None:
        group = self.shape[1] // len(self.scales)
        in_order = np.array_equal(self.groups, np.arange(self.shape[1]) // group)
        return (4, group) if in_order and group % 32 == 0 and (self.zeros == 8).all() else None

    def quantised(self, index: Index) -> Quantised:
        return self._integers(index).view(np.int8) - np.int8(8), self.scales[:, index].T.astype(np.float16)

    def _integers(self, index: Index) -> npt.NDArray[np.uint8]:
        if self.layout == "gptq":
            return _nibbles(self.words[:, index]).transpose(1, 0, 2).reshape(len(index), -1)
        if self.layout == "awq":
            picked = _nibbles(self.words[:, index // 8])  # [cols, n, 8]
            return np.ascontiguousarray(
                np.take_along_axis(picked, _AWQ_ORDER[index % 8][None, :, None], axis=2)[:, :, 0].T
            )
        return np.ascontiguousarray(_nibbles(self.words[index]).reshape(len(index), -1)[:, : self.shape[1]])


class Tensors:
    """The stored tensors of a folder, by name; opens a matrix however it is stored."""

    def __init__(self, files: dict[str, SafetensorsFile], quantisation: dict[str, Any]) -> None:
        self.files, self.quantisation = files, quantisation

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def open(self, name: str, view: View | None = None) -> Matrix | None:
        """The matrix of that name, None if there is none."""
        view = view or View()
        if name in self.files:
            return self._wide(name, view)
        stem = name.removesuffix(".weight")
        if f"{name}_blocks" in self.files:
            blocks, scales = (view_rows(self._array(f"{name}_{part}"), view) for part in ("blocks", "scales"))
            return Mxfp4(blocks, scales)
        if stem + ".qweight" in self.files:
            return self._packed_columns(stem)
        if stem + ".weight_packed" in self.files:
            return self._packed_rows(stem)
        return None

    def _array(self, name: str) -> npt.NDArray[Any]:
        return self.files[name].array(name)

    def _wide(self, name: str, view: View) -> Matrix:
        file = self.files[name]
        dtype = file.entries[name].dtype
        array = view.of(file.array(name))
        if dtype in _WIDE:
            return Plain(array, dtype)
        if dtype != "F8_E4M3":
            raise FulgurError(
                f"{file.path}: tensor {name} {list(file.entries[name].shape)}: type {dtype} is not supported",
                hint=f"Supported: {', '.join(_WIDE)}, F8_E4M3.",
            )
        scale_name = next((n for n in (name + "_scale_inv", name + "_scale") if n in self.files), None)
        if scale_name is None:
            raise FulgurError(f"{file.path}: tensor {name} is fp8 but {name}_scale_inv is missing")
        scale = to_float32(self._array(scale_name), self.files[scale_name].entries[scale_name].dtype)
        if view.expert is not None and scale.ndim and len(scale) == len(file.array(name)):
            scale = scale[view.expert]
        whole = file.entries[name].shape[-1 if view.transposed else -2]
        numbers = np.arange(whole)[view.rows]
        return Fp8(array, scale.T if view.transposed and scale.ndim == 2 else scale, numbers, whole)

    def _packed_columns(self, stem: str) -> Matrix:
        """GPTQ and AWQ."""
        method = str(self.quantisation.get("quant_method"))
        words, scales = self._array(stem + ".qweight"), self._float(stem + ".scales")
        gptq = words.shape[1] == scales.shape[1]
        cols, rows = (words.shape[0] * 8 if gptq else words.shape[0]), scales.shape[1]
        zeros = _nibbles(self._array(stem + ".qzeros"))
        if gptq:
            # Versions before 2 store the zero point minus one.
            add = 0 if self.quantisation.get("checkpoint_format") == "gptq_v2" else 1
            points = (zeros + np.uint8(add)) & np.uint8(15)
        else:
            points = zeros[:, :, _AWQ_ORDER]
        groups: Index = np.arange(cols) // (cols // len(scales))
        if gptq and stem + ".g_idx" in self.files:
            groups = self._array(stem + ".g_idx").astype(np.int64)
        self._four_bits(stem, method)
        points = points.reshape(len(scales), rows)
        return Grouped(words, scales, points, groups, "gptq" if gptq else "awq", (rows, cols))

    def _packed_rows(self, stem: str) -> Matrix:
        """compressed-tensors, `pack-quantized`."""
        words, scales = self._array(stem + ".weight_packed"), self._float(stem + ".weight_scale").T
        rows, cols = (int(size) for size in self._array(stem + ".weight_shape"))
        if -(-cols // 8) != words.shape[1]:
            raise FulgurError(f"{stem}: only 4-bit compressed-tensors are supported")
        points = np.full(scales.shape, 8, np.uint8)  # symmetric: stored as q + 8
        if stem + ".weight_zero_point" in self.files:
            stored = _nibbles(np.ascontiguousarray(self._array(stem + ".weight_zero_point").T))  # packed along rows
            points = stored.reshape(scales.shape[0], -1)[:, :rows]
        groups = np.arange(cols) // (cols // len(scales))
        return Grouped(words, np.ascontiguousarray(scales), points, groups, "rows", (rows, cols))

    def _float(self, name: str) -> Float:
        return to_float32(self._array(name), self.files[name].entries[name].dtype)

    def _four_bits(self, stem: str, method: str) -> None:
        bits = self.quantisation.get("bits", self.quantisation.get("w_bit", 4))
        if bits != 4:
            raise FulgurError(f"{stem}: {method} of {bits} bits is not supported, only 4")


def view_rows(array: npt.NDArray[Any], view: View) -> npt.NDArray[Any]:
    """Expert and rows of a tensor whose later axes are blocks."""
    return (array if view.expert is None else array[view.expert])[view.rows]
