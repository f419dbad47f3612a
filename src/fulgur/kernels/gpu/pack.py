"""Matrices into the layout of `formats.py` and back, with torch on whichever device the tensor lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.gpu.formats import BLOCK, TILE, Format

if TYPE_CHECKING:
    import torch

FP8_LIMIT = 448.0


def order(fmt: Format) -> npt.NDArray[np.int64]:
    """For each value of a packed block, in memory order, its place in the 16 x 128 block: row * 128 + column."""
    per_lane = 64 // fmt.data  # values in a lane's 16 bytes
    chunk, lane, value = np.meshgrid(np.arange(fmt.data), np.arange(32), np.arange(per_lane), indexing="ij")
    g, t = lane // 4, lane % 4
    if fmt.data == 8:
        step, register, half = chunk, value // 2, value % 2
    elif fmt.data == 4:
        word, byte = value // 4, value % 4
        step, register, half = 2 * chunk + word // 2, 2 * (word % 2) + byte % 2, byte // 2
    else:
        word, nibble = value // 8, value % 8
        step, register, half = 4 * chunk + word, nibble % 4, nibble // 4
    row = g + 8 * (register % 2)
    column = 64 * (step // 4) + 16 * t + 4 * (step % 4) + 2 * (register // 2) + half
    return (row * BLOCK + column).reshape(-1)


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
    [rows, groups] (a group is 128 columns, or 64)."""
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
        nibbles = (blocked(values) + 8).to(torch.uint8)[..., index]
        data = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    tiles, blocks = data.shape[:2]
    return torch.cat((data, _records(scale, fmt, tiles, blocks)), dim=2).reshape(-1)


def _records(scale: torch.Tensor, fmt: Format, tiles: int, blocks: int) -> torch.Tensor:
    import torch

    kind = torch.float32 if fmt.data == 4 else torch.float16
    padded = torch.zeros((tiles * TILE, blocks * fmt.groups), dtype=kind, device=scale.device)
    padded[: scale.shape[0], : scale.shape[1]] = scale.to(kind)
    grouped = padded.reshape(tiles, TILE, blocks, fmt.groups).permute(0, 2, 3, 1)  # [tile, block, group, row]
    if fmt.scales == 2:
        halves = grouped.unflatten(3, (2, 8))
        peak = halves.amax(4)
        # Rows of padding have scale 0 and weights 0: any scale serves them.
        if bool((torch.where(halves == 0, peak[..., None], halves) != peak[..., None]).any()):
            raise FulgurError("fp8 scales differ within 8 rows", hint="Use the format fp8-rows.")
        grouped = torch.nn.functional.pad(peak, (0, 2))
    return grouped.contiguous().view(torch.uint8).reshape(tiles, blocks, fmt.record)


def unpack(data: torch.Tensor, fmt: Format, rows: int, cols: int) -> torch.Tensor:
    """The weights that the kernels multiply with, float32 [rows, cols]."""
    import torch

    tiles, blocks = -(-rows // TILE), -(-cols // BLOCK)
    block = data.reshape(tiles, blocks, fmt.block_bytes)
    raw, record = block[..., : fmt.data * 512].contiguous(), block[..., fmt.data * 512 :].contiguous()
    if fmt.name == "bf16":
        values = raw.view(torch.bfloat16).float()
    elif fmt.data == 4:
        values = raw.view(torch.float8_e4m3fn).float()
    else:
        values = torch.stack((raw & 15, raw >> 4), dim=-1).reshape(tiles, blocks, -1).float() - 8
    place = torch.empty_like(values)
    place[..., torch.from_numpy(order(fmt)).to(data.device)] = values
    place = place.reshape(tiles, blocks, TILE, BLOCK)
    if fmt.record:
        kind = torch.float32 if fmt.data == 4 else torch.float16
        scale = record.view(kind).float()[..., : fmt.groups * fmt.scales].reshape(tiles, blocks, fmt.groups, fmt.scales)
        scale = scale.repeat_interleave(TILE // fmt.scales, 3).transpose(2, 3)  # [tile, block, row, group]
        place = place * scale.repeat_interleave(BLOCK // fmt.groups, 3)
    return place.transpose(1, 2).reshape(tiles * TILE, blocks * BLOCK)[:rows, :cols]


def quantise(weight: torch.Tensor, fmt: Format) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Float weights to what `pack` takes. int4 follows `model.quantise` to the bit."""
    import torch

    if fmt.name == "bf16":
        return weight.to(torch.bfloat16), None
    rows, cols = weight.shape
    wide = torch.nn.functional.pad(weight.float(), (0, -cols % BLOCK))
    size = BLOCK // fmt.groups
    peak = wide.reshape(rows, -1, size).abs().amax(2)
    if not bool(torch.isfinite(peak).all()):
        raise FulgurError("the weights hold values that are not finite")
    if fmt.data == 2:
        scale = (peak / 7).half()
        inverse = torch.where(scale != 0, 1 / scale.float(), torch.zeros((), device=scale.device))
        q = (wide.reshape(rows, -1, size) * inverse[:, :, None]).round_().clamp_(-8, 7).to(torch.int8)
        return q.reshape(rows, -1)[:, :cols], scale
    if fmt.scales == 2:  # 128 x 128 blocks, as checkpoints ship them
        tall = torch.nn.functional.pad(peak, (0, 0, 0, -rows % BLOCK))
        peak = tall.reshape(-1, BLOCK, tall.shape[1]).amax(1).repeat_interleave(BLOCK, 0)[:rows]
    scale = peak / FP8_LIMIT
    inverse = torch.where(scale != 0, 1 / scale, torch.zeros((), device=scale.device))
    q8 = (wide.reshape(rows, -1, size) * inverse[:, :, None]).clamp_(-FP8_LIMIT, FP8_LIMIT)
    return q8.reshape(rows, -1)[:, :cols].to(torch.float8_e4m3fn), scale


def interleave(gate: Any, up: Any) -> Any:
    """8 gate rows, 8 up rows, alternating (rows padded with zeros to a multiple of 8); torch tensors of any type."""
    import torch

    raw = [t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t for t in (gate, up)]
    short = -gate.shape[0] % 8
    both = [torch.nn.functional.pad(t, (0, 0, 0, short)).reshape(-1, 8, t.shape[1]) for t in raw]
    joined = torch.stack(both, dim=1).reshape(-1, gate.shape[1])
    return joined.view(gate.dtype) if gate.dtype == torch.float8_e4m3fn else joined
