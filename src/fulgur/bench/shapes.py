"""The shapes the engine is measured on, with random weights: those of the shipped models, and two larger ones."""

from __future__ import annotations

from fulgur.model.config import FAMILIES, ModelConfig
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
        qkv_bias=FAMILIES[family].qkv_bias,
        qk_norm=FAMILIES[family].qk_norm,
    )


SHAPES: dict[str, ModelConfig] = {
    **{folder.name: ModelConfig.from_folder(folder) for folder in sorted(embedded_models())},  # 30M, 60M
    # The project's own family, larger than what ships; and the shape of Qwen2.5-0.5B.
    "120M": _shape("fulgur", 16384, 768, 16, 2048, 12, 4, 1e4),
    "0.5B": _shape("qwen2", 151936, 896, 24, 4864, 14, 2, 1e6),
}
