"""The runtime and the GPU's own checks, with the emulator in place of CUDA and host memory as the device's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import emulated_family
import emulated_gpu
import gpu_check as check
import numpy as np
import pytest
import torch
from emulated_prefill import EmulatedKernels

from fulgur.engine.params import SamplingParams
from fulgur.engine.runtime import RowChoice
from fulgur.engine.sample import Sampler, Scratch
from fulgur.kernels.cuda import runtime, together
from fulgur.kernels.cuda.batch_step import StepInput
from fulgur.kernels.cuda.few_step import FewStep, plan_over
from fulgur.kernels.cuda.prefill_fast import FastPrefill
from fulgur.kernels.cuda.weights import GpuWeights


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_gpu.install(monkeypatch, folder)


def test_logits_against_transformers() -> None:
    assert "error" in check.check_parity("qwen3", "fp8", "persistent", "cpu", 11)
    assert "error" in check.check_parity("qwen2", "int4", "persistent", "cpu", 11, "fp8")


def test_both_drivers_decode_alike() -> None:
    assert "4 tokens" in check.check_drivers("qwen2", "int4", "cpu", 4)


def test_the_loop_follows_single_steps_and_stops() -> None:
    assert "last 64" in check.check_long_run("qwen2", "int4", "persistent", "cpu", 6)


def test_long_prompts_are_computed_at_once() -> None:
    assert "40 tokens" in check.check_prefill("qwen2", "int4", "cpu", 40)


def test_steps_of_several_sequences_and_wrong_ones() -> None:
    """Rows of two sequences in one step have the bits they have alone; block copies; cancelled before a token."""
    model, _ = check.small_runtime("qwen2", "int4", "persistent", "cpu")
    tables = np.array([[3, 4], [7, 9]], np.int32)
    tokens, positions, sequences = (np.array(a, np.int32) for a in ([5, 6, 7, 8], [0, 1, 0, 1], [0, 0, 1, 1]))
    both = np.zeros((2, model.vocab_size), np.float32)
    rows = np.array([1, 3], np.int32)
    best = model.step(tokens, positions, sequences, tables, rows, both)
    assert best.tolist() == both.argmax(axis=1).tolist()
    alone = np.zeros((1, model.vocab_size), np.float32)
    one = np.zeros(2, np.int32)
    model.step(tokens[2:], positions[2:], one, np.array([[0, 1]], np.int32), np.array([1], np.int32), alone)
    assert np.array_equal(alone[0], both[1])
    model.copy_block(7, 20)
    again = np.zeros((1, model.vocab_size), np.float32)
    model.step(tokens[3:], positions[3:], one[:1], np.array([[20, 1]], np.int32), np.zeros(1, np.int32), again)
    assert np.array_equal(again[0], both[1])
    cancelled = len(list(model.decode(5, 2, tables[0], one[:0], np.ones(1, np.int32), 8)))
    assert cancelled == 0
    with pytest.raises(ValueError, match="outside the vocabulary"):
        model.step(np.array([5000]), positions[:1], one[:1], tables, rows[:0])
    with pytest.raises(ValueError, match="no KV block"):
        model.step(tokens[:1], np.array([64]), one[:1], np.array([[1, -1]]), rows[:0])
    with pytest.raises(ValueError, match="no KV block"):
        model.stream(5, 60, np.array([1, -1], np.int32), (), 5)
    model.close()


def test_rows_of_several_sequences_run_together(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From `batch_from` rows on, by the kernels for many rows: the decode kernels' logits within bf16, and the choices
    that the host makes of them. A sequence alone keeps the decode kernels."""

    def prefill_for(weights: GpuWeights, kv: torch.Tensor, rope: torch.Tensor, *_: object) -> FastPrefill:
        return FastPrefill(weights, kv, rope, EmulatedKernels(weights.plan, folder))

    monkeypatch.setattr(runtime, "prefill_for", prefill_for)
    monkeypatch.setattr(together, "BATCH_FROM", 3)
    model, _ = check.small_runtime("qwen2", "int4", "persistent", "cpu")
    tables = np.array([[3, 4], [7, 9], [5, 6]], np.int32)
    tokens, positions, sequences = (np.array(a, np.int32) for a in ([5, 6, 7, 8], [0, 1, 0, 0], [0, 0, 1, 2]))
    rows = np.array([1, 2, 3], np.int32)
    found = np.zeros((2, 3, model.vocab_size), np.float32)
    launched = model._prompts.prefill.kernels.launched
    best = model.step(tokens, positions, sequences, tables, rows, found[0])
    assert launched[-1].startswith("step_store_float") and best.tolist() == found[0].argmax(axis=1).tolist()
    model.together.batch_from = 64
    before = len(launched)
    model.step(tokens, positions, sequences, tables, rows, found[1])
    assert len(launched) == before
    assert np.linalg.norm(found[0] - found[1]) < 0.03 * np.linalg.norm(found[1])
    model.together.batch_from = 3
    sampler = Sampler(
        SamplingParams(temperature=1.0, top_k=9, logprobs=1), 3, Scratch(model.vocab_size, device_samples=True), []
    )
    choices = [None, RowChoice(sampler.sampling, 1), RowChoice(sampler.sampling, 7)]
    chosen, told = model.choose(tokens, positions, sequences, tables, rows, choices)
    expected = [sampler.choose(found[0, i], at, None) for i, at in ((1, 1), (2, 7))]
    assert chosen.tolist() == [best[0], *(token for token, _ in expected)]
    assert told[0] is None and told[1] is not None and expected[0][1] is not None
    assert told[1][0] == pytest.approx(expected[0][1].logprob, abs=1e-4)
    before = len(launched)
    model.step(tokens[:2], positions[:2], sequences[:2], tables, rows[:1])
    assert len(launched) == before
    model.close()


