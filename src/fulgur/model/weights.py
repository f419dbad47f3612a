"""A loaded model, ready for the kernels: quantised matrices in tiles of 16 rows, and small float vectors.

Matrices are loaded one by one, a few thousand rows at a time, so the float form of a matrix is never whole in memory. A
packed folder is read by memory map and costs only the pages that are touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.bfloat16 import to_bfloat16
from fulgur.model.config import ModelConfig, naming, read_json
from fulgur.model.folder import FolderSource
from fulgur.model.pack import (
    Packed,
    PackedExperts,
    aligned_zeros,
    new_packed,
    pack_rows,
    pair_tiles,
)
from fulgur.model.quantise import QuantMatrix, choose_group, quantise
from fulgur.model.tensors import (
    DRAFT_BITS,
    EMBED,
    MTP,
    MatrixPlan,
    TensorSource,
    expert_plan,
    kernel_vector,
    layer_names,
    matrix_plans,
    plain_plans,
    vector_plans,
)

_CHUNK_ELEMENTS = 1 << 22  # 16 MB of float32 at a time


@dataclass
class Weights:
    """`tensors.py` defines what is held and how it is put together. `plain` holds the small matrices in bf16. `embed`
    is None for a tied model: the lookup reads the rows of the packed head."""

    config: ModelConfig
    embed: npt.NDArray[np.float16] | None
    matrices: dict[str, Packed]
    vectors: dict[str, npt.NDArray[np.float32]]
    plain: dict[str, npt.NDArray[np.uint16]] = field(default_factory=dict)
    experts: dict[str, PackedExperts] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of everything held."""
        embed = 0 if self.embed is None else self.embed.nbytes
        return embed + self._dense_bytes + sum(e.data.nbytes for e in self.experts.values())

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one decode step has to read: every matrix once, but only the chosen experts."""
        config = self.config
        experts = sum(e.data.nbytes for name, e in self.experts.items() if not name.startswith(MTP))
        drafting = sum(m.data.nbytes for name, m in self.matrices.items() if name.startswith(MTP))
        return self._dense_bytes - drafting + experts * config.experts_per_token // max(config.n_experts, 1)

    @property
    def _dense_bytes(self) -> int:
        matrices = sum(m.data.nbytes for m in self.matrices.values())
        return matrices + sum(v.nbytes for v in self.vectors.values()) + sum(p.nbytes for p in self.plain.values())


def load(
    path: Path, *, bits: int | None = None, group: int = 64, head_bits: int | None = None, drafts: bool = True
) -> Weights:
    """Load a Hugging Face folder, a packed folder or a .gguf file.

    `bits` None keeps what the file holds (8 for float tensors). `head_bits` lets the output head differ from the rest
    (and with it the embedding, if they are tied). `drafts` False leaves out the drafting head, if there is one.
    """
    path = Path(path)
    with naming(path):
        if path.is_dir() and (path / "config.json").exists() and "fulgur" in read_json(path / "config.json"):
            from fulgur.model.packed_folder import load_packed

            return load_packed(path, bits, drafts=drafts)
        return assemble(open_source(path), bits=bits, group=group, head_bits=head_bits, drafts=drafts)


def open_source(path: Path) -> TensorSource:
    """The tensors behind a path: a .gguf file, a folder that holds just one, or a Hugging Face folder."""
    path = Path(path)
    if not path.exists():
        raise FulgurError(f"{path}: no such model", hint="Give a model folder or a .gguf file.")
    if path.is_dir() and not (path / "config.json").exists():
        later = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf")  # a model in several parts is opened by its first
        files = [file for file in sorted(path.glob("*.gguf")) if later.fullmatch(file.name) is None]
        if len(files) > 1:
            raise FulgurError(f"{path}: it has {len(files)} .gguf files; name the one to load", hint=f"{files[0]}")
        path = files[0] if files else path
    if path.is_file():
        from fulgur.model.gguf import GgufSource

        return GgufSource(path)
    return FolderSource(path)


def assemble(
    source: TensorSource,
    *,
    bits: int | None = None,
    group: int = 64,
    head_bits: int | None = None,
    drafts: bool = True,
) -> Weights:
    """Quantise and pack every matrix of a source."""
    config = source.config if drafts else replace(source.config, draft_vocab=0)
    matrices: dict[str, Packed] = {}
    for name, plan in matrix_plans(config).items():
        wanted = head_bits if name == "head" and head_bits is not None else DRAFT_BITS if name == "mtp.head" else bits
        matrices[name] = _pack_matrix(source, name, plan, wanted, group)
    experts = {
        f"{to}experts.{name}": _pack_experts(source, f"{to}experts.{name}", layer, name, bits, group)
        for to, layer, _ in (layer_names(config) if config.n_experts else [])
        for name in ("gate_up", "down")
    }
    plain = {name: to_bfloat16(gather(source, plan)) for name, plan in plain_plans(config).items()}
    vectors = {
        name: kernel_vector(config, name, np.concatenate([source.vector(part) for part in parts]))
        for name, parts in vector_plans(config).items()
    }
    embed = None if config.tied else _embedding(source)
    return Weights(config, embed, matrices, vectors, plain, experts)


def gather(source: TensorSource, plan: MatrixPlan) -> npt.NDArray[np.float32]:
    """A whole kernel matrix in float32."""
    out = np.empty((len(plan.row), plan.cols), np.float32)
    for i, tensor in enumerate(plan.parts):
        here = np.flatnonzero(plan.part == i)
        out[here] = source.rows(tensor, plan.row[here])
    return out


def _pack_experts(
    source: TensorSource, label: str, layer: str, name: str, bits: int | None, group: int
) -> PackedExperts:
    data: npt.NDArray[np.uint8] | None = None
    group = choose_group(expert_plan(source.config, layer, 0, name).cols, group, label)
    for e in range(source.config.n_experts):
        packed = _pack_matrix(source, label, expert_plan(source.config, layer, e, name), bits, group)
        paired = pair_tiles(packed)
        if data is None:
            data = aligned_zeros(source.config.n_experts * len(paired)).reshape(source.config.n_experts, -1)
        data[e] = paired
    assert data is not None
    return PackedExperts(data, packed.bits, packed.group, packed.rows, packed.cols)


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
