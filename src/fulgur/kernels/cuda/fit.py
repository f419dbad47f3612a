"""What fits a GPU: how many rows of a pass fit into shared memory, how many bytes the cache needs per token, and which
kernels can run a model."""

from __future__ import annotations

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.family_plan import FamilyPlan, Weights, make_family_plan
from fulgur.kernels.cuda.header import layout
from fulgur.kernels.cuda.kv_cache import bytes_per_token
from fulgur.kernels.cuda.plan import MAX_ROWS, Plan, make_plan
from fulgur.model.config import ModelConfig
from fulgur.model.family import DELTA

HYBRID_ROWS = (4, 2, 1)  # of a pass: with 8 the rings of weights would be too short


def widest(config: ModelConfig, weights: str, head: str | None, gpu: Gpu) -> Plan:
    """The plan for as many rows per pass as fit into shared memory."""
    for rows in (MAX_ROWS, 4, 2, 1):
        plan = make_plan(config, weights=weights, head=head, ctas=gpu.multiprocessors, rows=rows)
        try:
            layout(plan, "persistent", gpu.shared, wgmma=gpu.wgmma)
            layout(plan, "graph", gpu.shared, wgmma=gpu.wgmma)
        except FulgurError:
            if rows == 1:
                raise
            continue
        return plan
    raise AssertionError("rows 1 either fits or raises")


def family_plan(config: ModelConfig, weights: Weights, gpu: Gpu) -> FamilyPlan:
    """The plan of a model for the general driver, with that of the decode kernels if they can run a single sequence."""
    decode = _hybrid(config, weights, gpu)
    return make_family_plan(config, weights, ctas=gpu.multiprocessors, shared=gpu.shared, decode=decode)


def _hybrid(config: ModelConfig, weights: Weights, gpu: Gpu) -> Plan | None:
    if DELTA not in config.kinds or weights.experts != weights.usual or not gpu.cooperative:
        return None
    for rows in HYBRID_ROWS:
        try:
            plan = make_plan(
                config, weights=weights.usual.name, head=weights.head.name, ctas=gpu.multiprocessors, rows=rows
            )  # fmt: skip
            layout(plan, "persistent", gpu.shared, wgmma=gpu.wgmma)
        except FulgurError:
            continue
        return plan
    return None


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str) -> int:
    """Bytes of the keys and values of every layer."""
    return bytes_per_token(config.n_layers, config.n_kv_heads, config.head_dim, kv_dtype)
