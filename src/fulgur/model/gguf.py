"""A GGUF file as a source of tensors: its names, its metadata and its row order turned into Hugging Face's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.config import FAMILIES, ModelConfig, RopeScaling, naming
from fulgur.model.gguf_blocks import NATIVE, TO_FLOAT, to_quantised
from fulgur.model.gguf_file import GgufFile
from fulgur.model.tensors import EMBED, FINAL_NORM, HEAD, tensor_shapes

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a tensor, from its Hugging Face name."""
    fixed = {EMBED: "token_embd.weight", HEAD: "output.weight", FINAL_NORM: "output_norm.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_NAMES[module]}.{kind}"


def rotary_rows(rows: int, head_dim: int) -> npt.NDArray[np.int64]:
    """For each row of a q or k matrix in Hugging Face's order, its row in llama GGUF files, which put the two halves of
    a rotary pair side by side."""
    head, within = np.divmod(np.arange(rows), head_dim)
    half, pair = np.divmod(within, head_dim // 2)
    return head * head_dim + 2 * pair + half


class GgufSource:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GgufFile(path)
        with naming(path):
            self._config = _config(self.file)
        self._check()

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def tokenizer_metadata(self) -> dict[str, Any]:
        """The keys that describe the vocabulary: tokenizer.* (tokens, merges, types, special ids, chat template)."""
        return {key: value for key, value in self.file.metadata.items() if key.startswith("tokenizer.")}

    def _check(self) -> None:
        for name, expected in tensor_shapes(self._config).items():
            stored = gguf_name(name)
            tensor = self.file.tensors.get(stored)
            if tensor is None:
                raise FulgurError(f"{self.path}: tensor {stored} {list(expected)} is missing")
            if tensor.shape != expected:
                raise FulgurError(
                    f"{self.path}: tensor {stored}: expected shape {list(expected)}, found {list(tensor.shape)}"
                )
            if tensor.type.name not in TO_FLOAT:
                raise FulgurError(
                    f"{self.path}: tensor {stored} {list(tensor.shape)}: quantisation type {tensor.type.name} is not "
                    "supported",
                    hint=f"Supported: {', '.join(TO_FLOAT)}.",
                )

    def rows(self, name: str, index: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        kind, blocks = self._blocks(name, index)
        return TO_FLOAT[kind](blocks).reshape(len(index), -1)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        stored = gguf_name(name)
        tensor = self.file.tensors[stored]
        value = TO_FLOAT[tensor.type.name](self.file.blocks(stored).reshape(-1, tensor.type.size)).reshape(-1)
        order = self._row_order(name, len(value))
        return value if order is None else value[order]

    def native(self, name: str) -> tuple[int, int] | None:
        return NATIVE.get(self.file.tensors[gguf_name(name)].type.name)

    def quantised(
        self, name: str, index: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        q, scale = to_quantised(*self._blocks(name, index))
        return q.reshape(len(index), -1), scale.reshape(len(index), -1)

    def _blocks(self, name: str, index: npt.NDArray[np.integer]) -> tuple[str, npt.NDArray[np.uint8]]:
        stored = gguf_name(name)
        tensor = self.file.tensors[stored]
        order = self._row_order(name, tensor.shape[0])
        picked = self.file.blocks(stored)[index if order is None else order[index]]
        return tensor.type.name, picked.reshape(-1, tensor.type.size)

    def _row_order(self, name: str, rows: int) -> npt.NDArray[np.int64] | None:
        if self._config.family == "llama" and (".q_proj." in name or ".k_proj." in name):
            return rotary_rows(rows, self._config.head_dim)
        return None


def _config(file: GgufFile) -> ModelConfig:
    meta, path = file.metadata, file.path
    family = meta.get("general.architecture")
    if family not in FAMILIES:
        raise FulgurError(
            f"{path}: architecture {family!r} is not supported", hint=f"Supported: {', '.join(FAMILIES)}."
        )
    if meta.get("split.count", 1) > 1:
        raise FulgurError(f"{path}: one of {meta['split.count']} parts", hint="Merge the parts into one file first.")

    def number(key: str, default: int | None = None) -> int:
        value = meta.get(f"{family}.{key}", default)
        if not isinstance(value, int):
            raise FulgurError(f"{path}: {family}.{key} is {value!r}, an integer is needed")
        return value

    for key in ("expert_count", "attention.sliding_window"):
        if meta.get(f"{family}.{key}"):
            raise FulgurError(f"{path}: {family}.{key} = {meta[f'{family}.{key}']} is not supported")
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise FulgurError(f"{path}: tensor token_embd.weight is missing")
    d_model, n_heads, context = number("embedding_length"), number("attention.head_count"), number("context_length")
    head_dim = number("attention.key_length", d_model // max(n_heads, 1))
    if number("rope.dimension_count", head_dim) != head_dim:
        raise FulgurError(f"{path}: {family}.rope.dimension_count differs from the head's {head_dim}: not supported")
    ends = (meta.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot"))
    return ModelConfig(
        family=family,
        vocab_size=embed.shape[0],
        d_model=d_model,
        n_layers=number("block_count"),
        n_heads=n_heads,
        n_kv_heads=number("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        d_ffn=number("feed_forward_length"),
        norm_eps=float(meta.get(f"{family}.attention.layer_norm_rms_epsilon", 1e-6)),
        rope_theta=float(meta.get(f"{family}.rope.freq_base", 10000.0)),
        rope_scaling=_scaling(file, family, context),
        max_context=context,
        tied="output.weight" not in file.tensors,
        qkv_bias=FAMILIES[family].qkv_bias,
        qk_norm=FAMILIES[family].qk_norm,
        eos_ids=tuple(dict.fromkeys(int(end) for end in ends if end is not None)),
        bos_id=meta.get("tokenizer.ggml.bos_token_id"),
    )


def _scaling(file: GgufFile, family: str, context: int) -> RopeScaling | None:
    if "rope_freqs.weight" in file.tensors:
        factors = TO_FLOAT["F32"](file.blocks("rope_freqs.weight")).reshape(-1)
        return RopeScaling("factors", factors=tuple(float(f) for f in factors))
    prefix = f"{family}.rope.scaling."
    meta = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    kind = meta.get("type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise FulgurError(f"{file.path}: rope scaling {kind!r} is not supported", hint="Supported: linear, yarn.")
    factor = float(meta.get("factor", 1.0))
    # GGUF's factor multiplies the usual one; ours replaces it.
    extra = float(meta.get("yarn_attn_factor", meta.get("attn_factor", 1.0)))
    usual = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
    return RopeScaling(
        kind,
        factor=factor,
        original_context=int(meta.get("original_context_length", context)),
        beta_fast=float(meta.get("yarn_beta_fast", 32.0)),
        beta_slow=float(meta.get("yarn_beta_slow", 1.0)),
        attention_factor=None if extra == 1.0 else extra * usual,
    )
