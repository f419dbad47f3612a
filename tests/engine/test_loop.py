"""The device's own decode loop beside the plain path: the same tokens, texts and ends, whatever interrupts it."""

from __future__ import annotations

import random

import pytest
from drive import Answer, collect, drain, generate, run
from toy import ChainedToy, CompanionToy, StreamingToy, ToyRuntime

from fulgur.engine.engine import Engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.speculate import StepCost
from fulgur.text.tokenizer import Tokenizer

PROMPT = [5, 9, 200, 31]
LONG = SamplingParams(max_tokens=700, ignore_eos=True)


def pair(tokenizer: Tokenizer, **options) -> tuple[Engine, Engine, StreamingToy]:
    """A plain engine and one over the streaming runtime, of the same model."""
    streaming = StreamingToy(**options)
    return Engine(ToyRuntime(**options), tokenizer), Engine(streaming, tokenizer), streaming


def same(a: Answer, b: Answer) -> None:
    assert (a.tokens, a.text, a.reason) == (b.tokens, b.text, b.reason)
    assert a.finished is not None and b.finished is not None
    assert a.finished.usage.completion_tokens == b.finished.usage.completion_tokens
    assert a.finished.message == b.finished.message


REQUESTS = [
    GenerateRequest(PROMPT, LONG, speculate=False),
    GenerateRequest(PROMPT, SamplingParams(max_tokens=1)),
    GenerateRequest(PROMPT, SamplingParams(max_tokens=90)),
    GenerateRequest(PROMPT * 40, SamplingParams(max_tokens=2000, ignore_eos=True)),  # to the end of the context
    GenerateRequest([7], SamplingParams(max_tokens=50, stop_tokens=tuple(range(40, 80)))),
    GenerateRequest(PROMPT, SamplingParams(max_tokens=400, stop=("a", "zz", "Q")), speculate=False),
    GenerateRequest(PROMPT, SamplingParams(max_tokens=60, temperature=0.8, seed=3)),
    GenerateRequest(PROMPT, SamplingParams(max_tokens=60, temperature=1.5, seed=4), n=3),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=range(len(REQUESTS)))
def test_token_by_token_as_without(tokenizer: Tokenizer, request_: GenerateRequest) -> None:
    plain, streaming, runtime = pair(tokenizer)
    if request_.params.temperature:  # without the ability a temperature is drawn otherwise: steps of the same runtime
        plain = Engine(StreamingToy(), tokenizer)
        plain._loop._runtime = None
    for _ in range(2):  # the second time from the prefix cache
        for a, b in zip(run(plain, request_), run(streaming, request_), strict=True):
            same(a, b)
    assert bool(runtime.streams) == (request_.n == 1 and request_.params.max_tokens > 1)
    if request_.n == 1 and request_.params.max_tokens > 60 and not request_.speculate:
        assert runtime.steps <= 4  # the prompts, nothing else
    assert streaming.cache.available() == runtime.kv_blocks


class DraftingToy(StreamingToy):
    """Its model has a drafting head, which guesses wrong."""

    asked = 0

    @property
    def drafting(self) -> DraftingToy:
        return self

    def draft(self, token, position, sequence, tables, length):
        assert all(stream.ended for stream in self.streams), "a guess while the device runs by itself"
        self.asked += 1
        return [(token + 1) % self.vocab_size] * length

    def catch_up(self, sequence, tables) -> None:
        assert all(stream.ended for stream in self.streams)


def test_the_head_is_not_asked_while_the_device_runs(tokenizer: Tokenizer) -> None:
    request = GenerateRequest(PROMPT, LONG)
    runtime = DraftingToy()
    same(generate(Engine(ToyRuntime(), tokenizer, max_draft=0), request), generate(Engine(runtime, tokenizer), request))
    assert runtime.asked > 1 and runtime.streams  # it is tried again between runs


class Cheap(StepCost):
    """Any number of rows costs the same, whatever this machine takes for them."""

    def observe(self, rows: int, seconds: float) -> None: ...


SAMPLED = [
    SamplingParams(max_tokens=40, logprobs=2),
    SamplingParams(max_tokens=40, temperature=1.0, top_p=0.9, seed=1),
    SamplingParams(max_tokens=40, temperature=1.0, top_k=5, seed=1, repetition_penalty=1.3, logprobs=0),
    SamplingParams(max_tokens=40, temperature=0.7, min_p=0.1, seed=1),
    SamplingParams(max_tokens=40, presence_penalty=1.0, frequency_penalty=0.2),
    SamplingParams(max_tokens=40, temperature=0.9, seed=3, logit_bias=((7, 5.0),)),
]


@pytest.mark.parametrize("speculate", [False, True])
@pytest.mark.parametrize("params", SAMPLED)
def test_what_the_device_samples_is_what_the_host_would(
    tokenizer: Tokenizer, params: SamplingParams, speculate: bool
) -> None:
    """On the loop, and in wide steps whose drafts are verified by choosing at every row."""
    script = (4, [5, 9, 200, 31] * 12)
    streaming = StreamingToy(script=script)
    host = Engine(StreamingToy(script=script), tokenizer, cost=Cheap({1: 1.0, 32: 1.0}))
    host._loop._runtime = None
    host.runtime.chooses = False  # so the host does, from the logits
    request = GenerateRequest(PROMPT, params, speculate=speculate, draft_source=PROMPT * 12 if speculate else None)
    engine = Engine(streaming, tokenizer, cost=Cheap({1: 1.0, 32: 1.0}))
    for _ in range(2):
        a, b = generate(host, request), generate(engine, request)
        same(a, b)
        assert a.logprobs == b.logprobs
    assert streaming.streams and streaming.logit_steps <= streaming.chosen + sum(len(s.made) for s in streaming.streams)
    if speculate:
        assert b.finished is not None and b.finished.usage.draft_tokens > 4 and streaming.chosen > 4


