"""The CUDA sources themselves, run on the CPU by the emulator: both drivers against the interpreter of the plan.

Threads run in random order and asynchronous copies land at random moments, so a missing barrier or a wrong wait shows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from emulate import Emulated
from interpreter import Interpreter
from small_models import SMALL

from fulgur.kernels.cuda.kv_cache import to_fp8
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.weights import GpuWeights, assemble
from fulgur.model.bfloat16 import to_bfloat16
from fulgur.model.random import random_model

CONTEXT = 512
TOKENS = [5, 17, 300, 33, 2, 77, 240, 12]
# Between them every format and family, both drivers, with `wgmma` and without. (A build takes two seconds.)
CASES = [
    ("qwen2", "int4", "persistent", True), ("qwen3_moe", "fp8", "persistent", True),
    ("qwen3", "fp8-rows", "persistent", True), ("llama", "int4-64", "graph", True),
    ("qwen3_moe", "bf16", "graph", True), ("llama", "bf16", "persistent", True), ("narrow", "bf16", "persistent", True),
    ("narrow", "bf16", "graph", True),
    ("qwen2", "int4", "graph", False), ("qwen3_moe", "fp8", "persistent", False),
    ("llama", "int4-64", "persistent", False), ("qwen3", "fp8-rows", "graph", False),
]  # fmt: skip


# Fewer tiles than CTAs: in bf16 the down projection's are made of two parts.
FAMILIES = {
    **SMALL,
    "narrow": replace(SMALL["qwen2"], d_model=64, n_heads=2, n_kv_heads=1, d_ffn=1000),
    "narrow_moe": replace(SMALL["qwen3_moe"], d_model=64),
}


def weights_of(family: str, weights: str, rows: int, head: str | None = None) -> GpuWeights:
    config = FAMILIES[family]
    tensors = random_model(config, 3)
    plan = make_plan(config, weights=weights, head=head, ctas=6 if family.startswith("narrow") else 4, rows=rows)
    assert plan.matrices["down"].parts == (2 if family == "narrow" else 1)
    return assemble(plan, lambda name: (torch.from_numpy(tensors[name]), None), "cpu")


def fill_cache(position: int, emulated: Emulated, interpreter: Interpreter) -> None:
    """The same random keys and values for every position below `position`."""
    values = np.random.default_rng(7).standard_normal(interpreter.cache[:, :, :position].shape).astype(np.float32)
    interpreter.cache[:, :, :position] = interpreter._kept(values)
    blocks = emulated.buffers["tables"][0][np.arange(position) // 64]
    held = {"kv": to_bfloat16(values)}
    if emulated.plan.kv_dtype == "fp8":
        held = dict(zip(("kv", "exponents"), (t.numpy() for t in to_fp8(torch.from_numpy(values))), strict=True))
    for name, parts in held.items():
        for at in range(position):
            emulated.buffers[name][:, :, blocks[at], :, at % 64] = parts[:, :, at]


@pytest.mark.parametrize(("family", "weights", "driver", "wgmma"), CASES)
def test_logits_match_the_interpreter(family: str, weights: str, driver: str, wgmma: bool, folder: Path) -> None:
    model = weights_of(family, weights, 8)
    emulated = Emulated(model, driver, folder, context=CONTEXT, wgmma=wgmma)
    interpreter = Interpreter(model, CONTEXT, wgmma=wgmma)
    position = 318  # several splits; the three rows straddle a KV block
    fill_cache(position, emulated, interpreter)
    tokens = emulated.run(TOKENS[:3], position)
    expected = interpreter.step(TOKENS[:3], position)
    error = np.linalg.norm(emulated.logits[:3] - expected) / np.linalg.norm(expected)
    assert error < 5e-3, error  # a value on the edge of two bf16 may fall to either side
    assert tokens == emulated.logits[:3].argmax(axis=1).tolist()
    best, chosen = expected.max(axis=1), expected[range(3), tokens]
    assert (best - chosen < 5e-3 * best).all(), (best, chosen)  # the best, or as good as the best


@pytest.mark.parametrize(
    ("family", "weights", "wgmma"),
    [("qwen2", "int4", True), ("qwen3_moe", "fp8", True), ("qwen2", "fp8", False), ("narrow", "bf16", True)],
)
def test_a_wide_step_has_the_bits_of_single_steps(family: str, weights: str, wgmma: bool, folder: Path) -> None:
    model = weights_of(family, weights, 8)
    single, wide = (Emulated(model, "persistent", folder, context=CONTEXT, seed=s, wgmma=wgmma) for s in (1, 50))
    alone = []
    tokens = TOKENS[: 5 if model.plan.moe else 8]
    for i, token in enumerate(tokens):
        single.run([token], 60 + i)
        alone.append(single.logits[0].copy())
    for width in (8, 3):
        wide.buffers["kv"][:] = 0
        for begin in range(0, len(tokens), width):
            part = tokens[begin : begin + width]
            wide.run(part, 60 + begin)
            assert np.array_equal(wide.logits[: len(part)], alone[begin : begin + len(part)])
        assert np.array_equal(wide.buffers["kv"], single.buffers["kv"])


@pytest.mark.parametrize(("family", "weights"), [("qwen3", "fp8-rows"), ("qwen3_moe", "fp8")])
def test_many_keys(family: str, weights: str, folder: Path) -> None:
    """Splits of more than 500 or 1,000 keys (long_attention.cuh), by both drivers: near the interpreter, and a row's
    bits are its own. The rows straddle a KV block."""
    model, position, context = weights_of(family, weights, 3), 2238, 2304
    interpreter = Interpreter(model, context)
    wide, single = (Emulated(model, driver, folder, context=context) for driver in ("persistent", "graph"))
    fill_cache(position, wide, interpreter)
    single.buffers["kv"][:] = wide.buffers["kv"]
    wide.run(TOKENS[:3], position)
    expected = interpreter.step(TOKENS[:3], position)
    error = np.linalg.norm(wide.logits[:3] - expected) / np.linalg.norm(expected)
    assert error < 1e-2, error  # softmax weights are rounded against other maxima
    for i in range(3):
        single.run([TOKENS[i]], position + i)
        assert np.array_equal(single.logits[0], wide.logits[i])


@pytest.mark.parametrize(
    ("family", "weights", "head"),
    [("llama", "fp8", "bf16"), ("qwen3_moe", "int4", "fp8"), ("narrow", "bf16", "bf16"), ("narrow_moe", "fp8", "fp8")],
)
def test_decoding_on_the_device(family: str, weights: str, head: str, folder: Path) -> None:
    """Many steps in one launch, the same by both drivers, as by steps of one; it ends at a stop token and on cancel.
    The epochs pass the end of the 16 bits that pairs carry."""
    model = weights_of(family, weights, 1, head)
    drivers = [Emulated(model, driver, folder, context=CONTEXT, epoch=65533) for driver in ("persistent", "graph")]
    expected, token = [], TOKENS[0]
    for i in range(3):
        (token,) = drivers[0].run([token], 62 + i)
        expected.append(token)
    cut = expected.index(expected[1]) + 1  # random models repeat themselves
    for emulated in drivers:
        emulated.buffers["kv"][:] = 0
        assert emulated.run(TOKENS[:1], 62, steps=3) == expected
        assert emulated.mailbox.finished == 1
        emulated.buffers["kv"][:] = 0
        assert emulated.run(TOKENS[:1], 62, steps=3, stop=(7, expected[1])) == expected[:cut]
        emulated.mailbox.cancel = 1
        assert emulated.run(TOKENS[:1], 62, steps=3) == expected[:1]
