"""Attention of a chunk of a prompt: gathers keys and values from the cache's blocks, then runs the fastest library
kernel.

Rows attend to all earlier keys and to those of their chunk up to their own. FlashAttention aligns its causal mask to
the last key, which is just that. cuDNN is nearly twice as fast but aligns the mask to the first key; so the chunk's own
keys and the earlier ones are attended to separately, and the results are merged. But cuDNN makes a new plan for every
shape it meets (50 ms), so it gets only long chunks, padded to one of two lengths, that begin at a multiple of the
longer one. A row never sees the padding.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fulgur.kernels.cuda.formats import BLOCK
from fulgur.kernels.cuda.prefill_kernels import Attended, Gather, Kernels, Launch, fill
from fulgur.model.config import ModelConfig

if TYPE_CHECKING:
    import torch

LENGTHS = (4096, 8192)  # of chunks for cuDNN; a chunk of more than three quarters of one is padded to it


class Attention:
    def __init__(self, config: ModelConfig, kernels: Kernels, device: Any) -> None:
        self.config, self._kernels, self._device = config, kernels, device

    @cached_property
    def _cudnn_works(self) -> bool:
        """Whether cuDNN works here: not with every head size and version."""
        import torch

        c, kind = self.config, {"dtype": torch.bfloat16, "device": self._device}
        q, k = (torch.zeros((1, heads, 128, c.head_dim), **kind) for heads in (c.n_heads, c.n_kv_heads))
        try:
            self.cudnn(q, k, k, causal=True)
        except (RuntimeError, TypeError) as error:
            logging.getLogger(__name__).info("attention without cuDNN: %s", str(error).splitlines()[0])
            return False
        return True

    def padded(self, n: int, position: int) -> int:
        """Rows of queries that `run` takes for a chunk of `n`."""
        fit = [length for length in LENGTHS if 0.75 * length < n <= length]
        return fit[0] if fit and position % LENGTHS[-1] == 0 and self._cudnn_works else n

    def run(
        self, q: torch.Tensor, cache: dict[str, Any], table: torch.Tensor, n: int, position: int, ordered: bool
    ) -> torch.Tensor:
        """The attention output, as the operand of the output projection. `q` [padded rows, heads, dims]; `cache` of the
        layer; `ordered`: with its columns in the order that packed products read."""
        import torch

        c, rows = self.config, len(q)
        kind = {"dtype": torch.bfloat16, "device": q.device}
        both, out = self._made(rows, n, position, kind)
        length = position + n
        gather = fill(
            Gather, table=table, to_keys=both[0], to_values=both[1], n=length, kv_heads=c.n_kv_heads,
            head_dim=c.head_dim, **cache,
        )  # fmt: skip
        self._kernels.run(Launch("gather_cache", gather, min(-(-length * c.kv_rows // 2048), 4096)))
        queries, keys, values = (t.transpose(0, 1)[None] for t in (q, both[0], both[1]))
        parts: dict[str, Any] = {}
        if rows not in LENGTHS or position % LENGTHS[-1] or not self._cudnn_works:
            own = self.flash(queries, keys, values)
        else:
            own, lse = self.cudnn(queries, keys[:, :, position:], values[:, :, position:], causal=True)
            if position:
                before, before_lse = self.cudnn(queries, keys[:, :, :position], values[:, :, :position], causal=False)
                parts = {"earlier": before, "own_lse": lse, "earlier_lse": before_lse, "lse_head": rows}
                parts |= {"earlier_row": before.stride(2), "earlier_head": before.stride(1)}
        launch = self._kernels.rows(
            "attended_rows", Attended, n, own=own, out=out, width=c.q_rows, stride=out.shape[1], head_dim=c.head_dim,
            ordered=int(ordered), own_row=own.stride(2), own_head=own.stride(1), **parts,
        )  # fmt: skip
        self._kernels.run(launch)
        return out

    def _made(self, rows: int, n: int, position: int, kind: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for keys and values, whose padding must be finite, and for the result."""
        import torch

        c = self.config
        make = torch.empty if rows == n else torch.zeros
        both = make((2, position + rows, c.n_kv_heads, c.head_dim), **kind)
        return both, torch.empty((n, -(-c.q_rows // BLOCK) * BLOCK), **kind)

    def warm(self, rows: int, context: int) -> None:
        """Make cuDNN's plans for the shapes of prompts up to `context` tokens, in chunks of `rows`."""
        import torch

        c, kind = self.config, {"dtype": torch.bfloat16, "device": self._device}
        for length in (length for length in LENGTHS if length <= min(rows, context) and self._cudnn_works):
            q = torch.zeros((length, c.n_heads, c.head_dim), **kind).transpose(0, 1)[None]
            k = torch.zeros((context, c.n_kv_heads, c.head_dim), **kind).transpose(0, 1)[None]  # strides as in `run`
            self.cudnn(q, k[:, :, :length], k[:, :, :length], causal=True)
            for position in range(LENGTHS[-1], context - length + 1, LENGTHS[-1]):
                self.cudnn(q, k[:, :, :position], k[:, :, :position], causal=False)

    @staticmethod
    def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        import torch

        attended: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[0]
        return attended

    @staticmethod
    def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The attention output, and the logarithm of the sum of exponentials of every row."""
        import torch

        attend = torch.ops.aten._scaled_dot_product_cudnn_attention
        attended, lse, *_ = attend(q, k, v, None, True, 0.0, causal, False)
        return attended, lse
