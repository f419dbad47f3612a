"""What the decode kernels read of a hybrid besides the matrices that the general driver has: the router with the norm's
weight in it, its fold through `o` (plan.py), and small vectors in one stride for all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulgur.kernels.cuda.header import delta_vectors, norm_stride
from fulgur.kernels.cuda.pack import pack, unpack
from fulgur.model.family import DELTA

if TYPE_CHECKING:
    import torch

    from fulgur.kernels.cuda.family_weights import FamilyWeights
    from fulgur.kernels.cuda.plan import Matrix, Plan


def complete(weights: FamilyWeights) -> None:
    """Make them from what is there."""
    import torch

    plan = weights.plan.decode
    if plan is None:
        return
    c = plan.config
    size = c.n_layers * norm_stride(plan)
    norms = torch.zeros(size + c.d_model, dtype=torch.float32, device=weights.arena.device)
    for layer, kind in enumerate(c.kinds):
        _put_vectors(norms, weights, plan, layer, kind)
        _put_router(weights, plan, layer, kind)
    norms[size:] = _vector(weights, "final_norm")
    weights.norms = norms


def _put_vectors(norms: torch.Tensor, weights: FamilyWeights, plan: Plan, layer: int, kind: str) -> None:
    c, start = plan.config, layer * norm_stride(plan)
    at = {"attn_norm": 0, "ffn_norm": c.d_model}
    if kind == DELTA:
        at |= {name: first for name, (first, _) in delta_vectors(plan).items()}
    elif c.qk_norm:
        at |= {"q_norm": 2 * c.d_model, "k_norm": 2 * c.d_model + c.head_dim}
    for name, first in at.items():
        value = _vector(weights, f"layers.{layer}.{name}")
        norms[start + first : start + first + len(value)] = value


def _put_router(weights: FamilyWeights, plan: Plan, layer: int, kind: str) -> None:
    """The rows of the router and of the shared expert's gate, then those of b and a. Layers that attend have zeros in
    place of the last."""
    import torch

    to, router = f"layers.{layer}.", plan.matrices["router"]
    rows = torch.zeros((router.rows, router.cols), dtype=torch.float32, device=weights.arena.device)
    held, routed = weights.plan.matrices, 0
    if plan.moe:
        chosen = _unpacked(weights, held[to + "router"]) * _vector(weights, to + "ffn_norm")
        routed = len(chosen)
        rows[:routed] = chosen
    if kind == DELTA:
        rows[routed:] = _unpacked(weights, held[to + "ba"]) * _vector(weights, to + "attn_norm")
    _put(weights, plan, router, layer, rows)
    if plan.moe:
        folded = rows[:routed].bfloat16().float() @ _unpacked(weights, held[to + "o"])
        _put(weights, plan, plan.matrices["fold"], layer, folded)


def _put(weights: FamilyWeights, plan: Plan, matrix: Matrix, layer: int, rows: torch.Tensor) -> None:
    packed, start = pack(rows.bfloat16(), matrix.format), plan.address(matrix, layer, 0, 0, 0)
    weights.arena[start : start + len(packed)] = packed


def _unpacked(weights: FamilyWeights, matrix: Matrix) -> torch.Tensor:
    held = weights.arena[matrix.offset : matrix.offset + matrix.copy_bytes]
    return unpack(held, matrix.format, matrix.rows, matrix.cols)


def _vector(weights: FamilyWeights, name: str) -> torch.Tensor:
    at, size = weights.plan.vectors[name]
    found: torch.Tensor = weights.vectors[at : at + size]
    return found
