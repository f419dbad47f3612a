"""The gated delta rule over many tokens at once, in chunks of 64, with torch in fp32.

With G the running sum of the logarithms of the decays in a chunk and D_ij = exp(G_i - G_j) for i >= j:

    (I + strict_lower(beta K K' * D)) [U, W] = [beta V, beta exp(G) K]
    V' = U - W S
    O = exp(G) Q S + (Q K' * D) V'
    S = exp(G_end) S + (exp(G_end - G) K)' V'

Its bits are not those of the recurrence that steps run (csrc/family.cu), so it is for prompts only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHUNK = 64


def delta_chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """q, k [head, token, k_dim], v [head, token, v_dim], `decay` (logarithms) and beta [head, token]. Returns what
    every token reads, [head, token, v_dim]; advances `state` [head, k_dim, v_dim] in place."""
    import torch

    out = torch.empty_like(v)
    for first in range(0, v.shape[1], CHUNK):
        part = slice(first, first + CHUNK)
        qc, kc, vc, bc = q[:, part], k[:, part], v[:, part], beta[:, part, None]
        n = vc.shape[1]
        total = decay[:, part].cumsum(1)
        below = torch.ones((n, n), dtype=torch.bool, device=v.device).tril()
        # Masked before the exponential: above the diagonal it could overflow.
        ratio = (total[:, :, None] - total[:, None, :]).masked_fill(~below, float("-inf")).exp()
        system = (bc * (kc @ kc.transpose(1, 2)) * ratio).tril(-1) + torch.eye(n, device=v.device)
        right = torch.cat((bc * vc, bc * total.exp()[:, :, None] * kc), dim=2)
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        made, read = solved[..., : v.shape[2]], solved[..., v.shape[2] :]
        corrected = made - read @ state
        out[:, part] = (total.exp()[:, :, None] * qc) @ state + ((qc @ kc.transpose(1, 2)) * ratio) @ corrected
        end = total[:, -1:]
        state.mul_(end.exp()[:, :, None]).add_(((end - total).exp()[:, :, None] * kc).transpose(1, 2) @ corrected)
    return out
