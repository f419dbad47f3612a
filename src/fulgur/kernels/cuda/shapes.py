"""The shapes of the models that the GPU engine is measured on; weights are random."""

from __future__ import annotations

from typing import Any

from fulgur.model.config import DeltaShape, ModelConfig, RopeScaling
from fulgur.model.family import FAMILIES


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


def _hybrid(family: str, d: int, layers: int, heads: tuple[int, int, int], v_heads: int, **more: Any) -> ModelConfig:
    """A hybrid: three gated delta nets, then one gated attention, repeated; with a drafting head."""
    kinds = tuple(FAMILIES[family].layers[i % 4] for i in range(layers))
    usual: dict[str, Any] = {
        "layer_kinds": kinds, "rotary_dim": 64, "rope_theta": 1e7, "delta": DeltaShape(16, v_heads, 128, 128, 4),
        "draft_vocab": 32768, "max_context": 262144, "norm_topk": True,
    }  # fmt: skip
    return shape(family, more.pop("vocab", 248320), d, layers, heads, more.pop("ffn", 6144), **{**usual, **more})


def _gpt_oss(layers: int, experts: int) -> ModelConfig:
    yarn = RopeScaling("yarn", factor=32.0, original_context=4096, truncate=False)
    return shape(
        "gpt_oss", 201088, 2880, layers, (64, 8, 64), 2880, norm_eps=1e-5, rope_theta=150000.0, rope_scaling=yarn,
        max_context=131072, layer_kinds=tuple(FAMILIES["gpt_oss"].layers[i % 2] for i in range(layers)), window=128,
        n_experts=experts, experts_per_token=4, d_expert=2880, swiglu_limit=7.0, swiglu_alpha=1.702,
    )  # fmt: skip


_A3B = {"n_experts": 256, "experts_per_token": 8, "d_expert": 512, "d_shared": 512}
# The shapes for the general driver.
FAMILY_SHAPES: dict[str, ModelConfig] = {
    "qwen3.6-35b-a3b": _hybrid("qwen3_5_moe", 2048, 40, (16, 2, 256), 32, **_A3B),
    "qwen3.6-27b": _hybrid("qwen3_5", 5120, 64, (24, 4, 256), 48, ffn=17408),
    "qwen3-next-80b-a3b": _hybrid(
        "qwen3_next", 2048, 48, (16, 2, 256), 32, vocab=151936, **{**_A3B, "n_experts": 512, "experts_per_token": 10}
    ),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
}
