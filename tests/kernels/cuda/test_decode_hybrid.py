"""Hybrids in the decode kernels, in the emulator: the float reference, k rows as single steps, runs, drafts, sequences
that go over to the general driver and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import emulated_family
import emulated_gpu
import numpy as np
import pytest
from held_models import held_source
from random_models import row_error

from fulgur.kernels.cuda import alone, family_runtime, fit
from fulgur.kernels.cuda.family_plan import Weights
from fulgur.kernels.cuda.family_runtime import FamilyRuntime
from fulgur.kernels.cuda.family_weights import assemble
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.random import MemorySource, tiny_config

TABLE = np.array([[1, 3, 0, 2]], np.int32)
KINDS = ("delta", "full")
# Between them: experts with a shared one or a dense network, heads that attend in one place or two, one unit of a state
# a CTA or several, `wgmma` and bf16.
HYBRIDS: dict[str, tuple[ModelConfig, Weights, int]] = {
    "experts": (
        tiny_config(
            "qwen3_5_moe", n_layers=2, layer_kinds=KINDS, d_model=256, n_heads=2, n_kv_heads=1, head_dim=128,
            rotary_dim=32, delta=DeltaShape(1, 2, 128, 128, 4), d_expert=80, d_shared=48,
        ),
        Weights.named("fp8"), 4,
    ),
    "dense": (
        tiny_config(
            "qwen3_5", n_layers=2, layer_kinds=KINDS, d_model=128, n_heads=2, n_kv_heads=1, head_dim=256,
            rotary_dim=64, delta=DeltaShape(2, 4, 64, 128, 4), draft_vocab=200,
        ),
        Weights.named("int4", head="bf16"), 2,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_family.install(monkeypatch, folder)


def opened(name: str, kv_dtype: str = "bf16") -> tuple[FamilyRuntime, MemorySource]:
    config, weights, ctas = HYBRIDS[name]
    source = held_source(config, weights, 3)
    plan = fit.family_plan(config, weights, replace(emulated_gpu.GPU, multiprocessors=ctas))
    assert plan.decode is not None and plan.decode.rows == 4
    return FamilyRuntime(assemble(plan, source, "cpu"), kv_blocks=4, kv_dtype=kv_dtype, slots=2, snapshots=2), source


def rows(model: FamilyRuntime, tokens: list[int], position: int, slot: int = 0) -> np.ndarray:
    """The logits of a step."""
    n = len(tokens)
    logits = np.zeros((n, model.vocab_size), np.float32)
    at = np.arange(position, position + n, dtype=np.int32)
    tables = np.tile(TABLE, (slot + 1, 1))
    best = model.step(
        np.array(tokens, np.int32), at, np.full(n, slot, np.int32), tables, np.arange(n, dtype=np.int32), logits
    )
    assert best.tolist() == logits.argmax(axis=1).tolist()
    return logits


@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_and_drafts(name: str) -> None:
    """Logits are the reference's within bf16. After a draft that was right in part, the next step has the bits of one
    without it."""
    model, source = opened(name)
    tokens = np.random.default_rng(1).integers(0, model.vocab_size, 12).tolist()
    got = np.concatenate([rows(model, tokens[:1], 0), rows(model, tokens[1:4], 1), rows(model, tokens[4:8], 4)])
    assert model.states is not None
    model.states.save(0, 8, 1)
    got = np.concatenate((got, *(rows(model, tokens[i : i + 1], i) for i in range(8, 12))))
    assert row_error(got, FloatModel(source).logits(tokens)) < 6e-3
    for accepted in (0, 1, 2):
        model.states.restore(1, 0)
        at = 9 + accepted
        draft = tokens[8:at] + [(t + 7) % model.vocab_size for t in tokens[at:12]]
        assert np.array_equal(rows(model, draft, 8)[: accepted + 1], got[8:at])
        assert np.array_equal(rows(model, tokens[at : at + 1], at)[0], got[at])
    model.close()


def test_a_run_then_company_then_alone() -> None:
    """The device's loop makes the tokens of single steps, and where the host stops taking them earlier, the sequence
    goes on from there. Beside another sequence the general driver computes it, from the same state and keys; then it is
    alone again."""
    model, source = opened("experts")
    tokens = np.random.default_rng(2).integers(0, model.vocab_size, 8).tolist()
    first = int(rows(model, tokens[:4], 0)[-1].argmax())
    assert model.states is not None
    model.states.copy(0, 1)
    single = [first]
    for position in range(4, 8):
        single.append(int(rows(model, single[-1:], position, slot=1)[0].argmax()))
    run, made = model.stream(first, 4, TABLE[0], (), 4), [first]
    while not run.ended:
        made += run.read()
    assert made == single
    run = model.stream(first, 4, TABLE[0], (single[2],), 4)
    made = [first]
    while not run.ended:
        made += run.read()
    assert made == single[:3], "it ends behind a stop token"
    model.stream(first, 4, TABLE[0], (), 3).stop()
    assert rows(model, single[1:3], 5).argmax(axis=1).tolist() == single[2:4]
    tables, logits = np.array([[1, 3], [0, 2]], np.int32), np.zeros((3, model.vocab_size), np.float32)
    given, at, of = np.array([single[3], *tokens[4:6]]), np.array([7, 0, 1]), np.array([0, 1, 1])
    model.step(given, at, of, tables, np.arange(3), logits)
    expected = FloatModel(source).logits([*tokens[:4], *single])
    assert row_error(logits[:1], expected[7:8]) < 6e-3
    assert row_error(rows(model, single[4:5], 8), expected[8:9]) < 6e-3
    with pytest.raises(ValueError, match="no recurrent state at position 3"):
        rows(model, single[:1], 3)
    model.close()


def test_a_prompt_at_once_then_its_own_drafts() -> None:
    """The drafting head sees hidden states that the decode kernels left, and guesses what the reference expects."""
    model, source = opened("dense")
    tokens = np.random.default_rng(5).integers(0, 200, 24).tolist()
    model.prefill_from = 8
    model.step(np.array(tokens[:16]), np.arange(16), np.zeros(16), TABLE, np.zeros(0))
    for at in (16, 18):
        rows(model, tokens[at : at + 2], at)
    expected = FloatModel(source).draft_logits(tokens[:21])[-1]
    guesses = model.draft(tokens[20], 20, 0, TABLE, 2)
    assert len(guesses) == 2 and expected.max() - expected[guesses[0]] < 0.02 * np.abs(expected).max()
    run, made = model.stream(tokens[20], 20, TABLE[0], (), 3), [tokens[20]]
    while not run.ended:
        made += run.read()
    expected = FloatModel(source).draft_logits([*tokens[:20], *made])[-1]
    guesses = model.draft(made[3], 23, 0, TABLE, 1)
    assert expected.max() - expected[guesses[0]] < 0.02 * np.abs(expected).max()
    model.close()


def test_keys_in_8_bits() -> None:
    """They change the logits by what rounding does, and k rows still have the bits of single steps."""
    model, source = opened("experts", "fp8")
    tokens = np.random.default_rng(6).integers(0, model.vocab_size, 6).tolist()
    single = np.concatenate([rows(model, [token], at) for at, token in enumerate(tokens)])
    assert row_error(single, FloatModel(source).logits(tokens)) < 0.06
    assert np.array_equal(np.concatenate([rows(model, tokens[:4], 0), rows(model, tokens[4:], 4)]), single)
    model.close()


def test_shapes_that_only_the_general_driver_has() -> None:
    """No error, and no plan of the decode kernels."""
    config, weights, _ = HYBRIDS["experts"]
    gpu = emulated_gpu.GPU
    assert fit.family_plan(replace(config, delta=DeltaShape(1, 4, 128, 64, 4)), weights, gpu).decode is None
    assert fit.family_plan(config, Weights.named("bf16", "fp8"), gpu).decode is None
    assert fit.family_plan(config, weights, replace(gpu, cooperative=False)).decode is None
    assert fit.family_plan(tiny_config("gpt_oss", head_dim=32), Weights.named("bf16"), gpu).decode is None


def test_both_ways_are_tried_before_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode kernels stay where they are right and faster; else the general driver has the sequence, and the reason
    is told."""
    for size, value in (("TOKENS", 4), ("RUN", 2), ("RUNS", 2)):
        monkeypatch.setattr(alone, size, value)
    for name, broken, seconds, told in (
        ("experts", 0.0, 0.5, "persistent"),
        ("experts", 0.0, 2.0, "slower here (50% of the general driver's speed)"),
        ("dense", 1.0, 0.5, "different logits here"),
        ("dense", np.nan, 0.5, "different logits here"),
    ):
        model, source = opened(name)
        tried: list[alone.Trial] = []

        def trial(
            given: FamilyRuntime, broken: float = broken, seconds: float = seconds, tried: list[alone.Trial] = tried
        ) -> alone.Trial:
            seen = alone.trial(given)
            tried.append(replace(seen, logits=seen.logits + (0 if tried else broken), seconds=1 if tried else seconds))
            return tried[-1]

        monkeypatch.setattr(family_runtime, "trial", trial)
        model.choose_alone()
        assert len(tried) == 2 and told in model.isa
        tokens = np.random.default_rng(5).integers(0, model.vocab_size, 3).tolist()
        got = np.concatenate([rows(model, [token], i) for i, token in enumerate(tokens)])
        assert row_error(got, FloatModel(source).logits(tokens)) < 6e-3, "whatever is chosen, it begins anew"
        model.close()
