"""Where GGUF files keep the tensors of a family, and in which order.

Converters change more than names: norms of 1 + weight are stored with the 1 added, A as -exp(A_log), the experts of a
layer in one tensor. Llama's queries and keys have the halves of a rotary pair side by side. In `qwen35` files the value
heads of a delta net are in another order: the first one of every key head, then the second one of every key head.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulgur.model.config import ModelConfig
from fulgur.model.tensors import EMBED, FINAL_NORM, HEAD, MTP, delta_of, delta_plan

Order = npt.NDArray[np.int64]

# From `general.architecture` to our family, where the names differ.
ARCHITECTURES = {
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "mistral3": "ministral3",
    "qwen3next": "qwen3_next",
    "qwen35": "qwen3_5",
    "qwen35moe": "qwen3_5_moe",
}
FC = "nextn.eh_proj.weight"
_MTP = {  # the drafting head is one more block after the model's
    "mtp.fc.weight": FC,
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}
_FIXED = {EMBED: "token_embd.weight", HEAD: "output.weight", FINAL_NORM: "output_norm.weight"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn": "attn",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_WHOLE = {"self_attn.sinks": "attn_sinks.weight", "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")


@dataclass(frozen=True)
class Place:
    """Row r of a tensor is row `first` + order[r] of the stored one, which may hold other matrices too."""

    name: str
    first: int = 0
    order: Order | None = None
    columns: Order | None = None  # likewise
    add: float = 0.0
    decay: bool = False  # stored as -exp of the value

    def rows(self, index: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        return self.first + (index if self.order is None else self.order[index])


def gguf_name(name: str) -> str:
    """The GGUF name of a tensor of a dense family, from its Hugging Face name."""
    return place_of(name, None).name


def place_of(name: str, config: ModelConfig | None) -> Place:
    """Where a tensor is stored; without a config, only its name is right."""
    if name in _FIXED:
        return Place(_FIXED[name], add=_offset(name, config))
    last = config.n_layers if config is not None else 0
    if name in _MTP:
        return Place(f"blk.{last}.{_MTP[name]}", add=_offset(name, config))
    _, _, layer, rest = name.split(".", 3)
    block = f"blk.{last if name.startswith(MTP) else layer}."
    match = _EXPERT.fullmatch(rest)
    if match is not None:
        rows = 0 if config is None else config.d_model if match[2] == "down" else config.d_expert
        return Place(f"{block}ffn_{match[2]}_exps.{match[3]}", int(match[1]) * rows)
    if rest in _WHOLE:
        heads = None if config is None or "linear" not in rest else value_heads(config)
        return Place(block + _WHOLE[rest], order=heads, decay=rest.endswith("A_log"))
    module, _, kind = rest.rpartition(".")
    if module == "post_attention_layernorm":
        after = config is not None and (config.traits.gated or config.traits.sinks)
        return Place(f"{block}{'post_attention_norm' if after else 'ffn_norm'}.weight", add=_offset(name, config))
    stored = f"{block}{_LAYER[module]}.{kind}"
    if config is None:
        return Place(stored)
    return Place(stored, 0, _row_order(module, config), _column_order(module, config), _offset(name, config))


def qkvz_places(name: str, config: ModelConfig) -> tuple[Place, Place, Order]:
    """The two tensors in which `qwen3next` files hold q, k, v and z of all heads; the checkpoint groups them by key
    head. Also, for each row of the checkpoint's tensor, its row in the concatenation of the two."""
    _, _, layer, _ = name.split(".", 3)
    grouped = delta_plan(config, f"model.layers.{layer}.").row
    order = np.empty_like(grouped)
    order[grouped] = np.arange(len(grouped))
    return Place(f"blk.{layer}.attn_qkv.weight"), Place(f"blk.{layer}.attn_gate.weight"), order


def _offset(name: str, config: ModelConfig | None) -> float:
    norm = (name.endswith("norm.weight") and "linear_attn" not in name) or "pre_fc_norm" in name
    return -config.traits.norm_offset if config is not None and norm else 0.0


def _row_order(module: str, config: ModelConfig) -> Order | None:
    short = module.rpartition(".")[2]
    if config.family in ("llama", "ministral3") and short in ("q_proj", "k_proj"):
        return rotary_rows((config.q_rows if short == "q_proj" else config.kv_rows), config.head_dim)
    heads = value_heads(config)
    if heads is None or (not module.startswith("linear_attn.in_proj") and short != "conv1d"):
        return None
    delta = delta_of(config)
    values = (heads[:, None] * delta.v_dim + np.arange(delta.v_dim)).reshape(-1)
    if short in ("in_proj_qkv", "conv1d"):
        return np.concatenate([np.arange(2 * delta.keys), 2 * delta.keys + values])
    return values if short == "in_proj_z" else heads


def _column_order(module: str, config: ModelConfig) -> Order | None:
    heads = value_heads(config)
    if heads is None or module != "linear_attn.out_proj":
        return None
    delta = delta_of(config)
    return (heads[:, None] * delta.v_dim + np.arange(delta.v_dim)).reshape(-1)


def value_heads(config: ModelConfig) -> Order | None:
    """For each value head of a delta net, its place in a `qwen35` file; None if the order is the same."""
    if config.delta is None or config.traits.grouped_delta:
        return None
    of_key, nth = np.divmod(np.arange(config.delta.v_heads), config.delta.v_heads // config.delta.k_heads)
    return nth * config.delta.k_heads + of_key


def rotary_rows(rows: int, head_dim: int) -> npt.NDArray[np.int64]:
    """For each row of a q or k matrix in Hugging Face's order, its row in llama GGUF files, which put the two halves of
    a rotary pair side by side."""
    head, within = np.divmod(np.arange(rows), head_dim)
    half, pair = np.divmod(within, head_dim // 2)
    return head * head_dim + 2 * pair + half
