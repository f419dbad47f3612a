"""The tensors of a model by their Hugging Face names, and how they make up the matrices the kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.family import DELTA, FULL
from fulgur.model.pack import TILE

EMBED, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
MTP = "mtp."  # the drafting head: kernel matrices and checkpoint tensors begin with it
MTP_NORMS = {
    "embed_norm": "mtp.pre_fc_norm_embedding.weight",
    "hidden_norm": "mtp.pre_fc_norm_hidden.weight",
    "final_norm": "mtp.norm.weight",
}
DRAFT_BITS = 4  # of the head that picks drafts; verification reads the model's own head


class TensorSource(Protocol):
    """Where tensors come from (safetensors, GGUF, a generator); rows are converted only on request."""

    @property
    def config(self) -> ModelConfig: ...

    def rows(self, name: str, index: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Some rows of a matrix, float32 [len(index), cols]."""
        ...

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """All values of a small tensor, in one dimension."""
        ...

    def native(self, name: str) -> tuple[int, int] | None:
        """(bits, group) if the file already holds this matrix in a form that we can keep bit by bit, else None."""
        ...

    def quantised(
        self, name: str, index: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        """q and scale of some rows of a `native` matrix."""
        ...


def layer_names(config: ModelConfig) -> list[tuple[str, str, str]]:
    """Every layer: the prefixes of its kernel matrices and of its tensors, and its kind. The drafting head is last."""
    layers = [(f"layers.{i}.", f"model.layers.{i}.", kind) for i, kind in enumerate(config.kinds)]
    return [*layers, (MTP, "mtp.layers.0.", FULL)] if config.draft_vocab else layers


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this shape must hold. Experts are named one by one; `FolderSource` also finds
    them if a file keeps them in one tensor."""
    d = config.d_model
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, d)}
    for _, layer, kind in layer_names(config):
        shapes[layer + "input_layernorm.weight"] = (d,)
        shapes |= _delta_shapes(config, layer) if kind == DELTA else _attention_shapes(config, layer)
        shapes[layer + "post_attention_layernorm.weight"] = (d,)
        shapes |= _feed_forward_shapes(config, layer)
    if config.draft_vocab:
        shapes |= {"mtp.fc.weight": (d, 2 * d)} | dict.fromkeys(MTP_NORMS.values(), (d,))
    shapes[FINAL_NORM] = (d,)
    if not config.tied:
        shapes[HEAD] = (config.vocab_size, d)
    return shapes


def _attention_shapes(config: ModelConfig, layer: str) -> dict[str, tuple[int, ...]]:
    d, q, traits = config.d_model, config.q_rows, config.traits
    shapes: dict[str, tuple[int, ...]] = {}
    for short, rows in (("q", q * (2 if traits.gated else 1)), ("k", config.kv_rows), ("v", config.kv_rows)):
        shapes[f"{layer}self_attn.{short}_proj.weight"] = (rows, d)
        if traits.qkv_bias:
            shapes[f"{layer}self_attn.{short}_proj.bias"] = (rows,)
    if traits.qk_norm:
        shapes[layer + "self_attn.q_norm.weight"] = (config.head_dim,)
        shapes[layer + "self_attn.k_norm.weight"] = (config.head_dim,)
    shapes[layer + "self_attn.o_proj.weight"] = (d, q)
    if traits.o_bias:
        shapes[layer + "self_attn.o_proj.bias"] = (d,)
    if traits.sinks:
        shapes[layer + "self_attn.sinks"] = (config.n_heads,)
    return shapes


def _delta_shapes(config: ModelConfig, layer: str) -> dict[str, tuple[int, ...]]:
    d, delta, name = config.d_model, delta_of(config), layer + "linear_attn."
    if config.traits.grouped_delta:
        shapes: dict[str, tuple[int, ...]] = {
            name + "in_proj_qkvz.weight": (delta.channels + delta.values, d),
            name + "in_proj_ba.weight": (2 * delta.v_heads, d),
        }
    else:
        shapes = {
            name + "in_proj_qkv.weight": (delta.channels, d),
            name + "in_proj_z.weight": (delta.values, d),
            name + "in_proj_b.weight": (delta.v_heads, d),
            name + "in_proj_a.weight": (delta.v_heads, d),
        }
    return shapes | {
        name + "conv1d.weight": (delta.channels, 1, delta.taps),
        name + "A_log": (delta.v_heads,),
        name + "dt_bias": (delta.v_heads,),
        name + "norm.weight": (delta.v_dim,),
        name + "out_proj.weight": (d, delta.values),
    }


def _feed_forward_shapes(config: ModelConfig, layer: str) -> dict[str, tuple[int, ...]]:
    d, mlp, shapes = config.d_model, layer + "mlp.", dict[str, tuple[int, ...]]()
    networks = [(dense_prefix(config, layer), config.dense_width)] if config.dense_width else []
    if config.n_experts:
        shapes[router_name(config, layer) + ".weight"] = (config.n_experts, d)
        if config.traits.router_bias:
            shapes[router_name(config, layer) + ".bias"] = (config.n_experts,)
        networks += [(f"{mlp}experts.{e}.", config.d_expert) for e in range(config.n_experts)]
    if config.d_shared:
        shapes[mlp + "shared_expert_gate.weight"] = (1, d)
    for prefix, width in networks:
        biased = config.traits.expert_bias and ".experts." in prefix
        for short, rows, cols in (("gate", width, d), ("up", width, d), ("down", d, width)):
            shapes[f"{prefix}{short}_proj.weight"] = (rows, cols)
            if biased:
                shapes[f"{prefix}{short}_proj.bias"] = (rows,)
    return shapes


def delta_of(config: ModelConfig) -> DeltaShape:
    assert config.delta is not None  # checked by ModelConfig where a layer is one
    return config.delta


def dense_prefix(config: ModelConfig, layer: str) -> str:
    """The names of the dense feed-forward network: the only one, or the shared expert."""
    return layer + ("mlp.shared_expert." if config.n_experts else "mlp.")


def router_name(config: ModelConfig, layer: str) -> str:
    return layer + ("mlp.router" if config.traits.router_bias else "mlp.gate")


@dataclass
class MatrixPlan:
    """Row r of a kernel matrix is row `row[r]` of tensor `parts[part[r]]`."""

    parts: tuple[str, ...]
    part: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    cols: int


def matrix_plans(config: ModelConfig) -> dict[str, MatrixPlan]:
    """How each dense kernel matrix is put together, in the order of use; `expert_plan` has the experts'."""
    plans: dict[str, MatrixPlan] = {}
    for to, layer, kind in layer_names(config):
        if kind == DELTA:
            plans[to + "qkv"] = delta_plan(config, layer)
            out, cols = layer + "linear_attn.out_proj.weight", delta_of(config).values
        else:
            plans[to + "qkv"] = _qkv_plan(config, layer)
            out, cols = layer + "self_attn.o_proj.weight", config.q_rows
        plans[to + "o"] = _stacked([(out, config.d_model)], cols)
        if config.dense_width:
            prefix = dense_prefix(config, layer)
            plans[to + "gate_up"] = _gate_up(prefix, config.dense_width, config.d_model)
            plans[to + "down"] = _stacked([(prefix + "down_proj.weight", config.d_model)], config.dense_width)
    head = EMBED if config.tied else HEAD
    if config.draft_vocab:
        plans["mtp.fc"] = _stacked([("mtp.fc.weight", config.d_model)], 2 * config.d_model)
        plans["mtp.head"] = _stacked([(head, config.draft_vocab)], config.d_model)
    plans["head"] = _stacked([(head, config.vocab_size)], config.d_model)
    return plans


def expert_plan(config: ModelConfig, layer: str, expert: int, name: str) -> MatrixPlan:
    """Matrix `name`, gate_up or down, of one expert of the layer whose tensors begin with `layer`."""
    prefix = f"{layer}mlp.experts.{expert}."
    if name == "gate_up":
        return _gate_up(prefix, config.d_expert, config.d_model)
    return _stacked([(prefix + "down_proj.weight", config.d_model)], config.d_expert)


def plain_plans(config: ModelConfig) -> dict[str, MatrixPlan]:
    """Small matrices with much influence, kept in bf16: routers (with the shared expert's gate as the last row), and
    the projections that give b and a of a delta net."""
    plans: dict[str, MatrixPlan] = {}
    for to, layer, kind in layer_names(config):
        if kind == DELTA:
            plans[to + "ba"] = _ba_plan(config, layer)
        if config.n_experts:
            parts = [(router_name(config, layer) + ".weight", config.n_experts)]
            if config.d_shared:
                parts.append((layer + "mlp.shared_expert_gate.weight", 1))
            plans[to + "router"] = _stacked(parts, config.d_model)
    return plans


def vector_plans(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Each kernel vector and the tensors that it concatenates; `kernel_vector` converts the result."""
    plans: dict[str, tuple[str, ...]] = {}
    traits = config.traits
    for to, layer, kind in layer_names(config):
        attention, delta = layer + "self_attn.", layer + "linear_attn."
        plans[to + "attn_norm"] = (layer + "input_layernorm.weight",)
        plans[to + "ffn_norm"] = (layer + "post_attention_layernorm.weight",)
        if kind == DELTA:
            plans[to + "conv"] = (delta + "conv1d.weight",)
            plans[to + "decay"] = (delta + "A_log",)
            plans[to + "dt_bias"] = (delta + "dt_bias",)
            plans[to + "delta_norm"] = (delta + "norm.weight",)
        else:
            if traits.qk_norm:
                plans[to + "q_norm"] = (attention + "q_norm.weight",)
                plans[to + "k_norm"] = (attention + "k_norm.weight",)
            if traits.qkv_bias:
                plans[to + "qkv_bias"] = tuple(f"{attention}{s}_proj.bias" for s in "qkv")
            if traits.o_bias:
                plans[to + "o_bias"] = (attention + "o_proj.bias",)
            if traits.sinks:
                plans[to + "sinks"] = (attention + "sinks",)
        if traits.router_bias:
            plans[to + "router_bias"] = (router_name(config, layer) + ".bias",)
        if traits.expert_bias:
            experts = [f"{layer}mlp.experts.{e}." for e in range(config.n_experts)]
            plans[to + "experts.gate_up_bias"] = tuple(f"{e}{s}_proj.bias" for e in experts for s in ("gate", "up"))
            plans[to + "experts.down_bias"] = tuple(e + "down_proj.bias" for e in experts)
    if config.draft_vocab:
        plans |= {MTP + name: (tensor,) for name, tensor in MTP_NORMS.items()}
    plans["final_norm"] = (FINAL_NORM,)
    return plans


def kernel_vector(config: ModelConfig, name: str, value: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Convert a concatenation of tensors to what the kernels read."""
    short = name.rpartition(".")[2]
    if short in ("attn_norm", "ffn_norm", "q_norm", "k_norm", *MTP_NORMS):
        return value + np.float32(config.traits.norm_offset) if config.traits.norm_offset else value
    if short == "decay":
        return -np.exp(value)
    if short == "conv":  # channel by channel in files, tap by tap here
        return np.ascontiguousarray(value.reshape(-1, delta_of(config).taps).T).reshape(-1)
    if short == "gate_up_bias":  # 16 of the gate, 16 of up, as the rows of the matrix
        pairs = value.reshape(-1, 2, config.d_expert // TILE, TILE)
        return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(-1)
    return value


def _qkv_plan(config: ModelConfig, layer: str) -> MatrixPlan:
    """Queries, keys, values, and the gates of the heads if there are any."""
    parts = tuple(f"{layer}self_attn.{s}_proj.weight" for s in "qkv")
    q, kv = np.arange(config.q_rows), np.arange(config.kv_rows)
    picks = [(0, q), (1, kv), (2, kv)]
    if config.traits.gated:  # a head's query and its gate follow each other in q_proj
        q = q + q // config.head_dim * config.head_dim
        picks = [(0, q), (1, kv), (2, kv), (0, q + config.head_dim)]
    return _picked(parts, picks, config.d_model)


def delta_plan(config: ModelConfig, layer: str) -> MatrixPlan:
    """Queries, keys, values and z of all heads."""
    delta, name = delta_of(config), layer + "linear_attn."
    if not config.traits.grouped_delta:
        parts = [(name + "in_proj_qkv.weight", delta.channels), (name + "in_proj_z.weight", delta.values)]
        return _stacked(parts, config.d_model)
    wide = delta.v_heads // delta.k_heads * delta.v_dim  # values of a key head
    group = 2 * delta.k_dim + 2 * wide
    starts = ((0, delta.k_dim), (delta.k_dim, delta.k_dim), (2 * delta.k_dim, wide), (2 * delta.k_dim + wide, wide))
    first = np.arange(delta.k_heads)[:, None] * group
    rows = [(0, (first + start + np.arange(count)).reshape(-1)) for start, count in starts]
    return _picked((name + "in_proj_qkvz.weight",), rows, config.d_model)


def _ba_plan(config: ModelConfig, layer: str) -> MatrixPlan:
    """Every b, then every a."""
    delta, name = delta_of(config), layer + "linear_attn."
    if not config.traits.grouped_delta:
        return _stacked([(f"{name}in_proj_{s}.weight", delta.v_heads) for s in "ba"], config.d_model)
    per = delta.v_heads // delta.k_heads
    b = (np.arange(delta.k_heads)[:, None] * 2 * per + np.arange(per)).reshape(-1)
    return _picked((name + "in_proj_ba.weight",), [(0, b), (0, b + per)], config.d_model)


def _picked(parts: tuple[str, ...], picks: Sequence[tuple[int, npt.NDArray[np.int64]]], cols: int) -> MatrixPlan:
    part = np.concatenate([np.full(len(rows), i, np.int64) for i, rows in picks])
    return MatrixPlan(parts, part, np.concatenate([rows for _, rows in picks]), cols)


def _stacked(parts: list[tuple[str, int]], cols: int) -> MatrixPlan:
    names = tuple(name for name, _ in parts)
    return _picked(names, [(i, np.arange(rows)) for i, (_, rows) in enumerate(parts)], cols)


def _gate_up(prefix: str, rows: int, cols: int) -> MatrixPlan:
    """16 gate rows, 16 up rows, alternating: a thread that owns a pair of tiles applies SwiGLU by itself."""
    index = np.arange(2 * rows)
    block, within = index // TILE, index % TILE
    parts = (prefix + "gate_proj.weight", prefix + "up_proj.weight")
    return MatrixPlan(parts, block % 2, block // 2 * TILE + within, cols)
