"""A loaded model, kernel-ready: quantised matrices in tiles of 16 rows, and small float vectors.

Loading goes matrix by matrix and a few thousand rows at a time, so the float form of a matrix never stands whole in
memory. A packed folder is read by memory map and costs only the pages that are touched.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig, naming, read_json
from fulgur.model.folder import FolderSource
from fulgur.model.pack import Packed, new_packed, pack_rows, packed_bytes
from fulgur.model.quantise import QuantMatrix, choose_group, quantise
from fulgur.model.safetensors import SafetensorsFile, write_safetensors
from fulgur.model.tensors import EMBED, MatrixPlan, TensorSource, matrix_plans, tensor_shapes, vector_plans

LAYOUT = "rows16"
PACKED_FILE = "weights.safetensors"
COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_CHUNK_ELEMENTS = 1 << 22  # 16 MB of float32 at a time


@dataclass
class Weights:
    """`matrices`: layers.{i}.{qkv,o,gate_up,down} and head. `vectors`: layers.{i}.{attn_norm,ffn_norm}, with QK-norm
    also {q_norm,k_norm}, with biases also qkv_bias; final_norm. `embed` is None for a tied model: the lookup reads the
    rows of the packed head."""

    config: ModelConfig
    embed: npt.NDArray[np.float16] | None
    matrices: dict[str, Packed]
    vectors: dict[str, npt.NDArray[np.float32]]

    @property
    def nbytes(self) -> int:
        """Bytes of everything held."""
        embed = 0 if self.embed is None else self.embed.nbytes
        return embed + sum(m.data.nbytes for m in self.matrices.values()) + sum(v.nbytes for v in self.vectors.values())

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one decode step has to read (every matrix once; one row of the embedding)."""
        return sum(m.data.nbytes for m in self.matrices.values()) + sum(v.nbytes for v in self.vectors.values())


def load(path: Path, *, bits: int | None = None, group: int = 64, head_bits: int | None = None) -> Weights:
    """Load a Hugging Face folder, a packed folder or a .gguf file.

    `bits` None keeps what the file holds (8 for float tensors). `head_bits` lets the output head (and with a tied head
    the embedding) differ from the rest.
    """
    path = Path(path)
    with naming(path):
        if path.is_dir() and (path / "config.json").exists() and "fulgur" in read_json(path / "config.json"):
            return _load_packed(path, bits)
        return assemble(open_source(path), bits=bits, group=group, head_bits=head_bits)


def open_source(path: Path) -> TensorSource:
    """The tensors behind a path: a .gguf file, a folder that holds just one, or a Hugging Face folder."""
    path = Path(path)
    if not path.exists():
        raise FulgurError(f"{path}: no such model", hint="Give a model folder or a .gguf file.")
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) > 1:
            raise FulgurError(f"{path}: {len(files)} .gguf files, name the one to load", hint=f"{files[0]}")
        path = files[0] if files else path
    if path.is_file():
        from fulgur.model.gguf import GgufSource

        return GgufSource(path)
    return FolderSource(path)


def assemble(
    source: TensorSource, *, bits: int | None = None, group: int = 64, head_bits: int | None = None
) -> Weights:
    """Quantise and pack every matrix of a source."""
    config = source.config
    matrices: dict[str, Packed] = {}
    for name, plan in matrix_plans(config).items():
        wanted = head_bits if name == "head" and head_bits is not None else bits
        matrices[name] = _pack_matrix(source, name, plan, wanted, group)
    vectors = {
        name: np.concatenate([source.vector(part) for part in parts]) for name, parts in vector_plans(config).items()
    }
    embed = None if config.tied else _embedding(source)
    return Weights(config, embed, matrices, vectors)