def test_a_temperature_near_zero_stays_with_the_host(tokenizer: Tokenizer) -> None:
    plain, streaming, runtime = pair(tokenizer)
    request = GenerateRequest(PROMPT, SamplingParams(max_tokens=40, temperature=0.001, seed=1))
    same(generate(plain, request), generate(streaming, request))
    assert not runtime.streams and not runtime.chosen


def test_repetition_is_drafted_and_the_loop_taken_up_again(tokenizer: Tokenizer) -> None:
    """A text that repeats itself now and then: wide steps while it does, the loop in between, the same text."""
    plain, streaming, runtime = pair(tokenizer, window=3, alphabet=24)
    request = GenerateRequest(PROMPT, LONG)
    a, b = generate(plain, request), generate(streaming, request)
    same(a, b)
    assert b.finished is not None and b.finished.usage.accepted_tokens > 50
    assert runtime.streams


@pytest.mark.parametrize(
    ("kind", "blocks"),
    [(StreamingToy, 64), (CompanionToy, 64), (CompanionToy, 12), (ChainedToy, 64), (ChainedToy, 12)],
)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_in_between(tokenizer: Tokenizer, seed: int, kind: type[StreamingToy], blocks: int) -> None:
    """Requests, steers and cancels at random moments: every answer is what it would be alone. Long prompts may be
    computed beside others, and memory may be short."""
    noise = random.Random(seed)
    runtime = kind(kv_blocks=blocks)
    streaming = Engine(runtime, tokenizer)
    answers: dict[tuple[str, int], Answer] = {}
    sent: dict[str, GenerateRequest] = {}
    steers: dict[str, list[tuple[int, list[int]]]] = {}
    cancelled = set()
    for _ in range(8):
        temperature = noise.choice([0.0, 0.0, 0.9])
        params = SamplingParams(max_tokens=noise.randrange(20, 200), temperature=temperature, seed=noise.randrange(99))
        prompt = [noise.randrange(256) for _ in range(noise.choice([noise.randrange(1, 90), noise.randrange(1, 400)]))]
        request = GenerateRequest(prompt, params, speculate=noise.random() < 0.5)
        name = streaming.submit(request)
        sent[name] = request
        for _ in range(noise.randrange(60)):
            collect(streaming.step(), answers)
            if noise.random() < 0.04 and (name, 0) in answers:
                tokens = [noise.randrange(256) for _ in range(noise.randrange(1, 9))]
                at = len(answers[name, 0].tokens)
                if streaming.steer(name, tokens):
                    steers.setdefault(name, []).append((at, tokens))
            if noise.random() < 0.01 and streaming.cancel(name):
                cancelled.add(name)
    drain(streaming, answers)
    for name, request in sent.items():
        answer, plain = answers[name, 0], Engine(StreamingToy(kv_blocks=64), tokenizer)
        plain._loop._runtime = None
        plain.submit(request, name)
        alone: dict[tuple[str, int], Answer] = {}
        for at, tokens in steers.get(name, []):
            while len(alone.get((name, 0), Answer()).tokens) < at:
                collect(plain.step(), alone)
            if not plain.steer(name, tokens):
                break
        drain(plain, alone)
        length = len(answer.tokens)
        if name in cancelled:
            assert answer.reason == "cancelled" and answer.tokens == alone[name, 0].tokens[:length]
        else:
            same(answer, alone[name, 0])
    if isinstance(runtime, CompanionToy):
        assert runtime.prefills and streaming._background.sequence is None
        assert streaming.cache.available() == runtime.kv_blocks
    assert not isinstance(runtime, ChainedToy) or runtime.followed > 20


def test_cancel_and_steer_take_effect_before_the_next_token(tokenizer: Tokenizer) -> None:
    engine = Engine(StreamingToy(ahead=30), tokenizer)
    name = engine.submit(GenerateRequest(PROMPT, LONG, speculate=False))
    answers: dict[tuple[str, int], Answer] = {}
    while not answers.get((name, 0), Answer()).tokens[5:]:
        collect(engine.step(), answers)
    before = list(answers[name, 0].tokens)
    assert engine.steer(name, [1, 2, 3])
    collect(engine.step(), answers)
    told = answers[name, 0]
    assert told.steered[0].completion_tokens == len(before)  # what the device had made beyond that is dropped
    sequence = engine._requests[name].leader
    assert sequence.tokens[len(PROMPT) : len(PROMPT) + len(before) + 3] == [*before, 1, 2, 3]
    while len(told.tokens) < len(before) + 6:
        collect(engine.step(), answers)
    shown = len(told.tokens)
    assert engine.cancel(name)
    collect(engine.step(), answers)
    assert told.reason == "cancelled" and len(told.tokens) == shown and not engine.busy
