"""Packs matrices into the layout of `formats.py` and unpacks them, with torch on the tensor's own device."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.formats import BLOCK, TILE, Format

if TYPE_CHECKING:
    import torch

FP8_LIMIT = 448.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the magnitudes of MXFP4, by code


def order(fmt: Format) -> npt.NDArray[np.int64]:
    """For each value of a packed block, in memory order, its index in the 16 x 128 block: row * 128 + column."""
    per_lane = 64 // fmt.data  # values in a lane's 16 bytes
    chunk, lane, value = np.meshgrid(np.arange(fmt.data), np.arange(32), np.arange(per_lane), indexing="ij")
    g, t = lane // 4, lane % 4
    if fmt.data == 8:
        register, half = value // 2, value % 2
        slab, column, odd_row = chunk // 2, 4 * (chunk % 2) + 2 * (register // 2) + half, register % 2
    else:
        both = 4 // fmt.data  # values of a byte
        word, byte = value // (4 * both), value // both % 4
        slab, odd_row = both * chunk + value % both, word % 2
        column = 4 * (word // 2) + np.array([0, 2, 1, 3])[byte]
    return ((g + 8 * odd_row) * BLOCK + 32 * slab + 8 * t + column).reshape(-1)


def nibbles(q: torch.Tensor) -> torch.Tensor:
    """Weights -7..7 in memory order, two per byte, as in `formats.py`."""
    import torch

    magnitude, sign = q.abs().to(torch.uint8), (q < 0).to(torch.uint8)
    byte = magnitude[..., 0::2] | (sign[..., 0::2] << 7) | (magnitude[..., 1::2] << 4)
    return byte | (sign[..., 1::2].unflatten(-1, (-1, 4)).roll(1, -1).flatten(-2) << 3)


def from_nibbles(raw: torch.Tensor) -> torch.Tensor:
    """The inverse of `nibbles`, as int8."""
    import torch

    following = raw.unflatten(-1, (-1, 4)).roll(-1, -1).flatten(-2)
    magnitude = torch.stack((raw & 7, raw >> 4 & 7), dim=-1).flatten(-2).to(torch.int8)
    negative = torch.stack((raw >> 7, following >> 3 & 1), dim=-1).flatten(-2).bool()
    return torch.where(negative, -magnitude, magnitude)


def blocked(values: torch.Tensor) -> torch.Tensor:
    """[rows, cols] padded with zeros to [tiles, blocks, 16 * 128]."""
    import torch

    rows, cols = values.shape
    tiles, blocks = -(-rows // TILE), -(-cols // BLOCK)
    if (rows, cols) != (tiles * TILE, blocks * BLOCK):
        padded = torch.zeros((tiles * TILE, blocks * BLOCK), dtype=values.dtype, device=values.device)
        padded[:rows, :cols] = values
        values = padded
    return values.reshape(tiles, TILE, blocks, BLOCK).transpose(1, 2).reshape(tiles, blocks, TILE * BLOCK)


def pack(values: torch.Tensor, fmt: Format, scale: torch.Tensor | None = None) -> torch.Tensor:
    """uint8, one dimension. `values`: bf16 weights, fp8 weights, or int8 q; the last two come with `scale`
    [rows, groups] (a group is 128 columns, or 64). MXFP4: signed codes, and exponents for groups of 32 columns."""
    import torch

    index = torch.from_numpy(order(fmt)).to(values.device)
    if fmt.name == "bf16":
        return (
            blocked(values.to(torch.bfloat16).view(torch.int16))[..., index].contiguous().view(torch.uint8).reshape(-1)
        )
    if scale is None:
        raise FulgurError(f"{fmt.name} weights need scales")
    if fmt.data == 4:
        data = blocked(values.view(torch.uint8))[..., index]
    else:
        data = nibbles(blocked(values)[..., index])
    tiles, blocks = data.shape[:2]
    return torch.cat((data, _records(scale, fmt, tiles, blocks)), dim=2).reshape(-1)


def record_type(fmt: Format) -> Any:
    import torch

    return torch.float32 if fmt.data == 4 else torch.uint8 if fmt.name == "mxfp4" else torch.float16


def codes_value(codes: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Signed MXFP4 codes -7..7 as the numbers of `E2M1`, by arithmetic: a table lookup would need 8-byte indices. (A
    negative zero is a zero.)"""
    import torch

    magnitude = codes.abs().to(kind)
    value = torch.maximum(magnitude / 2, torch.maximum(magnitude - 2, 2 * magnitude - 8))
    return torch.where(codes < 0, -value, value)


