"""An answer that another engine began is taken up at any of its tokens: the rest is what the other would have said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drive import Answer, collect, drain, generate
from toy import ToyRuntime

from fulgur.engine.engine import Engine
from fulgur.engine.errors import InvalidRequest
from fulgur.engine.events import Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.text.grammar import GrammarSpec
from fulgur.text.tokenizer import Tokenizer

PENALISED = SamplingParams(
    max_tokens=24, temperature=0.9, seed=7, presence_penalty=0.8, frequency_penalty=0.3, repetition_penalty=1.2,
    ignore_eos=True,
)  # fmt: skip
KINDS = {
    "greedy": SamplingParams(max_tokens=24, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=24, temperature=1.0, top_p=0.9, seed=3, ignore_eos=True),
    "penalised": PENALISED,
    "grammar": SamplingParams(max_tokens=60, grammar=GrammarSpec("regex", "(ab|cd|[0-9]){4,20}z"), seed=1),
    "stop": SamplingParams(max_tokens=60, temperature=1.0, seed=9, stop=("a", "é", "7"), ignore_eos=True),
    "begins": SamplingParams(max_tokens=12, temperature=0.5, seed=9, begins="abc", ignore_eos=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_is_the_same_from_every_token_on(tokenizer: Tokenizer, kind: str) -> None:
    request = GenerateRequest([1, 2, 3], KINDS[kind])
    engine = Engine(ToyRuntime(), tokenizer)
    answers: dict[tuple[str, int], Answer] = {}
    pieces = []  # the text after each token
    engine.submit(request, "whole")
    while engine.busy:
        for event in engine.step():
            collect([event], answers)
            if isinstance(event, Token):
                pieces.append(answers["whole", 0].text)
    whole = answers["whole", 0]
    for count in range(1, len(whole.tokens) + 1):
        rest = generate(Engine(ToyRuntime(), tokenizer), replace(request, past=[whole.tokens[:count]]))
        assert rest.tokens == whole.tokens[count:]
        assert pieces[count - 1] + rest.text == whole.text
        assert rest.finished is not None and whole.finished is not None
        assert rest.reason == whole.reason
        assert rest.finished.usage.completion_tokens == whole.finished.usage.completion_tokens
        assert rest.finished.usage.prompt_tokens == 3


def test_steers_are_a_part_of_the_past(tokenizer: Tokenizer) -> None:
    request = GenerateRequest([1, 2, 3], PENALISED)
    engine = Engine(ToyRuntime(), tokenizer)
    request_id = engine.submit(request)
    answers: dict[tuple[str, int], Answer] = {}
    while len(answers.get((request_id, 0), Answer()).tokens) < 6:
        collect(engine.step(), answers)
    before = list(answers[request_id, 0].tokens)
    engine.steer(request_id, [9, 10])
    after = drain(engine, answers)[request_id, 0].tokens[len(before) :]
    assert len(after) == 24
    for count in (0, 1, 11, 24):
        past = [before, [9, 10], after[:count]]
        assert generate(Engine(ToyRuntime(), tokenizer), replace(request, past=past)).tokens == after[count:]


def test_a_past_that_cannot_be_is_refused(tokenizer: Tokenizer) -> None:
    engine = Engine(ToyRuntime(), tokenizer)
    for wrong in ({"past": [[5]], "n": 2}, {"past": [[10**6]]}):
        with pytest.raises(InvalidRequest):
            engine.submit(GenerateRequest([1], **wrong))  # type: ignore[arg-type]
    assert not engine.busy
