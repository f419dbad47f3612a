"""Recurrent states behind the prefix cache, and drafts of the model's own head: whatever is reused, forked, steered,
stopped or evicted, the text is what the model says alone, and no more is computed than what is new."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import VOCAB, write_tokenizer
from drive import collect, drain, run

from fulgur.engine.engine import Engine
from fulgur.engine.load import EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.speculate import StepCost
from fulgur.engine.states import capture_point
from fulgur.kernels.cpu.native import Runtime
from fulgur.model.packed_folder import save_packed
from fulgur.model.random import MemorySource, RandomSource, random_model, tiny_config, write_hf_folder
from fulgur.model.weights import Weights, assemble
from fulgur.text.tokenizer import Tokenizer


class AnyLength(StepCost):
    """Which draft is taken and how long it is does not depend on time here, but on luck."""

    rng = random.Random(1)

    def best_length(self, acceptance: object, run: int, limit: int, *more: float) -> tuple[int, float]:
        self.trials += 1  # so that the choice is made anew every time
        return min(self.rng.randrange(9), limit), self.rng.random()


@pytest.fixture(scope="module")
def weights() -> Weights:
    # The likeliest token is a fixed successor of the last one, if the layers do not say otherwise; the drafting head
    # sees the same. So most of its guesses are right.
    config = tiny_config("qwen3_5", vocab_size=VOCAB, max_context=512, eos_ids=(), draft_vocab=VOCAB - 9)
    tensors = random_model(config, 4)
    tensors["model.embed_tokens.weight"] *= 5
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][np.random.default_rng(1).permutation(VOCAB)]
    tensors["mtp.fc.weight"] = np.hstack([np.eye(config.d_model), np.zeros((config.d_model,) * 2)]).astype(np.float32)
    for name in ("mtp.layers.0.self_attn.o_proj.weight", "mtp.layers.0.mlp.down_proj.weight"):
        tensors[name] *= 0.1
    return assemble(MemorySource(config, tensors), bits=8, group=32)


class Faulty(Runtime):
    """Now and then its own drafts are made worse, better or none."""

    def __init__(self, weights: Weights, **options: int) -> None:
        super().__init__(weights, **options)  # type: ignore[arg-type]
        self.rng = random.Random(1)
        self.asked: list[tuple[int, list[int]]] = []

    def draft(self, token: int, position: int, sequence: int, tables: np.ndarray, length: int) -> list[int]:
        guesses = super().draft(token, position, sequence, tables, length)
        self.asked.append((position, guesses))
        match self.rng.randrange(6):
            case 0:
                return []
            case 1 if guesses:
                place = self.rng.randrange(len(guesses))
                return [*guesses[:place], self.rng.randrange(VOCAB), *guesses[place + 1 :]]
        return guesses


class Alone:
    """The model's greedy continuation of a text, from scratch, a token a step."""

    def __init__(self, weights: Weights, kv_bits: int = 16) -> None:
        self._runtime = Runtime(weights, kv_blocks=8, threads=1, kv_bits=kv_bits)
        self._table = np.arange(8, dtype=np.int32)[None]
        self._known: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, tokens: list[int], count: int) -> list[int]:
        said = self._known.get(tuple(tokens), [])
        if len(said) < count:
            said = self._known[tuple(tokens)] = self._compute(tokens, count)
        return said[:count]

    def _compute(self, tokens: list[int], count: int) -> list[int]:
        said, text, at = list[int](), list(tokens), 0
        while len(said) < count:
            rows = np.arange(at, min(len(text), at + 200), dtype=np.int32)
            last = np.array([len(rows) - 1], np.int32)
            some = np.array(text, np.int32)[rows]
            best = self._runtime.step(some, rows, np.zeros_like(rows), self._table, last)
            at += len(rows)
            if at == len(text):
                said.append(int(best[0]))
                text.append(said[-1])
        return said


def engine_of(
    weights: Weights, tokenizer: Tokenizer, *, blocks: int = 40, snapshots: int = 8, draft: int = 16, kv_bits: int = 16
) -> Engine:
    runtime = Faulty(weights, kv_blocks=blocks, threads=1, snapshots=snapshots, kv_bits=kv_bits)
    return Engine(runtime, tokenizer, max_sequences=4, max_draft=draft, cost=AnyLength())


def ask(prompt: list[int], count: int, **options: object) -> GenerateRequest:
    return GenerateRequest(prompt, SamplingParams(max_tokens=count, ignore_eos=True), **options)  # type: ignore[arg-type]