def _pack_matrix(source: TensorSource, name: str, plan: MatrixPlan, bits: int | None, group: int) -> Packed:
    native = {source.native(part) for part in plan.parts}
    kept = native.pop() if len(native) == 1 else None
    if kept is not None and bits in (None, kept[0]):
        bits, group = kept
    else:
        kept, bits = None, bits or 8
        group = choose_group(plan.cols, group, name)
    rows = len(plan.row)
    packed = new_packed(rows, plan.cols, bits, group)
    step = max(_CHUNK_ELEMENTS // plan.cols // 16, 1) * 16
    for start in range(0, rows, step):
        chunk = slice(start, min(start + step, rows))
        n = chunk.stop - start
        q, scale = np.empty((n, plan.cols), np.int8), np.empty((n, plan.cols // group), np.float16)
        for i, tensor in enumerate(plan.parts):
            here = np.flatnonzero(plan.part[chunk] == i)
            if not len(here):
                continue
            index = plan.row[chunk][here]
            if kept is not None:
                q[here], scale[here] = source.quantised(tensor, index)
            else:
                part = quantise(source.rows(tensor, index), bits, group, tensor)
                q[here], scale[here] = part.q, part.scale
        pack_rows(packed, start, QuantMatrix(bits, group, n, plan.cols, q, scale))
    return packed


def _embedding(source: TensorSource) -> npt.NDArray[np.float16]:
    vocab, d = source.config.vocab_size, source.config.d_model
    embed = np.empty((vocab, d), np.float16)
    step = max(_CHUNK_ELEMENTS // d, 1)
    for start in range(0, vocab, step):
        index = np.arange(start, min(start + step, vocab))
        embed[index] = source.rows(EMBED, index)
    return embed


def save_packed(weights: Weights, folder: Path, *, companions: Path | None = None) -> None:
    """Write a folder that `load` reads by memory map; tokenizer files are copied from `companions`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {name: (m.bits, m.group) for name, m in weights.matrices.items()}
    usual = max(set(kinds.values()), key=lambda kind: (list(kinds.values()).count(kind), kind))
    layout: dict[str, Any] = {"layout": LAYOUT, "bits": usual[0], "group": usual[1]}
    other = {name: {"bits": kind[0], "group": kind[1]} for name, kind in kinds.items() if kind != usual}
    if other:
        layout["matrices"] = other
    # Matrices first: their sizes are multiples of 64, so each one starts aligned.
    tensors: dict[str, tuple[str, npt.NDArray[Any]]] = {n: ("U8", m.data) for n, m in weights.matrices.items()}
    if weights.embed is not None:
        tensors["embed"] = ("F16", weights.embed)
    tensors |= {name: ("F32", vector) for name, vector in weights.vectors.items()}
    write_safetensors(folder / PACKED_FILE, tensors)
    config = {**weights.config.to_json(), "fulgur": layout}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in COMPANIONS if companions is not None else ():
        if companions is not None and (companions / name).exists():
            shutil.copyfile(companions / name, folder / name)


def _load_packed(folder: Path, bits: int | None) -> Weights:
    layout = read_json(folder / "config.json")["fulgur"]
    config = ModelConfig.from_folder(folder)
    if not isinstance(layout, dict) or layout.get("layout") != LAYOUT:
        raise FulgurError(f"{folder / 'config.json'}: packed layout {layout!r} is not {LAYOUT}", hint="Pack it again.")
    if bits not in (None, layout.get("bits")):
        raise FulgurError(
            f"{folder}: already packed with {layout.get('bits')} bits, {bits} were asked for",
            hint="Pack the original model again with the bits you want.",
        )
    file = SafetensorsFile(folder / PACKED_FILE)
    matrices: dict[str, Packed] = {}
    for name, plan in matrix_plans(config).items():
        kind = layout.get("matrices", {}).get(name, layout)
        rows, cols = len(plan.row), plan.cols
        size = packed_bytes(rows, cols, kind["bits"], kind["group"])
        matrices[name] = Packed(_stored(file, name, "U8", (size,)), kind["bits"], kind["group"], rows, cols)
    shapes = tensor_shapes(config)
    vectors = {
        name: _stored(file, name, "F32", (sum(shapes[part][0] for part in parts),))
        for name, parts in vector_plans(config).items()
    }
    embed = None if config.tied else _stored(file, "embed", "F16", (config.vocab_size, config.d_model))
    return Weights(config, embed, matrices, vectors)


def _stored(file: SafetensorsFile, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    entry = file.entries.get(name)
    if entry is None:
        raise FulgurError(f"{file.path}: tensor {name} {list(shape)} is missing")
    if (entry.dtype, entry.shape) != (dtype, shape):
        found = f"{entry.dtype} {list(entry.shape)}"
        raise FulgurError(f"{file.path}: tensor {name}: expected {dtype} {list(shape)}, found {found}")
    return file.array(name)
