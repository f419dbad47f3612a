"""Messages between the engine process and its client: what goes in comes out, however the bytes are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.engine.errors import InvalidRequest
from fulgur.engine.events import Counts, Event, Finished, Started, SteerOutcome, Token, TokenLogprob
from fulgur.engine.load import EngineInfo, EngineOptions
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.wire import FrameReader, Message, frame
from fulgur.kernels.cpu import native
from fulgur.kernels.cpu.arguments import BLOCK_TOKENS
from fulgur.text.grammar import GrammarSpec

LOGPROB = TokenLogprob(-0.5, ((7, -0.5), (8, -float("inf"))))
EVENTS: list[Event] = [
    Started("g1", 3, 2),
    Token("g1", 0, 7, "a"),
    Token("g1", 0, 8, ""),
    Token("g1", 1, 9, "é\ud800\x00"),
    Token("g2", 0, 9, "\U0001f600", LOGPROB),
    SteerOutcome("g1", 0, 2, 5, text="held"),
    SteerOutcome("g1", 0, 0, 0, "too long"),
    Finished("g1", 0, "stop", Counts(3, 2, 1, 4, 2, 0.25, 1e-9), None, "rest"),
]
PARAMS = SamplingParams(
    max_tokens=3,
    temperature=0.5,
    seed=2**62,
    logit_bias=((3, -1.5), (4, 2.0)),
    stop=("x", "y"),
    stop_tokens=(1, 2),
    grammar=GrammarSpec("regex", "a+"),
)
MESSAGES: list[Message] = [
    ("open", EngineOptions(Path("/models/\udcff"), bits=4, device="cpu")),
    ("submit", "g1", GenerateRequest(list(range(1000)), PARAMS, 2, [5, 6], visible_tokens=(9,), keep=True)),
    ("submit", "g2", GenerateRequest([2**31 - 1], speculate=False, prefill_only=True)),
    ("cancel", "g1"),
    ("steer", "g1", [1, 2, 3]),
    ("ready", EngineInfo("m", 10, 64, 300, "native", "avx2", 2, 1, 2, 3, 4, "as requested")),
    ("events", EVENTS),
]


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_messages_come_out_as_they_went_in(size: int) -> None:
    data = b"".join(map(frame, MESSAGES))
    reader = FrameReader()
    out = [message for at in range(0, len(data), size) for message in reader.feed(data[at : at + size])]
    assert out == MESSAGES


def test_a_token_that_no_vocabulary_has_is_refused_here() -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        frame(("submit", "g1", GenerateRequest([2**40])))


def test_the_block_size_of_the_kernels_is_the_engines() -> None:
    assert native.Runtime.block_tokens == BLOCK_TOKENS