def test_the_next_turn_computes_only_what_is_new(weights: Weights, tokenizer: Tokenizer) -> None:
    alone, rng = Alone(weights), random.Random(1)
    engine = engine_of(weights, tokenizer)
    text = [rng.randrange(256) for _ in range(100)]
    kept = 0
    for _ in range(4):
        [answer] = run(engine, ask(text, 20))
        assert answer.tokens == alone(text, 20)
        assert answer.finished.usage.cached_tokens == kept
        kept = len(text) + 19  # all but the last token of the answer, which no step has seen
        text = text + answer.tokens + [rng.randrange(256) for _ in range(30)]
    # An answer that is left out of the next prompt, as thinking is: back to the end of the answer before.
    run(engine, ask(text, 20))
    [answer] = run(engine, ask(text + [7] * 12, 5))
    assert answer.finished.usage.cached_tokens == kept
    assert answer.tokens == alone(text + [7] * 12, 5)
    # The same after a long message: to a boundary shortly before the end of the prompt.
    text += [rng.randrange(256) for _ in range(150)]
    run(engine, ask(text, 20))
    [answer] = run(engine, ask(text + [7] * 12, 5))
    assert answer.finished.usage.cached_tokens == capture_point(len(text), 64) > kept
    assert answer.tokens == alone(text + [7] * 12, 5)
    engine.close()


def test_a_long_prompt_is_captured_on_its_way(weights: Weights, tokenizer: Tokenizer) -> None:
    from fulgur.engine import cache

    alone, engine = Alone(weights), engine_of(weights, tokenizer)
    text = [random.Random(2).randrange(256) for _ in range(400)]
    every, cache.EVERY = cache.EVERY, 256
    try:
        run(engine, ask(text, 1))
    finally:
        cache.EVERY = every
    [answer] = run(engine, ask([*text[:300], 9, 9], 4))
    assert answer.finished.usage.cached_tokens == 256 and answer.tokens == alone([*text[:300], 9, 9], 4)
    engine.close()


def test_continuations_fork_without_snapshots(weights: Weights, tokenizer: Tokenizer) -> None:
    engine = engine_of(weights, tokenizer, snapshots=0)
    text = [random.Random(3).randrange(256) for _ in range(70)]
    answers = run(engine, ask(text, 8, n=3))
    assert [answer.tokens for answer in answers] == [Alone(weights)(text, 8)] * 3
    engine.close()


@pytest.fixture(scope="module")
def truth(weights: Weights) -> dict[int, Alone]:
    """By the bits of keys and values."""
    return {kv_bits: Alone(weights, kv_bits) for kv_bits in (16, 8)}


@pytest.mark.parametrize("seed", range(int(os.environ.get("FULGUR_INTERLEAVINGS", "4"))))
def test_random_interleavings(seed: int, weights: Weights, truth: dict[int, Alone], tokenizer: Tokenizer) -> None:
    """Requests that share prefixes, several continuations, stops, steers and cancels, drafts of all kinds, with little
    room for blocks and states."""
    rng, kv_bits = random.Random(seed), 8 if seed % 2 else 16
    alone, blocks, snapshots = truth[kv_bits], rng.choice([14, 24]), rng.choice([1, 2, 5])
    engine = engine_of(weights, tokenizer, blocks=blocks, snapshots=snapshots, kv_bits=kv_bits)
    assert isinstance(engine.runtime, Faulty)
    AnyLength.rng = engine.runtime.rng = rng
    texts = [[rng.randrange(256) for _ in range(rng.randrange(3, 180))] for _ in range(4)]
    answers: dict = {}
    asked: dict[str, list[tuple[list[int], int]]] = {}  # what was to be continued, and how much had been said by then
    counts: dict[str, int] = {}
    for _ in range(60):
        chance = rng.random()
        if chance < 0.45:
            start = rng.choice(texts)
            prompt = start[: rng.randrange(1, len(start) + 1)] + [rng.randrange(256) for _ in range(rng.randrange(9))]
            count, n, keep = rng.randrange(1, 25), rng.choice([1, 1, 2]), rng.random() < 0.3
            draft = [rng.randrange(256) for _ in range(30)] if rng.random() < 0.3 else None
            name = engine.submit(ask(prompt, count, n=n, draft_source=draft, keep=keep))
            asked[name], counts[name] = [(prompt, 0)], count * n
            if rng.random() < 0.3:
                texts[rng.randrange(4)] = (prompt + alone(prompt, 10))[:200]
        elif chance < 0.5 and asked:
            name = rng.choice(list(asked))
            if engine.cancel(name):
                del asked[name]
        elif chance < 0.6 and asked:
            name = rng.choice(list(asked))
            answer, steer = answers.get((name, 0)), [rng.randrange(256)] * rng.randrange(1, 9)
            if answer is not None and (name, 1) not in answers and len(asked[name]) < 3 and engine.steer(name, steer):
                text, said = asked[name][-1]
                asked[name].append((text + answer.tokens[said:] + steer, len(answer.tokens)))
        for _ in range(rng.randrange(12)):
            if engine.busy:
                collect(engine.step(), answers)
    drain(engine, answers)
    assert len(asked) > 8 and any(guesses for _, guesses in engine.runtime.asked)
    for name, parts in asked.items():
        both = [answer.tokens for (owner, _), answer in answers.items() if owner == name]
        assert len(parts) > 1 or sum(map(len, both)) == counts[name]
        for tokens in both:
            for (text, start), (_, end) in zip(parts, [*parts[1:], ([], len(tokens))], strict=True):
                assert tokens[start:end] == alone(text, end - start)
    engine.close()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_own_drafts_change_no_text(temperature: float, weights: Weights, tokenizer: Tokenizer) -> None:
    prompt = [random.Random(5).randrange(256) for _ in range(70)]
    params = SamplingParams(max_tokens=60, ignore_eos=True, temperature=temperature, seed=3, stop=["never said"])
    said, accepted = [], 0
    for draft in (0, 16):
        engine = engine_of(weights, tokenizer, draft=draft)
        [answer] = run(engine, GenerateRequest(prompt, params))
        said.append(answer.tokens)
        accepted = answer.finished.usage.accepted_tokens
        engine.close()
    assert said[0] == said[1] and len(said[0]) == 60
    assert accepted > 10


