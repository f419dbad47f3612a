"""KV caches in host memory: what they hold as plain values, and what a cache of 8 bits makes of another's."""

from __future__ import annotations

import torch

from fulgur.kernels.cuda.kv_cache import KvCache, from_fp8, to_fp8


def values_of(cache: KvCache) -> torch.Tensor:
    """[layer, kind, block, kv head, 64, head_dim]"""
    return (cache.held if cache.exponents is None else from_fp8(cache.held, cache.exponents)).float()


def holds(cache: KvCache, values: torch.Tensor, layer: int = 0) -> bool:
    """Whether a layer of a cache of 8 bits has the codes and exponents of these values, wherever some were stored."""
    assert cache.exponents is not None
    codes, exponents = to_fp8(values)
    stored = cache.exponents[layer] > 0
    same = torch.equal(cache.held[layer][stored], codes[stored]) and torch.equal(
        cache.exponents[layer][stored], exponents[stored]
    )
    return same and bool(stored.any()) and not bool(values[~stored].any())
