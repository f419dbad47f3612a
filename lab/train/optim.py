"""Muon for the matrices of the blocks, AdamW for the tied embedding and the norms, behind one `step`.

Muon replaces a matrix's momentum by the nearest orthogonal matrix (Newton-Schulz in bf16), so every direction of the
update has the same size. Matrices of one shape are stacked and handled in one batch. Updates are scaled to the root
mean square of AdamW's (0.2 sqrt(max(rows, columns))), so both parts use learning rates of the same magnitude.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.train.model import Model

_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """Run the Newton-Schulz iteration on [n, rows, columns]: the singular values go to about 1."""
    x = stack.bfloat16() if stack.is_cuda else stack.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    def __init__(self, parameters: list[Tensor], *, momentum: float = 0.95, weight_decay: float) -> None:
        groups: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in parameters:
            groups.setdefault(tuple(parameter.shape), []).append(parameter)
        self.groups = list(groups.values())
        self.buffers = [torch.zeros((len(group), *group[0].shape), device=group[0].device) for group in self.groups]
        self.momentum = momentum
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonalise(gradient.lerp_(buffer, self.momentum))
            size = 0.2 * max(update.shape[-2:]) ** 0.5
            torch._foreach_mul_(group, 1 - rate * self.weight_decay)
            torch._foreach_add_(group, list(update.unbind(0)), alpha=-rate * size)


class Optimiser:
    """`rate` multiplies both learning rates; the caller owns the schedule."""

    def __init__(self, model: Model, *, matrix_rate: float, vector_rate: float, weight_decay: float) -> None:
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name != "embed"]
        vectors = [p for p in model.parameters() if p.ndim != 2]  # and convolutions
        self.matrix_rate = matrix_rate
        self.vector_rate = vector_rate
        self.muon = Muon(matrices, weight_decay=weight_decay)
        groups = [{"params": [model.embed], "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(groups, lr=vector_rate, betas=(0.9, 0.95), eps=1e-10, fused=model.embed.is_cuda)

    def step(self, scale: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = self.vector_rate * scale
        self.adam.step()
        self.muon.step(self.matrix_rate * scale)

    def state(self) -> dict[str, Any]:
        return {"adam": self.adam.state_dict(), "muon": [buffer.clone() for buffer in self.muon.buffers]}

    def restore(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        for buffer, saved in zip(self.muon.buffers, state["muon"], strict=True):
            buffer.copy_(saved)


def warm_then_stable(step: int, warmup: int) -> float:
    """The first part of a warmup-stable-decay schedule."""
    return min(1.0, (step + 1) / warmup)


def decay(progress: float, floor: float = 0.02) -> float:
    """The last part: linear from 1 to `floor` as `progress` goes from 0 to 1."""
    return floor + (1 - floor) * max(0.0, 1.0 - progress)