def test_without_speculation_the_drafting_head_is_not_loaded(weights: Weights, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    save_packed(weights, tmp_path / "packed", companions=tmp_path)
    write_hf_folder(tmp_path / "float", weights.config, random_model(weights.config, 4))
    write_tokenizer(tmp_path / "float")
    for folder in (tmp_path / "packed", tmp_path / "float"):
        with_head, info = open_engine(EngineOptions(folder, kv_tokens=512, bits=8))
        plain, less = open_engine(EngineOptions(folder, kv_tokens=512, bits=8), max_draft=0)
        assert with_head.runtime.drafting is not None and plain.runtime.drafting is None
        assert less.weight_bytes < info.weight_bytes and less.kv_bytes < info.kv_bytes
        plain.close()
        with_head.close()


def test_a_reused_prefix_is_guessed_like_a_computed_one(weights: Weights, tokenizer: Tokenizer) -> None:
    """The drafting head's keys are shared with the blocks: a second turn guesses as if it had read the whole text."""
    rng, asked = random.Random(8), []
    weights = assemble(RandomSource(weights.config, 4), bits=8, group=32)  # its guesses hang on all that was read
    first = [rng.randrange(256) for _ in range(130)]
    for reused in (True, False):
        engine = engine_of(weights, tokenizer)
        assert isinstance(engine.runtime, Faulty)
        if reused:
            [answer] = run(engine, ask(first, 20))
            second = first + answer.tokens + [rng.randrange(256) for _ in range(9)]
            engine.runtime.asked.clear()
        AnyLength.rng = engine.runtime.rng = random.Random(2)
        [answer] = run(engine, ask(second, 20))
        assert (answer.finished.usage.cached_tokens > 140) == reused
        asked.append(engine.runtime.asked)
        engine.close()
    assert asked[0] == asked[1] and len(asked[0]) > 2


def test_steers_and_kept_sequences(weights: Weights, tokenizer: Tokenizer) -> None:
    alone, rng = Alone(weights), random.Random(3)
    engine = engine_of(weights, tokenizer)
    prompt = [rng.randrange(256) for _ in range(90)]
    name = engine.submit(ask(prompt, 12, keep=True))
    answers: dict = {}
    for _ in range(4):
        collect(engine.step(), answers)
    said = list(answers[name, 0].tokens)
    assert said and engine.steer(name, [1, 2, 3])
    drain(engine, answers)
    text = prompt + said + [1, 2, 3]
    rest = answers[name, 0].tokens[len(said) :]
    assert rest == alone(text, len(rest))
    text += rest
    assert engine.steer(name, [5] * 40)  # it has finished: taken up again, from the state at its end
    drain(engine, answers)
    more = answers[name, 0].tokens[len(said) + len(rest) :]
    assert more == alone(text + [5] * 40, len(more)) and more
    engine.close()
