"""`fulgur bench engine` for models of experts: random 4-bit weights of the true shape, one model at a time.

What a token reads is counted (chosen experts, dense matrices, keys and values, recurrent states twice) and held against
the read bandwidth measured in the same run over memory of that size. A step over four tokens is held against the
distinct experts that four random choices touch. The weights lie in a file and are read through its map, as a user's
would be: `start_s` is the time until the first step can run, with the file in the page cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.bench.report import Begin, Report
from fulgur.bench.worker import Worker
from fulgur.errors import FulgurError
from fulgur.kernels.cpu import _native
from fulgur.kernels.cpu.native import default_threads
from fulgur.model.config import ModelConfig
from fulgur.model.family import DELTA, SLIDING
from fulgur.model.pack import TILE, packed_bytes, paired_bytes, scale_bytes, tile_bytes
from fulgur.model.packed_folder import PACKED_FILE, expert_sizes, load_packed, write_config
from fulgur.model.random import RandomSource
from fulgur.model.safetensors import write_streamed
from fulgur.model.tensors import kernel_vector, matrix_plans, plain_plans, tensor_shapes, vector_plans

CONTEXT, DECODE, PREFILL, VERIFY = 256, 16, 256, 4
GROUP, HEAD_BITS = 64, 8


def write_random(config: ModelConfig, folder: Path, bits: int, seed: int = 0) -> int:
    """A packed folder of random weights, without ever holding the model; returns its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    makers: dict[str, Any] = {}
    kinds: dict[str, tuple[int, int]] = {}
    rng = np.random.default_rng(seed)

    def codes(count: int) -> npt.NDArray[np.uint8]:
        return rng.integers(0, 256, count, dtype=np.uint8)

    def scale(cols: int, width: int) -> npt.NDArray[np.float16]:
        # Uniform integers of this width, so that a row keeps the size of its input.
        return np.full(TILE, (12 / cols) ** 0.5 / (1 << width), np.float16)

    def dense(rows: int, cols: int, width: int) -> Iterable[npt.NDArray[np.uint8]]:
        tile = codes(tile_bytes(cols, width, GROUP))
        head = scale_bytes(cols, GROUP)
        tile[:head] = 0
        tile[: cols // GROUP * 2 * TILE] = np.tile(scale(cols, width).view(np.uint8), cols // GROUP)
        for _ in range(-(-rows // TILE)):
            yield tile

    def expert(rows: int, cols: int, width: int) -> Iterable[npt.NDArray[np.uint8]]:
        one = codes(paired_bytes(rows, cols, width, GROUP)).reshape(-1, 4 * TILE + 2 * GROUP * TILE * width // 8)
        one[:, : 4 * TILE] = np.tile(scale(cols, width).view(np.uint8), 2)
        for _ in range(config.n_experts):
            yield one

    for name, plan in matrix_plans(config).items():
        width, rows = HEAD_BITS if name == "head" else bits, len(plan.row)
        kinds[name] = width, GROUP
        shapes[name] = "U8", (packed_bytes(rows, plan.cols, width, GROUP),)
        makers[name] = lambda rows=rows, cols=plan.cols, width=width: dense(rows, cols, width)
    for name, (rows, cols) in expert_sizes(config).items():
        kinds[name] = bits, GROUP
        shapes[name] = "U8", (config.n_experts, paired_bytes(rows, cols, bits, GROUP))
        makers[name] = lambda rows=rows, cols=cols: expert(rows, cols, bits)
    shapes["embed"] = "F16", (config.vocab_size, config.d_model)
    row = rng.standard_normal((64, config.d_model)).astype(np.float16)
    makers["embed"] = lambda: (row[: min(64, config.vocab_size - at)] for at in range(0, config.vocab_size, 64))
    for name, plan in plain_plans(config).items():
        shape = len(plan.row), plan.cols
        shapes[name] = "BF16", shape
        makers[name] = lambda shape=shape: [_bf16(rng.standard_normal(shape) * shape[1] ** -0.5)]
    source, sizes = RandomSource(config, seed), tensor_shapes(config)
    for name, parts in vector_plans(config).items():
        shapes[name] = "F32", (sum(int(np.prod(sizes[part])) for part in parts),)
        makers[name] = lambda name=name, parts=parts: [
            kernel_vector(config, name, np.concatenate([source.vector(part) for part in parts]))
        ]
    total = sum(
        int(np.prod(shape)) * (1 if kind == "U8" else 4 if kind == "F32" else 2) for kind, shape in shapes.values()
    )
    free = shutil.disk_usage(folder).free
    if free < total * 1.02:
        raise FulgurError(f"{folder}: {total / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free")
    write_streamed(folder / PACKED_FILE, shapes, lambda name: makers[name]())
    write_config(config, kinds, folder)
    return total


def _bf16(value: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    from fulgur.model.bfloat16 import to_bfloat16

    return to_bfloat16(value.astype(np.float32))


def read_per_token(config: ModelConfig, weight_bytes: int, context: int) -> int:
    """Bytes that a token after `context` others makes the CPU read and write."""
    spans = [min(config.window, context) if kind == SLIDING else context for kind in config.kinds if kind != DELTA]
    keys = 2 * 2 * config.kv_rows * sum(spans)
    delta, layers = config.delta, sum(kind == DELTA for kind in config.kinds)
    states = 0 if delta is None else 2 * 4 * layers * delta.v_heads * delta.k_dim * delta.v_dim
    return weight_bytes + keys + states


def distinct(config: ModelConfig, rows: int) -> float:
    """Experts that so many rows touch, if each chooses at random."""
    return config.n_experts * (1 - (1 - config.experts_per_token / config.n_experts) ** rows)


def measure(
    model: str, config: ModelConfig, bits: int, folder: Path, begin: Begin, report: Report, repeat: int
) -> None:
    name, threads = f"{model}.int{bits}", default_threads()
    place = folder / name
    begin(f"{model} int{bits}: random weights")
    write_random(config, place, bits)
    weights = load_packed(place, None)
    chosen = sum(e.data.nbytes for e in weights.experts.values()) * config.experts_per_token // config.n_experts
    read = read_per_token(config, weights.bytes_per_token, CONTEXT)
    del weights
    try:
        start = perf_counter()
        worker = Worker("fulgur.bench.ours", folder=str(place), threads=threads, context=CONTEXT + 2 * PREFILL)
        report.add(f"engine.start_s.{name}", perf_counter() - start, "s", bar=3.0, at_most=True)
        try:
            begin(f"{model} int{bits}: steps")
            bandwidth = float(_native.read_bandwidth(min(read, 2 << 30), threads, 1.0))
            prefill = worker.call("prefill", count=PREFILL, repeat=2)
            decode = worker.call("decode", context=CONTEXT, count=DECODE, repeat=repeat + 1)[1:]  # pages are touched
            one = worker.call("verify", context=CONTEXT, width=1, repeat=4 * repeat)
            four = worker.call("verify", context=CONTEXT, width=VERIFY, repeat=4 * repeat)
        finally:
            worker.close()
        seconds = median(decode) / DECODE
        report.add(f"engine.decode.tok_s.{name}", 1 / seconds, "tok/s")
        report.add(f"engine.bandwidth.gb_s.{name}", bandwidth, "GB/s")
        report.add(f"engine.bandwidth_share.{name}", read / seconds / 1e9 / bandwidth, "of 1", bar=0.65)
        report.add(f"engine.read_mb_per_token.{name}", read / 1e6, "MB")
        report.add(f"engine.prefill.tok_s.{name}", PREFILL / min(prefill), "tok/s")
        least = (read + chosen * (distinct(config, VERIFY) / config.experts_per_token - 1)) / read
        report.add(
            f"engine.verify{VERIFY}.ratio.{name}", median(four) / median(one), "x", bar=1.25 * least, at_most=True
        )
        report.add(f"engine.verify{VERIFY}.least.{name}", least, "x")
    finally:
        shutil.rmtree(place, ignore_errors=True)
