"""Steps that follow each other beside the plain path: the same answers, and nobody waits for more than a step."""

from __future__ import annotations

from drive import Answer, collect, drain
from toy import ChainedToy, StreamingToy

from fulgur.engine.engine import Engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.text.tokenizer import Tokenizer

SETTINGS = [
    SamplingParams(max_tokens=90, ignore_eos=True),
    SamplingParams(max_tokens=40),
    SamplingParams(max_tokens=200, stop_tokens=tuple(range(40, 60))),
    SamplingParams(max_tokens=200, stop=("a", "zz", "Q")),
    SamplingParams(max_tokens=70, temperature=0.8, top_k=5, seed=3),
]


def answers_of(engine: Engine) -> dict[tuple[str, int], Answer]:
    for i, params in enumerate(SETTINGS):
        engine.submit(GenerateRequest([i + 1, 9, 200], params, speculate=False), f"{i}")
    return drain(engine, {})


def test_ends_of_every_kind(tokenizer: Tokenizer) -> None:
    runtime = ChainedToy()
    plain, chained = answers_of(Engine(StreamingToy(), tokenizer)), answers_of(Engine(runtime, tokenizer))
    assert {name: (a.tokens, a.text, a.reason) for name, a in plain.items()} == {
        name: (a.tokens, a.text, a.reason) for name, a in chained.items()
    }
    assert runtime.followed > 40


def test_cancel_steer_and_a_request_within_one_step(tokenizer: Tokenizer) -> None:
    runtime = ChainedToy()
    engine = Engine(runtime, tokenizer)
    long = SamplingParams(max_tokens=400, ignore_eos=True)
    for name in "abc":
        engine.submit(GenerateRequest([ord(name), 9], long, speculate=False), name)
    answers: dict[tuple[str, int], Answer] = {}
    while runtime.followed < 5:
        collect(engine.step(), answers)
    shown = {name: len(answers[name, 0].tokens) for name in "abc"}
    assert engine.cancel("a") and engine.steer("b", [1, 2, 3])
    collect(engine.step(), answers)
    assert answers["a", 0].reason == "cancelled" and len(answers["a", 0].tokens) == shown["a"]
    assert answers["b", 0].steered[0].completion_tokens == len(answers["b", 0].tokens) == shown["b"]
    assert len(answers["c", 0].tokens) == shown["c"] + 1
    engine.submit(GenerateRequest([7, 7], long), "d")
    for _ in range(2):  # the step under way, then its prompt
        collect(engine.step(), answers)
    assert answers["d", 0].tokens
    for name in "bcd":
        engine.cancel(name)
    assert not answers["b", 0].reason
    collect(engine.step(), answers)
    assert all(answers[name, 0].reason == "cancelled" for name in "bcd") and not engine.busy
    engine.submit(GenerateRequest([5], SamplingParams(max_tokens=3)), "e")  # after a step that nobody waited for
    drain(engine, answers)
    assert len(answers["e", 0].tokens) == 3
