"""Prefill through torch leaves the cache that the decode kernels would have written, within bf16."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from interpreter import Interpreter
from small_models import SMALL

from fulgur.kernels.cuda.formats import FORMATS, format_named
from fulgur.kernels.cuda.pack import order, pack, quantise, unpack
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.prefill import Prefill, widen
from fulgur.kernels.cuda.weights import assemble
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
    kv = torch.zeros((config.n_layers, 2, 4, config.n_kv_heads, 64, config.head_dim), dtype=torch.bfloat16)
    rope = torch.from_numpy(np.concatenate(rope_tables(config, context), axis=1))
    prefill, table = Prefill(model, kv, rope), torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    for begin, end in ((0, cut), (cut, length)):  # the second part attends to what the first left in the cache
        prefill.run(torch.from_numpy(tokens[begin:end]), begin, table)
    slots = kv[:, :, table.long()].permute(0, 1, 2, 4, 3, 5)  # [layer, kind, block, slot, head, dim]
    got = slots.reshape(config.n_layers, 2, -1, config.n_kv_heads, config.head_dim)
    expected = interpreter.cache[:, :, :length]
    error = np.linalg.norm(got[:, :, :length].float().numpy() - expected) / np.linalg.norm(expected)
    assert error < 0.03, error
