"""Prefill of long runs of prompt tokens: fills the KV cache that the decode kernels read. The plain path, in torch.

A layer's matrices are unpacked to bf16, used for all rows at once and dropped. GPUs without `wgmma` use it; on Hopper
`prefill_fast.py` does the same from the packed weights. Shorter runs go through the decode kernels, 8 rows at a time.
The last bits of the cache depend on how a long prompt was cut; every step after it keeps the rule of equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fulgur.kernels.cuda.formats import BLOCK, TILE, Format
from fulgur.kernels.cuda.header import norm_stride
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.pack import codes_value, from_nibbles, order, record_scales
from fulgur.kernels.cuda.weights import GpuWeights

if TYPE_CHECKING:
    import torch


class Prefill:
    """`rope` [context, cos half + sin half] float32."""

    def __init__(self, weights: GpuWeights, kv: KvCache, rope: Any) -> None:
        self.weights, self.kv, self.rope = weights, kv, rope
        self.plan, self.config = weights.plan, weights.plan.config
        self._places: dict[str, Any] = {}

    def run(self, tokens: torch.Tensor, position: int, table: torch.Tensor) -> None:
        """Store keys and values of `tokens`, from `position` on, in the blocks of `table`."""
        for _ in self.parts(tokens, position, table):
            pass

    def parts(self, tokens: torch.Tensor, position: int, table: torch.Tensor) -> Iterator[None]:
        """The same, half a layer at a time; in between, the device may do something else."""
        import torch

        c, n = self.config, len(tokens)
        here = torch.arange(position, position + n, device=tokens.device)
        cos, sin = self.rope[here].split(c.head_dim // 2, dim=1)
        x = self.weights.embed[tokens].float()
        for i in range(c.n_layers):
            x = x + self._attention(i, self._norm(x, i, 0), position, cos, sin, table)
            yield
            normed = self._norm(x, i, c.d_model)
            x = x + (self._experts(i, x, normed) if self.plan.moe else self._dense(i, normed))
            yield

    def warm(self, rows: int, context: int) -> None:
        """Do what the first chunks of `rows` rows of a prompt of `context` tokens would otherwise wait for."""

    def close(self) -> None:
        """Nothing to release except tensors."""

    def _vector(self, layer: int, at: int, size: int) -> torch.Tensor:
        start = layer * norm_stride(self.plan) + at
        vector: torch.Tensor = self.weights.norms[start : start + size]
        return vector

    def _norm(self, x: torch.Tensor, layer: int, at: int) -> torch.Tensor:
        return rms(x, self._vector(layer, at, self.config.d_model), self.config.norm_eps).bfloat16()

    def _matrix(self, name: str, layer: int, copy: int = 0, copies: int = 1) -> torch.Tensor:
        m = self.plan.matrices[name]
        start = self.plan.address(m, layer, copy, 0, 0)
        data = self.weights.arena[start : start + copies * m.copy_bytes]
        wide = widen(data, m.format, copies * m.tiles, m.copy_blocks, self._place(m.format))
        return wide.reshape(copies, m.tiles * TILE, -1)[:, :, : m.cols]

    def _place(self, fmt: Format) -> Any:
        """For each value of a 16 x 128 block, its place in the packed one."""
        import torch

        if fmt.name not in self._places:
            place = np.argsort(order(fmt))
            self._places[fmt.name] = torch.from_numpy(place).to(self.weights.arena.device)
        return self._places[fmt.name]

    def _attention(
        self, i: int, x: torch.Tensor, position: int, cos: torch.Tensor, sin: torch.Tensor, table: torch.Tensor
    ) -> torch.Tensor:
        import torch
        from torch.nn.attention.bias import causal_lower_right

        c, n = self.config, len(x)
        qkv = (x @ self._matrix("qkv", i)[0].T).float()[:, : c.q_rows + 2 * c.kv_rows]
        if c.qkv_bias:
            qkv = qkv + self._vector(i, 2 * c.d_model + 2 * c.head_dim, c.q_rows + 2 * c.kv_rows)
        q, k, v = qkv.reshape(n, -1, c.head_dim).split((c.n_heads, c.n_kv_heads, c.n_kv_heads), dim=1)
        if c.qk_norm:
            q = rms(q, self._vector(i, 2 * c.d_model, c.head_dim), c.norm_eps)
            k = rms(k, self._vector(i, 2 * c.d_model + c.head_dim, c.head_dim), c.norm_eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self.kv.store(i, k, v, position, table)
        keys, values = self.kv.gathered(i, position + n, table)
        # Aligned to the lower right corner, since queries are the last positions. Flash attention does this without a
        # mask in memory, which for a long context would be larger than the cache; it needs as many key heads as query
        # heads.
        group = c.n_heads // c.n_kv_heads
        attended = torch.nn.functional.scaled_dot_product_attention(
            q.bfloat16().transpose(0, 1)[None],
            keys.repeat_interleave(group, 0)[None],
            values.repeat_interleave(group, 0)[None],
            attn_mask=causal_lower_right(n, position + n),
        )
        return (attended[0].transpose(0, 1).reshape(n, -1) @ self._matrix("o", i)[0].T).float()[:, : c.d_model]

    def _dense(self, i: int, x: torch.Tensor) -> torch.Tensor:
        both = (x @ self._matrix("gate_up", i)[0].T).float()
        return (_swiglu(both, self.config.d_ffn) @ self._matrix("down", i)[0].T).float()[:, : self.config.d_model]

    def _experts(self, i: int, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        import torch

        c = self.config
        plain = rms(residual, torch.ones((), device=x.device), c.norm_eps).bfloat16()  # the router holds the weight
        logits = (plain @ self._matrix("router", i)[0].T).float()[:, : c.n_experts]
        routing_weight, chosen = logits.softmax(dim=1).topk(c.experts_per_token, dim=1)
        if c.norm_topk:
            routing_weight = routing_weight / routing_weight.sum(dim=1, keepdim=True)
        gate_up = self._matrix("gate_up", i, copies=c.n_experts)
        down = self._matrix("down", i, copies=c.n_experts)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=c.n_experts).tolist()
        rows = order // c.experts_per_token
        weight = routing_weight.flatten()[order][:, None]
        out = torch.zeros((len(x), c.d_model), dtype=torch.float32, device=x.device)
        start = 0
        for expert, count in enumerate(counts):
            if count:
                part = rows[start : start + count]
                h = _swiglu((x[part] @ gate_up[expert].T).float(), c.d_expert, weight[start : start + count])
                out.index_add_(0, part, (h @ down[expert].T).float()[:, : c.d_model])
                start += count
        return out


def widen(data: torch.Tensor, fmt: Format, tiles: int, blocks: int, place: torch.Tensor) -> torch.Tensor:
    """Packed tiles as bf16 [tiles * 16, blocks * 128]: the values of `pack.unpack`, rounded; never stored in fp32,
    which would take gigabytes for a layer of experts."""
    import torch

    block = data.reshape(tiles, blocks, fmt.block_bytes)
    raw, record = block[..., : fmt.data * 512], block[..., fmt.data * 512 :]
    if fmt.name == "bf16":
        values = raw.view(torch.bfloat16)
    elif fmt.data == 4:
        values = raw.contiguous().view(torch.float8_e4m3fn).to(torch.bfloat16)
    else:
        codes = from_nibbles(raw)
        values = codes_value(codes, torch.bfloat16) if fmt.name == "mxfp4" else codes.to(torch.bfloat16)
    values = values[..., place].reshape(tiles, blocks, TILE, fmt.groups or 1, -1)
    out = torch.empty((tiles, TILE, blocks, BLOCK), dtype=torch.bfloat16, device=data.device)
    to = out.unflatten(3, values.shape[3:]).permute(0, 2, 1, 3, 4)  # in the order of `values`, though stored row by row
    if fmt.record:
        torch.mul(values, record_scales(record, fmt)[..., None], out=to)
    else:
        to.copy_(values)
    return out.reshape(tiles * TILE, blocks * BLOCK)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    import torch

    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _swiglu(both: torch.Tensor, width: int, routing_weight: torch.Tensor | None = None) -> torch.Tensor:
    """Tiles of 8 gate rows and their 8 up rows, in bf16."""
    import torch

    pairs = both.reshape(len(both), -1, 2, 8)
    h = (torch.nn.functional.silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(len(both), -1)[:, :width]
    return (h if routing_weight is None else h * routing_weight).bfloat16()
