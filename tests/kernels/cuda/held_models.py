"""Random models whose matrices the formats of a plan hold exactly: a reference computes with the same numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from random_models import TrainedLike

from fulgur.kernels.cuda.family_plan import Weights
from fulgur.kernels.cuda.formats import BLOCK, FORMATS, Format
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
            value = held(torch.from_numpy(value), format_of(config, weights, name)).numpy()
        tensors[name] = np.ascontiguousarray(value)
    return MemorySource(config, tensors)


def held_on(device: Any, config: ModelConfig, weights: Weights, seed: int) -> MemorySource:
    """The same with other numbers, made on a device: all experts of a layer at once."""
    source, tensors = TrainedLike(config, seed), dict[str, np.ndarray]()
    noise = torch.Generator(device).manual_seed(seed)
    groups: dict[str, list[str]] = {}
    for name in tensor_shapes(config):
        groups.setdefault(re.sub(r"experts\.\d+\.", "experts.", name), []).append(name)
    for names in groups.values():
        shape, fmt = tensor_shapes(config)[names[0]], format_of(config, weights, names[0])
        if len(shape) != 2:
            tensors |= {name: source.tensor(name) for name in names}
            continue
        values = torch.randn((len(names) * shape[0], shape[1]), generator=noise, device=device)
        values *= shape[1] ** -0.5 * source.factor(names[0])
        apart = fmt.scales == 2 and shape[0] % BLOCK  # 128 rows share a scale: they must be those of one tensor
        parts = [held(part, fmt) for part in values.split(shape[0] if apart else len(values))]
        made = torch.cat(parts).cpu().numpy().reshape(len(names), *shape)
        tensors |= dict(zip(names, made, strict=True))
    return MemorySource(config, tensors)


def format_of(config: ModelConfig, weights: Weights, name: str) -> Format:
    expert = config.n_experts and (".experts." in name or "shared_expert." in name)
    fmt = weights.head if name == "lm_head.weight" else weights.experts if expert else weights.usual
    return FORMATS["bf16"] if name.endswith(PLAIN) else fmt


def held(value: torch.Tensor, fmt: Format) -> torch.Tensor:
    """What the format makes of it."""
    q, scale = quantise(value, fmt)
    return unpack(pack(q, fmt, scale), fmt, *value.shape)
