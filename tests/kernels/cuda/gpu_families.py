"""`python tests/kernels/cuda/gpu_families.py`: the general driver's correctness on this GPU, with small models.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

import numpy as np
from held_models import held_source
from plain_tokenizer import tokenizer

from fulgur.engine.engine import Engine
from fulgur.engine.events import Token
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError
from fulgur.kernels.cuda.device import probe
from fulgur.kernels.cuda.family_plan import Weights, make_family_plan
from fulgur.kernels.cuda.family_runtime import FamilyRuntime
from fulgur.kernels.cuda.family_weights import assemble
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import DeltaShape, ModelConfig, RopeScaling
from fulgur.model.random import MemorySource, tiny_config, write_hf_folder

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
                    d_expert=64, d_shared=64, **WIDE),
        Weights.named("bf16"),
    ),
}  # fmt: skip
BOUND = 1e-2  # relative error of the median row
DEVICE = "cuda"
BLOCKS = 40
TABLE = np.random.default_rng(9).permutation(BLOCKS).astype(np.int32)[None]


def opened(case: str) -> tuple[FamilyRuntime, MemorySource]:
    config, weights = CASES[case]
    gpu = probe()
    source = held_source(config, weights, 3)
    plan = make_family_plan(config, weights, ctas=gpu.multiprocessors, shared=gpu.shared)
    return FamilyRuntime(assemble(plan, source, DEVICE), kv_blocks=BLOCKS, gpu=gpu, slots=2, snapshots=2), source


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


def random_tokens(model: FamilyRuntime, count: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(1).integers(0, model.vocab_size, count).tolist()
    return tokens


def transformers_logits(source: MemorySource, tokens: list[int]) -> tuple[np.ndarray, str]:
    """In fp32 on the GPU; or the project's own reference, and why."""
    try:
        import torch
        import transformers

        with tempfile.TemporaryDirectory() as folder:
            held = {name: source.tensor(name) for name in source._tensors if not name.startswith("mtp.")}
            config = ModelConfig(**{**source.config.__dict__, "draft_vocab": 0})
            write_hf_folder(Path(folder), config, held)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            model = model.to(DEVICE).eval()
        with torch.no_grad():
            found = model(torch.tensor([tokens], device=DEVICE)).logits[0].float().cpu().numpy()
    except (ImportError, ValueError, KeyError, AttributeError, OSError, RuntimeError, NotImplementedError) as error:
        return FloatModel(source).logits(tokens), f" (the project's reference: {type(error).__name__} {error})"[:160]
    return found, ""


def check_logits(case: str) -> str:
    model, source = opened(case)
    tokens = random_tokens(model, 340)
    got = logits_of(model, tokens, 0, 8)
    expected, why = transformers_logits(source, tokens)
    found = [row_error(got, expected), row_error(got[-100:], expected[-100:])]
    model.close()
    if not max(found) < BOUND:
        raise FulgurError(f"relative error {found[0]:.2e}, of the last 100 tokens {found[1]:.2e}{why}")
    return f"relative error {found[0]:.1e}, of the last 100 of 340 tokens {found[1]:.1e}{why}"


def check_widths(case: str) -> str:
    """k rows have the bits of k single steps, and so has what follows a draft that was right in part."""
    model, _ = opened(case)
    tokens = random_tokens(model, 60)
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
    model.close()
    return "60 tokens, k = 1, 2, 3, 5, 8; drafts of 7 with every accepted count"


def check_prompt(case: str) -> str:
    model, source = opened(case)
    tokens = random_tokens(model, 700)
    expected = FloatModel(source).logits(tokens[:340])[-1:]
    found = []
    for cuts in ((339,), (100, 230, 339)):
        begin = 0
        for end in cuts:
            rows = np.arange(begin, end, dtype=np.int32)
            model.step(np.array(tokens[begin:end]), rows, np.zeros(end - begin), TABLE, np.zeros(0))
            begin = end
        found.append(row_error(logits_of(model, tokens[339:340], 339, 1), expected))
    model.close()
    if not max(found) < 3 * BOUND:
        raise FulgurError(f"relative errors {found}")
    return f"339 tokens at once and in three chunks: relative error {max(found):.1e}"


def made_by(model: FamilyRuntime, token: int, position: int, count: int) -> list[int]:
    """The device's own loop."""
    made = [token]
    while len(made) <= count:
        run = model.stream(made[-1], position + len(made) - 1, TABLE[0], (), count + 1 - len(made))
        while not run.ended:
            made += run.read()
    return made


