"""How weights are stored for the GPU: tiles of 16 rows, blocks of 128 columns, each lane's bytes together.

A block is `data` chunks of 512 bytes (32 lanes x 16 bytes), then a record of scales. Lane l = 4 * g + t of a warp holds
rows g and g + 8 of the tile; of every 32 columns it holds 8 t .. 8 t + 7. (A product sums over columns, so their order
is free: with this one a lane loads the matching activations with one 16-byte load.)

    bf16: chunk s of 8, columns 32 * (s // 2) + 8 t + 4 * (s % 2) + 0..3: row g, columns 0 and 1; row g + 8, the same;
          then columns 2 and 3. These are the registers of `mma.m16n8k16`.
    fp8:  chunk c of 4, words j = 0..3: row g + 8 * (j % 2), columns 32 c + 8 t + 4 * (j // 2) + 0, 2, 1, 3. These are
          the registers of `wgmma.m64n8k32`; shifts and masks give the bf16 pairs 0, 1 and 2, 3 for `mma`.
    int4: chunk c of 2: as fp8's chunks 2 c and 2 c + 1 in one. Sign, magnitude: bits 0-2 and 7 of a byte are a weight
          of the first; bits 4-6 are the magnitude of one of the second, whose sign is bit 3 of the next byte (of the
          first, after the last). A mask, and a rotation with the same mask, turn a word into fp8 codes of q / 512.
    mxfp4: as int4, with the three bits of an e2m1 number (0, 0.5, 1, 1.5, 2, 3, 4, 6) as the magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.errors import FulgurError

TILE, BLOCK, CHUNK, WARPS = 16, 128, 512, 16
FEEDERS = 4  # warps that copy weights into the rings of the 16 compute warps
PREDICTORS = 4  # warps for expert prediction (predict.cuh): two work, but only four together can give up registers


@dataclass(frozen=True)
class Format:
    name: str
    code: int  # the constant of the CUDA sources
    data: int  # chunks of weights in a block
    record: int  # bytes of scales after them
    groups: int  # scale groups in a block
    scales: int  # scales of a group: 16, one per row; 2, for rows 0-7 and 8-15 of the tile; 0, none

    def piece(self, most: int) -> int:
        """Bytes of weights in a piece of at most `most` chunks; the last piece of a block also carries the record."""
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
    # A one-byte exponent for every row and 32 columns, the four of a row together; the general driver only.
    "mxfp4": Format("mxfp4", 5, 2, 64, 4, 16),
}
GENERAL_ONLY = frozenset({"mxfp4"})  # formats that only the general driver multiplies


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise FulgurError(f"unknown weight format {name!r}", hint=f"Choose one of: {', '.join(FORMATS)}.")
    return FORMATS[name]
