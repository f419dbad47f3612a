"""Decoding of the families that the GPU's general driver runs, with random weights made on the device.

`python -m fulgur.bench.gpu_families`, or one of them by `fulgur bench gpu --model`. Rows, with the
model and its format appended, and the part of `--parts` that makes them:

    gpu.decode.tok_s            plain: one stream by the device's loop, greedy, after a prompt of 512 tokens
    gpu.decode.bandwidth_share  plain: weights, states and keys that a token reads, against the bandwidth measured first
    gpu.verify4.ratio, 8        rows: a step over four or eight rows against one over one
    gpu.draft.us                mtp: one guess of the model's own head
    gpu.decode.tok_s… .mtp      mtp: through the engine with drafts whose tokens are right with a chance of 0.93
    gpu.decode.tok_s… .mtp66    mtp66: the same with 0.66

Acceptance is forced: the head drafts at its real cost, and its guesses are replaced by the known continuation, in which
each token is right with the given chance, else wrong. Whether and how long to draft is the engine's own choice.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from fulgur.bench.report import Report
from fulgur.errors import FulgurError, UsageError

if TYPE_CHECKING:
    from fulgur.engine.speculate import StepCost
    from fulgur.kernels.cuda.device import Gpu
    from fulgur.kernels.cuda.family_plan import FamilyPlan
    from fulgur.kernels.cuda.family_runtime import FamilyRuntime
    from fulgur.kernels.cuda.plan import Plan
    from fulgur.text.tokenizer import Tokenizer

PROMPT, STEPS, RUNS, WARM = 512, 256, 3, 64
PARTS = ("plain", "rows", "mtp", "mtp66")
CHANCES = {"mtp": 0.93, "mtp66": 0.66}
# The targets of the rows; `mtp66` must reach 0.97 of the plain rate of the same run.
BARS = {
    "qwen3.6-35b-a3b.fp8": 850, "qwen3.6-35b-a3b.fp8.mtp": 1400, "qwen3.6-27b.fp8": 145, "qwen3.6-27b.fp8.mtp": 420,
    "gpt-oss-20b.mxfp4": 1100, "gpt-oss-120b.mxfp4": 750, "qwen3-next-80b-a3b.fp8": 700,
}  # fmt: skip
PLAIN_SHARE = 0.97


def formats_of(model: str, weights: str) -> Any:
    """In `mxfp4` only the experts have that format: everything else in such a checkpoint is bf16."""
    from fulgur.kernels.cuda.family_plan import Weights

    return Weights.named("bf16", "mxfp4") if weights == "mxfp4" else Weights.named(weights)


def usual_format(model: str) -> str:
    return "mxfp4" if model.startswith("gpt-oss") else "fp8"


def plan_of(model: str, weights: str, gpu: Gpu) -> FamilyPlan:
    from fulgur.kernels.cuda.fit import family_plan
    from fulgur.kernels.cuda.shapes import FAMILY_SHAPES

    return family_plan(FAMILY_SHAPES[model], formats_of(model, weights), gpu)


def compile_ahead(plans: Sequence[FamilyPlan], gpu: Gpu) -> list[Future[bytes]]:
    """Compile everything these models need in parallel: in sequence, each would wait for its slowest kernel. If a
    kernel fails here, its user gets the error from its own attempt."""
    from fulgur.kernels.cuda import family_kernels, family_prefill_fast
    from fulgur.kernels.cuda.build import architecture, build, cubin_of, sources
    from fulgur.kernels.cuda.header import layout

    arch = architecture(gpu.capability)
    wanted = {module for plan in plans for module in family_kernels.modules(plan).values()}
    if gpu.wgmma:
        wanted |= {module for plan in plans for module in family_prefill_fast.modules(plan).values()}

    def one(module: tuple[str, str]) -> bytes:
        stem, text = module
        texts = sources(stem)
        header = f"{stem}.h" if f'"{stem}.h"' in texts[f"{stem}.cu"] else "instances.h"
        return cubin_of(stem, {**texts, header: text}, arch)

    def decode(plan: Plan) -> bytes:
        return build(plan, "persistent", layout(plan, "persistent", gpu.shared, wgmma=gpu.wgmma), arch)

    pool, hybrids = ThreadPoolExecutor(os.cpu_count()), [plan.decode for plan in plans if plan.decode is not None]
    both = [replace(plan, rows=rows) for plan in hybrids for rows in {1, plan.rows}]
    others = [pool.submit(decode, plan) for plan in both]
    return others + [pool.submit(one, module) for module in sorted(wanted, key=lambda module: module[0] == "wide")]


def open_random(model: str, weights: str, kv_tokens: int) -> FamilyRuntime:
    from fulgur.kernels.cuda.device import probe
    from fulgur.kernels.cuda.family_runtime import FamilyRuntime
    from fulgur.kernels.cuda.family_weights import random_weights

    gpu = probe()
    held = random_weights(plan_of(model, weights, gpu), "cuda")
    return FamilyRuntime(held, kv_blocks=-(-kv_tokens // 64), gpu=gpu, slots=2, snapshots=4)


def stream(runtime: FamilyRuntime, token: int, position: int, count: int) -> list[int]:
    """Generate `count` tokens with the device's loop, in as many runs as it takes."""
    table, made = np.arange(runtime.kv_blocks, dtype=np.int32), [token]
    while len(made) <= count:
        run = runtime.stream(made[-1], position + len(made) - 1, table, (), count + 1 - len(made))
        while not run.ended:
            made += run.read()
    return made[1:]


