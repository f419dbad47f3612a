"""The engine's behaviour, over the toy runtime."""

from __future__ import annotations

from dataclasses import replace

import pytest
from byte_tokenizer import EOS
from drive import Answer, collect, drain, generate, run
from toy import ToyRuntime

from fulgur.engine.engine import KEPT, Engine
from fulgur.engine.errors import ContextLengthExceeded, InvalidRequest
from fulgur.engine.events import Event, Finished, Started, SteerOutcome, Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.text.tokenizer import Tokenizer

PLAIN = SamplingParams(max_tokens=20, ignore_eos=True)


def ask(prompt: list[int], **params: object) -> GenerateRequest:
    return GenerateRequest(prompt, replace(PLAIN, **params))


def idle(engine: Engine) -> bool:
    """Nothing is left of any request, in any table."""
    scheduler = engine.scheduler
    return (
        not engine.busy
        and not engine._requests
        and not engine._resting
        and engine.cache.available() == engine.cache.blocks
        and len(scheduler._slots) == len(scheduler.tables)
        and bool((scheduler.tables == -1).all())
    )


@pytest.fixture
def engine(tokenizer: Tokenizer) -> Engine:
    return Engine(ToyRuntime(), tokenizer)


def test_plain_greedy_equals_running_the_model_token_by_token(engine: Engine) -> None:
    answer = generate(engine, ask([1, 2, 3]))
    tokens = [1, 2, 3]
    for _ in range(20):
        fresh = ToyRuntime(window=0)
        tokens.append(generate(Engine(fresh, engine.tokenizer), ask(tokens, max_tokens=1)).tokens[0])
    assert answer.tokens == tokens[3:]
    assert answer.text == engine.tokenizer.decode(tokens[3:], continuation=True)
    assert answer.reason == "length" and answer.started == Started("request-1", 3, 0)
    assert engine.runtime.logit_steps == 0, "greedy decoding must not ask for logits"
    assert idle(engine)


def test_eos_and_stop_tokens_end_an_answer_and_are_reported(engine: Engine) -> None:
    tokens = generate(engine, ask([1, 2, 3])).tokens
    stopped = generate(engine, ask([1, 2, 3], stop_tokens=(tokens[7],)))
    assert stopped.tokens == tokens[:8] and stopped.reason == "stop"
    assert stopped.text == engine.tokenizer.decode(tokens[:7], continuation=True)
    scripted = Engine(ToyRuntime(script=(3, [65, EOS, 66])), engine.tokenizer)
    assert generate(scripted, ask([1, 2, 3], ignore_eos=False)).tokens[-1] == EOS
    assert len(generate(scripted, ask([1, 2, 3])).tokens) == 20


def test_a_stop_string_over_token_borders(tokenizer: Tokenizer) -> None:
    said = tokenizer.encode("one two END three")
    for stop, shown in (("END", "one two "), ("o EN", "one tw"), ("three", "one two END "), ("zzz", None)):
        engine = Engine(ToyRuntime(script=(1, said)), tokenizer)
        answer = generate(engine, ask([1], stop=(stop,), max_tokens=len(said)))
        if shown is None:
            assert answer.text == "one two END three" and answer.reason == "length"
        else:
            assert answer.text == shown and answer.reason == "stop" and len(answer.tokens) <= len(said)


def test_a_character_in_several_tokens_comes_out_whole(tokenizer: Tokenizer) -> None:
    said = tokenizer.encode("é漢🙂.")
    engine = Engine(ToyRuntime(script=(1, said)), tokenizer)
    events = []
    engine.submit(ask([1], max_tokens=len(said)))
    while engine.busy:
        events += engine.step()
    texts = [event.text for event in events if isinstance(event, Token)]
    assert "".join(texts) == "é漢🙂." and [text for text in texts if text] == ["é", "漢", "🙂", "."]


def test_visible_special_tokens(tokenizer: Tokenizer) -> None:
    said = [65, 258, 66, 257]
    engine = Engine(ToyRuntime(script=(1, said)), tokenizer)
    request = ask([1], max_tokens=4)
    hidden = generate(engine, request).text
    request.visible_tokens = (258,)
    shown = generate(engine, request).text
    assert "<|mark|>" in shown and "<|turn|>" not in shown and shown.replace("<|mark|>", "") == hidden


