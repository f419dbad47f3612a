"""The kernel layout "rows16": a matrix as a sequence of tiles of 16 rows, each read once from front to back.

A tile is its scales, fp16 [groups][16 rows], padded to a multiple of 64 bytes, then its weights in blocks of 64 bytes:
    8 bits: a block is 16 rows x 4 neighbouring columns, stored as q + 128
    4 bits: a block is 16 rows x 8 neighbouring columns; byte j of a row holds column j (low half) and column j + 4
            (high half), each stored as q + 8
Rows are padded to a multiple of 16 with zeros: scale 0 and q 0.
Mixtures of experts are stored in pairs of tiles ("pairs16"), which the kernels read in place: for each group the scales
of both tiles, then their blocks of weights in turn. So nothing is rearranged or copied at load, and the pages of an
expert are touched only when it is chosen.
Unsigned weights suit the u8 x s8 dot products of AVX-512 VNNI and AMX; the kernel subtracts the offset again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.quantise import QuantMatrix

TILE = 16


@dataclass
class Packed:
    """One packed matrix; `rows` is the true number of rows, `data` holds them padded to 16."""

    data: npt.NDArray[np.uint8]  # 1-D, 64-byte aligned; may be a view of a memory map
    bits: int
    group: int
    rows: int
    cols: int
    paired: bool = False  # tiles are stored in pairs, which the kernels read in place

    @property
    def tiles(self) -> int:
        return -(-self.rows // TILE)


@dataclass
class PackedExperts:
    """One matrix of every expert of a layer."""

    data: npt.NDArray[np.uint8]  # [experts, bytes of one]
    bits: int
    group: int
    rows: int
    cols: int

    def expert(self, index: int) -> Packed:
        """The matrix of one expert."""
        return Packed(self.data[index], self.bits, self.group, self.rows, self.cols, paired=True)


def paired_bytes(rows: int, cols: int, bits: int, group: int) -> int:
    """Bytes of one expert's matrix."""
    return -(-rows // (2 * TILE)) * (cols // group) * (4 * TILE + 2 * group * TILE * bits // 8)


def pair_tiles(packed: Packed) -> npt.NDArray[np.uint8]:
    """The bytes of a packed matrix in pairs of tiles; an odd last tile is paired with zeros."""
    if packed.paired:
        return packed.data
    groups, head = packed.cols // packed.group, scale_bytes(packed.cols, packed.group)
    tiles = packed.data.reshape(packed.tiles, -1)
    if packed.tiles % 2:
        tiles = np.concatenate([tiles, np.zeros_like(tiles[:1])])
    pairs = tiles.reshape(-1, 2, tiles.shape[1])
    scales = pairs[:, :, : groups * 2 * TILE].reshape(-1, 2, groups, 2 * TILE).transpose(0, 2, 1, 3)
    lines = pairs[:, :, head:].reshape(len(pairs), 2, groups, -1, 64).transpose(0, 2, 3, 1, 4)
    both = (scales.reshape(len(pairs), groups, -1), lines.reshape(len(pairs), groups, -1))
    return np.concatenate(both, axis=2).reshape(-1)


def _tiles(packed: Packed, index: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
    """Some tiles in the unpaired layout, [len(index), tile_bytes]."""
    if not packed.paired:
        return packed.data.reshape(packed.tiles, -1)[index]
    tile, head = tile_bytes(packed.cols, packed.bits, packed.group), scale_bytes(packed.cols, packed.group)
    groups, n = packed.cols // packed.group, len(index)
    pairs = packed.data.reshape(-(-packed.tiles // 2), groups, -1)[index // 2]
    out = np.zeros((n, tile), np.uint8)
    lane = index % 2
    scales = pairs[:, :, : 4 * TILE].reshape(n, groups, 2, 2 * TILE)
    out[:, : groups * 2 * TILE] = scales[np.arange(n), :, lane].reshape(n, -1)
    lines = pairs[:, :, 4 * TILE :].reshape(n, groups, -1, 2, 64)
    out[:, head:] = lines[np.arange(n), :, :, lane].reshape(n, -1)
    return out


def scale_bytes(cols: int, group: int) -> int:
    """Bytes of a tile's scales, padding included."""
    return -(-(cols // group) * 2 * TILE // 64) * 64


def tile_bytes(cols: int, bits: int, group: int) -> int:
    return scale_bytes(cols, group) + TILE * cols * bits // 8


def packed_bytes(rows: int, cols: int, bits: int, group: int) -> int:
    return -(-rows // TILE) * tile_bytes(cols, bits, group)


def aligned_zeros(size: int) -> npt.NDArray[np.uint8]:
    """A 1-D byte array that starts on a 64-byte boundary."""
    raw = np.zeros(size + 63, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def new_packed(rows: int, cols: int, bits: int, group: int) -> Packed:
    """An empty packed matrix, to be filled by `pack_rows`."""
    if cols % group or cols % 8:
        raise FulgurError(
            f"cannot pack {rows} x {cols} in groups of {group}: columns must be a multiple of the group size and of 8"
        )
    return Packed(aligned_zeros(packed_bytes(rows, cols, bits, group)), bits, group, rows, cols)


def pack(matrix: QuantMatrix) -> Packed:
    packed = new_packed(matrix.rows, matrix.cols, matrix.bits, matrix.group)
    pack_rows(packed, 0, matrix)
    return packed


def pack_rows(packed: Packed, start: int, matrix: QuantMatrix) -> None:
    """Write the rows of `matrix` at row `start`, a multiple of 16; the last tile is padded with zero rows."""
    bits, group, cols = packed.bits, packed.group, packed.cols
    if start % TILE or (matrix.bits, matrix.group, matrix.cols) != (bits, group, cols):
        raise ValueError(f"rows at {start} ({matrix.bits} bits, group {matrix.group}, {matrix.cols} cols) do not fit")
    tiles, pad = -(-matrix.rows // TILE), -matrix.rows % TILE
    q = np.pad(matrix.q, ((0, pad), (0, 0)))
    scale = np.pad(matrix.scale, ((0, pad), (0, 0)))
    size, head = tile_bytes(cols, bits, group), scale_bytes(cols, group)
    out = packed.data[start // TILE * size :][: tiles * size].reshape(tiles, size)
    scales = scale.reshape(tiles, TILE, -1).transpose(0, 2, 1)  # [tile, group, row]
    out[:, : scales.shape[1] * 2 * TILE] = np.ascontiguousarray(scales).view(np.uint8).reshape(tiles, -1)
    if bits == 8:
        unsigned = (q.view(np.uint8) ^ np.uint8(0x80)).reshape(tiles, TILE, cols // 4, 4)
        out[:, head:].reshape(tiles, cols // 4, TILE, 4)[:] = unsigned.transpose(0, 2, 1, 3)
    else:
        halves = (q + np.int8(8)).view(np.uint8).reshape(tiles, TILE, cols // 8, 2, 4)
        both = halves[:, :, :, 0] | (halves[:, :, :, 1] << 4)
        out[:, head:].reshape(tiles, cols // 8, TILE, 4)[:] = both.transpose(0, 2, 1, 3)


def unpack(packed: Packed) -> QuantMatrix:
    """The exact inverse of `pack`, padding dropped."""
    matrix = _unpack_tiles(packed, np.arange(packed.tiles))
    rows = packed.rows
    return QuantMatrix(packed.bits, packed.group, rows, packed.cols, matrix.q[:rows], matrix.scale[:rows])


def unpack_rows(packed: Packed, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    """Single rows as float32 [len(rows), cols]: the embedding lookup of a tied head."""
    index = np.asarray(rows, np.int64)
    matrix = _unpack_tiles(packed, index // TILE)
    picked = np.arange(len(index)) * TILE + index % TILE
    grouped = matrix.q[picked].reshape(len(index), -1, packed.group).astype(np.float32)
    return (grouped * matrix.scale[picked].astype(np.float32)[:, :, None]).reshape(len(index), packed.cols)


def _unpack_tiles(packed: Packed, tiles: npt.NDArray[np.integer]) -> QuantMatrix:
    bits, group, cols, n = packed.bits, packed.group, packed.cols, len(tiles)
    head = scale_bytes(cols, group)
    raw = _tiles(packed, tiles)
    scale = np.ascontiguousarray(raw[:, : cols // group * 2 * TILE]).view(np.float16).reshape(n, cols // group, TILE)
    if bits == 8:
        q = (raw[:, head:] ^ 0x80).view(np.int8).reshape(n, cols // 4, TILE, 4).transpose(0, 2, 1, 3)
    else:
        blocks = raw[:, head:].reshape(n, cols // 8, TILE, 1, 4)
        halves = np.concatenate((blocks & 15, blocks >> 4), axis=3).astype(np.int8) - np.int8(8)
        q = halves.transpose(0, 2, 1, 3, 4)
    rows = n * TILE
    return QuantMatrix(bits, group, rows, cols, q.reshape(rows, cols), scale.transpose(0, 2, 1).reshape(rows, -1))
