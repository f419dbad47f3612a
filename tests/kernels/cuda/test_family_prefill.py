"""The fast path of prompts of any family, in the emulator, against the plain one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from emulated_prefill import EmulatedKernels
from held_caches import values_of
from held_models import held_source
from test_family import FAMILIES

from fulgur.kernels.cuda import family_prefill_fast
from fulgur.kernels.cuda.family_plan import FamilyPlan, Weights, make_family_plan
from fulgur.kernels.cuda.family_prefill import FamilyPrefill
from fulgur.kernels.cuda.family_prefill_fast import FastFamilyPrefill, possible
from fulgur.kernels.cuda.family_states import FamilyStates
from fulgur.kernels.cuda.family_weights import FamilyWeights, assemble
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.prefill_kernels import Kernels
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.random import tiny_config
from fulgur.model.rope import query_scale, rope_tables

TABLE = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
NEVER = 1e18  # multiply-adds of a matrix
CASES: dict[str, tuple[ModelConfig, Weights]] = {
    **FAMILIES,
    "qwen3_5 fp8, heads of 128": (
        tiny_config("qwen3_5", n_layers=2, layer_kinds=("delta", "full"), delta=DeltaShape(1, 2, 128, 128, 4),
                    draft_vocab=200),
        Weights.named("fp8", head="bf16"),
    ),
    "qwen3_5_moe int4": (
        tiny_config("qwen3_5_moe", n_layers=2, layer_kinds=("delta", "full"), delta=DeltaShape(2, 2, 32, 32, 4)),
        Weights.named("int4"),
    ),
}  # fmt: skip


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the library's kernel computes."""
    group, n, length = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    q, k, v = q.transpose(1, 2).float(), *(t.transpose(1, 2).float().repeat_interleave(group, 1) for t in (k, v))
    at, key = torch.arange(length - n, length)[:, None], torch.arange(length)[None]
    hidden = (key > at) | ((key <= at - window) if window else False)
    scores = (q @ k.mT * q.shape[3] ** -0.5).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).bfloat16(), scores.logsumexp(-1)


def after(
    weights: FamilyWeights,
    tokens: np.ndarray,
    cuts: tuple[int, ...],
    kernels: Kernels | None = None,
    kv_dtype: str = "bf16",
) -> list[torch.Tensor]:
    """Hidden states, keys and values, recurrent states."""
    c, plan = weights.plan.config, weights.plan
    kv = KvCache(plan.kv_layers, 4, c.n_kv_heads, c.head_dim, kv_dtype, "cpu")
    rope = torch.from_numpy(np.concatenate(rope_tables(c, 256), axis=1))
    scales = torch.from_numpy(query_scale(c, np.arange(256))) if c.query_scaling is not None else None
    states = None
    if plan.delta_layers:
        states = FamilyStates(plan, 2, 1, "cpu", None, lambda *_: None, None)
    given = weights, kv, rope, scales, states
    prefill = FamilyPrefill(*given) if kernels is None else FastFamilyPrefill(*given, kernels)
    hidden = []
    for begin, end in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
        part = torch.from_numpy(tokens[begin:end])
        hidden.append(prefill.run(part, begin, TABLE, 1))
        if c.draft_vocab and begin:
            prefill.see(part, hidden[-1], begin, TABLE)
    held = [] if states is None else [states.held[1].float()]
    return [torch.cat(hidden), values_of(kv), *held]


@pytest.mark.parametrize(("case", "library"), [*((case, NEVER) for case in CASES), ("qwen3_5 fp8, heads of 128", 0)])
def test_it_agrees_with_the_plain_path(
    case: str, library: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FastFamilyPrefill, "flash", staticmethod(flash))
    monkeypatch.setattr(family_prefill_fast, "LIBRARY_WORK", library)
    # torch on the CPU has no products of bf16 with sums in float32
    monkeypatch.setattr(family_prefill_fast, "product_in_float", lambda x, m: x.float() @ m.float().T)
    monkeypatch.setattr(family_prefill_fast, "add_product", lambda x, a, m: x.add_(a.float() @ m.float().T))
    config, formats = CASES[case]
    weights = assemble(make_family_plan(config, formats, ctas=3), held_source(config, formats, 3), "cpu")
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 150)
    kernels = EmulatedKernels(weights.plan, folder)
    plain, fast = (after(weights, tokens, (41, 100), use) for use in (None, kernels))
    # A token whose router logits nearly tie may choose another expert: the median token tells.
    for ours, theirs in zip(fast, plain, strict=True):
        assert torch.isfinite(ours).all()
        assert torch.linalg.vector_norm(ours - theirs) < 0.15 * torch.linalg.vector_norm(theirs)
    errors = torch.linalg.vector_norm(fast[0] - plain[0], dim=1) / torch.linalg.vector_norm(plain[0], dim=1)
    assert errors.median() < 0.01, errors
    assert any(name.startswith("widen") for name in kernels.launched) == (library < NEVER)


def test_a_model_that_the_kernels_do_not_have() -> None:
    config = tiny_config("qwen3_5", delta=DeltaShape(2, 6, 16, 32, 4))
    plan: FamilyPlan = make_family_plan(config, Weights.named("bf16"))
    assert not possible(plan)
