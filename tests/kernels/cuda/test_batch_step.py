"""A step over rows of several sequences by the kernels of prefill and batch.cu, or by the general driver over the same
weights, in the emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import emulated_family
import emulated_gpu
import emulated_prefill
import numpy as np
import pytest
import torch
from interpreter import Interpreter
from small_models import SMALL

from fulgur.kernels.cuda.batch_step import BatchStep, StepInput, possible
from fulgur.kernels.cuda.few_step import FewStep, plan_over
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.prefill_fast import FastPrefill
from fulgur.kernels.cuda.weights import assemble
from fulgur.model.random import random_model
from fulgur.model.rope import rope_tables


@pytest.mark.parametrize(("family", "weights"), [("llama", "bf16"), ("qwen3_moe", "fp8")])
def test_steps_of_every_size(family: str, weights: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has the same bits in a step of 3 rows and among 60 others: tiles, pieces and stages are other ones."""
    emulated_gpu.install(monkeypatch, folder)
    config, noise = SMALL[family], np.random.default_rng(5)
    tensors = random_model(config, 4)
    plan = make_plan(config, weights=weights, ctas=4)
    model = assemble(plan, lambda name: (torch.from_numpy(tensors[name]), None), "cpu")
    kv = KvCache(config.n_layers, 64, config.n_kv_heads, config.head_dim, "bf16", "cpu")
    rope = torch.from_numpy(np.concatenate(rope_tables(config, 256), axis=1))
    prefill = FastPrefill(model, kv, rope, emulated_prefill.EmulatedKernels(plan, folder, 5))
    assert possible(prefill)
    stream = emulated_gpu.Stream()
    step = BatchStep(prefill, StepInput(1, "cpu", None), stream, graphs=False)
    each = np.arange(63, dtype=np.int32)
    tokens, zeros, tables = (
        noise.integers(0, config.vocab_size, 63).astype(np.int32),
        np.zeros(63, np.int32),
        each[:, None],
    )
    found = {}
    for rows in (3, 13, 31, 63):
        step.run(tokens[:rows], zeros[:rows], each[:rows], tables)
        stream.synchronize()
        found[rows] = step.logits[:rows, : config.vocab_size].numpy().copy()
    assert np.isfinite(found[63]).all() and len(np.unique(found[63].argmax(axis=1))) > 3
    for rows in (3, 13, 31):
        assert np.array_equal(found[rows], found[63][:rows]), rows


@pytest.mark.parametrize(
    ("family", "weights", "kv_dtype"),
    [("llama", "bf16", "bf16"), ("qwen2", "int4", "fp8"), ("qwen2", "int4", "bf16"), ("qwen3_moe", "fp8", "bf16")],
)
@pytest.mark.parametrize("kernels", ["batch", "few"])
def test_rows_of_several_sequences(
    kernels: str, family: str, weights: str, kv_dtype: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits are those of the plan within bf16, and a row has the same bits alone and in company."""
    emulated_gpu.install(monkeypatch, folder)
    config, noise = SMALL[family], np.random.default_rng(3)
    tensors = random_model(config, 4)
    plan = replace(make_plan(config, weights=weights, ctas=4), kv_dtype=kv_dtype)
    model = assemble(plan, lambda name: (torch.from_numpy(tensors[name]), None), "cpu")
    kv = KvCache(config.n_layers, 8, config.n_kv_heads, config.head_dim, kv_dtype, "cpu")
    rope = torch.from_numpy(np.concatenate(rope_tables(config, 256), axis=1))
    tables = np.array([[2, 0, -1], [-1, -1, -1], [7, 5, -1]], np.int32)
    lengths, expected, rows = {0: 70, 2: 3}, [], []
    for sequence, length in lengths.items():
        tokens = noise.integers(0, config.vocab_size, length + 2).tolist()
        interpreter = Interpreter(model, 256)
        interpreter.step(tokens[:length], 0)
        held = torch.from_numpy(np.ascontiguousarray(interpreter.cache[:, :, :length])).bfloat16()
        for layer, (keys, values) in enumerate(held):
            kv.store(layer, keys, values, 0, torch.from_numpy(tables[sequence]))
        for at in (length, length + 1):  # the second as a draft of the first
            expected.append(interpreter.step([tokens[at]], at)[0])
            rows.append((tokens[at], at, sequence))
    given, stream = StepInput(3, "cpu", None), emulated_gpu.Stream()
    step: BatchStep | FewStep
    if kernels == "batch":
        prefill = FastPrefill(model, kv, rope, emulated_prefill.EmulatedKernels(plan, folder, 5))
        assert possible(prefill)
        step = BatchStep(prefill, given, stream, graphs=False)
    else:
        few = plan_over(plan, 227 << 10)
        assert few is not None and few.rows == 8
        step = FewStep(few, model, given, kv, rope, emulated_family.EmulatedKernels(folder), stream)
        step.warm()
    arrays = [np.array(column, np.int32) for column in zip(*rows, strict=True)]
    step.run(*arrays, tables)
    stream.synchronize()
    got = step.logits[:4, : config.vocab_size].numpy().copy()
    wanted = np.array(expected)
    errors = np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert errors.max() < 0.03, errors
    for i in (2, 0, 1, 3):
        step.run(*(array[i : i + 1] for array in arrays), tables)
        stream.synchronize()
        assert np.array_equal(step.logits[0, : config.vocab_size].numpy(), got[i])
