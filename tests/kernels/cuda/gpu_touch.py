"""`compute-sanitizer python tests/kernels/cuda/gpu_touch.py`: every kind of launch a few times, with tiny models.

Prompts, steps of one and of several rows and sequences, runs, sampled runs and guesses, of the general driver and of
the decode kernels. Nothing is compared: what is wanted is that every kernel touches only what is its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

import numpy as np
from held_models import held_on

from fulgur.bench.gpu_families import compile_ahead
from fulgur.engine.runtime import Sampling
from fulgur.errors import FulgurError
from fulgur.kernels.cuda.device import Gpu, probe
from fulgur.kernels.cuda.family_plan import Weights
from fulgur.kernels.cuda.family_runtime import FamilyRuntime
from fulgur.kernels.cuda.family_weights import assemble
from fulgur.kernels.cuda.fit import family_plan
from fulgur.kernels.cuda.runtime import Runtime
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.random import tiny_config

HYBRID = {"n_layers": 2, "layer_kinds": ("delta", "full"), "delta": DeltaShape(2, 4, 128, 128, 4), "d_model": 256}
FAMILIES: dict[str, tuple[ModelConfig, Weights]] = {
    "ministral3": (tiny_config("ministral3", head_dim=64, d_model=136, window=6), Weights.named("fp8", head="int4")),
    "gpt_oss": (
        tiny_config("gpt_oss", head_dim=64, d_model=192, d_expert=80, window=6),
        Weights.named("bf16", "mxfp4", "int4-64"),
    ),
    "qwen3_5": (
        tiny_config("qwen3_5", head_dim=256, rotary_dim=64, draft_vocab=200, **HYBRID),
        Weights.named("fp8", head="bf16"),
    ),
    "qwen3_next": (tiny_config("qwen3_next", head_dim=64, rotary_dim=16, **HYBRID), Weights.named("bf16", "fp8")),
}
DECODED = ("llama bf16", "qwen3_moe fp8", "qwen2 int4")  # of small_models.py
IN_8_BITS = ", fp8 keys"  # how a model with keys and values in 8 bits is called
NARROW = tuple(name + IN_8_BITS for name in ("gpt_oss", "qwen3_5", *DECODED))
BLOCKS = 8
SAMPLING = Sampling(sharpness=1.25, seed=7, top_k=20, top_p=0.8)


def touch(model: Any, rows: int = 12, prompt: int = 90) -> None:
    """At the end a step of so many rows, three a sequence."""
    noise, tables = np.random.default_rng(1), np.arange(BLOCKS, dtype=np.int32).reshape(-1, 2)

    def step(sequence: int, position: int, count: int, wanted: int) -> None:
        tokens = noise.integers(0, 200, count).astype(np.int32)
        at, last = np.arange(position, position + count, dtype=np.int32), np.arange(count - wanted, count)
        model.step(tokens, at, np.full(count, sequence, np.int32), tables, last.astype(np.int32))

    for sequence in (0, 1):
        step(sequence, 0, prompt, 1)  # all but the last at once
    for count in (1, 3, 8):
        step(0, prompt, count, count)
    each = np.arange(2, dtype=np.int32)
    model.step(each, np.full(2, prompt, np.int32), each, tables, each)
    for sampling in (None, SAMPLING):
        run = model.stream(5, prompt + 1, tables[0], (), 10, sampling)
        while not run.ended:
            run.read()
    if model.drafting is not None:
        model.draft(5, prompt + 1, 0, tables, 3)
    if model.states is not None:
        return
    many, at = (np.arange(rows, dtype=np.int32) // 3, np.arange(rows, dtype=np.int32) % 3)
    for few, batch in ((2, 99), (99, 2)) if hasattr(model, "together") else ((0, 0),):
        if hasattr(model, "together"):
            model.together.few_from, model.together.batch_from = few, batch
        model.step(many, at, many, tables, np.arange(rows, dtype=np.int32))


def family(name: str, gpu: Gpu, kv_dtype: str) -> FamilyRuntime:
    config, weights = FAMILIES[name]
    plan = family_plan(config, weights, gpu)
    held = assemble(plan, held_on("cuda", config, weights, 3), "cuda")
    model = FamilyRuntime(held, kv_blocks=BLOCKS, kv_dtype=kv_dtype, gpu=gpu, slots=2, snapshots=2)
    model.prefill_from = 16
    return model


def decoded(name: str, kv_dtype: str) -> Runtime:
    from gpu_check import small_runtime

    which, weights = name.split()
    model, _ = small_runtime(which, weights, "persistent", "cuda", kv_blocks=BLOCKS, kv_dtype=kv_dtype)
    model.prefill_from = 16
    return model


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/kernels/cuda/gpu_touch.py", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT,TEXT", help="only models whose names hold one of these")
    options = parser.parse_args()
    try:
        gpu = probe()
    except FulgurError as error:
        print(error, file=sys.stderr)
        return 1
    wanted = [n for n in (*FAMILIES, *DECODED, *NARROW) if any(text in n for text in options.only.split(","))]
    chosen = [FAMILIES[name] for name in FAMILIES if any(n.startswith(name) for n in wanted)]
    plans = [family_plan(*case, gpu) for case in chosen]
    wait(compile_ahead(plans, gpu))
    for name in wanted:
        start = time.monotonic()
        plain, kv_dtype = name.removesuffix(IN_8_BITS), "fp8" if name.endswith(IN_8_BITS) else "bf16"
        model = family(plain, gpu, kv_dtype) if plain in FAMILIES else decoded(plain, kv_dtype)
        opened = time.monotonic()
        touch(model)
        model.close()
        print(f"{name}: opened in {opened - start:.1f} s, touched in {time.monotonic() - opened:.1f} s", flush=True)
    return 0 if wanted else 1


if __name__ == "__main__":
    sys.exit(main())
