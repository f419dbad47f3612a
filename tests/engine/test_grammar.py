"""Answers under a grammar, with and without speculation."""

from __future__ import annotations

import json
import random
import re

import pytest
from drive import generate, run
from toy import ToyRuntime

from fulgur.engine.engine import Engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.speculate import StepCost
from fulgur.errors import FulgurError
from fulgur.text.grammar import GrammarSpec
from fulgur.text.tokenizer import Tokenizer

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "colour": {"enum": ["red", "green"]}},
        "required": ["name", "colour"],
        "additionalProperties": False,
    }
)
FREE = {1: 1.0, 33: 1.0}


def ask(spec: GrammarSpec, **params: object) -> GenerateRequest:
    return GenerateRequest([1, 2, 3], SamplingParams(max_tokens=200, grammar=spec, **params))  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_json_schema_is_kept(tokenizer: Tokenizer, temperature: float) -> None:
    for seed in range(5):
        request = ask(GrammarSpec("json_schema", SCHEMA), temperature=temperature, seed=seed)
        answer = generate(Engine(ToyRuntime(), tokenizer), request)
        assert answer.reason == "stop"
        value = json.loads(answer.text)
        assert set(value) == {"name", "colour"} and value["colour"] in ("red", "green")


@pytest.mark.parametrize("seed", range(10))
def test_speculation_under_a_grammar_changes_nothing(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    said = tokenizer.encode('{"name": "bob", "colour": "green"}')
    toy = {"script": (3, said)} if seed % 2 else {"window": 2}
    spec = GrammarSpec("json_schema", SCHEMA) if seed % 3 else GrammarSpec("regex", "(ab|cd|[0-9]){4,60}z")
    request = ask(spec, temperature=rng.choice([0.0, 0.9]), seed=seed, ignore_eos=bool(seed % 2), logprobs=1)
    plain = generate(Engine(ToyRuntime(**toy), tokenizer, max_draft=0), request)
    request.draft_source = said
    engine = Engine(ToyRuntime(**toy), tokenizer, cost=StepCost(FREE))
    answer = generate(engine, request)
    assert (answer.tokens, answer.text, answer.reason) == (plain.tokens, plain.text, plain.reason)
    assert answer.logprobs == plain.logprobs
    if seed % 3:
        assert answer.finished is not None and answer.finished.usage.accepted_tokens > 0


def test_a_regular_expression_and_plain_requests_in_one_batch(tokenizer: Tokenizer) -> None:
    free = GenerateRequest([5, 6], SamplingParams(max_tokens=30, ignore_eos=True))
    bound = ask(GrammarSpec("regex", "[a-f]{10}"))
    bound.n = 2
    engine = Engine(ToyRuntime(), tokenizer)
    answers = run(engine, free, bound)
    assert answers[0].tokens == generate(Engine(ToyRuntime(), tokenizer), free).tokens
    assert all(re.fullmatch("[a-f]{10}", answer.text) and answer.reason == "stop" for answer in answers[1:])


def test_a_steer_begins_the_grammar_anew(tokenizer: Tokenizer) -> None:
    engine = Engine(ToyRuntime(), tokenizer)
    request_id = engine.submit(ask(GrammarSpec("regex", "[a-f]{5}")))
    engine.step()
    engine.step()
    engine.steer(request_id, [9])
    text = ""
    while engine.busy:
        text += "".join(getattr(event, "text", "") for event in engine.step())
    assert re.fullmatch("[a-f]{5}", text), "all of it comes after the steer"


def test_a_grammar_that_is_none_is_refused(tokenizer: Tokenizer) -> None:
    engine = Engine(ToyRuntime(), tokenizer)
    with pytest.raises(FulgurError, match="regular expression"):
        engine.submit(ask(GrammarSpec("regex", "(")))
    assert not engine.busy


def test_a_grammar_that_grows_too_large_ends_its_own_answer_only(tokenizer: Tokenizer) -> None:
    """Speculation asks the matcher too: its errors must not leave the step."""
    free = GenerateRequest([5, 6], SamplingParams(max_tokens=30, ignore_eos=True))
    bound = ask(GrammarSpec("regex", "((.?){100}){100}\\x00"))
    bound.draft_source = said = tokenizer.encode("the text that is expected " * 9)
    engine = Engine(ToyRuntime(script=(3, said)), tokenizer, cost=StepCost(FREE))
    answers = run(engine, free, bound)
    assert answers[0].tokens == generate(Engine(ToyRuntime(script=(3, said)), tokenizer), free).tokens
    assert answers[1].reason == "error"
