"""Keys and values in 8 bits: whoever writes them stores what the functions of kv_cache.py say, whoever reads them gets
the same values, and a row has the same bits in every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated_family
import emulated_gpu
import gpu_check as check
import numpy as np
import pytest
import test_family
import test_family_prefill
import test_prefill
import torch
from emulate import Emulated
from emulated_prefill import EmulatedKernels
from held_caches import holds, values_of
from held_models import held_source
from interpreter import Interpreter
from small_models import SMALL
from test_emulated import TOKENS, fill_cache, weights_of

from fulgur.errors import FulgurError
from fulgur.kernels.cuda import prefill_attention
from fulgur.kernels.cuda.family_plan import make_family_plan
from fulgur.kernels.cuda.family_prefill_fast import FastFamilyPrefill
from fulgur.kernels.cuda.family_weights import assemble as assemble_family
from fulgur.kernels.cuda.fit import kv_bytes_per_token
from fulgur.kernels.cuda.kv_cache import KvCache, bytes_per_token, check_dtype, from_fp8, to_fp8
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.prefill import Prefill
from fulgur.kernels.cuda.prefill_fast import FastPrefill
from fulgur.kernels.cuda.prefill_kernels import Gather, Launch, fill
from fulgur.kernels.cuda.weights import GpuWeights, assemble
from fulgur.model.random import random_model


def random_heads(*shape: int) -> torch.Tensor:
    """Of very different sizes, up to those that bf16 can hardly hold; some of zeros."""
    noise = torch.Generator().manual_seed(3)
    sizes = 10.0 ** torch.randint(-38, 4, shape[:-1], generator=noise)[..., None]
    return torch.randn(shape, generator=noise) * sizes * (torch.rand(shape[:-1], generator=noise) > 0.1)[..., None]


def close(got: torch.Tensor, expected: torch.Tensor, bound: float) -> bool:
    return bool(torch.linalg.vector_norm(got - expected) < bound * torch.linalg.vector_norm(expected))


def test_values_survive_within_a_sixteenth() -> None:
    values = random_heads(2000, 32)
    codes, exponents = to_fp8(values)
    assert codes.dtype == exponents.dtype == torch.uint8
    assert codes.shape == values.shape and exponents.shape == values.shape[:-1]
    kept, short = from_fp8(codes, exponents).float(), values.bfloat16().float()
    usual = short.abs().amax(-1) > 1e-33  # below, the steps of the smallest exponent are all there is
    largest = short.abs().amax(-1, keepdim=True)
    error = (kept - short).abs() / torch.maximum(short.abs(), largest / 2**13)
    assert error[usual].max() <= 1 / 16
    assert torch.equal(kept[largest[:, 0] == 0], short[largest[:, 0] == 0])
    assert torch.equal(from_fp8(*to_fp8(torch.full((1, 32), 1e9))), torch.full((1, 32), 57344.0).bfloat16())
    # What is kept is kept as it is: of values that are e4m3 times a power of two nothing is lost.
    exact = torch.arange(-16, 16)[None] * 2.0 ** torch.arange(-20, 11)[:, None]
    assert torch.equal(from_fp8(*to_fp8(exact)).float(), exact)


def test_the_cache_halves_and_copies_its_blocks() -> None:
    wide, narrow = (KvCache(2, 4, 3, 64, dtype, "cpu") for dtype in ("bf16", "fp8"))
    assert wide.nbytes == 256 * bytes_per_token(2, 3, 64, "bf16")
    assert narrow.nbytes == 256 * bytes_per_token(2, 3, 64, "fp8") == wide.nbytes * 65 // 128
    assert wide.layer_bytes == narrow.layer_bytes == wide.nbytes // 2
    values = random_heads(2, 70, 3, 64)
    for cache in (wide, narrow):
        cache.store(1, values[0], values[1], 60, torch.tensor([2, 3, 0, 1], dtype=torch.int32))
        cache.copy_block(3, 1)
        assert torch.equal(values_of(cache)[1, :, 1], values_of(cache)[1, :, 3])
        assert values_of(cache)[1, :, 1].any() and not values_of(cache)[0].any()
        kept = cache.gathered(1, 130, torch.tensor([2, 3, 0], dtype=torch.int32))
        assert [tuple(t.shape) for t in kept] == [(3, 130, 64)] * 2
        expected = values.bfloat16() if cache is wide else from_fp8(*to_fp8(values))
        assert torch.equal(torch.stack(kept)[:, :, 60:], expected.transpose(1, 2))
        cache.randomize()
        assert 0.95 < values_of(cache).std() < 1.05
    config = SMALL["qwen3"]
    assert kv_bytes_per_token(config, "fp8") * 256 == kv_bytes_per_token(config, "bf16") * 129


def test_what_a_gpu_cannot_keep_is_refused() -> None:
    older = replace(emulated_gpu.GPU, name="A100", capability=(8, 6))
    check_dtype("bf16", older)
    check_dtype("fp8", replace(older, capability=(8, 9)))
    with pytest.raises(FulgurError, match=r"kv_dtype 'fp8' needs compute capability 8\.9, but the A100 has 8\.6"):
        check_dtype("fp8", older)
    with pytest.raises(FulgurError, match="kv_dtype 'int8' is not supported on a GPU"):
        check_dtype("int8", older)


def in_fp8(model: GpuWeights) -> GpuWeights:
    return replace(model, plan=replace(model.plan, kv_dtype="fp8"))


def cache_of(emulated: Emulated) -> KvCache:
    """A copy of what an emulated driver holds."""
    held, narrow = torch.from_numpy(emulated.buffers["kv"].copy()), emulated.plan.kv_dtype == "fp8"
    cache = KvCache(*held.shape[:1], *held.shape[2:4], held.shape[5], emulated.plan.kv_dtype, "cpu")
    cache.held = held if narrow else held.view(torch.bfloat16)
    cache.exponents = torch.from_numpy(emulated.buffers["exponents"].copy()) if narrow else None
    return cache


@pytest.mark.parametrize(
    ("family", "weights", "driver", "position"),
    [("qwen2", "int4", "graph", 318), ("llama", "bf16", "persistent", 2238), ("qwen3", "fp8", "persistent", 2238)],
)
def test_decode_kernels(family: str, weights: str, driver: str, position: int, folder: Path) -> None:
    """Logits after keys and values of 8 bits are the interpreter's; what is stored are the codes of what bf16 would
    hold, in the first layer exactly; k rows have the bits of single steps."""
    context, wide = -(-(position + 8) // 64) * 64, weights_of(family, weights, 8)
    model = in_fp8(wide)
    emulated, plain = (Emulated(m, driver, folder, context=context) for m in (model, wide))
    interpreter = Interpreter(model, context, wgmma=True)
    fill_cache(position, emulated, interpreter)
    emulated.run(TOKENS[:3], position)
    expected = interpreter.step(TOKENS[:3], position)
    error = np.linalg.norm(emulated.logits[:3] - expected) / np.linalg.norm(expected)
    assert error < (5e-3 if position < 1000 else 1e-2), error  # of many keys, weights are rounded against other maxima
    together, alone = emulated.logits[:3].copy(), cache_of(emulated)
    for i in range(3):
        emulated.run(TOKENS[i : i + 1], position + i)
        assert np.array_equal(emulated.logits[0], together[i])
    again = cache_of(emulated)
    assert torch.equal(alone.held, again.held)
    assert alone.exponents is not None and again.exponents is not None and torch.equal(alone.exponents, again.exponents)
    for one in (emulated, plain):
        for name in ("kv", "exponents"):
            if name in one.buffers:
                one.buffers[name][:] = 0
        one.run(TOKENS[:3], 62)
    assert holds(cache_of(emulated), cache_of(plain).held[0])


def test_prompts_gather_what_was_stored(folder: Path) -> None:
    config = SMALL["qwen2"]
    kernels = EmulatedKernels(make_plan(config, weights="int4", ctas=4), folder)
    cache, values = KvCache(1, 4, 2, 32, "fp8", "cpu"), random_heads(2, 150, 2, 32)
    table = torch.tensor([2, 0, 3], dtype=torch.int32)
    cache.store(0, values[0], values[1], 0, table)
    found = torch.zeros((2, 150, 2, 32), dtype=torch.bfloat16)
    gather = fill(
        Gather, table=table, to_keys=found[0], to_values=found[1], n=150, kv_heads=2, head_dim=32, **cache.layer(0)
    )
    kernels.run(Launch("gather_cache", gather, 3))
    assert torch.equal(found.transpose(1, 2), torch.stack(cache.gathered(0, 150, table)))


def test_prompts_of_the_decode_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By both paths: in the first layer the codes of what bf16 would hold, in the next ones close to it."""
    monkeypatch.setattr(prefill_attention.Attention, "flash", staticmethod(test_prefill.flash))
    config = SMALL["qwen2"]
    tensors, plan = random_model(config, 4), make_plan(config, weights="int4", ctas=4)
    model = assemble(plan, lambda name: (torch.from_numpy(tensors[name]), None), "cpu")
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 70)
    found = []
    for path, more in ((Prefill, ()), (FastPrefill, (EmulatedKernels(plan, folder),))):
        wide, narrow = (
            test_prefill.cache_after(path, model, tokens, (40,), *more, kv_dtype=dtype) for dtype in ("bf16", "fp8")
        )
        assert holds(narrow, wide.held[0])
        found.append(values_of(narrow))
        assert close(found[-1], values_of(wide), 0.06)
    assert close(*found, 0.03)


