"""The tensors of a model by their Hugging Face names, and how they make up the matrices the kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig
from fulgur.model.pack import TILE

EMBED, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class TensorSource(Protocol):
    """Where tensors come from (safetensors, GGUF, a generator); rows are converted only when asked for."""

    @property
    def config(self) -> ModelConfig: ...

    def rows(self, name: str, index: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Some rows of a matrix, float32 [len(index), cols]."""
        ...

    def vector(self, name: str) -> npt.NDArray[np.float32]: ...

    def native(self, name: str) -> tuple[int, int] | None:
        """(bits, group) when the file already holds this matrix in a form we can keep bit by bit."""
        ...

    def quantised(
        self, name: str, index: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        """q and scale of some rows of a `native` matrix."""
        ...


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a checkpoint of this shape must hold."""
    d, q, kv = config.d_model, config.q_rows, config.kv_rows
    ffn = config.d_expert if config.n_experts else config.d_ffn
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, d)}
    for i in range(config.n_layers):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (d,)
        for short, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{layer}self_attn.{short}_proj.weight"] = (rows, d)
            if config.qkv_bias:
                shapes[f"{layer}self_attn.{short}_proj.bias"] = (rows,)
        if config.qk_norm:
            shapes[layer + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[layer + "self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[layer + "self_attn.o_proj.weight"] = (d, q)
        shapes[layer + "post_attention_layernorm.weight"] = (d,)
        if config.n_experts:
            shapes[layer + "mlp.gate.weight"] = (config.n_experts, d)
        for mlp in _mlps(config, layer):
            shapes[mlp + "gate_proj.weight"] = (ffn, d)
            shapes[mlp + "up_proj.weight"] = (ffn, d)
            shapes[mlp + "down_proj.weight"] = (d, ffn)
    shapes[FINAL_NORM] = (d,)
    if not config.tied:
        shapes[HEAD] = (config.vocab_size, d)
    return shapes


@dataclass
class MatrixPlan:
    """Row r of a kernel matrix is row `row[r]` of tensor `parts[part[r]]`."""

    parts: tuple[str, ...]
    part: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    cols: int


def matrix_plans(config: ModelConfig) -> dict[str, MatrixPlan]:
    """How each kernel matrix is put together, in the order of use."""
    if config.n_experts:
        raise FulgurError(
            f"{config.family}: a mixture of experts runs on a GPU only", hint='Open it with device = "cuda".'
        )
    plans: dict[str, MatrixPlan] = {}
    for i in range(config.n_layers):
        attention, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        qkv = [(f"{attention}{s}_proj.weight", n) for s, n in zip("qkv", _qkv_rows(config), strict=True)]
        plans[f"layers.{i}.qkv"] = _stacked(qkv, config.d_model)
        plans[f"layers.{i}.o"] = _stacked([(attention + "o_proj.weight", config.d_model)], config.q_rows)
        plans[f"layers.{i}.gate_up"] = _interleaved(
            mlp + "gate_proj.weight", mlp + "up_proj.weight", config.d_ffn, config.d_model
        )
        plans[f"layers.{i}.down"] = _stacked([(mlp + "down_proj.weight", config.d_model)], config.d_ffn)
    plans["head"] = _stacked([(EMBED if config.tied else HEAD, config.vocab_size)], config.d_model)
    return plans


def vector_plans(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Each kernel vector and the tensors it is the concatenation of."""
    plans: dict[str, tuple[str, ...]] = {}
    for i in range(config.n_layers):
        layer = f"model.layers.{i}."
        plans[f"layers.{i}.attn_norm"] = (layer + "input_layernorm.weight",)
        plans[f"layers.{i}.ffn_norm"] = (layer + "post_attention_layernorm.weight",)
        if config.qk_norm:
            plans[f"layers.{i}.q_norm"] = (layer + "self_attn.q_norm.weight",)
            plans[f"layers.{i}.k_norm"] = (layer + "self_attn.k_norm.weight",)
        if config.qkv_bias:
            plans[f"layers.{i}.qkv_bias"] = tuple(f"{layer}self_attn.{s}_proj.bias" for s in "qkv")
    plans["final_norm"] = (FINAL_NORM,)
    return plans


def _mlps(config: ModelConfig, layer: str) -> list[str]:
    """The prefix of every feed-forward network of a layer: one, or one an expert."""
    return [f"{layer}mlp.experts.{e}." for e in range(config.n_experts)] or [layer + "mlp."]


def _qkv_rows(config: ModelConfig) -> tuple[int, int, int]:
    return config.q_rows, config.kv_rows, config.kv_rows


def _stacked(parts: list[tuple[str, int]], cols: int) -> MatrixPlan:
    part = np.concatenate([np.full(rows, i, np.int64) for i, (_, rows) in enumerate(parts)])
    row = np.concatenate([np.arange(rows) for _, rows in parts])
    return MatrixPlan(tuple(name for name, _ in parts), part, row, cols)


def _interleaved(gate: str, up: str, rows: int, cols: int) -> MatrixPlan:
    """16 gate rows, 16 up rows, alternating: a thread that owns a pair of tiles applies SwiGLU by itself."""
    index = np.arange(2 * rows)
    block, within = index // TILE, index % TILE
    return MatrixPlan((gate, up), block % 2, block // 2 * TILE + within, cols)
