"""`fulgur bench engine --models hybrid`: what the model's own drafting head (MTP) is worth on the CPU.

A hybrid with random weights guesses nothing right, so acceptance is forced: the head computes its guesses at their real
cost, and each of them is then replaced by the token of the known continuation with the given probability, else by
another token. Everything after that is the engine's own: it measures, chooses draft lengths and verifies. Ratios are
medians over rounds in which plain decoding and each probability take turns.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from fulgur.bench.large import write_random
from fulgur.bench.report import Begin, Report
from fulgur.engine.engine import Engine
from fulgur.engine.events import Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.speculate import measure_cost
from fulgur.errors import FulgurError
from fulgur.kernels.cpu.native import Int, Runtime
from fulgur.model.config import ModelConfig
from fulgur.model.packed_folder import load_packed
from fulgur.text.tokenizer import Tokenizer

CHANCES = {"p93": 0.93, "p66": 0.66, "p00": 0.0}
BARS = {"p00": 0.97}
PROMPT, ANSWER = 64, 160


class Forced(Runtime):
    """A runtime whose guesses are right with the probability `chance`."""

    chance = 0.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.known: list[int] = []
        self._random = random.Random(1)

    def draft(self, token: int, position: int, sequence: int, tables: Int, length: int) -> list[int]:
        guesses = super().draft(token, position, sequence, tables, length)
        truth = self.known[position + 1 : position + 1 + len(guesses)]
        wrong = (token + 1) % self.vocab_size
        return [known if self._random.random() < self.chance else wrong for known in truth]


def measure(
    model: str,
    config: ModelConfig,
    bits: int,
    folder: Path,
    tokenizer: Path,
    rounds: int,
    begin: Begin,
    report: Report,
) -> None:
    name, place = f"{model}.int{bits}", folder / f"{model}.int{bits}"
    begin(f"{model} int{bits}: random weights")
    try:
        write_random(config, place, bits)
        runtime = Forced(load_packed(place, None), kv_blocks=16)
        begin(f"{model} int{bits}: drafts")
        engine = Engine(runtime, Tokenizer.from_folder(tokenizer), cost=measure_cost(runtime))
        prompt = [(977 * j + 13) % config.vocab_size for j in range(PROMPT)]
        runtime.known = prompt + _answer(engine, prompt, speculate=False)[1]
        plain: list[float] = []
        ratios: dict[str, list[float]] = {label: [] for label in CHANCES}
        for _ in range(rounds):
            seconds = _answer(engine, prompt, speculate=False)[0]
            plain.append(seconds)
            for label, chance in CHANCES.items():
                runtime.chance = chance
                took, said = _answer(engine, prompt, speculate=True)
                if prompt + said != runtime.known:
                    raise FulgurError(f"{name}: drafts changed the text", hint="This is a defect: please report it.")
                ratios[label].append(seconds / took)
        engine.close()
        report.add(f"engine.decode.tok_s.{name}", ANSWER / median(plain), "tok/s")
        for label, values in ratios.items():
            report.add(f"engine.mtp.ratio.{name}.{label}", median(values), "x plain", bar=BARS.get(label))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _answer(engine: Engine, prompt: list[int], *, speculate: bool) -> tuple[float, list[int]]:
    """Seconds from the first token to the last, and the tokens."""
    # Sampled, because random weights repeat themselves when greedy, and the n-gram drafter would guess instead of the
    # head.
    params = SamplingParams(max_tokens=ANSWER, ignore_eos=True, temperature=1.0, seed=1)
    engine.submit(GenerateRequest(prompt, params, speculate=speculate))
    said: list[int] = []
    start = 0.0
    while engine.busy:
        said += [event.token for event in engine.step() if isinstance(event, Token)]
        if said and not start:
            start = perf_counter()
    return perf_counter() - start, said