def test_the_second_request_computes_only_what_is_new(engine: Engine) -> None:
    prompt = [i % 250 for i in range(200)]
    first = generate(engine, ask(prompt))
    before = engine.runtime.rows
    again = generate(engine, ask(prompt))
    assert again.started is not None and again.started.cached_tokens == 199
    assert engine.runtime.rows - before == 20
    assert again.tokens == first.tokens
    longer = generate(engine, ask(prompt + first.tokens + [7]))
    assert longer.started is not None and longer.started.cached_tokens == 219  # the last sampled token was never run
    assert longer.finished is not None and longer.finished.usage.cached_tokens == 219


def test_prefill_goes_in_chunks_beside_decoding(engine: Engine) -> None:
    engine.submit(ask([1, 2, 3], max_tokens=100))
    engine.step()
    long = engine.submit(ask([i % 250 for i in range(900)]))
    answers: dict[tuple[str, int], Answer] = {}
    said_meanwhile = steps = 0
    while (long, 0) not in answers or not answers[(long, 0)].tokens:
        events = engine.step()
        said_meanwhile += sum(isinstance(e, Token) and e.request_id != long for e in events)
        collect(events, answers)
        steps += 1
    assert steps >= 900 // 64 and said_meanwhile >= steps - 1


def test_cancel_takes_effect_at_once(engine: Engine) -> None:
    running = engine.submit(ask([1, 2, 3], max_tokens=500))
    prefilling = engine.submit(ask([i % 250 for i in range(900)]))
    waiting = [engine.submit(ask([5, 6, 7])) for _ in range(40)]
    for _ in range(3):
        engine.step()
    for request_id in (running, prefilling, *waiting):
        assert engine.cancel(request_id)
    rows = engine.runtime.rows
    events = engine.step()
    assert engine.runtime.rows == rows, "a cancelled request was run"
    finished = [event for event in events if isinstance(event, Finished)]
    assert len(finished) == 42 and {event.reason for event in finished} == {"cancelled"}
    assert not engine.cancel(running) and not engine.steer(running, [1])
    assert idle(engine)


def test_cancel_gives_out_what_was_held_back(tokenizer: Tokenizer) -> None:
    engine = Engine(ToyRuntime(script=(1, tokenizer.encode("abcdef"))), tokenizer, max_draft=0)
    request_id = engine.submit(ask([1], stop=("zcdXY", "cdXY")))
    answers: dict[tuple[str, int], Answer] = {}
    while len(answers.get((request_id, 0), Answer()).tokens) < len(tokenizer.encode("abcd")):
        collect(engine.step(), answers)
    shown = answers[request_id, 0].text
    engine.cancel(request_id)
    drain(engine, answers)
    assert shown == "ab" and answers[request_id, 0].text == "abcd"


def test_steer_computes_only_its_own_tokens(engine: Engine) -> None:
    prompt = [i % 250 for i in range(150)]
    request_id = engine.submit(ask(prompt, max_tokens=30))
    answers: dict[tuple[str, int], Answer] = {}
    while len(answers.get((request_id, 0), Answer()).tokens) < 10:
        collect(engine.step(), answers)
    before, rows = list(answers[request_id, 0].tokens), engine.runtime.rows
    assert engine.steer(request_id, [7, 8, 9])
    events = engine.step()
    assert engine.runtime.rows - rows == 4  # the last token, not run yet, and the three
    assert events[0] == SteerOutcome(request_id, 0, 3, len(before))
    collect(events, answers)
    answer = drain(engine, answers)[request_id, 0]
    alone = generate(Engine(ToyRuntime(), engine.tokenizer), ask([*prompt, *before, 7, 8, 9], max_tokens=30))
    assert answer.tokens[len(before) :] == alone.tokens and len(alone.tokens) == 30, "the limit counts anew"
    assert idle(engine)


def test_steer_before_the_first_token_and_with_several_continuations(engine: Engine) -> None:
    request = GenerateRequest([1, 2, 3], SamplingParams(max_tokens=8, temperature=1.0, seed=5, ignore_eos=True), n=3)
    request_id = engine.submit(request)
    assert engine.steer(request_id, [4, 5])
    answers = drain(engine)
    direct = run(Engine(ToyRuntime(), engine.tokenizer), replace(request, prompt=[1, 2, 3, 4, 5]))
    assert [answers[request_id, i].tokens for i in range(3)] == [answer.tokens for answer in direct]
    request_id = engine.submit(request)
    for _ in range(4):
        engine.step()
    engine.steer(request_id, [9])
    steered = [event for event in engine.step() if isinstance(event, SteerOutcome)]
    assert [event.index for event in steered] == [0, 1, 2]
    drain(engine)
    assert idle(engine)


