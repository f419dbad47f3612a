"""With speculation, batching, prefix reuse and preemption the output is the same, bit for bit, as plainly alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from drive import Answer, generate, run
from toy import ToyRuntime

from fulgur.engine.engine import Engine
from fulgur.engine.load import EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.speculate import StepCost
from fulgur.text.tokenizer import Tokenizer

FREE = {1: 1.0, 33: 1.0}  # a cost of steps that makes every draft as long as it may be


def same(a: Answer, b: Answer) -> bool:
    return (a.tokens, a.text, a.reason, a.logprobs) == (b.tokens, b.text, b.reason, b.logprobs)


def some_params(rng: random.Random, tokenizer: Tokenizer) -> SamplingParams:
    """Any mix of the ways to choose and to stop."""
    params = SamplingParams(max_tokens=rng.randrange(1, 120), ignore_eos=rng.random() < 0.5)
    if rng.random() < 0.5:
        params.temperature = rng.choice([0.2, 0.7, 1.5])
        params.seed = rng.randrange(1 << 40)
        params.top_k = rng.choice([0, 0, 5])
        params.top_p = rng.choice([1.0, 0.8])
        params.min_p = rng.choice([0.0, 0.05])
    if rng.random() < 0.3:
        params.frequency_penalty = rng.choice([0.0, 0.3])
        params.presence_penalty = rng.choice([0.0, 0.5])
        params.repetition_penalty = rng.choice([1.0, 1.2])
    if rng.random() < 0.3:
        params.logprobs = rng.randrange(3)
    if rng.random() < 0.5:
        common = [tokenizer.token_bytes(rng.randrange(32, 120)).decode("ascii", "ignore") for _ in range(3)]
        params.stop = tuple(filter(None, (common[0] + common[1], "".join(common), "ah" + common[2])))
    if rng.random() < 0.2:
        params.stop_tokens = (rng.randrange(300),)
    return params


def edited(rng: random.Random, source: list[int]) -> list[int]:
    """A source with insertions, deletions, and one token renamed throughout."""
    old, new = rng.choice(source), [rng.randrange(250) for _ in range(rng.randrange(1, 4))]
    result: list[int] = []
    for token in source:
        chance = rng.random()
        if chance < 0.03:
            result += [rng.randrange(250) for _ in range(rng.randrange(1, 6))]
        if chance > 0.97:
            continue
        result += new if token == old else [token]
    return result


def some_case(rng: random.Random, tokenizer: Tokenizer) -> tuple[dict, GenerateRequest]:
    """What the toy model likes to say, and a request."""
    prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 150))]
    request = GenerateRequest(prompt, some_params(rng, tokenizer))
    kind = rng.randrange(3)
    if kind == 0:  # loops: the n-gram drafter finds them
        return {"window": rng.choice([1, 2]), "alphabet": rng.choice([4, 30])}, request
    source = [rng.randrange(256) for _ in range(rng.randrange(4, 200))]
    request.draft_source = source
    if kind == 1:  # an edit of the source
        return {"script": (len(prompt), edited(rng, source))}, request
    request.prompt = prompt + source  # noise, and a source that leads nowhere
    return {"window": 3}, request


@pytest.mark.parametrize("seed", range(120))
def test_speculation_changes_nothing(seed: int, tokenizer: Tokenizer) -> None:
    rng = random.Random(seed)
    toy, request = some_case(rng, tokenizer)
    plain = generate(Engine(ToyRuntime(**toy), tokenizer, max_draft=0), request)
    unasked = generate(Engine(ToyRuntime(**toy), tokenizer), replace(request, speculate=False))
    assert same(plain, unasked)
    for max_draft, cost in ((1, FREE), (5, FREE), (32, FREE), (32, None)):
        engine = Engine(ToyRuntime(**toy), tokenizer, max_draft=max_draft, cost=StepCost(cost))
        assert same(plain, generate(engine, request))
        assert same(plain, generate(engine, request))  # and again, with its prefix in the cache
        assert not engine.busy and engine.cache.available() == engine.cache.blocks


def test_speculation_saves_steps(tokenizer: Tokenizer) -> None:
    """The property above would hold for drafters that never speak; here they must."""
    accepted = {"ngram": 0, "source": 0}
    for seed in range(20):
        rng = random.Random(seed)
        greedy = SamplingParams(max_tokens=100, ignore_eos=True)
        loops = Engine(ToyRuntime(window=1, alphabet=6), tokenizer, cost=StepCost(FREE))
        answer = generate(loops, GenerateRequest([1, 2, 3], greedy))
        assert answer.finished is not None
        accepted["ngram"] += answer.finished.usage.accepted_tokens
        source = [rng.randrange(256) for _ in range(120)]
        edits = Engine(ToyRuntime(script=(3, edited(rng, source))), tokenizer, cost=StepCost(FREE))
        answer = generate(edits, GenerateRequest([1, 2, 3], greedy, draft_source=source))
        assert answer.finished is not None
        accepted["source"] += answer.finished.usage.accepted_tokens
        assert edits.runtime.steps < 100
    assert accepted["ngram"] > 20 * 70 and accepted["source"] > 20 * 40


@pytest.mark.parametrize("seed", range(25))
def test_a_crowd_with_too_little_memory_changes_nothing(seed: int, tokenizer: Tokenizer) -> None:
    """Many requests at once, sharing prefixes, forked, preempted: each says what it says alone."""
    rng = random.Random(1000 + seed)
    toy = {"window": rng.choice([0, 2]), "alphabet": rng.choice([0, 20]), "max_context": 320}
    shared = [rng.randrange(256) for _ in range(130)]
    requests = []
    for _ in range(10):
        prompt = shared[: rng.randrange(130)] + [rng.randrange(256) for _ in range(rng.randrange(1, 60))]
        params = some_params(rng, tokenizer)
        if params.temperature and params.seed is None:
            params.seed = 1
        requests.append(GenerateRequest(prompt, params, n=rng.choice([1, 1, 3])))
    alone = [
        answer
        for request in requests
        for answer in run(Engine(ToyRuntime(kv_blocks=64, **toy), tokenizer, max_draft=0), request)
    ]
    engine = Engine(ToyRuntime(kv_blocks=rng.choice([6, 10, 64]), **toy), tokenizer, max_sequences=rng.choice([3, 16]))
    together = run(engine, *requests)
    assert len(alone) == len(together)
    assert all(same(a, b) for a, b in zip(alone, together, strict=True))
    assert engine.cache.available() == engine.cache.blocks


@pytest.mark.parametrize("runtime", ["reference", "native"])
def test_the_runtimes_keep_their_side(runtime: str, model_folder: Path) -> None:
    """The same with a real model: rows are bit-identical whatever else is in the step."""
    rng = random.Random(5)
    options = EngineOptions(model_folder, kv_tokens=2048, runtime=runtime)
    plain, _ = open_engine(options, max_draft=0)
    engine, _ = open_engine(options, cost=StepCost(FREE))
    requests = []
    for i in range(4 if runtime == "reference" else 24):
        prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 100))]
        params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8 * (i % 2), seed=i, logprobs=1)
        requests.append(GenerateRequest(prompt, params, draft_source=prompt))
    alone = [generate(plain, request) for request in requests]
    for request, answer in zip(requests, alone, strict=True):
        request.draft_source = edited(rng, answer.tokens)
    assert all(same(a, b) for a, b in zip(alone, run(engine, *requests), strict=True))
    first = generate(engine, requests[0])
    assert same(alone[0], first) and first.finished is not None
    assert first.finished.usage.accepted_tokens > 0
