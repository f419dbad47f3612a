"""The device's decode loop as the engine follows it: the runtime over an emulator that runs while the host goes on."""

from __future__ import annotations

import json
from pathlib import Path

import emulated_gpu
import gpu_check as check
import numpy as np
import pytest
from plain_tokenizer import tokenizer

from fulgur.bench.gpu_streams import rows_ratio
from fulgur.engine.engine import Engine
from fulgur.engine.events import Event, Finished, SteerOutcome, Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.sample import Sampler, Scratch
from fulgur.errors import FulgurError
from fulgur.kernels.cuda.records import RING, Mailbox
from fulgur.kernels.cuda.runtime import Runtime
from fulgur.kernels.cuda.stream import TokenStream
from fulgur.text.tokenizer import Tokenizer

DRIVERS = ("persistent", "graph")
SAMPLED = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.4),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, logprobs=2),
]


class Allowed:
    """A grammar that allows these tokens."""

    given = False

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def mask(self, out: np.ndarray) -> None:
        out[:] = self.tokens[: len(out)]


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_gpu.install(monkeypatch, folder)


def opened(driver: str) -> Runtime:
    return check.small_runtime("qwen2", "int4", driver, "cpu")[0]


def step(model: Runtime, token: int, position: int, table: np.ndarray) -> np.ndarray:
    logits = np.zeros((1, model.vocab_size), np.float32)
    one = [np.array([v], np.int32) for v in (token, position, 0)]
    model.step(*one, table[None], np.zeros(1, np.int32), logits)
    return logits[0]


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_device_samples_as_the_host_does(driver: str) -> None:
    """The device's tokens are the ones that the host chooses from its logits: a temperature within the step, everything
    else between steps; under a grammar with a mask for every token."""
    model, table = opened(driver), check.table()[0]
    scratch, noise = Scratch(model.vocab_size, device_samples=True), np.random.default_rng(2)
    allowed = (noise.random((5, -(-model.vocab_size // 32) * 32)) < 0.3).astype(np.uint8)
    found = []
    for seed, params in enumerate(SAMPLED):
        host, device = (Sampler(params, seed, scratch, [7]) for _ in range(2))
        if masked := seed == 2:
            device.sampling.grammar = True
        run = model.stream(7, 0, table, (), 5, device.on_device)
        tokens, told = [], []
        while not run.ended:
            if masked and len(tokens) < 5:
                run.allow(np.packbits(allowed[len(tokens)], bitorder="little").view(np.uint32))
            tokens += run.read()
            told += run.logprobs()
        previous = 7
        for position, token in enumerate(tokens):
            mask = Allowed(allowed[position]) if masked else None
            chosen, logprob = host.choose(step(model, previous, position, table), position + 1, mask)
            assert token == chosen
            if logprob is not None:
                assert told[position][0] == pytest.approx(logprob.logprob, abs=1e-4)
            host.note(token)
            previous = token
        found.append(tokens)
    assert len(found[0]) == 5 and found[0] != found[1]
    cut = model.stream(7, 0, table, (found[3][2],), 400, Sampler(SAMPLED[3], 3, scratch, [7]).on_device)
    tokens = cut.read()
    while not cut.ended:
        tokens += cut.read()
    assert tokens == found[3][:3]
    stopped = model.stream(7, 0, table, (), 400, Sampler(SAMPLED[3], 3, scratch, [7]).on_device)
    tokens = stopped.read() + stopped.stop()
    assert 0 < len(tokens) < 12 and tokens[:5] == found[3][: len(tokens)]
    model.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_run_is_stopped_within_a_step_and_taken_up_again(driver: str) -> None:
    model, table = opened(driver), check.table()[0]
    whole = check.decoded(model, 7, 0, table, 12)
    assert len(whole) == 12
    run = model.stream(7, 0, table, (), 400)
    tokens = run.read()
    tokens += run.stop()
    assert run.ended and run.read() == [] == run.stop()
    assert 0 < len(tokens) < 12 and tokens == whole[: len(tokens)].tolist()
    launches = len(emulated_gpu.Module.launched)
    again = model.stream(tokens[-1], len(tokens), table, (int(whole[11]),), 12 - len(tokens))
    rest: list[int] = []
    while not again.ended:
        rest += again.read()
    goal = whole[len(tokens) :].tolist()
    assert rest == goal[: goal.index(int(whole[11])) + 1]
    if driver == "persistent":
        assert len(emulated_gpu.Module.launched) == launches + 1
    model.close()


def test_the_ring_goes_round_and_a_silent_device_is_an_error() -> None:
    box = Mailbox()
    ring = np.frombuffer(box, np.int32)[Mailbox.token.offset // 4 :]
    run = TokenStream(box, ring, 3 * RING, lambda: True, lambda: None, None)
    for begin, end in ((0, RING - 3), (RING - 3, RING + 5), (RING + 5, 2 * RING + 5)):
        for i in range(begin, end):
            ring[i % RING] = i
        box.count = end
        assert run.read() == list(range(begin, end))
    silent = TokenStream(Mailbox(), ring, 8, lambda: False, lambda: None, None)
    with pytest.raises(FulgurError, match="without a result"):
        silent.read()


def test_steps_that_end_while_the_host_looks_away_are_no_error() -> None:
    """The host looked, and was held up until all queued steps had run: the device is idle, but has said something."""
    box = Mailbox()
    ring = np.frombuffer(box, np.int32)[Mailbox.token.offset // 4 :]

    def busy() -> bool:
        ring[:8], box.count = np.arange(8), 8
        return False

    run = TokenStream(box, ring, 100, busy, lambda: None, lambda _: None)
    assert run.read() == list(range(8))
    assert not run.ended


def drive(engine: Engine, request: GenerateRequest, steer_at: int = 0) -> tuple[list[int], str | None, str]:
    """Tokens, the reason of the end, the text; steered once when so many tokens are there."""
    name = engine.submit(request)
    events: list[Event] = []
    while engine.busy:
        events += engine.step()
        told = sum(isinstance(event, Token) for event in events)
        if steer_at and told >= steer_at and not any(isinstance(event, SteerOutcome) for event in events):
            assert engine.steer(name, [9, 8, 7])
    tokens = [event.token for event in events if isinstance(event, Token)]
    steers = [event.completion_tokens for event in events if isinstance(event, SteerOutcome)]
    (end,) = [event for event in events if isinstance(event, Finished)]
    return tokens, end.reason, "".join(getattr(event, "text", "") for event in events) + str(steers)


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_engine_over_the_loop_and_over_steps(driver: str, tmp_path: Path) -> None:
    """Greedy, sampled, steered, with a stop string: the same tokens with the loop and with single steps."""
    model = opened(driver)
    text = tokenizer(tmp_path, model.vocab_size)
    prompt = check.tokens_of(model, 20)
    looping, stepping = (Engine(model, text, max_draft=0) for _ in range(2))
    stepping._loop._runtime = None
    greedy = GenerateRequest(prompt, SamplingParams(max_tokens=9))
    answer = drive(stepping, greedy)
    assert len(answer[0]) == 9
    assert drive(looping, greedy) == answer
    assert drive(looping, greedy, steer_at=3)[0][:3] == answer[0][:3]
    drawn = GenerateRequest(prompt, SamplingParams(max_tokens=6, temperature=0.9, seed=5))
    assert drive(looping, drawn) == drive(stepping, drawn)
    stop = text.decode(answer[0][4:5])
    stopped = GenerateRequest(prompt, SamplingParams(max_tokens=9, stop=(stop,)))
    assert drive(looping, stopped) == drive(stepping, stopped)
    assert drive(stepping, stopped)[1] == "stop"
    engine_tokens, reason, told = drive(looping, greedy, steer_at=2)
    (at,) = [int(part) for part in told.rsplit("[", 1)[1].rstrip("]").split(",")]
    plain = Engine(model, text, max_draft=0)
    plain._loop._runtime = None
    rest = drive(plain, GenerateRequest([*prompt, *engine_tokens[:at], 9, 8, 7], SamplingParams(max_tokens=9)))
    assert engine_tokens[at:] == rest[0] and reason == "length"
    model.close()


def test_the_bench_of_what_the_host_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fulgur.bench import gpu as bench
    from fulgur.bench.report import Report

    monkeypatch.setattr(bench, "RUNS", 1)
    model, report = opened("persistent"), Report("bench")
    bench.write_tokenizer(tmp_path, model.vocab_size)
    bench.measure(model, Tokenizer.from_folder(tmp_path), "small.int4", report, prompt=6, steps=3)
    assert [row.name.rsplit(".", 2)[0] for row in report.rows] == [
        "gpu.loop.tok_s", "gpu.engine.tok_s", "gpu.host.us", "gpu.stop.steps",
    ]  # fmt: skip
    assert report.value("gpu.loop.tok_s.small.int4") > 0
    model.close()


def test_rates_after_long_contexts() -> None:
    from fulgur.bench.gpu_decode import context_rates

    model = opened("persistent")
    rates = context_rates(model, [2, 70, model.max_context], steps=2, runs=1)
    assert list(rates) == [2, 70] and all(rate > 0 for rate in rates.values())  # the last does not fit
    model.close()


def test_where_a_step_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    from fulgur.bench import gpu_decode as bench

    monkeypatch.setattr(bench, "PROMPT", 3)
    model = opened("persistent")
    first, *parts = bench.profile(model, steps=2).splitlines()
    assert "us a step" in first
    assert [line.split()[0] for line in parts] == [
        "norm_qkv", "qkv", "fetch", "project", "softmax", "join", "copy_o", "project_o", "norm_ffn", "gate_up",
        "copy_down", "down", "norm_head", "head", "wait_choose", "choose",
    ]  # fmt: skip
    model.close()


def test_a_context_that_does_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two drivers the faster one's rows are kept."""
    from argparse import Namespace

    from fulgur.bench import gpu_decode as bench

    def row(name: str, weights: str, driver: str, *_: object) -> tuple[dict[str, float], dict[int, float]]:
        rate = 200.0 if driver == "graph" else 100.0
        return {"tok_s": rate, "share": 0.5, "gap": 0.0, "prefill": 0.0, "distinct": 1.0}, {64: rate / 2}

    monkeypatch.setattr(bench, "bench_row", row)
    monkeypatch.setattr(bench, "read_bandwidth", lambda gpu: 1e12)
    monkeypatch.setattr(bench, "free", lambda: None)
    options = Namespace(
        seconds=60, models="llama-3.2-1b", drivers="persistent,graph", phases=False, contexts=[64, 999], peer=False,
        json=tmp_path / "gpu.json",
    )  # fmt: skip
    lines = bench.measure(Namespace(name="a GPU"), options)
    assert sum("50.0 tok/s after 64 tokens" in line for line in lines) == 1
    assert sum("not run" in line and "after 999 tokens" in line for line in lines) == 2
    rows = {row["name"]: row["value"] for row in json.loads(options.json.read_text())["rows"]}
    assert rows["gpu.graph.tok_s.llama-3.2-1b.bf16"] == 200  # the plain path's figure is always there
    assert rows["gpu.decode.tok_s.llama-3.2-1b.bf16"] == 200 and rows["gpu.context.tok_s.llama-3.2-1b.bf16.64"] == 100
    assert "gpu.context.tok_s.llama-3.2-1b.bf16.999" not in rows


def test_rows_of_edits_and_long_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    from fulgur.bench import gpu_contexts as bench
    from fulgur.bench.report import Report

    monkeypatch.setattr(bench, "FAR", 3)
    monkeypatch.setattr(bench, "edit_rate", lambda _: 9.0)  # it takes a vocabulary of 8,192, and minutes
    monkeypatch.setattr(bench, "rows_ratio", lambda runtime, position: rows_ratio(runtime, position, rows=2, runs=1))
    model, report = opened("persistent"), Report("bench")
    bench.measure_edits(model, "small.int4", report)
    bench.measure(model, "small.int4", report, [70, 2 * model.max_context])
    decode = "gpu.decode_tok_s.small.int4.at_70"
    names = ["gpu.edit_tok_s.small.int4", decode, f"{decode}.fp8_keys", "gpu.rows8_ratio.small.int4.70"]
    assert [row.name for row in report.rows] == names and all(row.value > 0 for row in report.rows)
    model.close()