def test_text_held_back_goes_out_with_the_steer(tokenizer: Tokenizer) -> None:
    engine = Engine(ToyRuntime(script=(1, tokenizer.encode("abcd"))), tokenizer, max_draft=0)
    request_id = engine.submit(ask([1], stop=("cdXY",), max_tokens=6))
    answers: dict[tuple[str, int], Answer] = {}
    while len(answers.get((request_id, 0), Answer()).tokens) < 4:
        collect(engine.step(), answers)
    assert answers[request_id, 0].text == "ab"
    engine.steer(request_id, tokenizer.encode("XY"))
    collect(engine.step(), answers)
    assert answers[request_id, 0].steered[0].text == "cd"
    assert answers[request_id, 0].text.startswith("abcd"), "the steer's own text is not part of a stop string"


def test_a_kept_request_rests_and_goes_on(engine: Engine) -> None:
    request = replace(ask([1, 2, 3]), keep=True, speculate=False)
    request_id = engine.submit(request)
    first = drain(engine)[request_id, 0]
    assert first.reason == "length" and not engine.busy and request_id in engine._requests
    rows = engine.runtime.rows
    assert engine.steer(request_id, [7, 8])
    second = drain(engine)[request_id, 0]
    assert len(second.tokens) == 20 and second.finished is not None
    assert second.finished.usage.completion_tokens == 40
    assert engine.runtime.rows - rows <= 3 + 20, "what it held was computed again"
    alone = generate(Engine(ToyRuntime(), engine.tokenizer), ask([1, 2, 3, *first.tokens, 7, 8]))
    assert second.tokens == alone.tokens
    assert engine.cancel(request_id)
    assert not engine.step() and idle(engine)


def test_kept_requests_are_bounded(engine: Engine) -> None:
    ids = [engine.submit(replace(ask([1 + i % 200], max_tokens=1), keep=True)) for i in range(KEPT + 10)]
    drain(engine)
    assert len(engine._requests) == KEPT and ids[0] not in engine._requests and ids[-1] in engine._requests


def test_prefill_only_warms_the_cache(engine: Engine) -> None:
    prompt = [i % 250 for i in range(300)]
    warmed = generate(engine, replace(ask(prompt), prefill_only=True))
    assert warmed.tokens == [] and warmed.reason == "prefilled"
    again = generate(engine, replace(ask(prompt), prefill_only=True))
    assert again.tokens == [] and again.reason == "prefilled"
    answer = generate(engine, ask(prompt))
    assert answer.started is not None and answer.started.cached_tokens == 299
    assert answer.tokens == generate(Engine(ToyRuntime(), engine.tokenizer), ask(prompt)).tokens
    assert idle(engine)


def test_continuations_share_one_prefill_and_differ_by_seed(engine: Engine) -> None:
    prompt = [i % 250 for i in range(200)]
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=3, ignore_eos=True)
    request = GenerateRequest(prompt, params, n=5, speculate=False)
    answers = run(engine, request)
    assert engine.runtime.rows == 200 + 5 * 9 and engine.runtime.steps == 1 + 9
    assert len({tuple(answer.tokens) for answer in answers}) == 5
    assert run(Engine(ToyRuntime(), engine.tokenizer), request)[3].tokens == answers[3].tokens
    alone = generate(Engine(ToyRuntime(), engine.tokenizer), replace(request, n=1))
    assert alone.tokens == answers[0].tokens
    greedy = run(engine, GenerateRequest(prompt, PLAIN, n=3))
    assert greedy[0].tokens == greedy[1].tokens == greedy[2].tokens
    assert idle(engine)


@pytest.mark.parametrize("keep", [False, True])
def test_continuations_that_all_end_with_their_first_token(engine: Engine, keep: bool) -> None:
    request = GenerateRequest([1, 2, 3], SamplingParams(max_tokens=1, temperature=1.0, seed=3), n=3, keep=keep)
    request_id = engine.submit(request)
    answers = drain(engine)
    assert [len(answers[request_id, i].tokens) for i in range(3)] == [1, 1, 1]
    assert engine.cancel(request_id) == keep
    assert idle(engine)


