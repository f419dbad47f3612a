"""`python tests/kernels/cuda/gpu_check.py`: the GPU engine's correctness, with small models of every family.

Against transformers with the same weights in fp32 (relative error of the logits, KL divergence), one driver against the
other, wide steps against single ones bit by bit, the decode loop over a thousand tokens, prefill through torch.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from small_models import SMALL
from transformers_logits import reference_logits, shared_tensors

from fulgur.errors import FulgurError
from fulgur.kernels.cuda import prefill_kernels
from fulgur.kernels.cuda.build import architecture, build, compile_source, cubin_of, sources
from fulgur.kernels.cuda.device import Gpu, Module, probe
from fulgur.kernels.cuda.fit import widest
from fulgur.kernels.cuda.header import DRIVERS, header, layout
from fulgur.kernels.cuda.pack import from_nibbles
from fulgur.kernels.cuda.runtime import Runtime
from fulgur.kernels.cuda.weights import assemble


@dataclass(frozen=True)
class Bounds:
    """Of logits against those of transformers in fp32."""

    error: float  # relative
    divergence: float  # KL, in nats
    flipped: float  # the relative error of a token from which on its experts must differ
    apart: float  # tokens of which that may be so although their experts were clear


# By how keys and values are kept. On the CPU interpreter of the plan bf16 operands stay near 4e-3; keys and values in 8
# bits, with everything else in fp32, make errors of 4 to 6e-2 and a KL of 1 to 2e-3: e4m3 has three bits of mantissa.
BOUNDS = {"bf16": Bounds(2e-2, 2e-3, 0.08, 0.03), "fp8": Bounds(9e-2, 6e-3, 0.25, 0.1)}
# Experts whose router logits are closer than this (in standard deviations) may be chosen the other way round in bf16:
# such a token is another function of its input, and is counted instead of compared.
CLOSE = 0.02
KV_BLOCKS = 40
IN_8_BITS = (("llama", "bf16"), ("qwen2", "int4"), ("qwen3", "fp8"), ("qwen3_moe", "fp8"))  # with fp8 keys, too


@dataclass
class Result:
    name: str
    passed: bool
    detail: str
    seconds: float


def small_runtime(
    family: str,
    weights: str,
    driver: str,
    device: Any,
    seed: int = 3,
    kv_blocks: int = KV_BLOCKS,
    kv_dtype: str = "bf16",
) -> tuple[Runtime, dict[str, Any]]:
    config = SMALL[family]
    gpu = probe()
    tensors = shared_tensors(config, weights, device, seed)
    plan = widest(config, weights, None if not config.tied else "bf16", gpu)
    model = assemble(plan, lambda name: (tensors[name], None), device)
    return Runtime(model, kv_blocks=kv_blocks, kv_dtype=kv_dtype, driver=driver, gpu=gpu), tensors


def compile_ahead(gpu: Gpu) -> list[Future[bytes]]:
    """The kernels of all checks side by side: each model would compile its own, one after the other."""
    arch, formats = architecture(gpu.capability), {family: ["bf16", "fp8", "int4"] for family in SMALL}
    formats["qwen3"].append("fp8-rows")
    formats["qwen3_moe"].append("int4-64")
    pool, made, modules = ThreadPoolExecutor(os.cpu_count()), list[Future[bytes]](), set[tuple[str, str]]()
    for family, weights in ((family, weights) for family, each in formats.items() for weights in each):
        plan = widest(SMALL[family], weights, "bf16" if SMALL[family].tied else None, gpu)
        modules |= set(prefill_kernels.modules(plan).values()) if gpu.wgmma else set()
        kept = ("bf16", "fp8") if (family, weights) in IN_8_BITS else ("bf16",)
        for driver, kv_dtype in product(DRIVERS, kept):
            for one in (replace(plan, kv_dtype=kv_dtype, rows=rows) for rows in (plan.rows, 1)):
                memory = layout(one, driver, gpu.shared, wgmma=gpu.wgmma)
                made.append(pool.submit(build, one, driver, memory, arch))
    return made + [
        pool.submit(cubin_of, stem, {**sources(stem), "instances.h": text}, arch) for stem, text in sorted(modules)
    ]


def table(kv_blocks: int = KV_BLOCKS) -> Any:
    return np.random.default_rng(9).permutation(kv_blocks).astype(np.int32)[None]


def all_logits(runtime: Runtime, tokens: list[int], width: int, blocks: Any, begin: int = 0) -> Any:
    """Logits of every token, `width` rows a step."""
    out = np.full((len(tokens), runtime.vocab_size), np.nan, np.float32)
    for start in range(0, len(tokens), width):
        part = np.asarray(tokens[start : start + width], np.int32)
        n = len(part)
        positions = np.arange(begin + start, begin + start + n, dtype=np.int32)
        rows = np.arange(n, dtype=np.int32)
        best = runtime.step(part, positions, np.zeros(n, np.int32), blocks, rows, out[start : start + n])
        if not np.array_equal(best, out[start : start + n].argmax(axis=1)):
            raise FulgurError("the device's argmax is not the argmax of its logits")
    return out


def difference(got: Any, expected: Any) -> tuple[float, float]:
    """Relative error and mean KL divergence in nats."""
    error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))

    def log_softmax(x: Any) -> Any:
        x = x.astype(np.float64) - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    p, q = log_softmax(expected), log_softmax(got)
    return error, float((np.exp(p) * (p - q)).sum(axis=1).mean())


def tokens_of(runtime: Runtime, count: int, seed: int = 1) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, runtime.vocab_size, count)]


def decoded(runtime: Runtime, token: int, position: int, blocks: Any, limit: int, *stop: int) -> Any:
    """The tokens of the device's own loop."""
    return np.fromiter(runtime.decode(token, position, blocks, np.array(stop, np.int32), None, limit), np.int32)


