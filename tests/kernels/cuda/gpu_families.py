"""`python tests/kernels/cuda/gpu_families.py`: the general driver's correctness on this GPU, with small models. About a
minute on an H200.

Logits against transformers with the same weights in fp32, beyond windows and original contexts; steps over k rows bit
by bit against single ones; prompts at once; runs, where fewer tokens count than were made; own drafts; requests that
share prefixes through the engine. Where transformers does not know a family, the float reference of the project stands
in for it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

import numpy as np
from held_models import held_on
from plain_tokenizer import tokenizer
from transformers_logits import family_logits

from fulgur.bench.gpu_families import compile_ahead
from fulgur.engine.engine import Engine
from fulgur.engine.events import Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError
from fulgur.kernels.cuda.device import Gpu, probe
from fulgur.kernels.cuda.family_plan import Weights, make_family_plan
from fulgur.kernels.cuda.family_runtime import FamilyRuntime
from fulgur.kernels.cuda.family_weights import assemble
from fulgur.kernels.cuda.fit import family_plan
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import DeltaShape, ModelConfig, RopeScaling
from fulgur.model.random import tiny_config

YARN = RopeScaling("yarn", factor=32.0, original_context=32, truncate=False)
ONE = RopeScaling("yarn", factor=4.0, original_context=32, mscale=1.0, mscale_all_dim=1.0)
WIDE = {"d_model": 512, "vocab_size": 1003, "max_context": 4096}
DELTA = DeltaShape(4, 8, 128, 128, 4)
CASES: dict[str, tuple[ModelConfig, Weights]] = {
    "mistral bf16": (tiny_config("mistral", head_dim=128, **WIDE), Weights.named("bf16")),
    "mistral int4": (tiny_config("mistral", head_dim=64, **WIDE), Weights.named("int4", head="int4-64")),
    "ministral3 fp8": (tiny_config("ministral3", head_dim=128, rope_scaling=ONE, **WIDE), Weights.named("fp8")),
    "gpt_oss mxfp4": (
        tiny_config("gpt_oss", head_dim=64, rope_scaling=YARN, rope_theta=150000.0, d_expert=544, n_experts=32,
                    experts_per_token=4, swiglu_limit=7.0, **WIDE),  # transformers has the limit in its code
        Weights.named("bf16", "mxfp4"),
    ),
    "qwen3_5 fp8": (
        tiny_config("qwen3_5", head_dim=256, rotary_dim=64, delta=DELTA, draft_vocab=512, **WIDE),
        Weights.named("fp8", head="bf16"),
    ),
    "qwen3_5_moe fp8": (
        tiny_config("qwen3_5_moe", head_dim=256, rotary_dim=64, delta=DELTA, n_experts=256, experts_per_token=8,
                    d_expert=128, d_shared=128, **WIDE),
        Weights.named("fp8"),
    ),
    "qwen3_next bf16": (
        tiny_config("qwen3_next", head_dim=256, rotary_dim=64, delta=DELTA, n_experts=512, experts_per_token=10,
                    d_expert=64, d_shared=64, **{**WIDE, "d_model": 256}),
        Weights.named("bf16"),
    ),
}  # fmt: skip
BOUND = 1e-2  # relative error of the median row
BOUND_IN_8_BITS = 9e-2  # with keys and values in fp8: e4m3 has three bits of mantissa
IN_8_BITS = ", fp8 keys"  # how a model with them is called
# Hybrids run in the decode kernels where they are alone; here in the general driver, as they do in company.
GENERAL = ", general"
ALONE = ("qwen3_5 fp8", "qwen3_5_moe fp8", "qwen3_next bf16")
IN_COMPANY = tuple(name + GENERAL for name in ALONE)
NARROW = tuple(name + IN_8_BITS for name in ("mistral int4", "gpt_oss mxfp4", "qwen3_5 fp8"))
DEVICE = "cuda"
BLOCKS, LENGTH = 40, 340
TABLE = np.random.default_rng(9).permutation(BLOCKS).astype(np.int32)[None]


class Case:
    """One model for all of its checks: every one begins at the first position."""

    def __init__(self, name: str, gpu: Gpu) -> None:
        self.name, self._gpu = name, gpu
        self.kv_dtype = "fp8" if name.endswith(IN_8_BITS) else "bf16"
        self.bound = BOUND_IN_8_BITS if self.kv_dtype == "fp8" else BOUND
        self.config, weights = CASES[name.removesuffix(IN_8_BITS).removesuffix(GENERAL)]
        if name.endswith(GENERAL):
            self.plan = make_family_plan(self.config, weights, ctas=gpu.multiprocessors, shared=gpu.shared)
        else:
            self.plan = family_plan(self.config, weights, gpu)
        self.source = held_on(DEVICE, self.config, weights, 3)

    @cached_property
    def model(self) -> FamilyRuntime:
        weights = assemble(self.plan, self.source, DEVICE)
        return FamilyRuntime(
            weights, kv_blocks=BLOCKS, kv_dtype=self.kv_dtype, gpu=self._gpu, slots=2, snapshots=2
        )  # fmt: skip

    @property
    def tokens(self) -> list[int]:
        tokens: list[int] = np.random.default_rng(1).integers(0, self.config.vocab_size, LENGTH).tolist()
        return tokens

    @cached_property
    def expected(self) -> tuple[np.ndarray, str]:
        """The logits of every token by transformers in fp32; or by the project's own reference, and why."""
        try:
            return family_logits(self.source, self.tokens, DEVICE).cpu().numpy(), ""
        except Exception as error:  # whatever a version of it does not know
            reason = f" (the project's reference: {type(error).__name__} {error})"[:160]
            return FloatModel(self.source).logits(self.tokens), reason

    def close(self) -> None:
        if "model" in self.__dict__:
            self.model.close()