def check_runs(case: str) -> str:
    """The loop makes the tokens of single steps; where the host keeps fewer, the sequence goes on from there."""
    model, _ = opened(case)
    tokens = random_tokens(model, 40)
    first = int(logits_of(model, tokens, 0, 8)[-1].argmax())
    made = made_by(model, first, 40, 150)
    expected = logits_of(model, tokens + made[:-1], 0, 8).argmax(axis=1)[39:].tolist()
    if made != expected:
        raise FulgurError(f"token {next(i for i in range(151) if made[i] != expected[i])} of the loop differs")
    logits_of(model, tokens, 0, 8)
    run = model.stream(first, 40, TABLE[0], (), 60)
    while not run.ended:
        run.read()
    again = logits_of(model, made[20:28], 60, 8).argmax(axis=1).tolist()
    model.close()
    if again != made[21:29]:
        raise FulgurError("after a run of which 20 tokens count, other tokens follow")
    return "150 tokens of the loop equal single steps; 40 of 60 dropped, the next 8 are right"


def check_drafts(case: str) -> str:
    model, source = opened(case)
    tokens = random_tokens(model, 90)
    reference, near = FloatModel(source), 0
    expected = reference.draft_logits(tokens)
    for at in range(40, 80, 8):
        logits_of(model, tokens[:at], 0, 8)
        guess = model.draft(tokens[at], at, 0, np.tile(TABLE, (2, 1)), 3)[0]
        near += bool(expected[at - 1].max() - expected[at - 1][guess] < 0.1 * expected[at - 1].std())
    model.close()
    if near < 4:
        raise FulgurError(f"{near} of 5 first guesses are what the reference expects")
    return f"{near} of 5 first guesses are what the reference expects (the head is in 4 bits)"


def check_interleavings(case: str, count: int = 60, length: int = 60) -> str:
    """Requests that share prefixes, two at a time, some cancelled: the text that each has alone without drafts."""
    model, _ = opened(case)
    model.prefill_from = 1 << 30  # at once a prompt's bits depend on how it was cut
    noise, base = np.random.default_rng(5), random_tokens(model, length)
    with tempfile.TemporaryDirectory() as folder:
        text = tokenizer(Path(folder), model.vocab_size)
    wanted = []
    for _ in range(count):
        prompt = base[: int(noise.integers(3, length))] + noise.integers(0, model.vocab_size, 2).tolist()
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
    model.close()
    for name, made in together.items():
        if made != (alone[name][: len(made)] if name in cancelled else alone[name]):
            raise FulgurError(f"request {name} of {count}: {made}, alone {alone[name]}")
    return f"{count} requests, {len(cancelled)} cancelled: the text of each is what it is alone"


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    for case in CASES:
        yield f"transformers {case}", lambda c=case: check_logits(c)  # type: ignore[misc]
    for case in ("mistral int4", "gpt_oss mxfp4", "qwen3_5 fp8", "qwen3_next bf16"):
        yield f"k rows {case}", lambda c=case: check_widths(c)  # type: ignore[misc]
    for case in ("mistral bf16", "gpt_oss mxfp4", "qwen3_5 fp8", "qwen3_5_moe fp8"):
        yield f"prompt {case}", lambda c=case: check_prompt(c)  # type: ignore[misc]
    for case in ("gpt_oss mxfp4", "qwen3_5 fp8", "qwen3_5_moe fp8"):
        yield f"runs {case}", lambda c=case: check_runs(c)  # type: ignore[misc]
    yield "drafts qwen3_5 fp8", lambda: check_drafts("qwen3_5 fp8")
    yield "interleavings qwen3_5 fp8", lambda: check_interleavings("qwen3_5 fp8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/kernels/cuda/gpu_families.py", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name holds this text")
    parser.add_argument("--seconds", type=float, default=200, help="start no further check after this time")
    options = parser.parse_args()
    try:
        gpu = probe()
    except FulgurError as error:
        print(error, file=sys.stderr)
        return 1
    end, wrong, count = time.monotonic() + options.seconds, 0, 0
    for name, check in checks():
        if options.only not in name:
            continue
        start, passed, count = time.monotonic(), True, count + 1
        try:
            detail: Any = check() if start < end else "not run: out of time"
            passed = start < end
        except Exception as error:  # whatever it is, the other checks shall be seen too
            passed, detail = False, f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        wrong += not passed
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {detail} ({time.monotonic() - start:.1f} s)", flush=True)
        if "CUDA" in str(detail) and not passed:
            break  # a sticky error: everything after it would fail too
    print(f"\n{gpu.name}: {count - wrong} of {count} checks passed")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
