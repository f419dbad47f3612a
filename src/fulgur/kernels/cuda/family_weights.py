"""The weights of a model of any family on the GPU: one arena of packed matrices, small vectors, the embedding.

fp8 and MXFP4 checkpoints are kept bit by bit if the plan wants their format; everything else is converted and rounded
on the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.family_plan import FamilyPlan, bias_rows
from fulgur.kernels.cuda.formats import BLOCK, TILE, Format
from fulgur.kernels.cuda.hybrid_weights import complete
from fulgur.kernels.cuda.pack import interleave, pack, quantise
from fulgur.kernels.cuda.plan import Matrix
from fulgur.model.stored import Fp8, Mxfp4, Plain
from fulgur.model.tensors import (
    EMBED,
    TensorSource,
    dense_prefix,
    kernel_vector,
    layer_names,
    matrix_plans,
    plain_plans,
    tensor_shapes,
    vector_plans,
)

if TYPE_CHECKING:
    import torch

Prepared = tuple["torch.Tensor", "torch.Tensor | None"]  # what `pack` takes
AT_ONCE = 1 << 26  # weights of experts that are packed together: takes a few hundred MB on the device


@dataclass
class FamilyWeights:
    plan: FamilyPlan
    arena: Any  # uint8
    vectors: Any  # float32
    embed: Any  # bfloat16 [vocab, d]
    # For the decode kernels (hybrid_weights.py): float32; bfloat16 [layer, row of the router or of gates, d].
    norms: Any | None = None
    side: Any | None = None

    @property
    def nbytes(self) -> int:
        held = (self.arena, self.vectors, self.embed, self.norms, self.side)
        return sum(t.numel() * t.element_size() for t in held if t is not None)


def empty(plan: FamilyPlan, device: Any) -> FamilyWeights:
    import torch

    c = plan.config
    try:
        return FamilyWeights(
            plan,
            torch.zeros(plan.arena_bytes, dtype=torch.uint8, device=device),
            torch.zeros(plan.vector_floats, dtype=torch.float32, device=device),
            torch.empty((c.vocab_size, c.d_model), dtype=torch.bfloat16, device=device),
        )
    except torch.cuda.OutOfMemoryError:
        need = plan.arena_bytes + 2 * c.vocab_size * c.d_model
        raise FulgurError(
            f"the weights need {need / 1e9:.1f} GB of GPU memory, more than is free",
            hint="Choose narrower weights (bits = 8 or 4) or a smaller model, or free memory on the GPU.",
        ) from None


def assemble(plan: FamilyPlan, source: TensorSource, device: Any) -> FamilyWeights:
    """Load tensor by tensor: the host never holds a second copy."""
    out, c = empty(plan, device), plan.config
    for name, rows in {**matrix_plans(c), **plain_plans(c)}.items():
        if name.endswith((".gate_up", ".down")):
            continue
        matrix = plan.matrices[name]
        parts = [_together(source, [part], matrix.format, device) for part in rows.parts]
        starts = np.cumsum([0, *(len(values) for values, _ in parts)])
        index = starts[rows.part] + rows.row
        _put(out, matrix, 0, _picked(_stacked([v for v, _ in parts]), index),
             None if parts[0][1] is None else _picked(_stacked([s for _, s in parts]), index))  # fmt: skip
    for to, layer, _ in layer_names(c):
        experts = [f"{layer}mlp.experts.{e}." for e in range(c.n_experts)]
        together = max(AT_ONCE // (2 * max(c.d_expert, 1) * c.d_model), 1)
        for first in range(0, c.n_experts, together):
            _put_networks(out, source, to, first, experts[first : first + together], device)
        if c.dense_width:
            _put_networks(out, source, to, c.n_experts, [dense_prefix(c, layer)], device)
    for name, parts_ in vector_plans(c).items():
        value = np.concatenate([source.vector(part) for part in parts_])
        value = bias_rows(c, value) if name.endswith("gate_up_bias") else kernel_vector(c, name, value)
        at, size = plan.vectors[name]
        out.vectors[at : at + size] = torch_of(np.ascontiguousarray(value)).to(device)
    step = 1 << 14
    for first in range(0, c.vocab_size, step):
        index = np.arange(first, min(first + step, c.vocab_size))
        out.embed[first : first + step] = torch_of(source.rows(EMBED, index)).to(device)
    complete(out)
    return out


def _put_networks(
    out: FamilyWeights, source: TensorSource, to: str, first: int, prefixes: list[str], device: Any
) -> None:  # fmt: skip
    """Pack feed-forward networks of one shape, many at once: one by one, thousands of experts would be all launches."""
    m, n = out.plan.matrices, len(prefixes)

    def prepared(short: str, fmt: Format) -> Prepared:
        return _together(source, [f"{prefix}{short}_proj.weight" for prefix in prefixes], fmt, device)

    gate, up = (prepared(short, m[to + "gate_up"].format) for short in ("gate", "up"))
    values = interleave(*(_tall(t[0], n, 8) for t in (gate, up)))
    scales = None if gate[1] is None else interleave(*(_tall(t[1], n, 8) for t in (gate, up)))
    _put(out, m[to + "gate_up"], first, values, scales, n)
    _put(out, m[to + "down"], first, *prepared("down", m[to + "down"].format), n)


def _tall(values: Any, copies: int, multiple: int, least: int = 0) -> torch.Tensor:
    """Pad each of the copies, which are stacked, with rows of zeros."""
    import torch

    rows = len(values) // copies
    wanted: int = max(-(-rows // multiple) * multiple, least)
    if wanted == rows:
        same: torch.Tensor = values
        return same
    raw = values.view(torch.uint8) if values.dtype == torch.float8_e4m3fn else values
    padded = torch.nn.functional.pad(raw.reshape(copies, rows, -1), (0, 0, 0, wanted - rows))
    return padded.reshape(copies * wanted, -1).view(values.dtype)


def _put(
    out: FamilyWeights, matrix: Matrix, copy: int, values: torch.Tensor, scale: torch.Tensor | None, copies: int = 1
) -> None:  # fmt: skip
    """Pack into the arena. A network narrower than the widest of its layer is padded with zeros."""
    import torch

    rows = matrix.tiles * TILE if copies > 1 else 0
    values, scale = _tall(values, copies, 1, rows), None if scale is None else _tall(scale, copies, 1, rows)
    short = matrix.cols - values.shape[1]
    if short:
        raw = values.view(torch.uint8) if values.dtype == torch.float8_e4m3fn else values
        values = torch.nn.functional.pad(raw, (0, short)).view(values.dtype)
    try:
        packed = pack(values, matrix.format, scale)
    except FulgurError as error:
        raise FulgurError(f"{matrix.name}: {error.message}", hint=error.hint) from None
    start = matrix.offset + copy * matrix.copy_bytes
    out.arena[start : start + len(packed)] = packed


def _picked(values: torch.Tensor, index: np.ndarray) -> torch.Tensor:
    import torch

    if np.array_equal(index, np.arange(len(values))):
        return values
    raw = values.view(torch.uint8) if values.dtype == torch.float8_e4m3fn else values
    return raw[torch.from_numpy(index).to(values.device)].view(values.dtype)


def _stacked(parts: Sequence[Any]) -> torch.Tensor:
    import torch

    if len(parts) == 1:
        only: torch.Tensor = parts[0]
        return only
    if parts[0].dtype == torch.float8_e4m3fn:
        return torch.cat([p.view(torch.uint8) for p in parts]).view(torch.float8_e4m3fn)
    return torch.cat(list(parts))


def _together(source: TensorSource, names: list[str], fmt: Format, device: Any) -> Prepared:
    """Tensors of one shape in a format, as `pack` takes them, stacked."""
    import torch

    def joined(arrays: list[np.ndarray]) -> torch.Tensor:
        parts = [torch_of(array).to(device) for array in arrays]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    held: list[Any] = [source.stored(name) if hasattr(source, "stored") else None for name in names]
    if len({(type(h), getattr(h, "dtype", "")) for h in held}) > 1:
        single = [_together(source, [name], fmt, device) for name in names]
        return _stacked([v for v, _ in single]), None if single[0][1] is None else _stacked([s for _, s in single])
    shape = tensor_shapes(source.config)[names[0]]
    if isinstance(held[0], Mxfp4) and fmt.name == "mxfp4":
        raw, exponents = joined([h.blocks for h in held]), joined([h.scales for h in held])
        codes = torch.stack((raw & 15, raw >> 4), dim=-1).flatten(1).to(torch.int8)
        return torch.where(codes > 7, 8 - codes, codes), exponents
    if isinstance(held[0], Fp8):
        weight = joined([h.codes for h in held]).view(torch.float8_e4m3fn)
        scale, width = joined([_row_scales(h) for h in held]), 128 if held[0].scale.size == 1 else held[0].block_size[1]
        if fmt.data == 4 and width == 128:
            return weight, scale
        return _rounded(weight.float() * scale.repeat_interleave(width, 1)[:, : shape[1]], shape[0], fmt)
    if isinstance(held[0], Plain) and held[0].dtype == "BF16":
        wide = joined([h.array.view(np.int16) for h in held]).view(torch.bfloat16)
        return _rounded(wide, shape[0], fmt)
    return _rounded(joined([source.rows(name, np.arange(shape[0])) for name in names]), shape[0], fmt)


def _row_scales(held: Fp8) -> np.ndarray:
    """[row, block of columns]."""
    if held.scale.size == 1:
        return np.full((held.shape[0], -(-held.shape[1] // 128)), held.scale.reshape(()), np.float32)
    return held.scale.astype(np.float32)[held.numbers // held.block_size[0]]


def _rounded(wide: torch.Tensor, rows: int, fmt: Format) -> Prepared:
    """Round tensors of `rows` rows each. If 128 rows share a scale, they must not belong to two tensors."""
    if fmt.scales != 2 or rows % BLOCK == 0 or len(wide) == rows:
        return quantise(wide, fmt)
    made = [quantise(part, fmt) for part in wide.split(rows)]
    return _stacked([v for v, _ in made]), _stacked([s for _, s in made])


def torch_of(array: np.ndarray) -> torch.Tensor:
    """A view of the map if possible: then the copy to the device is the only one."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))


