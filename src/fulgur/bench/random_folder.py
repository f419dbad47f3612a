"""Packed folders of random weights of a true shape, for models that are larger than the memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.bfloat16 import to_bfloat16
from fulgur.model.config import ModelConfig
from fulgur.model.pack import TILE, paired_bytes
from fulgur.model.packed_folder import PACKED_FILE, expert_sizes, write_config
from fulgur.model.random import RandomSource
from fulgur.model.safetensors import write_streamed
from fulgur.model.tensors import kernel_vector, matrix_plans, plain_plans, tensor_shapes, vector_plans

GROUP, HEAD_BITS = 64, 8


def write_random(config: ModelConfig, folder: Path, bits: int, seed: int = 0) -> int:
    """Write a packed folder of random weights without ever holding the model; return its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    makers: dict[str, Any] = {}
    kinds: dict[str, tuple[int, int]] = {}
    rng = np.random.default_rng(seed)

    def codes(count: int) -> npt.NDArray[np.uint8]:
        return rng.integers(0, 256, count, dtype=np.uint8)

    def scale(cols: int, width: int) -> npt.NDArray[np.float16]:
        # For uniform integers of this width, so that a row keeps the magnitude of its input.
        return np.full(TILE, (12 / cols) ** 0.5 / (1 << width), np.float16)

    def pairs(rows: int, cols: int, width: int, copies: int) -> Iterable[npt.NDArray[np.uint8]]:
        """Yield the same random rows `copies` times."""
        one = codes(paired_bytes(rows, cols, width, GROUP)).reshape(-1, 4 * TILE + 2 * GROUP * TILE * width // 8)
        one[:, : 4 * TILE] = np.tile(scale(cols, width).view(np.uint8), 2)
        for _ in range(copies):
            yield one

    for name, plan in matrix_plans(config).items():
        width, rows = HEAD_BITS if name == "head" else bits, len(plan.row)
        kinds[name] = width, GROUP
        shapes[name] = "U8", (paired_bytes(rows, plan.cols, width, GROUP),)
        makers[name] = partial(pairs, 2 * TILE, plan.cols, width, -(-rows // (2 * TILE)))
    for name, (rows, cols) in expert_sizes(config).items():
        kinds[name] = bits, GROUP
        shapes[name] = "U8", (config.n_experts, paired_bytes(rows, cols, bits, GROUP))
        makers[name] = partial(pairs, rows, cols, bits, config.n_experts)
    shapes["embed"] = "F16", (config.vocab_size, config.d_model)
    row = rng.standard_normal((64, config.d_model)).astype(np.float16)
    makers["embed"] = lambda: (row[: min(64, config.vocab_size - at)] for at in range(0, config.vocab_size, 64))
    for name, plan in plain_plans(config).items():
        shape = len(plan.row), plan.cols
        shapes[name] = "BF16", shape
        makers[name] = lambda shape=shape: [
            to_bfloat16((rng.standard_normal(shape) * shape[1] ** -0.5).astype(np.float32))
        ]
    source, sizes = RandomSource(config, seed), tensor_shapes(config)
    for name, parts in vector_plans(config).items():
        shapes[name] = "F32", (sum(int(np.prod(sizes[part])) for part in parts),)
        makers[name] = lambda name=name, parts=parts: [
            kernel_vector(config, name, np.concatenate([source.vector(part) for part in parts]))
        ]
    total = random_bytes(config, bits)
    check_free(folder, total)
    write_streamed(folder / PACKED_FILE, shapes, lambda name: makers[name]())
    written(folder / PACKED_FILE)
    write_config(config, kinds, folder)
    return total


def random_bytes(config: ModelConfig, bits: int) -> int:
    """How many bytes `write_random` writes."""
    matrices = sum(
        paired_bytes(len(plan.row), plan.cols, HEAD_BITS if name == "head" else bits, GROUP)
        for name, plan in matrix_plans(config).items()
    )
    experts = sum(paired_bytes(rows, cols, bits, GROUP) for rows, cols in expert_sizes(config).values())
    plain = sum(2 * len(plan.row) * plan.cols for plan in plain_plans(config).values())
    sizes = tensor_shapes(config)
    vectors = sum(4 * int(np.prod(sizes[part])) for parts in vector_plans(config).values() for part in parts)
    return matrices + config.n_experts * experts + plain + vectors + 2 * config.vocab_size * config.d_model


def check_free(folder: Path, needed: int) -> None:
    """Refuse before a byte is written if the disk cannot hold it."""
    free = shutil.disk_usage(folder).free
    if free < needed * 1.02:
        raise FulgurError(
            f"{folder}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free",
            hint="--files FOLDER names another disk; --bits 4 and --no-peer each halve what is written.",
        )


def written(path: Path) -> None:
    """Wait until the file is on disk; otherwise it would be written during the measurement."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
