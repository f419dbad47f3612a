"""What the decode kernels read of a hybrid besides the matrices of the general driver: rows of the router and of the
delta nets' gates, multiplied by the norms' weights; the router's fold through `o` (plan.py); small vectors at one
stride."""

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
    """Make them from the weights that are already there, if there is a plan for the decode kernels."""
    import torch

    plan = weights.plan.decode
    if plan is None:
        return
    c = plan.config
    size = c.n_layers * norm_stride(plan)
    norms = torch.zeros(size + c.d_model, dtype=torch.float32, device=weights.arena.device)
    side = []
    for layer, kind in enumerate(c.kinds):
        _put_vectors(norms, weights, plan, layer, kind)
        side.append(_side_rows(weights, plan, layer, kind))
        if plan.moe:
            _put_fold(weights, plan, layer, side[-1][: plan.router_rows])
    norms[size:] = _vector(weights, "final_norm")
    weights.norms, weights.side = norms, torch.stack(side)


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


def _side_rows(weights: FamilyWeights, plan: Plan, layer: int, kind: str) -> torch.Tensor:
    """The router with the gate of a shared expert; then the rows that give b and a, or zeros if the layer attends."""
    import torch

    to, held, routed = f"layers.{layer}.", weights.plan.matrices, plan.router_rows
    rows = torch.zeros((routed + plan.gate_rows, plan.config.d_model), device=weights.arena.device)
    if plan.moe:
        rows[:routed] = _unpacked(weights, held[to + "router"]) * _vector(weights, to + "ffn_norm")
    if kind == DELTA:
        rows[routed:] = _unpacked(weights, held[to + "ba"]) * _vector(weights, to + "attn_norm")
    return rows.bfloat16()


def _put_fold(weights: FamilyWeights, plan: Plan, layer: int, router: torch.Tensor) -> None:
    matrix = plan.matrices["fold"]
    rows = router.float() @ _unpacked(weights, weights.plan.matrices[f"layers.{layer}.o"])
    packed, start = pack(rows.bfloat16(), matrix.format), plan.address(matrix, layer, 0, 0, 0)
    weights.arena[start : start + len(packed)] = packed


def _unpacked(weights: FamilyWeights, matrix: Matrix) -> torch.Tensor:
    held = weights.arena[matrix.offset : matrix.offset + matrix.copy_bytes]
    return unpack(held, matrix.format, matrix.rows, matrix.cols)


def _vector(weights: FamilyWeights, name: str) -> torch.Tensor:
    at, size = weights.plan.vectors[name]
    found: torch.Tensor = weights.vectors[at : at + size]
    return found
