"""Which events share a message from the engine process to its client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from toy import ToyRuntime

from fulgur.engine import worker
from fulgur.engine.engine import Engine
from fulgur.engine.events import Event, Finished, Started, SteerOutcome, Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.wire import FrameReader, Message, frame
from fulgur.text.tokenizer import Tokenizer


class Recorded:
    """A connection that hands out one list of messages a step, and keeps what is sent."""

    def __init__(self, *incoming: list[Message]) -> None:
        self.incoming = list(incoming)
        self.sent: list[list[Event]] = []

    def read(self, *, wait: bool) -> Iterator[Message]:
        if wait and not self.incoming:
            raise worker.Closed
        yield from self.incoming.pop(0) if self.incoming else ()

    def send(self, message: Message) -> None:
        ((kind, events),) = FrameReader().feed(frame(message))
        assert kind == "events"
        self.sent.append(events)


def request(prompt: int, tokens: int) -> GenerateRequest:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return GenerateRequest([at % 200 for at in range(prompt)], params, speculate=False)


def served(
    tokenizer: Tokenizer, connection: Recorded, monkeypatch: pytest.MonkeyPatch, seconds_a_step: float
) -> list[list[type]]:
    """The kinds of events in each message, on a clock that only steps move."""
    engine = Engine(ToyRuntime(), tokenizer)
    step, clock = engine.step, [100.0]

    def timed() -> list[Event]:
        clock[0] += seconds_a_step
        return step()

    monkeypatch.setattr(engine, "step", timed)
    monkeypatch.setattr(worker, "perf_counter", lambda: clock[0])
    with pytest.raises(worker.Closed):
        worker.serve(engine, connection)  # type: ignore[arg-type]
    return [[type(event) for event in events] for events in connection.sent]


def test_quick_tokens_travel_together(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one and the end at once."""
    connection = Recorded([("submit", "a", request(5, 20))])
    messages = served(tokenizer, connection, monkeypatch, 0.0)
    assert messages == [[Started, Token], [Token], [*[Token] * 18, Finished]]


def test_the_first_token_does_not_wait_after_a_long_prompt(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = served(tokenizer, Recorded([("submit", "a", request(400, 9))]), monkeypatch, 0.0)
    assert messages == [[Started], [Token], [*[Token] * 8, Finished]]


def test_slow_tokens_go_out_one_by_one(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = served(tokenizer, Recorded([("submit", "a", request(5, 4))]), monkeypatch, 0.1)
    assert messages == [[Started, Token], [Token], [Token], [Token, Finished]]


def test_an_answer_to_a_steer_does_not_wait(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Recorded([("submit", "a", request(5, 20))], [], [], [], [("steer", "a", [7, 8])])
    messages = served(tokenizer, connection, monkeypatch, 0.0)
    assert messages == [
        [Started, Token], [Token], [Token, Token, SteerOutcome, Token], [Token], [*[Token] * 18, Finished]
    ]  # fmt: skip
