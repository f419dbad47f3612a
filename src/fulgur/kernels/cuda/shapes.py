"""The shapes of the models that the GPU engine is measured on; weights are random."""

from __future__ import annotations

from typing import Any

from fulgur.model.config import FAMILIES, ModelConfig, RopeScaling


def shape(
    family: str, vocab: int, d: int, layers: int, heads: tuple[int, int, int], ffn: int, **more: Any
) -> ModelConfig:
    usual: dict[str, Any] = {
        "family": family,
        "vocab_size": vocab,
        "d_model": d,
        "n_layers": layers,
        "n_heads": heads[0],
        "n_kv_heads": heads[1],
        "head_dim": heads[2],
        "d_ffn": ffn,
        "norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "max_context": 32768,
        "tied": False,
        "qkv_bias": FAMILIES[family].qkv_bias,
        "qk_norm": FAMILIES[family].qk_norm,
    }
    return ModelConfig(**{**usual, **more})


_LLAMA3 = RopeScaling("llama3", factor=32.0, original_context=8192)
SHAPES: dict[str, ModelConfig] = {
    "llama-3.2-1b": shape(
        "llama",
        128256,
        2048,
        16,
        (32, 8, 64),
        8192,
        rope_theta=5e5,
        norm_eps=1e-5,
        tied=True,
        rope_scaling=_LLAMA3,
        max_context=131072,
    ),
    "qwen2.5-coder-1.5b": shape("qwen2", 151936, 1536, 28, (12, 2, 128), 8960, tied=True),
    "qwen2.5-coder-7b": shape("qwen2", 152064, 3584, 28, (28, 4, 128), 18944),
    "qwen3-coder-30b-a3b": shape(
        "qwen3_moe",
        151936,
        2048,
        48,
        (32, 4, 128),
        6144,
        rope_theta=1e7,
        max_context=262144,
        n_experts=128,
        experts_per_token=8,
        d_expert=768,
        norm_topk=True,
    ),
}
