"""The shapes the engine is measured on, with random weights: those of the shipped models, and two larger ones."""

from __future__ import annotations

from typing import Any

from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.family import FAMILIES
from fulgur.workspace.folders import embedded_models

SEED = 20

_CONTEXT = 2048


def _shape(
    family: str, vocab: int, d_model: int, layers: int, ffn: int, heads: int, kv_heads: int, theta: float
) -> ModelConfig:
    return ModelConfig(
        family=family,
        vocab_size=vocab,
        d_model=d_model,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=64,
        d_ffn=ffn,
        norm_eps=1e-6,
        rope_theta=theta,
        rope_scaling=None,
        max_context=_CONTEXT,
        tied=True,
    )


def _large(family: str, vocab: int, d_model: int, layers: int, heads: tuple[int, int, int], **more: Any) -> ModelConfig:
    usual: dict[str, Any] = {
        "family": family,
        "vocab_size": vocab,
        "d_model": d_model,
        "n_layers": layers,
        "n_heads": heads[0],
        "n_kv_heads": heads[1],
        "head_dim": heads[2],
        "d_ffn": more["d_expert"],
        "norm_eps": 1e-6,
        "rope_theta": 1e7,
        "rope_scaling": None,
        "max_context": 4096,
        "tied": False,
        "layer_kinds": tuple((FAMILIES[family].layers * layers)[:layers]),
    }
    return ModelConfig(**{**usual, **more})


# Measured one at a time (`bench/large.py`): each fills the memory of a laptop.
LARGE: dict[str, ModelConfig] = {
    "30B-A3B": _large(  # Qwen3-Coder-30B-A3B
        "qwen3_moe", 151936, 2048, 48, (32, 4, 128), n_experts=128, experts_per_token=8, d_expert=768, norm_topk=True
    ),
    "35B-A3B": _large(  # Qwen3.6-35B-A3B
        "qwen3_5_moe",
        248320,
        2048,
        40,
        (16, 2, 256),
        n_experts=256,
        experts_per_token=8,
        d_expert=512,
        d_shared=512,
        norm_topk=True,
        rotary_dim=64,
        delta=DeltaShape(16, 32, 128, 128, 4),
    ),
    "20b": _large(  # gpt-oss-20b
        "gpt_oss",
        201088,
        2880,
        24,
        (64, 8, 64),
        n_experts=32,
        experts_per_token=4,
        d_expert=2880,
        window=128,
        swiglu_limit=7.0,
        swiglu_alpha=1.702,
    ),
}

# A small hybrid with a drafting head, measured with and without its drafts (`bench/own_drafts.py`).
HYBRID = _large(
    "qwen3_5",
    65536,
    1024,
    16,
    (8, 2, 256),
    d_expert=0,
    d_ffn=3584,
    rotary_dim=64,
    delta=DeltaShape(16, 16, 128, 128, 4),
    draft_vocab=32768,
)

SHAPES: dict[str, ModelConfig] = {
    **{folder.name: ModelConfig.from_folder(folder) for folder in sorted(embedded_models())},  # 30M, 60M
    # The project's own family, larger than what ships, and the shape of Qwen2.5-0.5B.
    "120M": _shape("fulgur", 16384, 768, 16, 2048, 12, 4, 1e4),
    "0.5B": _shape("qwen2", 151936, 896, 24, 4864, 14, 2, 1e6),
}