def test_steps_follow_each_other(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Steps that take up each other's tokens on the device choose what steps from the host choose, into new blocks."""

    def prefill_for(weights: GpuWeights, kv: torch.Tensor, rope: torch.Tensor, *_: object) -> FastPrefill:
        return FastPrefill(weights, kv, rope, EmulatedKernels(weights.plan, folder))

    monkeypatch.setattr(runtime, "prefill_for", prefill_for)
    monkeypatch.setattr(together, "BATCH_FROM", 2)
    model, _ = check.small_runtime("llama", "bf16", "persistent", "cpu")
    tables = np.array([[3, 4], [7, -1], [5, 6]], np.int32)
    tokens, positions, sequences = (np.array(a, np.int32) for a in ([5, 6, 7], [62, 3, 63], [0, 1, 2]))
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=9), 3, Scratch(model.vocab_size, device_samples=True), [])
    expected, taken, last = [], [], tokens
    for step in range(4):
        choices = [None, RowChoice(sampler.sampling, 9 + step), None]
        last, _ = model.choose(last, positions + step, sequences, tables, sequences, choices)
        expected.append(last.tolist())
    chained, before = model.chained, tables.copy()
    before[0, 1] = -1  # it comes later
    assert chained.begin(tokens, positions, sequences, before, [None, RowChoice(sampler.sampling, 9), None])
    for step in range(4):
        if step < 3:
            chained.follow(before if step == 0 else tables)
        taken.append(chained.take())
    assert taken == expected and len(set(map(tuple, taken))) > 1
    assert not chained.begin(tokens[:1], positions[:1], sequences[:1], tables, [None])
    model.close()


def test_a_few_rows_of_several_sequences(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """By the general driver over the decode kernels' weights: their logits within bf16. More rows than it has in a pass
    are passes; what a sequence alone computes has the decode kernels' bits."""

    def few_step(weights: GpuWeights, given: StepInput, kv: torch.Tensor, rope: torch.Tensor, *_: object) -> FewStep:
        plan = plan_over(weights.plan, emulated_gpu.GPU.shared)
        assert plan is not None
        kernels = emulated_family.EmulatedKernels(folder)
        return FewStep(plan, weights, given, kv, rope, kernels, emulated_gpu.Stream())

    monkeypatch.setattr(together, "few_step", few_step)
    monkeypatch.setattr(together, "FEW_FROM", 2)
    model, _ = check.small_runtime("qwen3_moe", "fp8", "persistent", "cpu")
    assert model.together.few is not None and model.together.few_from == 2
    tables = np.arange(20, dtype=np.int32).reshape(10, 2)
    each, tokens = np.arange(10, dtype=np.int32), np.arange(5, 15, dtype=np.int32)
    zeros, found = np.zeros(10, np.int32), np.zeros((2, 10, model.vocab_size), np.float32)
    for i, model.together.few_from in enumerate((2, together.NEVER)):
        best = model.step(tokens, zeros, each, tables, each, found[i])
        assert best.tolist() == found[i].argmax(axis=1).tolist()
    errors = np.linalg.norm(found[0] - found[1], axis=1) / np.linalg.norm(found[1], axis=1)
    assert 0 < np.median(errors) < 0.03
    model.together.few_from = 2
    alone = np.zeros((1, model.vocab_size), np.float32)
    model.step(tokens[:1], zeros[:1], each[:1], tables, each[:1], alone)
    assert np.array_equal(alone[0], found[1, 0])
    model.close()


def test_a_prompt_beside_steps_of_another_sequence() -> None:
    """Its parts run between them: the same tokens for the one, and the cache that its own step would have left."""
    model, _ = check.small_runtime("qwen2", "int4", "persistent", "cpu")
    tables = np.array([[3, 4], [7, 9], [5, 6]], np.int32)
    tokens = np.random.default_rng(3).integers(0, model.vocab_size, 24).astype(np.int32)
    first = np.zeros(1, np.int32)

    def steps(sequence: int, count: int, before: Callable[[], None] = lambda: None) -> list[int]:
        made = [5]
        for position in range(count):
            before()
            row = (np.array([v], np.int32) for v in (made[-1], position, sequence))
            made.append(int(model.step(*row, tables, first)[0]))
        return made

    run = model.begin_prefill(tokens[:-1], 0, tables[0])

    def let_it_run() -> None:
        run.time_fraction = None if run.done else 0.9

    beside = steps(1, 6, let_it_run)
    if not run.done:
        run.finish()
    assert beside == steps(2, 6) and model.step_seconds > 0
    logits = np.zeros((2, model.vocab_size), np.float32)
    at = np.arange(24, dtype=np.int32)
    model.step(tokens[-1:], at[-1:], first, tables, first, logits[:1])
    model.step(tokens, at, np.full(24, 1, np.int32), tables, at[-1:], logits[1:])  # by passes of 8
    assert np.linalg.norm(logits[0] - logits[1]) < 0.05 * np.linalg.norm(logits[1])
    with pytest.raises(ValueError, match="no KV block"):
        model.begin_prefill(tokens, 120, tables[0])
    model.close()
