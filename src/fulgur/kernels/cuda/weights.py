"""A model's weights on the GPU: one arena in the plan's order, small vectors in fp32, the embedding in bf16.

Each tensor goes from the memory map of the checkpoint to the device, is quantised and packed there, and written into
the arena: the host never holds a second copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.formats import Format
from fulgur.kernels.cuda.header import norm_stride
from fulgur.kernels.cuda.pack import interleave, pack, quantise, unpack
from fulgur.kernels.cuda.plan import Matrix, Plan
from fulgur.model.tensors import EMBED, FINAL_NORM, HEAD

if TYPE_CHECKING:
    import torch

Get = Callable[[str], "tuple[torch.Tensor, torch.Tensor | None]"]  # a tensor on the device, and its block scales if fp8


@dataclass
class GpuWeights:
    plan: Plan
    arena: Any  # uint8
    norms: Any  # float32: [layers * norm_stride + d]
    embed: Any  # bfloat16 [vocab, d]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.arena, self.norms, self.embed))


def empty(plan: Plan, device: Any) -> GpuWeights:
    import torch

    c = plan.config
    try:
        arena = torch.empty(plan.arena_bytes, dtype=torch.uint8, device=device)
        norms = torch.zeros(c.n_layers * norm_stride(plan) + c.d_model, dtype=torch.float32, device=device)
        return GpuWeights(
            plan, arena, norms, torch.empty((c.vocab_size, c.d_model), dtype=torch.bfloat16, device=device)
        )
    except torch.cuda.OutOfMemoryError:
        raise _too_large(plan) from None


def _too_large(plan: Plan) -> FulgurError:
    need = plan.arena_bytes + 2 * plan.config.vocab_size * plan.config.d_model
    return FulgurError(
        f"the weights need {need / 1e9:.1f} GB of GPU memory, more than is free",
        hint="Choose narrower weights (bits = 8 or 4) or a smaller model, or free memory on the GPU.",
    )


def assemble(plan: Plan, get: Get, device: Any) -> GpuWeights:
    """Fill the arena tensor by tensor."""
    import torch

    try:
        return _assemble(plan, get, empty(plan, device))
    except torch.cuda.OutOfMemoryError:  # a tensor that is being packed
        raise _too_large(plan) from None


def _assemble(plan: Plan, get: Get, out: GpuWeights) -> GpuWeights:
    c = plan.config
    stride = norm_stride(plan)
    for i in range(c.n_layers):
        layer = f"model.layers.{i}."
        attention = layer + "self_attn."
        _put(out, "qkv", i, 0, [get(f"{attention}{s}_proj.weight") for s in "qkv"])
        _put(out, "o", i, 0, [get(attention + "o_proj.weight")])
        if plan.moe:
            norm = get(layer + "post_attention_layernorm.weight")[0]
            _put(out, "router", i, 0, [(get(layer + "mlp.gate.weight")[0].float() * norm.float(), None)])
            _put_fold(out, i)
        for e in range(c.n_experts or 1):
            mlp = f"{layer}mlp.experts.{e}." if plan.moe else layer + "mlp."
            _put(out, "gate_up", i, e, [get(mlp + "gate_proj.weight"), get(mlp + "up_proj.weight")], paired=True)
            _put(out, "down", i, e, [get(mlp + "down_proj.weight")])
        names = ["input_layernorm.weight", "post_attention_layernorm.weight"]
        names += ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] if c.qk_norm else []
        at = i * stride
        for name in names:
            at = _put_vector(out, at, get(layer + name)[0])
        if c.qkv_bias:
            at = i * stride + 2 * c.d_model + 2 * c.head_dim
            for short in "qkv":
                at = _put_vector(out, at, get(f"{attention}{short}_proj.bias")[0])
    _put_vector(out, c.n_layers * stride, get(FINAL_NORM)[0])
    out.embed.copy_(get(EMBED)[0])
    _put(out, "head", 0, 0, [get(EMBED if c.tied else HEAD)])
    return out


def _put_vector(out: GpuWeights, at: int, vector: torch.Tensor) -> int:
    out.norms[at : at + len(vector)] = vector.float()
    return at + len(vector)


def _put(
    out: GpuWeights,
    name: str,
    layer: int,
    copy: int,
    parts: list[tuple[torch.Tensor, torch.Tensor | None]],
    paired: bool = False,
) -> None:
    matrix = out.plan.matrices[name]
    try:
        ready = [_prepared(weight, blocks, matrix) for weight, blocks in parts]
    except FulgurError as error:
        where = (
            name if name == "head" else f"layer {layer}, {name}" + (f" of expert {copy}" if matrix.copies > 1 else "")
        )
        raise FulgurError(f"{where}: {error.message}", hint=error.hint) from None
    values = interleave(ready[0][0], ready[1][0]) if paired else _stack([value for value, _ in ready])
    scales = [scale for _, scale in ready if scale is not None]
    scale = None if not scales else interleave(scales[0], scales[1]) if paired else _stack(scales)
    packed = pack(values, matrix.format, scale)
    start = out.plan.address(matrix, layer, copy, 0, 0)
    out.arena[start : start + matrix.copy_bytes] = packed


def _put_fold(out: GpuWeights, layer: int) -> None:
    """Pack the product of the router and the output projection, both as quantised."""

    def used(name: str) -> torch.Tensor:
        matrix = out.plan.matrices[name]
        start = out.plan.address(matrix, layer, 0, 0, 0)
        return unpack(out.arena[start : start + matrix.copy_bytes], matrix.format, matrix.rows, matrix.cols)

    _put(out, "fold", layer, 0, [(used("router") @ used("o"), None)])


def _stack(parts: list[torch.Tensor]) -> torch.Tensor:
    import torch

    if len(parts) == 1:
        return parts[0]
    if parts[0].dtype == torch.float8_e4m3fn:
        return torch.cat([p.view(torch.uint8) for p in parts]).view(torch.float8_e4m3fn)
    return torch.cat(parts)


def _prepared(
    weight: torch.Tensor, blocks: torch.Tensor | None, matrix: Matrix
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Quantise a part, or keep an fp8 part as it is and repeat its 128 x 128 scales for its rows."""
    import torch

    fmt: Format = matrix.format
    if weight.dtype != torch.float8_e4m3fn:
        return quantise(weight, fmt)
    if blocks is None:
        raise FulgurError("fp8 weights without scales")
    spread = blocks.float().repeat_interleave(128, 0)[: weight.shape[0]]
    if fmt.data == 4:
        return weight, spread
    wide = weight.float() * spread.repeat_interleave(128, 1)[:, : weight.shape[1]]
    return quantise(wide, fmt)


