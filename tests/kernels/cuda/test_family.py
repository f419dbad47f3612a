"""The general driver in the emulator: every family against the float reference, drafts, runs, states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import emulated_family
import numpy as np
import pytest
from held_models import held_source
from plain_tokenizer import tokenizer
from random_models import row_error

from fulgur.engine.engine import Engine
from fulgur.engine.events import Started, Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.kernels.cuda.family_plan import Weights, make_family_plan
from fulgur.kernels.cuda.family_runtime import FamilyRuntime
from fulgur.kernels.cuda.family_weights import assemble
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.random import MemorySource, tiny_config

TABLE = np.array([[1, 3, 0, 2]], np.int32)
# Between them: a window, sinks, scaled queries, partial rope, gates, biases, experts that are clamped or shared, value
# heads by ones, twos and threes, and every format.
FAMILIES: dict[str, tuple[ModelConfig, Weights]] = {
    "mistral": (tiny_config("mistral", head_dim=32, window=6), Weights.named("bf16", head="int4-64")),
    "ministral3": (
        tiny_config("ministral3", head_dim=64, d_model=136, window=6, query_scaling=(0.1, 5)),
        Weights.named("fp8", head="fp8-rows"),
    ),
    "gpt_oss": (
        tiny_config("gpt_oss", head_dim=32, d_model=192, d_expert=80, window=6),
        Weights.named("bf16", "mxfp4", "int4"),
    ),
    "qwen3_5": (
        tiny_config("qwen3_5", n_layers=2, layer_kinds=("delta", "full"), delta=DeltaShape(2, 6, 32, 48, 4)),
        Weights.named("bf16"),
    ),
    "qwen3_next": (
        tiny_config("qwen3_next", n_layers=2, layer_kinds=("delta", "full"), delta=DeltaShape(2, 4, 32, 32, 4)),
        Weights.named("bf16", "fp8"),
    ),
}
WITH_A_HEAD = (
    tiny_config(
        "qwen3_5", n_layers=2, layer_kinds=("delta", "full"), delta=DeltaShape(2, 4, 32, 32, 4), draft_vocab=200
    ),
    Weights.named("bf16", head="int4"),
)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_family.install(monkeypatch, folder)


def opened(
    config: ModelConfig, weights: Weights, kv_dtype: str = "bf16", snapshots: int = 2
) -> tuple[FamilyRuntime, MemorySource]:
    """One CTA a product is fastest in the emulator. With 2, products and keys are cut over both."""
    source, ctas = held_source(config, weights, 3), 2 if config.family == "gpt_oss" else 1
    held = assemble(make_family_plan(config, weights, ctas=ctas), source, "cpu")
    return FamilyRuntime(held, kv_blocks=4, kv_dtype=kv_dtype, slots=2, snapshots=snapshots), source


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


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_drafts(family: str) -> None:
    """Logits are the reference's within bf16, beyond the window too. After a draft that was right in part, the next
    step has the bits of one without it."""
    model, source = opened(*FAMILIES[family])
    tokens = np.random.default_rng(1).integers(0, model.vocab_size, 16).tolist()
    got = rows(model, tokens[:8], 0)
    if model.states is not None:
        model.states.save(0, 8, 1)
    got = np.concatenate((got, rows(model, tokens[8:], 8)))
    assert row_error(got, FloatModel(source).logits(tokens)) < 4e-3
    for accepted in (0, 2):
        if model.states is not None:
            model.states.restore(1, 0)
        at = 9 + accepted
        draft = tokens[8:at] + [(t + 7) % model.vocab_size for t in tokens[at:14]]
        assert np.array_equal(rows(model, draft, 8)[: accepted + 1], got[8:at])
        assert np.array_equal(rows(model, tokens[at : at + 1], at)[0], got[at])
    model.close()


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_next"])
def test_a_prompt_at_once_then_a_run(family: str) -> None:
    """A prompt that is prefilled leaves the cache and the state that steps would, within bf16. The device's loop then
    makes the tokens of single steps. Where the host stops taking them earlier, the sequence goes on from there."""
    model, source = opened(*FAMILIES[family])
    tokens = np.random.default_rng(2).integers(0, model.vocab_size, 75).tolist()
    model.prefill_from = 16
    expected = FloatModel(source).logits(tokens)
    at = np.arange(75, dtype=np.int32)
    logits = np.zeros((1, model.vocab_size), np.float32)
    for first, end in ((0, 40), (40, 70)):  # the second chunk goes on from a state, and from the window of the first
        model.step(np.array(tokens[first:end]), at[first:end], np.zeros(end - first), TABLE, np.zeros(0))
    model.step(np.array(tokens[70:]), at[70:], np.zeros(5), TABLE, np.array([4]), logits)
    assert np.linalg.norm(logits[0] - expected[74]) < 0.02 * np.linalg.norm(expected[74])
    if model.states is not None:
        model.states.copy(0, 1)
    first = int(logits[0].argmax())
    single, made = [first], [first]
    for position in range(75, 79):
        single.append(int(rows(model, single[-1:], position, slot=1)[0].argmax()))
    run = model.stream(first, 75, TABLE[0], (), 4)
    while not run.ended:
        made += run.read()
    assert made == single
    # The run's last three tokens are dropped: by another run, then by a step.
    model.stream(single[1], 76, TABLE[0], (), 2).stop()
    again = rows(model, single[1:3], 76)
    assert again.argmax(axis=1).tolist() == single[2:4]
    if model.states is not None:
        with pytest.raises(ValueError, match="no recurrent state at position 20"):
            rows(model, single[:1], 20)
    model.close()


def test_drafts_of_more_rows_than_a_pass_has() -> None:
    """Wherever two sequences turn out to be right, within the first pass too, they go on with the bits of single
    steps."""
    model, _ = opened(*WITH_A_HEAD)
    model.plan.rows = 4
    tables = np.array([[1, 3], [0, 2]], np.int32)
    tokens = np.random.default_rng(8).integers(0, model.vocab_size, 12).tolist()

    def step(given: list[int], position: int) -> np.ndarray:
        """The same tokens in both sequences."""
        n = len(given)
        logits = np.zeros((2 * n, model.vocab_size), np.float32)
        at = np.tile(np.arange(position, position + n), 2)
        model.step(np.array(given * 2), at, np.repeat([0, 1], n), tables, np.arange(2 * n), logits)
        assert np.array_equal(logits[:n], logits[n:])
        return logits[:n]

    single = np.concatenate([step([token], i) for i, token in enumerate(tokens)])
    for right in (0, 2, 4, 5):
        step(tokens[:3], 0)
        draft = tokens[3 : 4 + right] + [(t + 5) % model.vocab_size for t in tokens[4 + right : 9]]
        assert np.array_equal(step(draft, 3)[: right + 1], single[3 : 4 + right])
        assert np.array_equal(step(tokens[4 + right : 6 + right], 4 + right), single[4 + right : 6 + right])
    model.close()


def test_a_sequence_goes_back_after_its_draft_whatever_happens_beside_it() -> None:
    """After a long draft of which little was right: another sequence has a long draft in the next step, and a block of
    this one was given up for an equal one and belongs to somebody else."""
    model, _ = opened(*WITH_A_HEAD)
    model.plan.rows = 4
    tokens = np.random.default_rng(9).integers(0, model.vocab_size, 12).tolist()
    tables = np.array([[1], [0]], np.int32)

    def step(*parts: tuple[int, int, list[int]]) -> list[np.ndarray]:
        """The logits of sequences, each with its position and tokens."""
        given = [token for _, _, own in parts for token in own]
        at = [position + i for _, position, own in parts for i in range(len(own))]
        of = [sequence for sequence, _, own in parts for _ in own]
        logits = np.zeros((len(given), model.vocab_size), np.float32)
        model.step(np.array(given), np.array(at), np.array(of), tables, np.arange(len(given)), logits)
        return np.split(logits, np.cumsum([len(own) for _, _, own in parts])[:-1])

    single = [step((0, i, [token]))[0][0] for i, token in enumerate(tokens)]
    wrong = [(token + 5) % model.vocab_size for token in tokens]
    for sequence in (0, 1):
        step((sequence, 0, tokens[:3]))
    step((0, 3, tokens[3:5] + wrong[5:10]))
    model.copy_block(1, 2)
    model.cache.held[:, :, 1] = 7.0
    tables[0] = 2
    mine, others = step((0, 5, tokens[5:6]), (1, 3, tokens[3:4] + wrong[4:10]))
    assert np.array_equal(mine[0], single[5])
    assert np.array_equal(others[0], single[3])
    assert bool((model.cache.held[:, :, 1] == 7.0).all())
    model.copy_block(0, 3)
    tables[1] = 3
    assert np.array_equal(step((1, 4, tokens[4:6]))[0], np.stack(single[4:6]))
    model.close()


def test_rows_of_two_sequences() -> None:
    """In one step, each with its own state and blocks: the bits that they have alone."""
    model, _ = opened(*WITH_A_HEAD)
    tables = np.array([[1, 3], [0, 2]], np.int32)
    tokens = np.random.default_rng(7).integers(0, model.vocab_size, 8).astype(np.int32)

    def step(part: slice, positions: list[int], sequences: list[int]) -> np.ndarray:
        n = len(positions)
        logits = np.zeros((n, model.vocab_size), np.float32)
        model.step(tokens[part], np.array(positions), np.array(sequences), tables, np.arange(n), logits)
        return logits

    alone = [step(slice(0, 3), [0, 1, 2], [0] * 3), step(slice(3, 5), [3, 4], [0] * 2)]
    alone.append(step(slice(5, 8), [0, 1, 2], [1] * 3))
    step(slice(0, 3), [0, 1, 2], [0] * 3)
    both = step(slice(3, 8), [3, 4, 0, 1, 2], [0, 0, 1, 1, 1])
    assert np.array_equal(both, np.concatenate(alone[1:]))
    model.close()


def test_the_models_own_drafts() -> None:
    """The first guess is what the reference expects. Guesses do not depend on how the text was computed: by steps, by a
    run, at once, or taken up again from a snapshot."""
    model, source = opened(*WITH_A_HEAD)
    tokens = np.random.default_rng(5).integers(0, 200, 20).tolist()
    for at in (0, 8):
        rows(model, tokens[at : at + 8], at)
    assert model.drafting is model and model.states is not None
    guesses = model.draft(tokens[16], 16, 0, TABLE, 3)
    expected = FloatModel(source).draft_logits(tokens[:17])[-1]
    assert len(guesses) == 3 and expected.max() - expected[guesses[0]] < 0.02 * np.abs(expected).max()
    made = [int(rows(model, tokens[16:17], 16)[0].argmax())]
    model.states.save(0, 17, 0)
    run = model.stream(made[0], 17, TABLE[0], (), 2)
    while not run.ended:
        made += run.read()
    after = model.draft(made[2], 19, 0, TABLE, 2)
    model.catch_up(0, TABLE)
    model.states.restore(0, 1)
    twice = np.tile(TABLE, (2, 1))
    rows(model, made[:2], 17, slot=1)
    assert model.draft(made[2], 19, 1, twice, 2) == after
    model.prefill_from = 8
    every, at_ = np.array([*tokens[:17], *made[:2]]), np.arange(19)
    for first, end in ((0, 9), (9, 19)):
        model.step(every[first:end], at_[first:end], np.ones(end - first), twice, np.zeros(0))
    assert model.draft(made[2], 19, 1, twice, 2) == after
    assert model.draft(5, 60, 0, TABLE, 2) == []
    model.close()


def test_the_engine_over_it(tmp_path: Path) -> None:
    """Loops, own drafts, stops and a prefix that is taken up again: the text of single steps."""
    model, _ = opened(*WITH_A_HEAD)
    prompt = np.random.default_rng(6).integers(0, model.vocab_size, 8).tolist()
    text = [int(rows(model, prompt, 0)[-1].argmax())]
    while len(text) < 6:
        text.append(int(rows(model, text[-1:], len(prompt) + len(text) - 1)[0].argmax()))
    engine = Engine(model, tokenizer(tmp_path, model.vocab_size), max_draft=3)

    def answer(prompt: list[int], count: int, **more: Any) -> tuple[list[int], int]:
        """The tokens of an answer, and how much of the prompt was known."""
        engine.submit(GenerateRequest(prompt, SamplingParams(max_tokens=count, ignore_eos=True, **more)))
        events: list[Any] = []
        while engine.busy:
            events += engine.step()
        known = [event.cached_tokens for event in events if isinstance(event, Started)]
        return [event.token for event in events if isinstance(event, Token)], known[0]

    assert answer(prompt, 4) == (text[:4], 0)
    again, known = answer(prompt + text[:4], 2)
    assert again == text[4:6] and known == 11
    # The device's loop is ahead of a stop string when it is found; the state goes back to it.
    stopped, _ = answer(prompt, 6, stop=[engine.tokenizer.decode([text[2]])])
    assert stopped == text[: len(stopped)] and len(stopped) <= 3
    assert answer(prompt + text[:2], 2)[0] == text[2:4]
    engine.close()


def test_where_a_step_goes() -> None:
    """The table of `--phases` has every launch of a layer of each kind, for one row and for four."""
    from fulgur.bench.gpu_family_phases import phases

    model, _ = opened(*FAMILIES["qwen3_next"])
    rows(model, [5, 6, 7], 0)
    found = [line.split() for line in phases(model, 1e12, 3)[1:]]
    delta = ["ba", "qkv", "delta", "o", "router", "gate_up", "down", "layer"]
    attention = ["qkv", "rope", "attend", "o", "router", "gate_up", "down", "layer"]
    expected = [["delta", name] for name in delta] + [["full", name] for name in attention]
    assert [line[:2] for line in found[:16]] == expected
    assert [line[:2] for line in found[16:18]] == [["head", "1"], ["step", "1"]] and len(found) == 36
    model.close()
