"""`python -m fulgur.bench.gpu_decode`: decode speed on the GPU. Random weights, batch 1, greedy, no speculation.

Every row is the median of several runs of the decode loop after a prompt of random tokens, with its fraction of the
read bandwidth measured in the same run. `--peer` times transformers (static cache, compiled) as well, `--phases` the
parts of a step of the persistent driver, `--contexts` decoding after longer contexts. Runs on a bare GPU machine: it
needs torch, cuda-bindings and NVRTC, but neither the package's other dependencies nor its C++ build.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.build import SOURCES, architecture, compile_source
from fulgur.kernels.cuda.device import Gpu, Module, probe
from fulgur.kernels.cuda.header import COUNTS, DRIVERS, LAYER_PARTS, STEP_PARTS, predicts_experts
from fulgur.kernels.cuda.runtime import Runtime, open_random
from fulgur.kernels.cuda.shapes import SHAPES
from fulgur.sandbox import start

# model, precision, and the target in tokens a second
TABLE: tuple[tuple[str, str, float], ...] = (
    ("llama-3.2-1b", "bf16", 1400),
    ("qwen2.5-coder-1.5b", "bf16", 1100),
    ("qwen2.5-coder-7b", "fp8", 470),
    ("qwen3-coder-30b-a3b", "fp8", 1000),
    ("qwen3-coder-30b-a3b", "int4", 1400),
)
PROMPT, STEPS, RUNS = 512, 256, 5
PEER_SECONDS = 240.0  # transformers takes 133 s to build, compile and time the 30B on an H200


def read_bandwidth(gpu: Gpu) -> float:
    """Read bandwidth in bytes a second over 4 GiB: the median of ten sweeps."""
    import ctypes

    import torch

    text = (SOURCES / "bandwidth.cu").read_text(encoding="utf-8")
    cubin = compile_source("bandwidth.cu", {"bandwidth.cu": text}, architecture(gpu.capability))
    module = Module(cubin)
    data = torch.randint(0, 1 << 30, (1 << 30,), dtype=torch.int32, device="cuda")

    class Arguments(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p), ("count", ctypes.c_ulonglong), ("sink", ctypes.c_void_p))

    sink = torch.zeros(4, dtype=torch.int32, device="cuda")
    values = Arguments(data.data_ptr(), data.numel() // 4, sink.data_ptr())
    parts = [ctypes.addressof(values) + getattr(Arguments, name).offset for name in ("data", "count", "sink")]
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        module.launch(
            "read_sweep", parts, ctas=4 * gpu.multiprocessors, threads=512, shared=0,
            stream=torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    module.close()
    return float(data.numel() * 4 / statistics.median(times[2:]))


def prefill(runtime: Runtime, blocks: Any) -> tuple[int, float]:
    """Prefill a prompt of random tokens; return the next token and the seconds it took."""
    tokens = np.random.default_rng(4).integers(0, runtime.vocab_size, PROMPT).astype(np.int32)
    start = time.perf_counter()
    best = runtime.step(
        tokens, np.arange(PROMPT, dtype=np.int32), np.zeros(PROMPT, np.int32), blocks, np.array([PROMPT - 1], np.int32)
    )
    return int(best[0]), time.perf_counter() - start


def decode_rate(runtime: Runtime, steps: int = STEPS, runs: int = RUNS) -> dict[str, float]:
    """Measure tokens a second as the host sees them arrive, the median gap, and how varied the tokens were."""
    blocks = np.arange(blocks_for(PROMPT + steps) + 1, dtype=np.int32)[None]
    token, seconds = prefill(runtime, blocks)
    none, out = np.zeros(0, np.int32), np.zeros(steps, np.int32)
    times, gaps = [], []
    for i in range(runs + 1):
        start = last = time.perf_counter()
        for count, following in enumerate(runtime.decode(token, PROMPT, blocks[0], none, None, steps)):
            out[count] = following
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
        if i:  # the first run warms up
            times.append(time.perf_counter() - start)
    return {
        "tok_s": steps / statistics.median(times),
        "gap": statistics.median(gaps[steps:]),
        "prefill": seconds,
        "distinct": float(len(set(out.tolist()))),
    }


def context_rates(runtime: Runtime, positions: list[int], steps: int = 64, runs: int = RUNS) -> dict[int, float]:
    """Tokens a second after each number of positions of random keys and values; those that do not fit are left out."""
    runtime.randomize_cache()
    blocks, none = np.arange(runtime.kv_blocks, dtype=np.int32), np.zeros(0, np.int32)
    rates = {}
    for position in positions:
        if position + steps > runtime.max_context:
            continue
        times = []
        for _ in range(runs + 1):
            start = time.perf_counter()
            made = sum(1 for _ in runtime.decode(0, position, blocks, none, None, steps))
            times.append((time.perf_counter() - start) / made)
        rates[position] = 1 / statistics.median(times[1:])
    return rates


def profile(runtime: Runtime, steps: int = 256) -> str:
    """Where a step of the persistent driver spends its time: microseconds per layer (the end: per step), mean and
    longest over the CTAs."""
    plan = runtime.weights.plan
    layers = plan.config.n_layers
    profiled = Runtime(runtime.weights, kv_blocks=blocks_for(PROMPT + steps), gpu=runtime.gpu, profile=True)
    try:
        table = np.arange(profiled.kv_blocks, dtype=np.int32)
        token, _ = prefill(profiled, table[None])
        for _ in range(2):  # the first run warms up
            profiled.marks.zero_()
            start = time.perf_counter()
            for _ in profiled.decode(token, PROMPT, table, np.zeros(0, np.int32), None, steps):
                pass
            micros = (time.perf_counter() - start) * 1e6 / steps
        marks = profiled.marks.double().cpu().numpy()
    finally:
        profiled.close()
    cycles = len(LAYER_PARTS) + len(STEP_PARTS)
    micros_per_cycle = micros * steps / marks[:, :cycles].sum(axis=1).mean()
    lines = [f"  {micros:.0f} us a step, {1e-3 / micros_per_cycle:.2f} GHz; mean / longest of a CTA, us"]
    for i, part in enumerate(LAYER_PARTS + STEP_PARTS):
        per = micros_per_cycle / steps / (layers if part in LAYER_PARTS else 1)
        if marks[:, i].any():
            lines.append(f"  {part:14} {marks[:, i].mean() * per:7.2f} {marks[:, i].max() * per:7.2f}")
    if predicts_experts(replace(plan, rows=1), runtime.gpu.wgmma):
        wrong_layers, wrong_experts = marks[0, cycles : cycles + len(COUNTS)] / (layers * steps)
        right = 1 - wrong_experts / plan.config.experts_per_token
        lines.append(f"  experts predicted: {right:.1%} right, in {1 - wrong_layers:.1%} of the layers all of them")
    return "\n".join(lines)


def blocks_for(tokens: int) -> int:
    return -(-tokens // Runtime.block_tokens)


def free() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def bench_row(
    name: str, weights: str, driver: str, bandwidth: float, phases: bool, contexts: list[int]
) -> tuple[dict[str, float], dict[int, float]]:
    """Measure decoding; return its figures and the rates after `contexts` positions."""
    blocks = blocks_for(max([PROMPT + 3 * STEPS, *(position + STEPS for position in contexts)]))
    runtime = open_random(SHAPES[name], weights=weights, kv_blocks=blocks, driver=driver)
    try:
        found = decode_rate(runtime)
        plan = runtime.weights.plan
        c = plan.config
        cache = 4 * c.n_layers * c.n_kv_heads * c.head_dim * (PROMPT + STEPS // 2)
        found["share"] = (plan.weight_bytes_per_token + cache) * found["tok_s"] / bandwidth
        if phases and driver == "persistent":
            print(profile(runtime), flush=True)
        return found, context_rates(runtime, contexts)
    finally:
        runtime.close()
        del runtime
        free()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fulgur.bench.gpu_decode", description=__doc__)
    parser.add_argument("--models", default="", metavar="A,B", help="only these models")
    parser.add_argument("--drivers", default=",".join(DRIVERS), metavar="A,B")
    parser.add_argument("--peer", action="store_true", help="time transformers too")
    parser.add_argument("--phases", action="store_true", help="say where a step of the persistent driver goes")
    parser.add_argument("--contexts", default="", metavar="N,M", help="also time decoding after this many tokens")
    parser.add_argument("--seconds", type=float, default=400, help="start no further row after this time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    try:
        contexts = [int(part) for part in options.contexts.split(",") if part]
    except ValueError:
        contexts = [0]
    if min(contexts, default=1) < 1:
        parser.error(f"--contexts {options.contexts}: must be numbers of tokens, at least 1, separated by commas")
    options.contexts = contexts
    try:
        gpu = probe()
        lines = measure(gpu, options)
    except FulgurError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n" + "\n".join(lines))
    return 0


def save(path: Path | None, gpu: Gpu, rows: list[dict[str, Any]]) -> None:
    """Save after every row, so that a run cut short keeps what it has."""
    if path is not None:
        machine = {"gpu": gpu.name, "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
        path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def measure(gpu: Gpu, options: argparse.Namespace) -> list[str]:
    deadline = time.monotonic() + options.seconds
    bandwidth = read_bandwidth(gpu)
    free()
    lines = [f"{gpu.name}: reads {bandwidth / 1e12:.2f} TB/s"]
    rows: list[dict[str, Any]] = [{"name": "gpu.read_bandwidth", "value": round(bandwidth / 1e12, 3), "unit": "TB/s"}]
    wanted = [name for name in options.models.split(",") if name]
    for name, weights, bar in TABLE:
        if wanted and name not in wanted:
            continue
        best: dict[str, float] = {}
        after: dict[int, float] = {}
        for driver in options.drivers.split(","):
            if time.monotonic() > deadline:
                lines.append(f"{name} {weights} {driver}: not run, out of time")
                continue
            start = time.monotonic()
            try:
                found, contexts = bench_row(name, weights, driver, bandwidth, options.phases, options.contexts)
            except (FulgurError, RuntimeError) as error:
                lines.append(f"{name} {weights} {driver}: failed: {str(error).splitlines()[0][:200]}")
                print(lines[-1], flush=True)
                continue
            lines.append(
                f"{name:20} {weights:5} {driver:10} {found['tok_s']:8.1f} tok/s (bar {bar:.0f})  "
                f"{found['share']:5.1%} of read bandwidth  gap {found['gap'] * 1e6:6.0f} us  "
                f"prefill {found['prefill']:.2f} s  {found['distinct']:.0f} distinct  "
                f"[{time.monotonic() - start:.0f} s]"
            )
            print(lines[-1], flush=True)
            if driver == "graph":
                named = f"gpu.graph.tok_s.{name}.{weights}"
                rows.append({"name": named, "value": round(found["tok_s"], 1), "unit": "tok/s"})
            for position in options.contexts:
                said = f"{contexts[position]:8.1f} tok/s" if position in contexts else "not run, the model holds fewer:"
                lines.append(f"{name:20} {weights:5} {driver:10} {said} after {position:,} tokens")
                print(lines[-1], flush=True)
            if found["tok_s"] > best.get("tok_s", 0):
                best, after = found, contexts
        if best:
            row = f"{name}.{weights}"
            rows.append({"name": f"gpu.decode.tok_s.{row}", "value": round(best["tok_s"], 1), "unit": "tok/s"})
            share = round(best["share"], 4)
            rows.append({"name": f"gpu.decode.bandwidth_share.{row}", "value": share, "unit": ""})
            for position, rate in after.items():
                rows.append({"name": f"gpu.context.tok_s.{row}.{position}", "value": round(rate, 1), "unit": "tok/s"})
            save(options.json, gpu, rows)
    for name in dict.fromkeys(name for name, _, _ in TABLE) if options.peer else ():
        if not wanted or name in wanted:
            _peer(name, deadline, rows, lines)
            save(options.json, gpu, rows)
    return lines


def _peer(name: str, deadline: float, rows: list[dict[str, Any]], lines: list[str]) -> None:
    """Time transformers in a separate process, for at most PEER_SECONDS: compiling a large model may take minutes."""
    left = min(deadline - time.monotonic(), PEER_SECONDS)
    if left < 20:
        lines.append(f"transformers {name}: not run, out of time")
        return
    try:
        done = start.run(start.python("fulgur.bench.gpu_peer", name, str(PROMPT)), start.ROOT, seconds=left)
        rate = float(done.stdout.split()[-1])
    except start.TimeoutExpired:
        lines.append(f"transformers {name}: not finished within {left:.0f} s")
    except (ValueError, IndexError):
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        lines.append(f"transformers {name}: failed: {words[-1][:200]}")
    else:
        rows.append({"name": f"gpu.transformers.tok_s.{name}", "value": round(rate, 1), "unit": "tok/s"})
        lines.append(f"transformers {name}: {rate:.1f} tok/s (static cache, compiled, bf16)")
    print(lines[-1], flush=True)


if __name__ == "__main__":
    sys.exit(main())