class ForcedDrafts:
    """A runtime whose own drafts are replaced by a known text, each token right with a given probability."""

    def __init__(self, runtime: FamilyRuntime, text: list[int], chance: float) -> None:
        self._runtime, self._text, self._chance = runtime, text, chance
        self._noise = Random(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    @property
    def drafting(self) -> ForcedDrafts:
        return self

    def draft(self, token: int, position: int, sequence: int, tables: Any, length: int) -> list[int]:
        made = len(self._runtime.draft(token, position, sequence, tables, length))
        known = self._text[position + 1 : position + 1 + made]
        vocab = self._runtime.config.draft_vocab
        return [token if self._noise.random() < self._chance else (token + 1) % vocab for token in known]


def measure(runtime: FamilyRuntime, name: str, bandwidth: float, report: Report, *, parts: Sequence[str] = PARTS,
            prompt: int = PROMPT, steps: int = STEPS) -> None:  # fmt: skip
    """Add the rows of one model."""
    tokens = np.random.default_rng(4).integers(0, runtime.vocab_size, prompt).astype(np.int32)
    plain = _measure_plain(runtime, name, tokens, bandwidth, report, steps) if "plain" in parts else None
    if "rows" in parts:
        single = _step_time(runtime, 1)
        for width in (4, 8):
            report.add(f"gpu.verify{width}.ratio.{name}", _step_time(runtime, width) / single, "")
    chances = {short: chance for short, chance in CHANCES.items() if short in parts}
    if runtime.drafting is None or not chances:
        return
    if "mtp" in parts:
        report.add(f"gpu.draft.us.{name}", 1e6 * _draft_time(runtime, tokens), "µs")
    asker, given = _Asker(runtime), tokens.tolist()
    text, _ = asker.answered(runtime, given, steps, 0)
    for short, chance in chances.items():
        forced = ForcedDrafts(runtime, given + text, chance)
        asker.answered(forced, given, min(WARM, steps))
        drafted, rate = asker.answered(forced, given, steps)
        if drafted != text:
            wrong = next((i for i, pair in enumerate(zip(drafted, text, strict=False)) if pair[0] != pair[1]), -1)
            raise FulgurError(f"{name}: with drafts, token {wrong} of the text differs")
        bar = BARS.get(f"{name}.{short}") if short == "mtp" else None if plain is None else PLAIN_SHARE * plain
        report.add(f"gpu.decode.tok_s.{name}.{short}", rate, "tok/s", bar=bar)


def _measure_plain(
    runtime: FamilyRuntime, name: str, tokens: Any, bandwidth: float, report: Report, steps: int
) -> float:  # fmt: skip
    """Measure tokens a second of the device's loop."""
    prompt = len(tokens)
    first = _prompted(runtime, tokens)
    stream(runtime, first, prompt, min(WARM, steps))
    start = time.perf_counter()
    _prompted(runtime, tokens)
    report.add(f"gpu.ttft_ms.{prompt}.{name}", 1e3 * (time.perf_counter() - start), "ms")
    times, made = [], [0]
    for i in range(RUNS):
        if i:
            _prompted(runtime, tokens)
        start = time.perf_counter()
        made = stream(runtime, first, prompt, steps)
        times.append((time.perf_counter() - start) / steps)
    plain = 1 / median(times)
    report.add(f"gpu.decode.tok_s.{name}", plain, "tok/s", bar=BARS.get(name))
    plan = runtime.plan
    read = plan.weight_bytes_per_token + 2 * plan.slot_bytes + plan.kv_bytes_per_token("bf16") * (prompt + steps // 2)
    report.add(f"gpu.decode.bandwidth_share.{name}", read * plain / bandwidth, "")
    report.notes.append(f"{name}: {len(set(made))} distinct of {steps} tokens, {read / 1e9:.2f} GB a token")
    return plain


def _prompted(runtime: FamilyRuntime, tokens: Any) -> int:
    """Prefill a prompt, whose keys, values and states then stay in place; return the next token."""
    table, rows = np.arange(runtime.kv_blocks, dtype=np.int32)[None], np.arange(len(tokens), dtype=np.int32)
    (first,) = runtime.step(tokens, rows, np.zeros(len(tokens), np.int32), table, rows[-1:])
    return int(first)


def _draft_time(runtime: FamilyRuntime, tokens: Any) -> float:
    """Seconds per guess."""
    first, table, times = _prompted(runtime, tokens), np.arange(runtime.kv_blocks, dtype=np.int32)[None], []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        runtime.draft(first, len(tokens), 0, table, 3)
        times.append((time.perf_counter() - start) / 3)
    return median(times[1:])


def _step_time(runtime: FamilyRuntime, width: int) -> float:
    """Seconds per step over `width` rows."""
    table, at = np.arange(runtime.kv_blocks, dtype=np.int32)[None], np.arange(width, dtype=np.int32)
    tokens = np.random.default_rng(7).integers(0, runtime.vocab_size, (12, width)).astype(np.int32)
    times = []
    for row in tokens:
        start = time.perf_counter()
        runtime.step(row, at, np.zeros(width, np.int32), table, at)
        times.append(time.perf_counter() - start)
    return median(times[2:])


class _Asker:
    """Answers through engines that share a tokenizer and the measured step costs, like requests to a server."""

    def __init__(self, runtime: FamilyRuntime) -> None:
        from fulgur.bench.gpu import write_tokenizer
        from fulgur.engine.speculate import measure_cost
        from fulgur.text.tokenizer import Tokenizer

        with tempfile.TemporaryDirectory(prefix="fulgur-bench-") as folder:
            write_tokenizer(Path(folder), runtime.vocab_size)
            self._tokenizer: Tokenizer = Tokenizer.from_folder(Path(folder))
        self._cost: StepCost = measure_cost(runtime)

    def answered(self, runtime: Any, prompt: list[int], steps: int, max_draft: int = 32) -> tuple[list[int], float]:
        """Generate an answer; return it and its tokens a second from the first one on."""
        from fulgur.engine.engine import Engine
        from fulgur.engine.params import GenerateRequest, SamplingParams

        engine = Engine(runtime, self._tokenizer, max_draft=max_draft, cost=self._cost)
        engine.submit(GenerateRequest(prompt, SamplingParams(max_tokens=steps, ignore_eos=True)))
        made: list[int] = []
        start, before = 0.0, 0
        while engine.busy:
            made += [event.token for event in engine.step() if hasattr(event, "token")]
            if made and not before:
                start, before = time.perf_counter(), len(made)
        return made, (len(made) - before) / (time.perf_counter() - start)


def run_model(model: str, weights: str, bandwidth: float, report: Report, parts: Sequence[str] = PARTS) -> None:
    import torch

    start = time.perf_counter()
    runtime = open_random(model, weights, 2 * (PROMPT + STEPS) + 1024)
    report.notes.append(f"{model}: made and opened in {time.perf_counter() - start:.1f} s")
    try:
        measure(runtime, f"{model}.{weights}", bandwidth, report, parts=parts)
    finally:
        runtime.close()
        del runtime
        gc.collect()
        torch.cuda.empty_cache()


def print_phases(model: str, weights: str, bandwidth: float) -> None:
    from fulgur.bench.gpu_family_phases import phases

    runtime = open_random(model, weights, 2 * PROMPT)
    try:
        tokens, rows = np.zeros(PROMPT, np.int32), np.arange(PROMPT, dtype=np.int32)
        table = np.arange(runtime.kv_blocks, dtype=np.int32)[None]
        runtime.step(tokens, rows, np.zeros(PROMPT, np.int32), table, rows[-1:])
        print(f"{model}, {weights}", *phases(runtime, bandwidth, PROMPT), sep="\n", flush=True)
    finally:
        runtime.close()


def main() -> int:
    from fulgur.bench.gpu_decode import read_bandwidth
    from fulgur.kernels.cuda.device import probe
    from fulgur.kernels.cuda.shapes import FAMILY_SHAPES

    parser = argparse.ArgumentParser(prog="python -m fulgur.bench.gpu_families", description=__doc__)
    parser.add_argument("--models", default=",".join(FAMILY_SHAPES), metavar="A,B")
    parser.add_argument("--parts", default=",".join(PARTS), metavar="A,B", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=330, help="start no more models after this time")
    parser.add_argument("--phases", action="store_true", help="only report where the time of a step goes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    names, parts = options.models.split(","), options.parts.split(",")
    for option, given, known in (("--models", names, FAMILY_SHAPES), ("--parts", parts, PARTS)):
        for name in given:
            if name not in known:
                raise UsageError(f"{option}: {name!r} is not one of {', '.join(known)}")
    gpu, report, failed = probe(), Report("the GPU's general driver"), 0
    report.machine["gpu"] = gpu.name
    began = time.monotonic()
    compiling = compile_ahead([plan_of(name, usual_format(name), gpu) for name in names], gpu)
    end, bandwidth = began + options.seconds, read_bandwidth(gpu)
    wait(compiling)
    print(f"kernels: {time.monotonic() - began:.0f} s", flush=True)
    report.add("gpu.read_bandwidth", bandwidth / 1e12, "TB/s")
    if options.phases:
        for name in names:
            print_phases(name, usual_format(name), bandwidth)
        return 0
    for name in names:
        start, done = time.monotonic(), len(report.rows)
        try:
            if start > end:
                raise FulgurError("not run: out of time")
            run_model(name, usual_format(name), bandwidth, report, parts)
        except Exception as error:  # the other models must still run
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        for row in report.rows[done:]:
            held = "" if row.bar is None else f" (bar {row.bar:.0f}, {'met' if row.passed else 'missed'})"
            print(f"{row.name:56} {row.value:10.2f} {row.unit}{held}", flush=True)
        print(f"  {name}: {time.monotonic() - start:.0f} s", flush=True)
        if options.json is not None:
            report.write_json(options.json)
    print("\n".join(report.notes), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