def check_parity(
    family: str, weights: str, driver: str, device: Any, length: int, kv_dtype: str = "bf16"
) -> str:  # fmt: skip
    (runtime, tensors), bounds = small_runtime(family, weights, driver, device, kv_dtype=kv_dtype), BOUNDS[kv_dtype]
    try:
        tokens = tokens_of(runtime, length)
        got = all_logits(runtime, tokens, 8, table())
        expected, clear = (t.cpu().numpy() for t in reference_logits(runtime.config, tensors, tokens, device))
        rows = clear > CLOSE
        # An expert chosen the other way round in spite of that: another function again, and seldom.
        far = np.linalg.norm(got - expected, axis=1) > bounds.flipped * np.linalg.norm(expected, axis=1)
        apart = rows & far & (runtime.config.n_experts > 0)
        rows = rows & ~apart
        error, divergence = difference(got[rows], expected[rows])
    finally:
        runtime.close()
    close = f", {int((clear <= CLOSE).sum())} of {length} tokens too close to call" if runtime.config.n_experts else ""
    close += f", {int(apart.sum())} with another expert" if apart.any() else ""
    near = error < bounds.error and divergence < bounds.divergence
    if not (near and rows.mean() > 0.75 and apart.mean() <= bounds.apart):
        raise FulgurError(f"relative error {error:.2e}, KL {divergence:.2e} ({bounds}){close}")
    return f"error {error:.1e}, KL {divergence:.1e}{close}"


def check_width(
    family: str, weights: str, driver: str, device: Any, length: int, kv_dtype: str = "bf16"
) -> str:  # fmt: skip
    """A step over k rows is bit-equal to k single steps, for every k."""
    runtime, _ = small_runtime(family, weights, driver, device, kv_dtype=kv_dtype)
    try:
        tokens, blocks = tokens_of(runtime, length), table()
        alone = all_logits(runtime, tokens, 1, blocks)
        for width in range(2, 9):
            if not np.array_equal(all_logits(runtime, tokens, width, blocks), alone):
                raise FulgurError(f"a step over {width} rows differs from single steps")
    finally:
        runtime.close()
    return f"{length} tokens, k = 1..8"


def check_drivers(family: str, weights: str, device: Any, length: int, kv_dtype: str = "bf16") -> str:
    """Both drivers decode the same tokens, and the same bits come out of their steps."""
    found = []
    for driver in DRIVERS:
        runtime, _ = small_runtime(family, weights, driver, device, kv_dtype=kv_dtype)
        try:
            logits = all_logits(runtime, tokens_of(runtime, 20), 5, table())
            found.append((logits, decoded(runtime, int(logits[-1].argmax()), 20, table()[0], length)))
        finally:
            runtime.close()
    if not np.array_equal(found[0][0], found[1][0]):
        raise FulgurError("the drivers' logits differ")
    if len(found[0][1]) != length or not np.array_equal(found[0][1], found[1][1]):
        raise FulgurError("the drivers' tokens differ")
    return f"{length} tokens, {len(set(found[0][1].tolist()))} distinct"


