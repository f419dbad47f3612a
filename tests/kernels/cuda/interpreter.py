"""The plan of a step in numpy, phase by phase: what the CUDA sources compute, to check plan and packing without a GPU.

Matrices are cut into the same K slices and added in the same order, attention into the same splits, activations are
rounded at the same places (`narrow`) to bf16 or to two fp8 terms (`wgmma`), the weights come out of the packed arena.
Only the order inside a block of 128 columns is numpy's own. How a flat cut and the splits of attention are found stands
here a second time, apart from the CUDA sources, so that the two check each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.formats import WARPS
from fulgur.kernels.cuda.header import norm_stride
from fulgur.kernels.cuda.kv_cache import from_fp8, to_fp8
from fulgur.kernels.cuda.pack import unpack
from fulgur.kernels.cuda.plan import KV_BLOCK, Matrix, Phase, Plan
from fulgur.kernels.cuda.weights import GpuWeights
from fulgur.kernels.reference import rms_norm, rotate, silu
from fulgur.model.bfloat16 import from_bfloat16, to_bfloat16
from fulgur.model.rope import rope_tables

Float = npt.NDArray[np.float32]


class Interpreter:
    """One sequence; `cache` holds keys and values [layer, kind, position, kv head, head_dim]."""

    def __init__(self, weights: GpuWeights, context: int = 512, *, narrow: bool = True, wgmma: bool = False) -> None:
        self.plan, self.config, self.narrow, self.wgmma = weights.plan, weights.plan.config, narrow, wgmma
        self.phases = list(self.plan.phases())
        wrong = early_overwrites(self.phases)
        if wrong:
            raise ValueError(f"the plan overwrites values that are still needed: {wrong}")
        c = self.config
        self._weights = weights
        self._norms = weights.norms.numpy()
        self._embed = weights.embed.float().numpy()
        self._cos, self._sin = rope_tables(c, context)
        self._unpacked: dict[tuple[str, int, int], Float] = {}
        self.cache = np.zeros((c.n_layers, 2, context, c.n_kv_heads, c.head_dim), np.float32)

    def step(self, tokens: list[int], position: int) -> Float:
        """Logits [rows, vocab] of rows at consecutive positions."""
        buffers: dict[str, Any] = {"token": tokens, "position": position}
        for phase in self.phases:
            made = getattr(self, f"_{phase.name}")(phase, buffers)
            extra = set(made) - phase.writes
            assert not extra, f"{phase.name} writes {extra}, which the plan does not say"
            buffers |= made
        logits: Float = buffers["logits"]
        return logits

    def _vector(self, layer: int, at: int, size: int) -> Float:
        start = layer * norm_stride(self.plan) + at
        vector: Float = self._norms[start : start + size]
        return vector

    def _round(self, x: Float) -> Float:
        return from_bfloat16(to_bfloat16(x)) if self.narrow else x

    def _kept(self, x: Float) -> Float:
        """As the cache holds heads."""
        if self.plan.kv_dtype == "bf16":
            return self._round(x)
        import torch

        kept: Float = from_fp8(*to_fp8(torch.from_numpy(np.ascontiguousarray(x)))).float().numpy()
        return kept

    def _passed(self, x: Float) -> Float:
        """Between CTAs: without the last 8 bits (exchange.cuh)."""
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        short: Float = ((bits + np.uint32(0x7F) + ((bits >> 8) & 1)) & np.uint32(0xFFFFFF00)).view(np.float32)
        return short if self.narrow else x

    def _matrix(self, matrix: Matrix, layer: int, copy: int) -> Float:
        key = (matrix.name, layer, copy)
        if key not in self._unpacked:
            start = self.plan.address(matrix, layer, copy, 0, 0)
            data = self._weights.arena[start : start + matrix.copy_bytes]
            self._unpacked[key] = unpack(data, matrix.format, matrix.rows, matrix.copy_blocks * 128).numpy()
        return self._unpacked[key]

    def _product(self, phase: Phase, x: Float, copies: list[int] | None = None) -> Float:
        """[split, rows, out]: slices of K added in ascending order; `copies` are experts along K."""
        matrix = phase.matrix
        assert matrix is not None
        parts = [self._matrix(matrix, phase.layer, copy) for copy in copies or [0]]
        weight = np.concatenate(parts, axis=1)
        x = np.pad(x, ((0, 0), (0, weight.shape[1] - x.shape[1])))
        x = two_terms(x) if self.narrow and self.wgmma and matrix.format.data < 8 else self._round(x)
        if matrix.flat:
            return self._flat_product(matrix, x, weight)
        out = np.zeros((matrix.split, len(x), matrix.rows), np.float32)
        for split in range(matrix.split):
            for warp in range(matrix.kw):
                first, last = matrix.slice(split, warp)
                part = np.zeros_like(out[split])
                for block in range(first, last):
                    k = slice(block * 128, (block + 1) * 128)
                    part += x[:, k] @ weight[:, k].T
                out[split] += part
        return out

    def _flat_product(self, matrix: Matrix, x: Float, weight: Float) -> Float:
        """[part, rows, out]"""
        out = np.zeros((matrix.parts, len(x), matrix.rows), np.float32)
        for cta in range(self.plan.ctas):
            begin, _ = span(matrix, cta, self.plan.ctas)
            for _, tile, first, last in segments(matrix, cta, self.plan.ctas):
                rows = slice(tile * 16, tile * 16 + 16)
                total = np.zeros_like(out[0, :, rows])
                for block in range(first, last):
                    k = slice(block * 128, (block + 1) * 128)
                    total += x[:, k] @ weight[rows, k].T
                out[int(tile * matrix.blocks < begin), :, rows] += total
        return out

    def _normed(self, phase: Phase, x: Float, layer: int, at: int, copies: list[int] | None = None) -> Float:
        """The product of a matrix and x's RMSNorm, whose factor multiplies the sums."""
        product = self._product(phase, x * self._vector(layer, at, self.config.d_model), copies)
        factor: Float = 1 / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + np.float32(self.config.norm_eps))
        return product * factor

    def _residual(self, phase: Phase, b: dict[str, Any]) -> Float:
        """Before attention and o."""
        x: Float = self._embed[b["token"]] if phase.layer == 0 else b["x"]
        return x

    def _qkv(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        return {"qkv": self._passed(self._normed(phase, self._residual(phase, b), phase.layer, 0)[0])}

    def _attention(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        c, i, n = self.config, phase.layer, len(b["token"])
        qkv = b["qkv"]
        at = 2 * c.d_model + 2 * c.head_dim
        if c.qkv_bias:
            qkv = qkv + self._vector(i, at, c.q_rows + 2 * c.kv_rows)
        q, k, v = np.split(qkv.reshape(n, -1, c.head_dim), (c.n_heads, c.n_heads + c.n_kv_heads), axis=1)
        if c.qk_norm:
            q = rms_norm(q, self._vector(i, 2 * c.d_model, c.head_dim), c.norm_eps)
            k = rms_norm(k, self._vector(i, 2 * c.d_model + c.head_dim, c.head_dim), c.norm_eps)
        here = np.arange(b["position"], b["position"] + n)
        q, k = rotate(q, self._cos[here], self._sin[here]), rotate(k, self._cos[here], self._sin[here])
        self.cache[i, 0, here], self.cache[i, 1, here] = self._kept(k), self._kept(v)
        rows = [self._attend(i, q[r], int(here[r])) for r in range(n)]
        return {f"kv.{i}": self.cache[i], "attended": self._round(np.stack(rows).reshape(n, -1))}

    def _attend(self, layer: int, q: Float, position: int) -> Float:
        """Split softmax: a split goes block by block with a running maximum and sum, its softmax weights rounded to
        bf16; the splits are added in ascending order."""
        c, length = self.config, split_length(self.plan, position)
        grouped = self._round(q).reshape(c.n_kv_heads, -1, c.head_dim) * np.float32(c.head_dim**-0.5)
        peaks, totals, sums = [], [], []
        for begin in range(0, position + 1, length):
            shape = grouped.shape
            peak, total, out = np.full(shape[:2], -np.inf, np.float32), np.zeros(shape[:2], np.float32), np.zeros(shape)
            for block in range(begin, min(begin + length, position + 1), KV_BLOCK):
                keys, values = self.cache[layer, :, block : min(block + KV_BLOCK, position + 1)]
                scores = np.einsum("hgd,thd->hgt", grouped, keys)
                top = np.maximum(peak, scores.max(axis=2))
                weight = self._round(np.exp(scores - top[:, :, None]))
                keep = np.exp(peak - top)
                total = total * keep + weight.sum(axis=2)
                out = out * keep[:, :, None] + np.einsum("hgt,thd->hgd", weight, values)
                peak = top
            peaks.append(peak)
            totals.append(total)
            sums.append(out.astype(np.float32))
        highest = np.max(peaks, axis=0)
        shrink = [np.exp(p - highest) for p in peaks]
        total = sum(s * t for s, t in zip(shrink, totals, strict=True))
        joined: Float = sum(s[:, :, None] * v for s, v in zip(shrink, sums, strict=True)) / total[:, :, None]  # type: ignore[index]
        return joined.reshape(c.n_heads, c.head_dim)

    def _o(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        return {"y": self._passed(self._residual(phase, b) + self._product(phase, b["attended"])[0])}

    def _router(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        return {"router": self._product(phase, self._residual(phase, b))}

    def _fold(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        return {"folded": self._product(phase, b["attended"])}

    def _routes(self, b: dict[str, Any]) -> tuple[npt.NDArray[np.int64], Float]:
        c = self.config
        logits = b["router"].sum(axis=0, dtype=np.float32) + b["folded"].sum(axis=0, dtype=np.float32)
        if self.narrow:  # the last bits give way to the expert's number: no two are equal (router.cuh)
            last = np.arange(255, 255 - c.n_experts, -1, dtype=np.uint32)
            logits = ((logits.view(np.uint32) & ~np.uint32(255)) | last).view(np.float32)
        logits = logits / np.sqrt(np.mean(b["y"] ** 2, axis=1, keepdims=True) + np.float32(c.norm_eps))
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : c.experts_per_token]
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        routing = np.take_along_axis(weight, chosen, axis=1)
        return chosen, routing / (routing if c.norm_topk else weight).sum(axis=1, keepdims=True)

    def _gate_up(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        c = self.config
        y, at = b["y"], c.d_model
        if not self.plan.moe:
            return {"h": self._round(_swiglu(self._normed(phase, y, phase.layer, at)[0])[:, : c.d_ffn])}
        chosen, routing = self._routes(b)
        assert phase.matrix is not None
        width = -(-c.d_expert // 128) * 128  # the experts lie one after another, each padded to whole blocks
        h = np.zeros((len(y), c.experts_per_token * width), np.float32)
        for row in range(len(y)):
            for rank, expert in enumerate(chosen[row]):
                both = self._normed(phase, y[row : row + 1], phase.layer, at, [int(expert)])[0]
                part = _swiglu(both)[0, : c.d_expert] * routing[row, rank]
                h[row, rank * width : rank * width + c.d_expert] = part
        return {"h": self._round(h)}

    def _down(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        if not self.plan.moe:
            first, *others = self._product(phase, b["h"])
            return {"x": sum((self._passed(part) for part in others), self._passed(b["y"] + first))}
        chosen, _ = self._routes(b)
        rows = [self._product(phase, b["h"][r : r + 1], [int(e) for e in chosen[r]])[0, 0] for r in range(len(chosen))]
        return {"x": self._passed(b["y"] + np.stack(rows))}

    def _head(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        logits = self._normed(phase, b["x"], self.config.n_layers, 0)[0]
        return {"logits": logits, "candidates": logits.argmax(axis=1)}

    def _finish(self, phase: Phase, b: dict[str, Any]) -> dict[str, Any]:
        return {"token": b["candidates"]}


def two_terms(x: Float) -> Float:
    """Activations as `wgmma` sees them: hi + lo / 16 in e4m3, rounded via f16, with a power of two for each block."""
    import torch

    def rounded(v: Float) -> Float:
        return torch.from_numpy(v).to(torch.float8_e4m3fn).float().numpy()

    blocks = x.reshape(len(x), -1, 128)
    _, exponent = np.frexp(np.abs(blocks).max(axis=2, keepdims=True))
    scaled = np.ldexp(blocks, 8 - exponent).astype(np.float16).astype(np.float32)
    high = rounded(scaled)
    terms = high + rounded((scaled - high) * 16) / 16
    return np.ldexp(terms, exponent - 8).astype(np.float32).reshape(x.shape)


def _swiglu(both: Float) -> Float:
    """Tiles of 8 gate rows and their 8 up rows."""
    pairs = both.reshape(len(both), -1, 2, 8)
    return (silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(len(both), -1)


def span(m: Matrix, cta: int, ctas: int) -> tuple[int, int]:
    """Flat cut: the blocks of a CTA, counted through all tiles."""
    grain = 1 if m.parts > 1 else m.blocks
    total = m.tiles * m.blocks // grain
    first, last = (max(c - (ctas - m.over), 0) * total // m.over * grain for c in (cta, cta + 1))
    return first, last


def segments(m: Matrix, cta: int, ctas: int) -> Iterator[tuple[int, int, int, int]]:
    """Flat cut: (warp, tile, first block, last block) of every sum that the CTA's warps make, in order."""
    begin, end = span(m, cta, ctas)
    for chunk in range(begin, end, WARPS * m.blocks):
        n = min(end - chunk, WARPS * m.blocks)
        for warp in range(WARPS):
            at, stop = chunk + warp * n // WARPS, chunk + (warp + 1) * n // WARPS
            while at < stop:
                tile = at // m.blocks
                upto = min(stop, (tile + 1) * m.blocks)
                yield warp, tile, at - tile * m.blocks, upto - tile * m.blocks
                at = upto


def split_length(plan: Plan, position: int) -> int:
    """Keys of one attention split, in whole blocks: a function of the position only."""
    return (position // (KV_BLOCK * plan.max_splits) + 1) * KV_BLOCK


def early_overwrites(phases: list[Phase]) -> list[str]:
    """Phases that overwrite a value which some CTA may still read; no barrier stands between phases.

    A reader is done when the writer holds, directly or through others, a value computed from what the reader read.
    """
    wrong: list[str] = []
    needs: list[set[int]] = []  # for every phase, the earlier ones whose results it needs
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for i, phase in enumerate(phases):
        direct = {writer[b] for b in phase.reads if b in writer}
        needs.append(direct.union(*(needs[j] for j in direct)))
        for buffer in sorted(phase.writes):
            late = [phases[j] for j in readers.get(buffer, []) if j not in needs[i]]
            wrong += [f"{phase.layer}.{phase.name} overwrites {buffer} read by {p.layer}.{p.name}" for p in late]
        for buffer in phase.writes:
            writer[buffer], readers[buffer] = i, []
        for buffer in phase.reads - phase.writes:  # a phase has read what it overwrites itself
            readers.setdefault(buffer, []).append(i)
    return wrong
