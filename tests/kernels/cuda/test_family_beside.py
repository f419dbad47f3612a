"""A long prompt beside a sequence that decodes, by the general driver: both get the text that they have alone."""

from __future__ import annotations

from pathlib import Path

import emulated_family
import numpy as np
import pytest
from plain_tokenizer import tokenizer
from test_family import FAMILIES, WITH_A_HEAD, opened

from fulgur.engine.engine import Engine
from fulgur.engine.events import Started, Token
from fulgur.engine.params import GenerateRequest, SamplingParams


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_family.install(monkeypatch, folder)


def ask(prompt: list[int], most: int) -> GenerateRequest:
    return GenerateRequest(prompt, SamplingParams(max_tokens=most, ignore_eos=True))


def taken(engine: Engine, made: dict[str, list[int]], cached: dict[str, int]) -> None:
    for event in engine.step():
        if isinstance(event, Token):
            made.setdefault(event.request_id, []).append(event.token)
        elif isinstance(event, Started):
            cached[event.request_id] = event.cached_tokens


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("case", ["gpt_oss", "with a head"])
def test_a_prompt_that_joins(case: str, left: bool, tmp_path: Path) -> None:
    """`left`: a first try of it is cancelled half way. What it computed is shared, its state with it."""
    # Of few snapshots the one that is asked for last could be given up: which come first is a matter of time.
    model, _ = opened(*(WITH_A_HEAD if case == "with a head" else FAMILIES[case]), snapshots=8)
    text, noise = tokenizer(tmp_path, model.vocab_size), np.random.default_rng(2)
    model.prefill_from = 20
    short, long = (noise.integers(0, 200, size).tolist() for size in (5, 90))
    made, cached = dict[str, list[int]](), dict[str, int]()
    for name, prompt, most in (("alone", short, 30), ("long alone", long, 3)):
        engine = Engine(model, text, max_draft=0)
        engine.submit(ask(prompt, most), name)
        while engine.busy:
            taken(engine, made, cached)
    engine = Engine(model, text, max_draft=0)
    engine.submit(ask(short, 30), "stream")
    while "stream" not in made:
        taken(engine, made, cached)
    for name in ["first try", "long"] if left else ["long"]:
        engine.submit(ask(long, 3), name)
        while engine._background.sequence is None:
            taken(engine, made, cached)
        if name == "first try":
            taken(engine, made, cached)
            engine.cancel(name)
    assert len(made["stream"]) < 30
    while engine.busy:
        taken(engine, made, cached)
    assert made["stream"] == made["alone"] and made["long"] == made["long alone"]
    engine.submit(ask(long, 3), "again")
    while engine.busy:
        taken(engine, made, cached)
    assert cached["again"] >= 64 and made["again"] == made["long alone"]
    model.close()
