"""Small models of every family, for tests and checks: odd sizes on purpose."""

from __future__ import annotations

from fulgur.kernels.cuda.shapes import shape
from fulgur.model.config import ModelConfig

SMALL: dict[str, ModelConfig] = {
    "llama": shape("llama", 403, 256, 2, (8, 2, 64), 264, max_context=4096),
    "qwen2": shape("qwen2", 403, 192, 2, (6, 2, 32), 200, max_context=4096, tied=True),
    "qwen3": shape("qwen3", 403, 256, 2, (4, 2, 128), 264, max_context=4096),
    "qwen3_moe": shape(
        "qwen3_moe",
        403,
        256,
        2,
        (8, 1, 64),
        64,
        max_context=4096,
        n_experts=8,
        experts_per_token=3,
        d_expert=136,
        norm_topk=True,
    ),
}
