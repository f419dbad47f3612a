"""Random models whose matrices the formats of a plan hold exactly: a reference computes with the same numbers."""

from __future__ import annotations

import numpy as np
import torch
from random_models import TrainedLike

from fulgur.kernels.cuda.family_plan import Weights
from fulgur.kernels.cuda.formats import FORMATS
from fulgur.kernels.cuda.pack import pack, quantise, unpack
from fulgur.model.config import ModelConfig
from fulgur.model.random import MemorySource
from fulgur.model.tensors import tensor_shapes

# Kept in bf16 whatever the format of the others is.
PLAIN = (
    "router.weight", "mlp.gate.weight", "shared_expert_gate.weight", "mtp.fc.weight", "in_proj_ba.weight",
    "in_proj_a.weight", "in_proj_b.weight", "embed_tokens.weight",
)  # fmt: skip


def held_source(config: ModelConfig, weights: Weights, seed: int) -> MemorySource:
    source, tensors = TrainedLike(config, seed), {}
    for name in tensor_shapes(config):
        value = source.tensor(name)
        if value.ndim == 2:
            expert = config.n_experts and (".experts." in name or "shared_expert." in name)
            fmt = weights.head if name == "lm_head.weight" else weights.experts if expert else weights.usual
            fmt = FORMATS["bf16"] if name.endswith(PLAIN) else fmt
            q, scale = quantise(torch.from_numpy(value), fmt)
            value = unpack(pack(q, fmt, scale), fmt, *value.shape).numpy()
        tensors[name] = np.ascontiguousarray(value)
    return MemorySource(config, tensors)