def record_scales(record: torch.Tensor, fmt: Format) -> torch.Tensor:
    """The scales of blocks [tile, block, record] as float32 [tile, block, row, group]."""
    import torch

    held = record.contiguous().view(record_type(fmt))[..., : fmt.groups * fmt.scales]
    tiles, blocks = held.shape[:2]
    if fmt.name == "mxfp4":
        return torch.exp2(held.reshape(tiles, blocks, TILE, fmt.groups).float() - 127)
    wide = held.float().reshape(tiles, blocks, fmt.groups, fmt.scales).repeat_interleave(TILE // fmt.scales, 3)
    return wide.transpose(2, 3)


def _records(scale: torch.Tensor, fmt: Format, tiles: int, blocks: int) -> torch.Tensor:
    import torch

    kind = record_type(fmt)
    padded = torch.zeros((tiles * TILE, blocks * fmt.groups), dtype=kind, device=scale.device)
    padded[: scale.shape[0], : scale.shape[1]] = scale.to(kind)
    grouped = padded.reshape(tiles, TILE, blocks, fmt.groups).permute(0, 2, 3, 1)  # [tile, block, group, row]
    if fmt.name == "mxfp4":
        grouped = grouped.transpose(2, 3)
    if fmt.scales == 2:
        halves = grouped.unflatten(3, (2, 8))
        peak = halves.amax(4)
        # Padding rows have scale 0 and weights 0: any scale will do.
        if bool((torch.where(halves == 0, peak[..., None], halves) != peak[..., None]).any()):
            raise FulgurError("fp8 scales differ within 8 rows", hint="Use the format fp8-rows.")
        grouped = torch.nn.functional.pad(peak, (0, 2))
    return grouped.contiguous().view(torch.uint8).reshape(tiles, blocks, fmt.record)


def unpack(data: torch.Tensor, fmt: Format, rows: int, cols: int) -> torch.Tensor:
    """The weights that the kernels multiply by, float32 [rows, cols]."""
    import torch

    tiles, blocks = -(-rows // TILE), -(-cols // BLOCK)
    block = data.reshape(tiles, blocks, fmt.block_bytes)
    raw, record = block[..., : fmt.data * 512].contiguous(), block[..., fmt.data * 512 :].contiguous()
    if fmt.name == "bf16":
        values = raw.view(torch.bfloat16).float()
    elif fmt.data == 4:
        values = raw.view(torch.float8_e4m3fn).float()
    else:
        values = from_nibbles(raw)
        values = codes_value(values, torch.float32) if fmt.name == "mxfp4" else values.float()
    place = torch.empty_like(values)
    place[..., torch.from_numpy(order(fmt)).to(data.device)] = values
    place = place.reshape(tiles, blocks, TILE, BLOCK)
    if fmt.record:
        scale = record_scales(record, fmt)
        place = place * scale.repeat_interleave(BLOCK // fmt.groups, 3)
    return place.transpose(1, 2).reshape(tiles * TILE, blocks * BLOCK)[:rows, :cols]


def quantise(weight: torch.Tensor, fmt: Format) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Float weights to what `pack` takes. int4 equals `model.quantise` bit for bit, except that its -8, which
    occurs only if a scale is too small for a float16, is -7 here."""
    import torch

    if fmt.name == "bf16":
        return weight.to(torch.bfloat16), None
    rows, cols = weight.shape
    wide = torch.nn.functional.pad(weight.float(), (0, -cols % BLOCK))
    size = BLOCK // fmt.groups
    peak = wide.reshape(rows, -1, size).abs().amax(2)
    if not bool(torch.isfinite(peak).all()):
        raise FulgurError("the weights contain values that are not finite")
    if fmt.name == "mxfp4":
        return _to_mxfp4(wide, peak, cols)
    if fmt.data == 2:
        scale = (peak / 7).half()
        inverse = torch.where(scale != 0, 1 / scale.float(), torch.zeros((), device=scale.device))
        q = (wide.reshape(rows, -1, size) * inverse[:, :, None]).round_().clamp_(-7, 7).to(torch.int8)
        return q.reshape(rows, -1)[:, :cols], scale
    if fmt.scales == 2:  # 128 x 128 blocks, as checkpoints ship them
        tall = torch.nn.functional.pad(peak, (0, 0, 0, -rows % BLOCK))
        peak = tall.reshape(-1, BLOCK, tall.shape[1]).amax(1).repeat_interleave(BLOCK, 0)[:rows]
    scale = peak / FP8_LIMIT
    inverse = torch.where(scale != 0, 1 / scale, torch.zeros((), device=scale.device))
    q8 = (wide.reshape(rows, -1, size) * inverse[:, :, None]).clamp_(-FP8_LIMIT, FP8_LIMIT)
    return q8.reshape(rows, -1)[:, :cols].to(torch.float8_e4m3fn), scale


def _to_mxfp4(wide: torch.Tensor, peak: torch.Tensor, cols: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the exponent that brings the largest value of a group to 4 .. 8 (the largest number is 6), then the
    nearest codes."""
    import torch

    exponent = torch.where(peak > 0, (torch.log2(peak).floor() - 2 + 127).clamp(0, 254), torch.full_like(peak, 127.0))
    parts = wide.reshape(len(wide), -1, 32) * torch.exp2(127 - exponent)[:, :, None]
    middles = torch.tensor([(a + b) / 2 for a, b in pairwise(E2M1)], device=wide.device)
    codes = torch.bucketize(parts.abs(), middles).to(torch.int8) * parts.sign().to(torch.int8)
    return codes.reshape(len(wide), -1)[:, :cols], exponent.to(torch.uint8)


def interleave(gate: Any, up: Any) -> Any:
    """8 gate rows, 8 up rows, alternating (rows padded with zeros to a multiple of 8); torch tensors of any type."""
    import torch

    raw = [t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t for t in (gate, up)]
    short = -gate.shape[0] % 8
    both = [torch.nn.functional.pad(t, (0, 0, 0, short)).reshape(-1, 8, t.shape[1]) for t in raw]
    joined = torch.stack(both, dim=1).reshape(-1, gate.shape[1])
    return joined.view(gate.dtype) if gate.dtype == torch.float8_e4m3fn else joined