def logits_of(model: FamilyRuntime, tokens: list[int], position: int, width: int, slot: int = 0) -> np.ndarray:
    """Of every token, `width` rows a step."""
    out = np.full((len(tokens), model.vocab_size), np.nan, np.float32)
    for start in range(0, len(tokens), width):
        part = np.array(tokens[start : start + width], np.int32)
        n = len(part)
        rows = np.arange(n, dtype=np.int32)
        best = model.step(
            part, position + start + rows, np.full(n, slot, np.int32), np.tile(TABLE, (2, 1)), rows,
            out[start : start + n],
        )  # fmt: skip
        if not np.array_equal(best, out[start : start + n].argmax(axis=1)):
            raise FulgurError("the device's choice is not the argmax of its logits")
    return out


def row_error(got: np.ndarray, expected: np.ndarray) -> float:
    """Of the median row: experts that are too close to call may be chosen otherwise in a few."""
    return float(np.median(np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)))


def check_transformers(case: Case) -> str:
    got = logits_of(case.model, case.tokens, 0, 8)
    expected, why = case.expected
    found = [row_error(got, expected), row_error(got[-100:], expected[-100:])]
    if not max(found) < case.bound:
        raise FulgurError(f"relative error {found[0]:.2e}, of the last 100 tokens {found[1]:.2e}{why}")
    return f"{max(found):.1e}{why}"


def check_k_rows(case: Case) -> str:
    """k rows have the bits of k single steps, and so has what follows a draft that was right in part."""
    model, tokens = case.model, case.tokens[:60]
    alone = logits_of(model, tokens, 0, 1)
    for width in (2, 3, 5, 8):
        if not np.array_equal(logits_of(model, tokens, 0, width), alone):
            raise FulgurError(f"a step over {width} rows differs from single steps")
    for accepted in range(7):
        logits_of(model, tokens[:40], 0, 8)
        wrong = [(token + 1) % model.vocab_size for token in tokens[41 + accepted : 48]]
        logits_of(model, tokens[40 : 41 + accepted] + wrong, 40, 8)
        at = 41 + accepted
        if not np.array_equal(logits_of(model, tokens[at : at + 3], at, 3), alone[at : at + 3]):
            raise FulgurError(f"after {accepted} accepted guesses the next step differs")
    return "k to 8"


