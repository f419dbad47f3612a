"""Prefill leaves the cache that the decode kernels would have written, within bf16: the plain and the fast path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from emulated_prefill import EmulatedKernels
from held_caches import values_of
from interpreter import Interpreter
from small_models import SMALL

from fulgur.kernels.cuda import prefill_attention, prefill_fast
from fulgur.kernels.cuda.formats import FORMATS, format_named
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.pack import order, pack, quantise, unpack
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.prefill import Prefill, widen
from fulgur.kernels.cuda.prefill_fast import FastPrefill
from fulgur.kernels.cuda.weights import GpuWeights, assemble
from fulgur.model.random import random_model
from fulgur.model.rope import rope_tables


@pytest.mark.parametrize("weights", list(FORMATS))
def test_widened_matrices_are_the_unpacked_ones(weights: str) -> None:
    fmt = format_named(weights)
    values, scale = quantise(torch.randn((40, 300), generator=torch.Generator().manual_seed(1)), fmt)
    packed = pack(values, fmt, scale)
    wide = widen(packed, fmt, 3, 3, torch.from_numpy(np.argsort(order(fmt))))
    assert torch.equal(wide[:40, :300], unpack(packed, fmt, 40, 300).bfloat16())


@pytest.mark.parametrize(("family", "weights"), [("qwen2", "int4"), ("qwen3", "bf16"), ("qwen3_moe", "fp8")])
def test_same_cache_as_the_plan(family: str, weights: str) -> None:
    config = SMALL[family]
    tensors = random_model(config, 4)
    plan = make_plan(config, weights=weights, ctas=4)
    model = assemble(plan, lambda name: (torch.from_numpy(tensors[name]), None), "cpu")
    context = 256
    interpreter = Interpreter(model, context)
    length, cut = (20, 9) if plan.moe else (72, 40)  # experts are slow in numpy
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, length)
    interpreter.step(tokens.tolist(), 0)
    kv = KvCache(config.n_layers, 4, config.n_kv_heads, config.head_dim, "bf16", "cpu")
    rope = torch.from_numpy(np.concatenate(rope_tables(config, context), axis=1))
    prefill, table = Prefill(model, kv, rope), torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    for begin, end in ((0, cut), (cut, length)):  # the second part attends to what the first left in the cache
        prefill.run(torch.from_numpy(tokens[begin:end]), begin, table)
    slots = kv.held[:, :, table.long()].permute(0, 1, 2, 4, 3, 5)  # [layer, kind, block, slot, head, dim]
    got = slots.reshape(config.n_layers, 2, -1, config.n_kv_heads, config.head_dim)
    expected = interpreter.cache[:, :, :length]
    error = np.linalg.norm(got[:, :, :length].float().numpy() - expected) / np.linalg.norm(expected)
    assert error < 0.03, error


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The libraries' attention, with torch's own operations."""
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    group = q.shape[1] // k.shape[1]
    scores = q.float() @ k.float().repeat_interleave(group, 1).mT * q.shape[3] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -torch.inf)
    out = scores.softmax(-1) @ v.float().repeat_interleave(group, 1)
    return out.bfloat16(), scores.logsumexp(-1, keepdim=True)


def cache_after(
    prefill: type[Prefill], model: GpuWeights, tokens: np.ndarray, cuts: tuple[int, ...], *more, kv_dtype: str = "bf16"
) -> KvCache:
    c = model.plan.config
    kv = KvCache(c.n_layers, 4, c.n_kv_heads, c.head_dim, kv_dtype, "cpu")
    rope = torch.from_numpy(np.concatenate(rope_tables(c, 256), axis=1))
    made, table = prefill(model, kv, rope, *more), torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    for begin, end in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
        made.run(torch.from_numpy(tokens[begin:end]), begin, table)
    return kv


NEVER = 1e18  # multiply-adds of a matrix
FAST = [
    ("llama", "fp8", (), 4096, NEVER),
    ("qwen2", "int4", (9, 50), 4096, NEVER),  # chunks of any length
    ("qwen3", "bf16", (32, 64), 32, NEVER),  # earlier keys apart from a chunk's own
    ("llama", "bf16", (40,), 4096, 0),  # products of the library
    ("llama", "fp8-rows", (), 4096, 9.3e6),  # all but o, the smallest that is asked about
    ("qwen3_moe", "fp8", (30,), 4096, NEVER),
    ("qwen3_moe", "int4-64", (40,), 40, NEVER),  # a chunk that is filled up
    ("qwen3_moe", "bf16", (33,), 4096, NEVER),
    ("qwen3_moe", "fp8-rows", (5,), 4096, 0),
]


@pytest.mark.parametrize(("family", "weights", "cuts", "chunk", "library"), FAST)
def test_fast_path_agrees_with_the_plain_one(
    family: str, weights: str, cuts: tuple[int, ...], chunk: int, library: float, folder: Path, monkeypatch
) -> None:
    monkeypatch.setattr(prefill_attention, "LENGTHS", (chunk, chunk))
    monkeypatch.setattr(prefill_attention.Attention, "flash", staticmethod(flash))
    monkeypatch.setattr(prefill_attention.Attention, "cudnn", staticmethod(cudnn))
    monkeypatch.setattr(prefill_fast, "LIBRARY_WORK", library)
    if library < NEVER:  # torch on the CPU has no products of bf16 with sums in float32
        monkeypatch.setattr(torch, "addmm", lambda c, a, b, out_dtype, out: out.copy_(c + a.float() @ b.float()))
    config = SMALL[family]
    tensors = random_model(config, 4)
    plan = make_plan(config, weights=weights, ctas=4)
    model = assemble(plan, lambda name: (torch.from_numpy(tensors[name]), None), "cpu")
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 70)
    plain = values_of(cache_after(Prefill, model, tokens, cuts))
    kernels = EmulatedKernels(plan, folder)
    fast = values_of(cache_after(FastPrefill, model, tokens, cuts, kernels))
    # Of a token whose router logits nearly tie, another expert may be chosen: keys of later layers differ then.
    difference, size = (torch.linalg.vector_norm(t, dim=(0, 1, 3, 5)) for t in (fast - plain, plain))
    errors = difference / size.clamp(min=1e-9)  # of every token
    apart = int((errors > 0.02).sum())
    assert apart <= (4 if plan.moe else 0), errors
    assert any(name.startswith("widen") for name in kernels.launched) == (library < NEVER)
