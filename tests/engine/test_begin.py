"""An answer that begins with given text, in whatever tokens; the text is not reported again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fulgur.engine.begin import Beginning
from fulgur.engine.engine import Engine
from fulgur.engine.errors import InvalidRequest
from fulgur.engine.events import Finished, Token
from fulgur.engine.load import EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.text.grammar import GrammarSpec
from fulgur.text.tokenizer import Tokenizer
from fulgur.workspace.folders import TOKENIZER


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("model")
    config = tiny_config("fulgur", vocab_size=8192, max_context=256)
    write_hf_folder(folder, config, random_model(config, 1))
    shutil.copy(TOKENIZER, folder)
    yield open_engine(EngineOptions(folder))[0]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(Path(TOKENIZER).parent)


def allowed(beginning: Beginning, tokenizer: Tokenizer) -> set[bytes]:
    mask = np.zeros(tokenizer.vocab_size, np.uint8)
    beginning.mask(mask)
    return {tokenizer.token_bytes(int(token)) for token in np.flatnonzero(mask)}


def test_its_own_tokens_or_one_that_goes_beyond_it(tokenizer: Tokenizer) -> None:
    beginning = Beginning(" retu", tokenizer)  # ` ret` `u`
    own = tokenizer.encode(" retu")
    assert allowed(beginning, tokenizer) == {b" ret", *(t for t in vocabulary(tokenizer) if t.startswith(b" retu"))}
    assert b" return" in allowed(beginning, tokenizer)
    [word] = tokenizer.encode(" return")
    assert beginning.validate([word, 30]) == 2 and beginning.validate([own[0], word]) == 1
    assert not beginning.accept(tokenizer.encode(" r")[0])
    assert beginning.accept(own[0]) and beginning.given
    assert all(found.startswith(b"u") for found in allowed(beginning, tokenizer))
    assert beginning.accept(own[1]) and not beginning.given
    assert len(allowed(beginning, tokenizer)) > 8000


def vocabulary(tokenizer: Tokenizer) -> set[bytes]:
    return {tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)}


def test_only_text_behind_the_beginning_is_new(tokenizer: Tokenizer) -> None:
    beginning = Beginning("\n    re", tokenizer)
    assert [beginning.cut(text) for text in ("\n    ", "return", " x")] == ["", "turn", " x"]


@pytest.mark.parametrize("begins", ["\n    ret", "é", "x", "zzqj ", ".__in"])
def test_the_answer_begins_so_and_stops_and_probabilities_look_behind_it(engine: Engine, begins: str) -> None:
    prompt = engine.tokenizer.encode("def f(a):")
    params = SamplingParams(max_tokens=12, begins=begins, stop=("\n",), logprobs=2, ignore_eos=True)
    engine.submit(GenerateRequest(prompt, params))
    events = []
    while not any(isinstance(event, Finished) for event in events):
        events += engine.step()
    tokens = [event for event in events if isinstance(event, Token)]
    written = engine.tokenizer.decode([event.token for event in tokens], skip_special=False, continuation=True)
    assert written.startswith(begins)
    shown = "".join(event.text for event in tokens)
    assert written[len(begins) :].split("\n")[0] == shown
    assert all(event.logprob is not None and np.isfinite(event.logprob.logprob) for event in tokens)
    assert all(np.isfinite(p) for event in tokens if event.logprob for _, p in event.logprob.top)


def test_a_grammar_and_a_beginning_exclude_each_other(engine: Engine) -> None:
    both = SamplingParams(begins="x", grammar=GrammarSpec("regex", "x+"))
    with pytest.raises(InvalidRequest, match="begins"):
        engine.submit(GenerateRequest([30], both))


@pytest.mark.parametrize("begins", ["\n    ret", "x", "zzqj ", ".__in"])
@pytest.mark.parametrize("limit", [1, 3])
def test_tokens_that_only_spell_the_beginning_do_not_count(engine: Engine, begins: str, limit: int) -> None:
    given = engine.tokenizer.encode(begins, special=False, continuation=True)
    params = SamplingParams(max_tokens=limit, begins=begins, ignore_eos=True)
    engine.submit(GenerateRequest(engine.tokenizer.encode("def f(a):"), params))
    events = []
    while not any(isinstance(event, Finished) for event in events):
        events += engine.step()
    tokens = [event.token for event in events if isinstance(event, Token)]
    again = 0
    while again < len(given) and tokens[again] == given[again]:
        again += 1
    [finished] = [event for event in events if isinstance(event, Finished)]
    assert finished.reason == "length" and finished.usage.completion_tokens == limit == len(tokens) - again


def test_the_given_text_is_weighed_by_the_model_itself(engine: Engine) -> None:
    """Otherwise its probability is that among the tokens that spell it."""
    prompt, text = engine.tokenizer.encode("def f(a):"), "\n    return a\n"
    own = engine.tokenizer.encode(text, special=False, continuation=True)

    def weights(asked: list[int], params: SamplingParams) -> list[float]:
        engine.submit(GenerateRequest(asked, params))
        events = []
        while not any(isinstance(event, Finished) for event in events):
            events += engine.step()
        return [event.logprob.logprob for event in events if isinstance(event, Token) and event.logprob is not None]

    given = weights(prompt, SamplingParams(max_tokens=1, begins=text, weigh_begins=True, logprobs=0, ignore_eos=True))
    for number, token in enumerate(own[:-1]):  # the last one may go beyond the text
        chosen = SamplingParams(max_tokens=1, logit_bias=((token, 1e4),), logprobs=0, ignore_eos=True)
        [alone] = weights([*prompt, *own[:number]], chosen)
        assert given[number] == pytest.approx(alone, abs=1e-4)