def from_folder(folder: Path, plan: Plan, device: Any) -> GpuWeights:
    """Load a folder of safetensors, tensor by tensor."""
    import torch

    from fulgur.model.folder import FolderSource

    source = FolderSource(folder)
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}

    def load(name: str) -> torch.Tensor:
        raw, dtype, shape = source.raw(name)
        if dtype not in kinds:
            raise FulgurError(
                f"{folder}: tensor {name}: type {dtype} is not supported", hint=f"Supported: {', '.join(kinds)}."
            )
        with warnings.catch_warnings():
            # A read-only view of the map: the copy to the device is the only one.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(raw, dtype=torch.uint8).to(device).view(kinds[dtype]).reshape(shape)

    def get(name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = load(name)
        if weight.dtype != torch.float8_e4m3fn:
            return weight, None
        scale = name + "_scale_inv"
        if not source.has(scale):
            raise FulgurError(
                f"{folder}: {name} is fp8 but {scale} is missing",
                hint="Checkpoints with a scale for each 128 x 128 block are supported; use that one, or the bf16 one.",
            )
        blocks = load(scale)
        expected = [-(-size // 128) for size in weight.shape]
        if list(blocks.shape) != expected:
            raise FulgurError(
                f"{folder}: {scale}: expected shape {expected} (a scale for each 128 x 128 block), "
                f"found {list(blocks.shape)}"
            )
        return weight, blocks

    return assemble(plan, get, device)


def random_weights(plan: Plan, device: Any, seed: int = 0) -> GpuWeights:
    """Random values, generated directly in packed form: a model of 30B takes seconds. Their size keeps activations near
    1. If the head is not tied to the embedding, layers add little: otherwise all positions of a deep model become alike
    and every token is the same. (With a tied head, small layers would repeat the input token.)"""
    import torch

    out = empty(plan, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    layers = [(i, m) for i in range(plan.config.n_layers) for name, m in plan.matrices.items() if name != "head"]
    for layer, matrix in [*layers, (0, plan.matrices["head"])]:
        start = plan.address(matrix, layer, 0, 0, 0)
        fmt, spread = matrix.format, matrix.cols**-0.5
        if matrix.name in ("o", "down") and not plan.config.tied:
            spread *= (2 * plan.config.n_layers) ** -0.5
        blocks = out.arena[start : start + matrix.nbytes].view(-1, fmt.block_bytes)
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
                scale = np.full(fmt.record // 2, spread / 4.2, np.float16)  # a sign and 0..7 have deviation 4.2
            piece[:, shape[1] :] = torch.from_numpy(scale.view(np.uint8).copy()).to(device)
    for layer in range(plan.config.n_layers if plan.moe else 0):
        _put_fold(out, layer)
    out.norms.fill_(1)
    for i in range(plan.config.n_layers if plan.config.qkv_bias else 0):
        at = i * norm_stride(plan) + 2 * plan.config.d_model + 2 * plan.config.head_dim
        out.norms[at : (i + 1) * norm_stride(plan)] = 0
    out.embed.normal_(generator=generator)
    return out
