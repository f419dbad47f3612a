"""The random-weight models that the engine is measured on."""

from __future__ import annotations

from fulgur.model.config import FAMILIES, ModelConfig

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
        qkv_bias=FAMILIES[family].qkv_bias,
        qk_norm=FAMILIES[family].qk_norm,
    )


# 0.5B is the shape of Qwen2.5-0.5B; the others are the project's own family.
SHAPES: dict[str, ModelConfig] = {
    "30M": _shape("fulgur", 16384, 512, 8, 1408, 8, 2, 1e4),
    "60M": _shape("fulgur", 16384, 768, 10, 1536, 12, 2, 1e4),
    "120M": _shape("fulgur", 16384, 768, 16, 2048, 12, 4, 1e4),
    "0.5B": _shape("qwen2", 151936, 896, 24, 4864, 14, 2, 1e6),
}
