"""A packed folder: the kernels' own layout on disk, written once and read by memory map.

Only the pages that are touched cost memory. A mixture of experts is never copied: the kernels read it in the map.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model import checksums
from fulgur.model.config import ModelConfig, read_json
from fulgur.model.pack import Packed, PackedExperts, packed_bytes, pair_tiles, paired_bytes
from fulgur.model.safetensors import SafetensorsFile, write_safetensors
from fulgur.model.tensors import layer_names, matrix_plans, plain_plans, tensor_shapes, vector_plans
from fulgur.model.weights import Weights

LAYOUT, PAIRS = "rows16", "pairs16"  # of dense matrices; experts are always in pairs
PACKED_FILE = "weights.safetensors"
COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def save_packed(weights: Weights, folder: Path, *, companions: Path | None = None) -> None:
    """Write a folder that `load` reads by memory map; tokenizer files are copied from `companions`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Matrices first: their sizes are multiples of 64, so each one starts aligned.
    in_pairs = _layout(weights.config) == PAIRS
    tensors: dict[str, tuple[str, npt.NDArray[Any]]] = {
        name: ("U8", pair_tiles(m) if in_pairs else m.data) for name, m in weights.matrices.items()
    }
    tensors |= {name: ("U8", experts.data) for name, experts in weights.experts.items()}
    if weights.embed is not None:
        tensors["embed"] = ("F16", weights.embed)
    tensors |= {name: ("BF16", plain) for name, plain in weights.plain.items()}
    tensors |= {name: ("F32", vector) for name, vector in weights.vectors.items()}
    write_safetensors(folder / PACKED_FILE, tensors)
    kinds = {name: (m.bits, m.group) for name, m in weights.matrices.items()}
    kinds |= {name: (m.bits, m.group) for name, m in weights.experts.items()}
    write_config(weights.config, kinds, folder)
    for name in COMPANIONS if companions is not None else ():
        if companions is not None and (companions / name).exists():
            shutil.copyfile(companions / name, folder / name)
    remember(folder)


def remember(folder: Path) -> None:
    """Write the checksums of a packed folder, and of a tokenizer that it shares with other folders."""
    shared = read_json(folder / "config.json")["fulgur"].get("tokenizer")
    names = [PACKED_FILE, "config.json", *(name for name in COMPANIONS if (folder / name).exists())]
    checksums.write(folder, [*names, shared] if shared else names)


def _layout(config: ModelConfig) -> str:
    """Large models are read in place; small ones gain from matrices that are rearranged for each thread."""
    return PAIRS if config.n_experts else LAYOUT


def write_config(config: ModelConfig, kinds: dict[str, tuple[int, int]], folder: Path) -> None:
    """`config.json` of a packed folder, with the bits and the group of every matrix."""
    usual = max(set(kinds.values()), key=lambda kind: (list(kinds.values()).count(kind), kind))
    layout: dict[str, Any] = {"layout": _layout(config), "bits": usual[0], "group": usual[1]}
    other = {name: {"bits": kind[0], "group": kind[1]} for name, kind in kinds.items() if kind != usual}
    if other:
        layout["matrices"] = other
    raw = {**config.to_json(), "fulgur": layout}
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def expert_sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Rows and columns of one expert, by the name of the kernel matrix."""
    shapes = {"gate_up": (2 * config.d_expert, config.d_model), "down": (config.d_model, config.d_expert)}
    layers = layer_names(config) if config.n_experts else []
    return {f"{to}experts.{name}": shape for to, _, _ in layers for name, shape in shapes.items()}


def load_packed(folder: Path, bits: int | None, *, drafts: bool = True) -> Weights:
    layout = read_json(folder / "config.json")["fulgur"]
    config = ModelConfig.from_folder(folder)
    if not drafts:
        config = replace(config, draft_vocab=0)
    if not isinstance(layout, dict) or layout.get("layout") not in (LAYOUT, PAIRS):
        known = f"{LAYOUT} or {PAIRS}"
        raise FulgurError(
            f"{folder / 'config.json'}: packed layout {layout!r} is not supported; expected {known}",
            hint="Pack it again.",
        )
    in_pairs = layout["layout"] == PAIRS
    if bits not in (None, layout.get("bits")):
        raise FulgurError(
            f"{folder}: already packed with {layout.get('bits')} bits, but {bits} were requested",
            hint="Pack the original model again with the bits you want.",
        )
    file = SafetensorsFile(folder / PACKED_FILE)
    if config.n_experts:
        file.ask_for_huge_pages()

    def kind_of(name: str) -> tuple[int, int]:
        others = layout.get("matrices", {})
        kind = others.get(name, layout) if isinstance(others, dict) else None
        match kind:
            case {"bits": 4 | 8 as bits, "group": int() as group} if group > 0 and group % 32 == 0:
                return bits, group
        raise FulgurError(f"{folder / 'config.json'}: bits and group of {name} are missing", hint="Pack it again.")

    matrices: dict[str, Packed] = {}
    for name, plan in matrix_plans(config).items():
        kind, shape = kind_of(name), (len(plan.row), plan.cols)
        size = (paired_bytes if in_pairs else packed_bytes)(*shape, *kind)
        matrices[name] = Packed(_stored(file, name, "U8", (size,)), *kind, *shape, paired=in_pairs)
    experts: dict[str, PackedExperts] = {}
    for name, shape in expert_sizes(config).items():
        kind = kind_of(name)
        data = _stored(file, name, "U8", (config.n_experts, paired_bytes(*shape, *kind)))
        experts[name] = PackedExperts(data, *kind, *shape)
    plain = {
        name: _stored(file, name, "BF16", (len(plan.row), plan.cols)) for name, plan in plain_plans(config).items()
    }
    shapes = tensor_shapes(config)
    vectors = {
        name: _stored(file, name, "F32", (sum(math.prod(shapes[part]) for part in parts),))
        for name, parts in vector_plans(config).items()
    }
    embed = None if config.tied else _stored(file, "embed", "F16", (config.vocab_size, config.d_model))
    return Weights(config, embed, matrices, vectors, plain, experts)


def _stored(file: SafetensorsFile, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    entry = file.entries.get(name)
    if entry is None:
        raise FulgurError(f"{file.path}: tensor {name} {list(shape)} is missing")
    if (entry.dtype, entry.shape) != (dtype, shape):
        found = f"{entry.dtype} {list(entry.shape)}"
        raise FulgurError(f"{file.path}: tensor {name}: expected {dtype} {list(shape)}, found {found}")
    return file.array(name)
