"""The gated delta rule in chunks of 64, for training: `fulgur.kernels.cuda.delta_chunks` has the mathematics.

Two parts of it are operators of their own, with gradients by hand. The inverse of a unit triangular matrix is built by
doubling blocks, which stays exact where keys repeat (a power series does not), and its gradient is two products. The
states at the beginning of each chunk follow one after the other: a compiler that unrolled this loop for every layer
would compile for minutes. Everything else is products over all chunks at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64


def _level(size: int, half: int, device: torch.device) -> Tensor:
    """A mask of where already inverted blocks of `half` meet below the diagonal of a block twice as large."""
    at = torch.arange(size, device=device)
    return ((at[:, None] // (2 * half) == at // (2 * half)) & (at[:, None] // half > at // half)).float()


@torch.library.custom_op("fulgur_train::unit_inverse", mutates_args=(), schema="(Tensor below) -> Tensor")
def unit_inverse(below: Tensor) -> Tensor:
    """(I + below)^-1 for strictly lower triangular matrices [n, size, size] in fp32; `size` is a power of two."""
    size = below.shape[-1]
    with torch.autocast(below.device.type, enabled=False):
        inverse = torch.eye(size, device=below.device) - below * _level(size, 1, below.device)
        half = 2
        while half < size:
            part = torch.bmm(below * _level(size, half, below.device), inverse)
            inverse = torch.baddbmm(inverse, inverse, part, alpha=-1)
            half *= 2
    return inverse


@unit_inverse.register_fake
def _(below: Tensor) -> Tensor:
    return below.new_empty(below.shape)


@torch.library.custom_op(
    "fulgur_train::unit_inverse_back", mutates_args=(), schema="(Tensor inverse, Tensor g) -> Tensor"
)
def _unit_inverse_back(inverse: Tensor, g: Tensor) -> Tensor:
    with torch.autocast(inverse.device.type, enabled=False):
        return torch.bmm(torch.bmm(inverse.mT, g.float()), inverse.mT).neg_().tril_(-1)


@_unit_inverse_back.register_fake
def _(inverse: Tensor, g: Tensor) -> Tensor:
    return inverse.new_empty(inverse.shape)


torch.library.register_autograd(
    "fulgur_train::unit_inverse",
    lambda ctx, g: _unit_inverse_back(ctx.saved_tensors[0], g.contiguous()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


@torch.library.custom_op(
    "fulgur_train::chunk_states",
    mutates_args=(),
    schema="(Tensor made, Tensor read, Tensor keys, Tensor decay) -> (Tensor, Tensor)",
)
def chunk_states(made: Tensor, read: Tensor, keys: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """made [m, chunks, size, v], read and keys [m, chunks, size, k], decay [m, chunks], all fp32.

    Returns the state before each chunk [m, chunks, k, v] and what the chunk adds, corrected by it [m, chunks, size, v].
    """
    states = made.new_zeros((*keys.shape[:2], keys.shape[3], made.shape[3]))
    corrected = torch.empty_like(made)
    with torch.autocast(made.device.type, enabled=False):
        state = states[:, 0]
        for n in range(made.shape[1]):
            torch.baddbmm(made[:, n], read[:, n], state, alpha=-1, out=corrected[:, n])
            if n + 1 < made.shape[1]:
                decayed = state * decay[:, n, None, None]
                state = torch.baddbmm(decayed, keys[:, n].mT, corrected[:, n], out=states[:, n + 1])
    return states, corrected


@chunk_states.register_fake
def _(made: Tensor, read: Tensor, keys: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    return made.new_empty((*keys.shape[:2], keys.shape[3], made.shape[3])), made.new_empty(made.shape)


@torch.library.custom_op(
    "fulgur_train::chunk_states_back",
    mutates_args=(),
    schema="(Tensor states, Tensor corrected, Tensor read, Tensor keys, Tensor decay, Tensor g_states, "
    "Tensor g_corrected) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _chunk_states_back(
    states: Tensor, corrected: Tensor, read: Tensor, keys: Tensor, decay: Tensor, g_states: Tensor, g_corrected: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g_made = torch.empty_like(corrected)
    after = torch.zeros_like(states)  # the gradient of the state after each chunk
    with torch.autocast(states.device.type, enabled=False):
        for n in reversed(range(states.shape[1])):
            torch.baddbmm(g_corrected[:, n], keys[:, n], after[:, n], out=g_made[:, n])
            if n:
                direct = torch.addcmul(g_states[:, n], after[:, n], decay[:, n, None, None])
                torch.baddbmm(direct, read[:, n].mT, g_made[:, n], alpha=-1, out=after[:, n - 1])
        g_read = torch.matmul(g_made, states.mT).neg_()
        g_keys = torch.matmul(corrected, after.mT)
        g_decay = (after * states).sum((2, 3))
    return g_made, g_read, g_keys, g_decay


@_chunk_states_back.register_fake
def _(
    states: Tensor, corrected: Tensor, read: Tensor, keys: Tensor, decay: Tensor, g_states: Tensor, g_corrected: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made, other, more, last = (x.new_empty(x.shape) for x in (corrected, read, keys, decay))
    return made, other, more, last


def _save_states(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[1:])


def _states_back(ctx: Any, g_states: Tensor, g_corrected: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        _chunk_states_back(*ctx.saved_tensors, g_states.float().contiguous(), g_corrected.float().contiguous())
    )


torch.library.register_autograd("fulgur_train::chunk_states", _states_back, setup_context=_save_states)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Compute what every token reads, [batch, heads, tokens, v_dim].

    q and k [batch, k_heads, tokens, k_dim] have length 1 (q divided by the root of k_dim), v is [batch, heads, tokens,
    v_dim]; `decay` (logarithms) and beta are [batch, heads, tokens] in fp32. Each key head serves neighbouring value
    heads.
    """
    batch, heads, tokens, _ = v.shape
    padding = -tokens % CHUNK
    if padding:  # padding tokens after the end, which nothing reads
        q, k, v = (functional.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        decay, beta = (functional.pad(x, (0, padding)) for x in (decay, beta))
    group = heads // k.shape[1]
    q, k, v, decay, beta = (x.unflatten(2, (-1, CHUNK)) for x in (q, k, v, decay, beta))
    total = decay.cumsum(-1)
    below = torch.ones((CHUNK, CHUNK), dtype=torch.bool, device=v.device).tril()
    # Mask before the exponential, which could overflow above the diagonal.
    ratio = (total[..., :, None] - total[..., None, :]).masked_fill(~below, float("-inf")).exp()
    alike = (k @ k.mT).repeat_interleave(group, 1)
    seen = (q @ k.mT).repeat_interleave(group, 1)
    q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
    system = (beta[..., None] * alike.float() * ratio).tril(-1)
    inverse = unit_inverse(system.flatten(0, 2).contiguous()).unflatten(0, system.shape[:3])
    made = (inverse * beta[..., None, :]) @ v
    read = (inverse * (beta * total.exp())[..., None, :]) @ k
    keys = k * (total[..., -1:] - total).exp()[..., None]
    whole = (x.flatten(0, 1).float() for x in (made, read, keys, total[..., -1].exp()))
    states, corrected = (x.unflatten(0, (batch, heads)) for x in chunk_states(*(x.contiguous() for x in whole)))
    out = (q * total.exp()[..., None]) @ states + (seen * ratio) @ corrected
    return out.flatten(2, 3)[:, :, :tokens]
