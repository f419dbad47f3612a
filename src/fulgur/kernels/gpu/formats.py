"""How weights are stored for the GPU: tiles of 16 rows, blocks of 128 columns, each lane's bytes together.

A block is `data` chunks of 512 bytes (32 lanes x 16 bytes), then a record of scales. Lane l = 4 * g + t of a warp feeds
`mma.m16n8k16` in 8 steps; at step s it holds rows g and g + 8 of the tile at the four columns
    64 * (s // 4) + 16 * t + 4 * (s % 4) + 0..3
(the product sums over columns, so their order is ours to choose: this one lets a lane read the activations of two steps
with one 16-byte load). In registers: a0 = row g, columns 0 and 1; a1 = row g + 8, the same; a2, a3 = columns 2 and 3.

    bf16: chunk s of 8: a0 a1 a2 a3.
    fp8:  chunk c of 4, steps 2c and 2c + 1, words j = 0..3: bytes a0.lo a1.lo a0.hi a1.hi (even j), a2/a3 (odd j);
          one shift and two masks then give two bf16 pairs.
    int4: chunk c of 2, steps 4c + j, words j = 0..3: nibble i is ai.lo, nibble i + 4 is ai.hi, each stored as q + 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.errors import FulgurError

TILE, BLOCK, CHUNK, WARPS = 16, 128, 512, 16


@dataclass(frozen=True)
class Format:
    name: str
    code: int  # the constant of the CUDA sources
    data: int  # chunks of weights in a block
    record: int  # bytes of scales after them
    groups: int  # scale groups in a block
    scales: int  # scales of a group: 16, one a row; 2, for rows 0-7 and 8-15 of the tile; 0, none

    def piece(self, most: int) -> int:
        """Bytes of a piece of a ring that takes `most` chunks at once; the last of a block brings the record."""
        return min(self.data, most) * CHUNK

    @property
    def block_bytes(self) -> int:
        return self.data * CHUNK + self.record


FORMATS: dict[str, Format] = {
    "bf16": Format("bf16", 0, 8, 0, 0, 0),
    "fp8": Format("fp8", 1, 4, 16, 1, 2),  # a float32 for 128 x 128 weights, repeated for each 8 rows of a tile
    "fp8-rows": Format("fp8-rows", 2, 4, 64, 1, 16),  # a float32 for every row and 128 columns
    "int4": Format("int4", 3, 2, 32, 1, 16),  # a float16 for every row and 128 columns
    "int4-64": Format("int4-64", 4, 2, 64, 2, 16),  # a float16 for every row and 64 columns
}


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise FulgurError(f"there is no weight format {name!r}", hint=f"Choose one of: {', '.join(FORMATS)}.")
    return FORMATS[name]