def test_without_a_seed_answers_differ(engine: Engine) -> None:
    request = ask([1, 2, 3], temperature=1.5)
    assert generate(engine, request).tokens != generate(engine, request).tokens


def test_what_does_not_fit_is_refused_and_what_fills_up_ends(engine: Engine) -> None:
    with pytest.raises(ContextLengthExceeded, match="1024 tokens") as caught:
        engine.submit(ask([1] * 1024))
    assert caught.value.code == "context_length_exceeded"
    answer = generate(engine, ask([1] * 1000, max_tokens=100))
    assert len(answer.tokens) == 24 and answer.reason == "length"
    assert answer.finished is not None and answer.finished.message == "the context of 1024 tokens is full"
    assert generate(engine, replace(ask([1] * 1024), prefill_only=True)).reason == "prefilled"
    request_id = engine.submit(ask([1, 2]))
    engine.step()
    with pytest.raises(ContextLengthExceeded):
        engine.steer(request_id, [1] * 1022)
    assert len(drain(engine)[request_id, 0].tokens) >= 19
    small = Engine(ToyRuntime(kv_blocks=2), engine.tokenizer)
    assert small.context == 128
    assert len(generate(small, ask([1] * 100, max_tokens=100)).tokens) == 28
    assert idle(small)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerateRequest([]), "prompt is empty"),
        (GenerateRequest([1, 300]), "token 300"),
        (GenerateRequest([-1]), "token -1"),
        (GenerateRequest([1], n=0), "n is 0"),
        (ask([1], max_tokens=0), "max_tokens is 0"),
        (ask([1], temperature=-1.0), "temperature"),
        (ask([1], temperature=float("nan")), "temperature"),
        (ask([1], stop=("",)), "stop"),
        (ask([1], repetition_penalty=0.0), "repetition_penalty"),
        (ask([1], logprobs=-1), "logprobs"),
    ],
)
def test_a_wrong_request_is_named(engine: Engine, request_: GenerateRequest, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        engine.submit(request_)
    assert idle(engine)


def test_a_request_id_is_used_once(engine: Engine) -> None:
    engine.submit(ask([1]), "mine")
    with pytest.raises(InvalidRequest, match="already exists"):
        engine.submit(ask([1]), "mine")


def test_nothing_grows_over_many_requests(engine: Engine) -> None:
    for i in range(3000):
        engine.submit(ask([i % 250, i % 7, i % 11], max_tokens=2, temperature=float(i % 3 == 0), seed=i))
        if i % 50 == 49:
            drain(engine)
    drain(engine)
    assert idle(engine)
    assert len(engine.cache._evictable) <= 4 * engine.cache.blocks + 65
    assert len(engine._batch.logits) <= 64


def test_close_lets_everything_go(engine: Engine) -> None:
    engine.submit(ask([1, 2, 3]))
    engine.step()
    engine.close()
    assert not engine.busy


@pytest.mark.parametrize("end", ["length", "stop token", "stop string", "context", "none"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_tokens_taken_together_are_those_taken_one_by_one(tokenizer: Tokenizer, end: str, at: int) -> None:
    """Wherever among them the end lies, and half a character too."""
    tokens = tokenizer.encode("ab\u00fccde", special=False)
    limits = SamplingParams(
        max_tokens=at if end == "length" else 99,
        stop=(tokenizer.decode(tokens)[at - 1 : at + 1],) if end == "stop string" else (),
        stop_tokens=(tokens[at - 1],) if end == "stop token" else (),
    )
    taken = []
    for together in (True, False):
        engine = Engine(ToyRuntime(max_context=3 + at if end == "context" else 99), tokenizer)
        engine.submit(GenerateRequest([1, 2, 3], limits), "a")
        sequence = engine.scheduler.waiting[0]
        events: list[Event] = []
        if together:
            sequence.extend(tokens, events)
        else:
            for token in tokens:
                if sequence.finished is None:
                    sequence.push(token, None, events)
        taken.append((events, sequence.tokens, sequence.max_tokens, sequence.usage, sequence.finished))
    assert taken[0] == taken[1]
