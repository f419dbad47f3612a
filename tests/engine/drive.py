"""Running an engine to the end and collecting what it said."""

from __future__ import annotations

from dataclasses import dataclass, field

from fulgur.engine.engine import Engine
from fulgur.engine.events import Event, Finished, Started, SteerOutcome, Token
from fulgur.engine.params import GenerateRequest


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list = field(default_factory=list)
    finished: Finished | None = None
    started: Started | None = None
    steered: list[SteerOutcome] = field(default_factory=list)

    @property
    def reason(self) -> str | None:
        return self.finished.reason if self.finished else None


def collect(events: list[Event], answers: dict[tuple[str, int], Answer]) -> None:
    for event in events:
        answer = answers.setdefault((event.request_id, getattr(event, "index", 0)), Answer())
        match event:
            case Started():
                answer.started = event
            case Token():
                assert answer.finished is None, "a token after the end"
                answer.tokens.append(event.token)
                answer.text += event.text
                answer.logprobs.append(event.logprob)
            case SteerOutcome():
                answer.steered.append(event)
                answer.text += event.text
                answer.finished = None
            case Finished():
                assert answer.finished is None, "finished twice"
                answer.finished = event
                answer.text += event.text


def drain(engine: Engine, answers: dict[tuple[str, int], Answer] | None = None) -> dict[tuple[str, int], Answer]:
    answers = {} if answers is None else answers
    for _ in range(100_000):
        if not engine.busy:
            return answers
        collect(engine.step(), answers)
    raise AssertionError("the engine does not come to an end")


def run(engine: Engine, *requests: GenerateRequest) -> list[Answer]:
    """Answers in the order of requests and continuations."""
    ids = [engine.submit(request) for request in requests]
    answers = drain(engine)
    return [answers[key] for key in sorted(answers, key=lambda k: (ids.index(k[0]), k[1]))]


def generate(engine: Engine, request: GenerateRequest) -> Answer:
    return run(engine, request)[0]