def check_prompt(case: Case) -> str:
    model, tokens, last = case.model, case.tokens, LENGTH - 1
    expected, why = case.expected
    found = []
    for cuts in ((last,), (last // 3, 2 * last // 3, last)):
        begin = 0
        for end in cuts:
            rows = np.arange(begin, end, dtype=np.int32)
            model.step(np.array(tokens[begin:end]), rows, np.zeros(end - begin), TABLE, np.zeros(0))
            begin = end
        found.append(row_error(logits_of(model, tokens[last:], last, 1), expected[-1:]))
    if not max(found) < 3 * case.bound:
        raise FulgurError(f"relative errors {found[0]:.2e} at once, {found[1]:.2e} in three chunks{why}")
    return f"{max(found):.1e}{why}"


def made_by(model: FamilyRuntime, token: int, position: int, count: int) -> list[int]:
    """The device's own loop."""
    made = [token]
    while len(made) <= count:
        run = model.stream(made[-1], position + len(made) - 1, TABLE[0], (), count + 1 - len(made))
        while not run.ended:
            made += run.read()
    return made


def check_runs(case: Case) -> str:
    """The loop makes the tokens of single steps; where the host keeps fewer, the sequence goes on from there."""
    model, tokens = case.model, case.tokens[:40]
    first = int(logits_of(model, tokens, 0, 8)[-1].argmax())
    made = made_by(model, first, 40, 150)
    expected = logits_of(model, tokens + made[:-1], 0, 8).argmax(axis=1)[39:].tolist()
    if made != expected:
        raise FulgurError(f"token {next(i for i in range(151) if made[i] != expected[i])} of the loop differs")
    logits_of(model, tokens, 0, 8)
    run = model.stream(first, 40, TABLE[0], (), 60)
    while not run.ended:
        run.read()
    if logits_of(model, made[20:28], 60, 8).argmax(axis=1).tolist() != made[21:29]:
        raise FulgurError("after a run of which 20 tokens count, other tokens follow")
    return "150 tokens"


def check_drafts(case: Case) -> str:
    """First guesses against the reference's logits; the head is in 4 bits."""
    model, tokens, near = case.model, case.tokens[:90], 0
    expected = FloatModel(case.source).draft_logits(tokens)
    for at in range(40, 80, 8):
        logits_of(model, tokens[:at], 0, 8)
        guess = model.draft(tokens[at], at, 0, np.tile(TABLE, (2, 1)), 3)[0]
        near += bool(expected[at - 1].max() - expected[at - 1][guess] < 0.1 * expected[at - 1].std())
    if near < 4:
        raise FulgurError(f"{near} of 5 first guesses are what the reference expects")
    return f"{near} of 5"


def check_interleavings(case: Case, count: int = 60, length: int = 60) -> str:
    """Requests that share prefixes, two at a time, some cancelled: the text that each has alone without drafts. Where
    two run in other kernels than one, another token may come that is nearly as likely."""
    model, usual = case.model, case.model.prefill_from
    model.prefill_from = 1 << 30  # at once a prompt's bits depend on how it was cut
    try:
        cancelled, near = interleaved(model, case.tokens[:length], count, model.plan.decode is not None)
    finally:
        model.prefill_from = usual
    return f"{count}, {cancelled} cancelled, {near} near"


def interleaved(model: FamilyRuntime, base: list[int], count: int, may_differ: bool) -> tuple[int, int]:
    """How many were cancelled, and how many have another token somewhere that is nearly as likely."""
    noise, wanted = np.random.default_rng(5), list[tuple[list[int], int]]()
    with tempfile.TemporaryDirectory() as folder:
        text = tokenizer(Path(folder), model.vocab_size)
    for _ in range(count):
        prompt = base[: int(noise.integers(3, len(base)))] + noise.integers(0, model.vocab_size, 2).tolist()
        wanted.append((prompt, int(noise.integers(2, 12))))

    def request(which: int) -> GenerateRequest:
        prompt, most = wanted[which]
        return GenerateRequest(prompt, SamplingParams(max_tokens=most, ignore_eos=True))

    def taken(engine: Engine, made: dict[str, list[int]]) -> None:
        for event in engine.step():
            if isinstance(event, Token):
                made[event.request_id].append(event.token)

    alone: dict[str, list[int]] = {str(i): [] for i in range(count)}
    for i in range(count):
        engine = Engine(model, text, max_draft=0)
        engine.submit(request(i), str(i))
        while engine.busy:
            taken(engine, alone)
    together: dict[str, list[int]] = {str(i): [] for i in range(count)}
    engine, sent, cancelled = Engine(model, text, max_draft=8), 0, set()
    while engine.busy or sent < count:
        if sent < count and (not engine.busy or noise.random() < 0.3):
            engine.submit(request(sent), str(sent))
            sent += 1
        if noise.random() < 0.05 and engine.cancel(which := str(int(noise.integers(0, sent)))):
            cancelled.add(which)
        taken(engine, together)
    near = 0
    for name, made in together.items():
        if made == (alone[name][: len(made)] if name in cancelled else alone[name]):
            continue
        same = next((i for i, pair in enumerate(zip(made, alone[name], strict=False)) if pair[0] != pair[1]), -1)
        text = [*wanted[int(name)][0], *made[: same + 1]]
        if not may_differ or same < 0 or not nearly_as_likely(model, text):
            raise FulgurError(f"request {name} of {count}: {made}, alone {alone[name]}")
        near += 1
    return len(cancelled), near


def nearly_as_likely(model: FamilyRuntime, text: list[int]) -> bool:
    """The last token, by the logits after the others."""
    logits = logits_of(model, text[:-1], 0, 4)[-1]
    return bool(logits.max() - logits[text[-1]] < 0.05 * logits.std())


CHECKS: dict[str, tuple[Callable[[Case], str], tuple[str, ...]]] = {  # with which models
    "transformers": (check_transformers, (*CASES, *NARROW, *IN_COMPANY)),
    "k rows": (check_k_rows, ("mistral int4", "gpt_oss mxfp4", *ALONE, *NARROW, *IN_COMPANY[::2])),
    "prompt": (check_prompt, ("mistral bf16", "gpt_oss mxfp4", "qwen3_5 fp8", "qwen3_5_moe fp8", *NARROW)),
    "runs": (check_runs, ("gpt_oss mxfp4", *ALONE, IN_COMPANY[0])),
    "drafts": (check_drafts, ("qwen3_5 fp8",)),
    "interleavings": (check_interleavings, ("qwen3_5 fp8", IN_COMPANY[0])),
}
Found = dict[tuple[str, str], tuple[bool, str]]  # by check and model: passed, what was seen


def run(wanted: dict[str, list[str]], gpu: Gpu, seconds: float) -> Found:
    """`wanted`: by model its checks. Kernels are compiled while weights are made and the peer computes."""
    began, found = time.monotonic(), Found()
    cases = {name: Case(name, gpu) for name in wanted}
    compiling = compile_ahead([case.plan for case in cases.values()], gpu)
    for name, case in cases.items():
        if {"transformers", "prompt"} & set(wanted[name]):
            _ = case.expected
    print(f"weights and the peer's logits: {time.monotonic() - began:.0f} s", flush=True)
    wait(compiling)
    print(f"kernels: {time.monotonic() - began:.0f} s", flush=True)
    for name, case in cases.items():
        for check in wanted[name]:
            start = time.monotonic()
            if start > began + seconds:
                found[check, name] = False, "not run: out of time"
                continue
            try:
                found[check, name] = True, CHECKS[check][0](case)
            except Exception as error:  # whatever it is, the other checks shall be seen too
                detail = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
                found[check, name] = False, detail
                if "CUDA" in detail:
                    return found  # a sticky error: everything after it would fail too
            passed, detail = found[check, name]
            took = time.monotonic() - start
            print(f"{'ok  ' if passed else 'FAIL'} {check} {name}: {detail} ({took:.1f} s)", flush=True)
        case.close()
    return found


def table(found: Found, wanted: dict[str, list[str]]) -> str:
    """A line a model, a column a check."""
    checks = [check for check in CHECKS if any(check in own for own in wanted.values())]
    lines = [" " * 24 + "".join(f"{check:>18}" for check in checks)]
    for name, own in wanted.items():
        cells = []
        for check in checks:
            passed, detail = found.get((check, name), (False, "not run"))
            cells.append("" if check not in own else detail.partition(" (")[0] if passed else "FAIL")
        lines.append(f"{name:24}" + "".join(f"{cell:>18}" for cell in cells))
    lines += [f"FAIL {check} {name}: {detail}" for (check, name), (passed, detail) in found.items() if not passed]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/kernels/cuda/gpu_families.py", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT,TEXT", help="only checks whose names hold one of these")
    parser.add_argument("--seconds", type=float, default=200, help="start no further check after this time")
    options = parser.parse_args()
    wanted = {
        case: own
        for case in (*CASES, *IN_COMPANY, *NARROW)
        if (own := [check for check, (_, cases) in CHECKS.items()
                    if case in cases and any(text in f"{check} {case}" for text in options.only.split(","))])
    }  # fmt: skip
    try:
        gpu = probe()
    except FulgurError as error:
        print(error, file=sys.stderr)
        return 1
    count, began = sum(map(len, wanted.values())), time.monotonic()
    found = run(wanted, gpu, options.seconds)
    passed = sum(ok for ok, _ in found.values())
    print(f"\n{table(found, wanted)}")
    print(f"{gpu.name}: {passed} of {count} checks passed in {time.monotonic() - began:.0f} s")
    return 0 if passed == count > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