def random_weights(plan: FamilyPlan, device: Any, seed: int = 0) -> FamilyWeights:
    """Random values, generated directly in packed form, for benchmarks. Their size keeps activations near 1, and layers
    add little: otherwise all positions of a deep model become alike and every token is the same."""
    import torch

    out, c = empty(plan, device), plan.config
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, m in plan.matrices.items():
        fmt, spread = m.format, m.cols**-0.5
        if name.endswith((".o", ".down")):
            spread *= (2 * c.n_layers) ** -0.5
        blocks = out.arena[m.offset : m.offset + m.nbytes].view(-1, fmt.block_bytes)
        for piece in blocks.split(1 << 16):  # at most a few hundred MB of temporaries
            shape = (len(piece), fmt.data * 512)
            if fmt.name == "bf16":
                values = torch.randn((shape[0], shape[1] // 2), generator=generator, device=device) * spread
                piece[:] = values.to(torch.bfloat16).view(torch.uint8)
                continue
            if fmt.data == 4:
                values = torch.randn(shape, generator=generator, device=device)
                piece[:, : shape[1]] = values.to(torch.float8_e4m3fn).view(torch.uint8)
                scale: Any = np.full(fmt.record // 4, spread, np.float32)
            else:
                piece[:, : shape[1]] = torch.randint(
                    0, 256, shape, generator=generator, device=device, dtype=torch.uint8
                )
                if fmt.name == "mxfp4":  # e2m1 codes have a deviation of 2.7
                    scale = np.full(fmt.record, round(np.log2(spread / 2.7)) + 127, np.uint8)
                else:
                    scale = np.full(fmt.record // 2, spread / 4.2, np.float16)
            piece[:, shape[1] :] = torch.from_numpy(scale.view(np.uint8).copy()).to(device)
    for name, (at, size) in plan.vectors.items():
        short = name.rpartition(".")[2]
        if short == "conv":
            out.vectors[at : at + size].normal_(generator=generator).mul_(0.5)
        elif "bias" in short or short == "sinks":
            out.vectors[at : at + size] = 0
        else:
            out.vectors[at : at + size] = -0.05 if short == "decay" else 1.0
    out.embed.normal_(generator=generator)
    complete(out)
    return out
