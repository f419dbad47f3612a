"""Writes a packed folder of random weights as GGUF, for llama.cpp: the same numbers, in blocks of 32 for groups of 64.

Works tensor by tensor, so that the model is never held whole. Every expert of a matrix gets the first one's numbers, as
`write_random` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.bench.weights import QUANT, new_writer
from fulgur.model.bfloat16 import from_bfloat16
from fulgur.model.config import ModelConfig
from fulgur.model.gguf_names import ARCHITECTURES, Place, place_of
from fulgur.model.pack import Packed, unpack
from fulgur.model.packed_folder import load_packed
from fulgur.model.random import RandomSource
from fulgur.model.tensors import EMBED, MatrixPlan, expert_plan, layer_names, matrix_plans, plain_plans, tensor_shapes
from fulgur.model.weights import Weights

BLOCK = 32
_TYPES: dict[str, npt.DTypeLike] = {"F32": np.float32, "F16": np.float16}  # others are bytes


@dataclass(frozen=True)
class _Tensor:
    name: str
    kind: str
    shape: tuple[int, ...]  # shape of what is stored: bytes for block formats
    make: Callable[[], npt.NDArray[Any]]


def write_packed_gguf(folder: Path, path: Path, seed: int) -> None:
    """Write the model that `write_random` wrote into `folder` with this seed."""
    import gguf

    weights = load_packed(folder, None)
    family = weights.config.family
    names = {ours: theirs for theirs, ours in ARCHITECTURES.items()}
    writer = new_writer(path, names.get(family, family), weights.config)
    tensors = [*_matrices(weights), *_plain(weights), *_vectors(weights.config, seed)]
    for tensor in tensors:
        dtype = np.dtype(_TYPES.get(tensor.kind, np.uint8))
        size = int(np.prod(tensor.shape)) * dtype.itemsize
        kind = gguf.GGMLQuantizationType[tensor.kind]
        writer.add_tensor_info(tensor.name, tensor.shape, dtype, size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(np.ascontiguousarray(np.broadcast_to(tensor.make(), tensor.shape)))
    writer.close()


def _matrices(weights: Weights) -> Iterator[_Tensor]:
    config = weights.config
    for name, plan in matrix_plans(config).items():
        yield from _parts(config, plan, weights.matrices[name], ())
    for to, layer, _ in layer_names(config):
        for name in ("gate_up", "down"):
            first = weights.experts[f"{to}experts.{name}"].expert(0)
            yield from _parts(config, expert_plan(config, layer, 0, name), first, (config.n_experts,))
    if weights.embed is not None:
        embed = weights.embed
        yield _Tensor(place_of(EMBED, config).name, "F16", embed.shape, lambda: embed)


def _parts(config: ModelConfig, plan: MatrixPlan, packed: Packed, copies: tuple[int, ...]) -> Iterator[_Tensor]:
    """Yield the tensors that make up a kernel matrix."""
    for i, part in enumerate(plan.parts):
        place, mine = place_of(part, config), np.flatnonzero(plan.part == i)
        order = np.empty_like(mine)
        order[place.rows(plan.row[mine])] = mine
        shape = *copies, len(mine), packed.cols // BLOCK * (2 + BLOCK * packed.bits // 8)
        yield _Tensor(place.name, QUANT[packed.bits], shape, partial(_blocks, packed, order, place))


def _blocks(packed: Packed, rows: npt.NDArray[np.int64], place: Place) -> npt.NDArray[np.uint8]:
    """Encode some rows in Q4_0 or Q8_0: a scale, then 32 numbers; in 4 bits the second half takes the high nibbles."""
    matrix = unpack(packed)
    q = matrix.q[rows].reshape(len(rows), -1, BLOCK)
    scale = np.repeat(matrix.scale[rows], matrix.group // BLOCK, axis=1)
    if place.columns is not None:  # whole heads are permuted
        order = np.empty(q.shape[1], np.int64)
        order[place.columns[::BLOCK] // BLOCK] = np.arange(q.shape[1])
        q, scale = q[:, order], scale[:, order]
    codes: npt.NDArray[np.uint8] = q.view(np.uint8)
    if matrix.bits == 4:
        unsigned = (q + np.int8(8)).view(np.uint8)
        codes = unsigned[:, :, : BLOCK // 2] | unsigned[:, :, BLOCK // 2 :] << np.uint8(4)
    both = (np.ascontiguousarray(scale)[:, :, None].view(np.uint8), codes)
    return np.concatenate(both, axis=2).reshape(len(rows), -1)


def _plain(weights: Weights) -> Iterator[_Tensor]:
    for name, plan in plain_plans(weights.config).items():
        values = from_bfloat16(weights.plain[name])
        for i, part in enumerate(plan.parts):
            place, mine = place_of(part, weights.config), np.flatnonzero(plan.part == i)
            out = np.empty((len(mine), plan.cols), np.float32)
            out[place.rows(plan.row[mine])] = values[mine]
            yield _floats(place.name, out[0] if len(mine) == 1 else out)  # a shared expert's gate is a vector


def _vectors(config: ModelConfig, seed: int) -> Iterator[_Tensor]:
    """Yield everything that is not a matrix: norms, biases, sinks, and a delta net's other parameters."""
    source = RandomSource(config, seed)
    of_experts: dict[str, list[npt.NDArray[np.float32]]] = {}
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 2:
            continue
        place, value = place_of(name, config), source.vector(name)
        if ".experts." in name:
            of_experts.setdefault(place.name, []).append(value)
            continue
        value = -np.exp(value) if place.decay else value - np.float32(place.add)
        value = value if len(shape) == 1 else value.reshape(shape[0], -1)
        out = np.empty_like(value)
        out[place.rows(np.arange(len(value)))] = value
        yield _floats(place.name, out)
    for stored, values in of_experts.items():
        yield _floats(stored, np.stack(values))


def _floats(name: str, value: npt.NDArray[np.float32]) -> _Tensor:
    return _Tensor(name, "F32", value.shape, lambda: value)