def check_long_run(family: str, weights: str, driver: str, device: Any, length: int) -> str:
    """The decode loop against single steps over many tokens; then the last logits against transformers."""
    runtime, tensors = small_runtime(family, weights, driver, device)
    try:
        blocks = table()
        out = decoded(runtime, 7, 0, blocks[0], length)
        if len(out) != length:
            raise FulgurError("the decode loop ended early")
        tokens = [7, *out[:-1].tolist()]
        logits = all_logits(runtime, tokens, 8, blocks)
        wrong = np.flatnonzero(logits.argmax(axis=1) != out)
        if len(wrong):
            raise FulgurError(f"the loop leaves the single steps at token {wrong[0]}")
        expected, clear = (t.cpu().numpy() for t in reference_logits(runtime.config, tensors, tokens, device))
        rows = np.flatnonzero(clear > CLOSE)[-64:]
        error, divergence = difference(logits[rows], expected[rows])
        stop = int(out[length // 2])
        if len(decoded(runtime, 7, 0, blocks[0], length, stop)) != int(np.argmax(out == stop)) + 1:
            raise FulgurError("a stop token did not end the loop where it should")
    finally:
        runtime.close()
    if not (error < BOUNDS["bf16"].error and divergence < BOUNDS["bf16"].divergence):
        raise FulgurError(f"after {length} tokens: relative error {error:.2e}, KL {divergence:.2e}")
    return f"{length} tokens, last 64: error {error:.1e}, KL {divergence:.1e}"


def check_prompt(
    family: str, weights: str, device: Any, length: int, kv_dtype: str = "bf16", after: int = 64
) -> str:  # fmt: skip
    """A prompt that is prefilled at once, all but its last tokens; their logits against transformers."""
    bounds, fit = BOUNDS[kv_dtype], -(-length // 64)
    runtime, tensors = small_runtime(family, weights, "persistent", device, kv_blocks=fit, kv_dtype=kv_dtype)
    try:
        tokens, blocks, cut = tokens_of(runtime, length), table(fit), length - after
        runtime.prefill_from = 16
        rows = np.arange(cut, dtype=np.int32)
        runtime.step(np.asarray(tokens[:cut], np.int32), rows, np.zeros(cut, np.int32), blocks, rows[:0])
        got = all_logits(runtime, tokens[cut:], 8, blocks, cut)
        expected, clear = (t[cut:].cpu().numpy() for t in reference_logits(runtime.config, tensors, tokens, device))
        far = np.linalg.norm(got - expected, axis=1) > bounds.flipped * np.linalg.norm(expected, axis=1)
        apart = far & (runtime.config.n_experts > 0)
        error, divergence = difference(got[~apart], expected[~apart])
    finally:
        runtime.close()
    others = f", {int(apart.sum())} of {after} with another expert" if apart.any() else ""
    near = error < bounds.error and divergence < bounds.divergence
    if not (near and (apart & (clear > CLOSE)).mean() <= 2 * bounds.apart):
        raise FulgurError(f"relative error {error:.2e}, KL {divergence:.2e} ({bounds}){others}")
    return f"{length} tokens, last {after}: error {error:.1e}, KL {divergence:.1e}{others}"


def check_prefill(family: str, weights: str, device: Any, length: int) -> str:
    """A prompt at once and in passes of 8 rows lead to the same logits, within bf16."""
    runtime, _ = small_runtime(family, weights, "persistent", device)
    runtime.prefill_from = 16
    try:
        tokens, blocks, found = tokens_of(runtime, length), table(), []
        for width in (runtime.max_rows, 8):
            part = np.asarray(tokens, np.int32)
            for start in range(0, length, width):
                n = min(width, length - start)
                last = np.array([n - 1] if start + n == length else [], np.int32)
                out = np.zeros((1, runtime.vocab_size), np.float32)
                positions = np.arange(start, start + n, dtype=np.int32)
                runtime.step(part[start : start + n], positions, np.zeros(n, np.int32), blocks, last, out)
            found.append(out)
        error, divergence = difference(found[0], found[1])
    finally:
        runtime.close()
    if not (error < 2 * BOUNDS["bf16"].error and divergence < 4 * BOUNDS["bf16"].divergence):
        raise FulgurError(f"relative error {error:.2e}, KL {divergence:.2e}")
    return f"{length} tokens, error {error:.1e}, KL {divergence:.1e}"


def check_conversions() -> str:
    """Every fp8 and 4-bit code is converted exactly, subnormal fp8 numbers too."""
    import torch

    gpu = probe()
    plan = widest(SMALL["llama"], "fp8", None, gpu)
    arch = architecture(gpu.capability)
    memory = layout(plan, "persistent", gpu.shared, wgmma=gpu.wgmma)
    texts = {**sources("widen", Path(__file__).parent), "constants.h": header(plan, "persistent", memory)}
    module = Module(compile_source("widen.cu", texts, arch))
    found = torch.zeros(2 * 256, dtype=torch.int32, device="cuda"), torch.zeros(256, dtype=torch.int32, device="cuda")
    pointers = (ctypes.c_void_p * 2)(*(t.data_ptr() for t in found))
    addresses = [ctypes.addressof(pointers) + 8 * i for i in range(2)]
    stream = torch.cuda.current_stream().cuda_stream
    module.launch("widen_all", addresses, ctas=1, threads=256, shared=0, stream=stream)
    torch.cuda.synchronize()
    module.close()
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = (codes & 0x7F) != 0x7F  # the other two are not numbers
    wanted = codes.view(torch.float8_e4m3fn).float()
    pairs = found[0].cpu().view(torch.bfloat16).float().reshape(256, 2, 2)
    for got, expected in ((pairs[:, 0], wanted), (pairs[:, 1].flip(0), wanted)):
        if not torch.equal(got[numbers], expected[numbers][:, None].expand(-1, 2)):
            wrong = torch.nonzero(got[:, 0][numbers] != expected[numbers])[:4].flatten().tolist()
            raise FulgurError(f"fp8 codes {wrong}... are widened wrongly")
    raw = torch.stack((codes[0::2], codes[1::2], 255 - codes[0::2], 255 - codes[1::2]), dim=1).flatten()
    narrow = found[1].cpu().view(torch.float8_e4m3fn).float().reshape(128, 2, 4).transpose(1, 2).flatten() * 512
    if not torch.equal(narrow, from_nibbles(raw).float()):
        raise FulgurError("4-bit codes become wrong fp8 codes")
    return "254 fp8 codes and every byte of 4-bit ones"


def checks(device: Any, quick: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    long = 60 if quick else 1000
    yield "conversions", check_conversions
    for driver in DRIVERS:
        for family in SMALL:
            for weights in ("bf16",) if quick else ("bf16", "fp8", "int4"):
                yield (
                    f"transformers {family} {weights} {driver}",
                    lambda f=family, w=weights, d=driver: check_parity(f, w, d, device, 40 if quick else 200),  # type: ignore[misc]
                )
        for family, weights in (("llama", "bf16"), ("qwen3_moe", "fp8")):
            yield (
                f"k-row steps {family} {weights} {driver}",
                lambda f=family, w=weights, d=driver: check_width(f, w, d, device, 12 if quick else 80),  # type: ignore[misc]
            )
    for family, weights in (("llama", "bf16"), ("qwen2", "int4"), ("qwen3", "fp8"), ("qwen3_moe", "fp8")):
        yield f"drivers agree {family} {weights}", lambda f=family, w=weights: check_drivers(f, w, device, long // 4)  # type: ignore[misc]
    for family, weights in (("llama", "bf16"), ("qwen3_moe", "int4-64")):
        yield (
            f"long run {family} {weights}",
            lambda f=family, w=weights: check_long_run(f, w, "persistent", device, long),  # type: ignore[misc]
        )
    for family in ("qwen2", "qwen3_moe"):
        yield f"prefill {family}", lambda f=family: check_prefill(f, "bf16", device, 60 if quick else 800)  # type: ignore[misc]
    for family, weights in (("llama", "bf16"), ("qwen2", "int4"), ("qwen3", "fp8"), ("qwen3_moe", "fp8")):
        yield f"together {family} {weights}", lambda f=family, w=weights: check_together(f, w, device)  # type: ignore[misc]
    prompts = (
        ("llama", "bf16"),
        ("qwen2", "int4"),
        ("qwen3", "fp8-rows"),
        ("qwen3_moe", "fp8"),
        ("qwen3_moe", "int4-64"),
    )
    for family, weights in prompts:
        for length in (100,) if quick else (700, 4000):  # FlashAttention, cuDNN
            yield (
                f"prompt {family} {weights} {length}",
                lambda f=family, w=weights, n=length: check_prompt(f, w, device, n),  # type: ignore[misc]
            )
    yield from checks_in_8_bits(device, quick)


def checks_in_8_bits(device: Any, quick: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    """With keys and values in fp8."""
    few, narrow = 12 if quick else 80, "fp8"
    for f, w in IN_8_BITS:
        for d in DRIVERS:
            yield f"transformers {f} {w} {d}, fp8 keys", partial(check_parity, f, w, d, device, 2 * few, narrow)
            yield f"k-row steps {f} {w} {d}, fp8 keys", partial(check_width, f, w, d, device, few, narrow)
        yield f"drivers agree {f} {w}, fp8 keys", partial(check_drivers, f, w, device, few, narrow)
        yield f"together {f} {w}, fp8 keys", partial(check_together, f, w, device, narrow)
        for n in (100,) if quick else (700, 4000):
            yield f"prompt {f} {w} {n}, fp8 keys", partial(check_prompt, f, w, device, n, narrow)


def check_together(family: str, weights: str, device: Any, kv_dtype: str = "bf16") -> str:
    """Rows of several sequences in one step, 12 by the kernels for many rows and 8 by those for a few: the decode
    kernels' logits within bf16, the same bits in other company, and the tokens that its logits say."""
    model, _ = small_runtime(family, weights, "persistent", device, kv_dtype=kv_dtype)
    if model.together.batch is None or model.together.few is None:
        raise ValueError("the kernels for several sequences do not know this model")
    bound = BOUNDS[kv_dtype].error
    found = [compare_together(model, *way, bound) for way in ((12, 99, 2), (8, 2, 99))]
    model.close()
    return f"median errors at most {found[0]:.1e} (many) and {found[1]:.1e} (few) against the decode kernels"


def compare_together(model: Runtime, rows: int, few_from: int, batch_from: int, bound: float) -> float:
    """The largest median error of a position."""
    noise, ways = np.random.default_rng(8), ((99, 99, rows), (few_from, batch_from, rows), (few_from, batch_from, 5))
    tables = np.arange(KV_BLOCKS // rows * rows, dtype=np.int32).reshape(rows, -1)
    each = np.arange(rows, dtype=np.int32)
    found = np.zeros((3, rows, model.vocab_size), np.float32)
    worst = 0.0
    for position in range(70):  # into the second block
        tokens = noise.integers(0, model.vocab_size, rows).astype(np.int32)
        at = np.full(rows, position, np.int32)
        for i, (model.together.few_from, model.together.batch_from, few) in enumerate(ways):
            best = model.step(tokens[:few], at[:few], each[:few], tables, each[:few], found[i, :few])
            if best.tolist() != found[i, :few].argmax(axis=1).tolist():
                raise ValueError(f"position {position}: tokens are not those of the logits")
        if not np.array_equal(found[1, :5], found[2, :5]):
            raise ValueError(f"position {position}: other bits in other company")
        errors = np.linalg.norm(found[0] - found[1], axis=1) / np.linalg.norm(found[0], axis=1)
        worst = max(worst, float(np.median(errors)))
        if (errors > bound).mean() > 0.25:  # experts may be too close to call
            raise ValueError(f"position {position}: relative errors {np.sort(errors)[-4:]}")
    return worst


def run(device: Any, *, quick: bool, seconds: float, only: str = "") -> list[Result]:
    results: list[Result] = []
    deadline = time.monotonic() + seconds
    for name, check in checks(device, quick):
        if not any(text in name for text in only.split(",")):
            continue
        if time.monotonic() > deadline:
            results.append(Result(name, False, "not run: out of time", 0.0))
            continue
        start = time.monotonic()
        try:
            passed, detail = True, check()
        except (FulgurError, ValueError, RuntimeError) as error:
            passed, detail = False, f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        results.append(Result(name, passed, detail, time.monotonic() - start))
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {detail} ({results[-1].seconds:.1f} s)", flush=True)
        if "CUDA" in detail and not passed:
            break  # a sticky error: the context is gone, everything after it would fail too
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/kernels/cuda/gpu_check.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short sequences, bf16 only (for compute-sanitizer)")
    parser.add_argument("--only", default="", metavar="TEXT,TEXT", help="only checks whose names hold one of these")
    parser.add_argument("--seconds", type=float, default=300, help="start no further check after this time")
    options = parser.parse_args()
    try:
        gpu = probe()
    except FulgurError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.only and not options.quick:
        start = time.monotonic()
        wait(compile_ahead(gpu))
        print(f"kernels: {time.monotonic() - start:.0f} s", flush=True)
    results = run("cuda", quick=options.quick, seconds=options.seconds, only=options.only)
    failed = [r for r in results if not r.passed]
    print(f"\n{gpu.name}: {len(results) - len(failed)} of {len(results)} checks passed")
    for result in failed:
        print(f"FAIL {result.name}: {result.detail}")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
