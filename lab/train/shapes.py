"""The shapes we train. Every matrix has columns in multiples of 64, so that 4-bit groups of 64 fit the kernels.

60M and 30M are what ships: `export` writes these shapes into the models' config.json, where the benches read them.
"""

from __future__ import annotations

from dataclasses import replace

from fulgur.errors import FulgurError
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.family import FAMILIES
from fulgur.text.edit_format import END, EOS, SPECIAL_IDS

CONTEXT = 2048


def _shape(
    d_model: int, n_layers: int, n_heads: int, d_ffn: int, vocab_size: int = 8192, context: int = CONTEXT
) -> ModelConfig:
    return ModelConfig(
        family="fulgur",
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=2,
        head_dim=64,
        d_ffn=d_ffn,
        norm_eps=1e-6,
        rope_theta=10_000.0,
        rope_scaling=None,
        max_context=context,
        tied=True,
        eos_ids=(SPECIAL_IDS[EOS], SPECIAL_IDS[END]),
        bos_id=None,
    )


def _hybrid(
    d_model: int, n_layers: int, n_heads: int, d_ffn: int, delta: DeltaShape, draft_vocab: int, **changes: int
) -> ModelConfig:
    """Qwen3.5's kinds of layers, with a drafting head that chooses from the lowest `draft_vocab` ids."""
    pattern = FAMILIES["qwen3_5"].layers
    return replace(
        _shape(d_model, n_layers, n_heads, d_ffn, **changes),
        family="qwen3_5",
        layer_kinds=tuple(pattern[i % len(pattern)] for i in range(n_layers)),
        delta=delta,
        rotary_dim=32,
        draft_vocab=draft_vocab,
    )


SHAPES = {
    "90M": _shape(768, 14, 12, 2048),
    "60M": _shape(768, 9, 12, 2048),
    "30M": _shape(768, 5, 12, 1408),  # five layers of the 60M, without their least active neurons
    # Narrow and deep because the drafting head is one layer: a guess reads a quarter of what a step reads.
    "hybrid": _hybrid(512, 8, 8, 1152, DeltaShape(k_heads=2, v_heads=4, k_dim=128, v_dim=128, taps=4), 8192),
    "toy": _shape(128, 2, 4, 192, vocab_size=512, context=256),
    "toy-small": _shape(64, 2, 2, 128, vocab_size=512, context=256),
    "toy-hybrid": _hybrid(
        64, 4, 2, 128, DeltaShape(k_heads=1, v_heads=2, k_dim=32, v_dim=32, taps=4), 256, vocab_size=512, context=256
    ),
}


def shape(name: str) -> ModelConfig:
    if name not in SHAPES:
        raise FulgurError(f"there is no shape {name!r}", hint=f"Choose one of {', '.join(SHAPES)}.")
    return SHAPES[name]
