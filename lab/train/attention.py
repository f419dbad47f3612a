"""Which attention kernel training uses: the fastest that works here, tried once with the model's own shapes.

The choice holds for the whole process. `plain` is the library's own choice, with key/value heads repeated for every
query head; the others are taken only if they compute the same and are faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fulgur.model.config import ModelConfig


@dataclass(frozen=True)
class Kernel:
    name: str
    cudnn: bool | None  # None: the library decides
    grouped: bool  # key/value heads are shared inside the kernel


PLAIN = Kernel("plain", None, False)
OTHERS = (Kernel("flash, grouped", False, True), Kernel("cudnn", True, False), Kernel("cudnn, grouped", True, True))
_ROWS, _TRIES = 16, 8
_chosen = PLAIN


def fast() -> bool:
    return _chosen is not PLAIN


def name() -> str:
    return _chosen.name


def use_plain() -> None:
    _use(PLAIN)


def _use(kernel: Kernel) -> None:
    global _chosen
    _chosen = kernel
    torch.backends.cuda.enable_flash_sdp(kernel.cudnn is not True)
    torch.backends.cuda.enable_mem_efficient_sdp(kernel.cudnn is not True)
    torch.backends.cuda.enable_cudnn_sdp(kernel.cudnn is not False)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over [batch, heads, tokens, head_dim]; k and v have fewer heads."""
    if _chosen.grouped:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _tried(config: ModelConfig, device: torch.device, dtype: torch.dtype, rows: int) -> tuple[list[Tensor], float]:
    """Return the output and gradients on fixed random values, and the seconds of forward and backward."""
    generator = torch.Generator(device).manual_seed(0)

    def values(heads: int) -> Tensor:
        shape = (rows, config.max_context, heads, config.head_dim)
        made = torch.randn(shape, device=device, generator=generator).to(dtype).transpose(1, 2)
        return made.requires_grad_()

    q, k, v = values(config.n_heads), values(config.n_kv_heads), values(config.n_kv_heads)
    began, found = 0.0, []
    for number in range(_TRIES):
        if number == 2:  # warmed up by now
            _synchronise(device)
            began = time.perf_counter()
        out = attend(q, k, v)
        found = [out.detach(), *torch.autograd.grad(out, (q, k, v), out.detach())]
    _synchronise(device)
    return found, time.perf_counter() - began


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.bfloat16, rows: int = _ROWS) -> Kernel:
    """Try all kernels; keep the fastest that agrees with the plain one."""
    _use(PLAIN)
    wanted, least = _tried(config, device, dtype, rows)
    best = PLAIN
    for kernel in OTHERS:
        _use(kernel)
        try:
            found, seconds = _tried(config, device, dtype, rows)
        except RuntimeError:
            continue
        same = all(
            float((a - b).float().norm()) <= 0.02 * float(b.float().norm()) for a, b in zip(found, wanted, strict=True)
        )
        if same and seconds < 0.97 * least:
            best, least = kernel, seconds
    _use(best)
    return best