@pytest.mark.parametrize("case", ["gpt_oss", "qwen3_5"])
def test_prompts_of_the_general_driver(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastFamilyPrefill, "flash", staticmethod(test_family_prefill.flash))
    config, formats = test_family.FAMILIES[case]
    weights = assemble_family(make_family_plan(config, formats, ctas=3), held_source(config, formats, 3), "cpu")
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 80)
    for use in (None, EmulatedKernels(weights.plan, folder)):
        wide, narrow = (test_family_prefill.after(weights, tokens, (41,), use, dtype) for dtype in ("bf16", "fp8"))
        assert torch.equal(narrow[1][0], from_fp8(*to_fp8(wide[1][0])).float())
        assert close(narrow[0], wide[0], 0.1)


@pytest.mark.parametrize("case", ["gpt_oss", "with a head"])
def test_the_general_driver(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step stores are the codes of what bf16 would hold; k rows have the bits of single steps."""
    emulated_family.install(monkeypatch, folder)
    given = test_family.WITH_A_HEAD if case == "with a head" else test_family.FAMILIES[case]
    wide, narrow = (test_family.opened(*given, kv_dtype)[0] for kv_dtype in ("bf16", "fp8"))
    assert 0.5 < narrow.cache.nbytes / wide.cache.nbytes < 0.53 and "fp8" in narrow.isa
    tokens = np.random.default_rng(1).integers(0, wide.vocab_size, 12).tolist()
    single = np.concatenate([test_family.rows(narrow, tokens[i : i + 1], i) for i in range(12)])
    expected = np.concatenate([test_family.rows(wide, tokens[at : at + 6], at) for at in (0, 6)])
    assert holds(narrow.cache, wide.cache.held[0])
    assert np.array_equal(np.concatenate([test_family.rows(narrow, tokens[at : at + 6], at) for at in (0, 6)]), single)
    assert np.linalg.norm(single - expected) < 0.04 * np.linalg.norm(expected)
    for model in (wide, narrow):
        model.close()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_gpu.install(monkeypatch, folder)


def test_the_runtime_over_it(emulated: None) -> None:
    """A prompt at once, then steps and a run: the tokens of single steps; a copied block goes on as its source."""
    model, _ = check.small_runtime("qwen2", "int4", "persistent", "cpu", kv_dtype="fp8")
    wide = kv_bytes_per_token(model.config, "bf16") * check.KV_BLOCKS * 64
    assert model.kv_bytes == wide * 33 // 64 and "fp8" in model.isa
    tokens, tables = np.arange(5, 75, dtype=np.int32), np.array([[3, 4, 5], [3, 9, 6]], np.int32)
    model.prefill_from = 16
    at, zeros = np.arange(70, dtype=np.int32), np.zeros(70, np.int32)
    (first,) = model.step(tokens, at, zeros, tables, at[-1:])
    model.copy_block(4, 9)
    made: list[Any] = [[int(first)], [int(first)]]
    for position in range(70, 74):
        one = (np.array([v], np.int32) for v in (made[1][-1], position, 1))
        made[1].append(int(model.step(*one, tables, zeros[:1])[0]))
    run = model.stream(int(first), 70, tables[0], (), 4)
    while not run.ended:
        made[0] += run.read()
    assert made[0] == made[1]
    model.close()
