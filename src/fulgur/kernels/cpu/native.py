"""The C++ runtime: the same interface as `reference.Runtime`, at the memory limit of the machine."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.cpu import _native
from fulgur.model.rope import rope_tables
from fulgur.model.weights import Weights

Int = npt.NDArray[np.int32]
Float = npt.NDArray[np.float32]

MAX_ROWS = 256


def isas() -> list[str]:
    """Instruction sets with kernels that this CPU runs, best first."""
    return list(_native.isas())


def default_threads() -> int:
    """The cores this process may run on; past eight a small model gains nothing."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)


class Runtime:
    """One quantised model and its KV cache on a few persistent threads.

    The weights are copied once onto huge pages in the order a step reads them. A row's result is bit-identical
    whatever else is in the step.
    """

    block_tokens: int = _native.BLOCK_TOKENS
    max_rows: int = MAX_ROWS
    prefill_rows: int = 256
    streaming: None = None
    prefilling: None = None

    def __init__(self, weights: Weights, *, kv_blocks: int, threads: int | None = None, isa: str | None = None) -> None:
        config = weights.config
        self.kv_blocks = kv_blocks
        self.vocab_size = config.vocab_size
        self.max_context = min(config.max_context, kv_blocks * self.block_tokens)
        cos, sin = rope_tables(config, self.max_context)
        dims = {
            "vocab": config.vocab_size,
            "d_model": config.d_model,
            "layers": config.n_layers,
            "heads": config.n_heads,
            "kv_heads": config.n_kv_heads,
            "head_dim": config.head_dim,
            "d_ffn": config.d_ffn,
            "context": self.max_context,
            "max_rows": MAX_ROWS,
            "eps": config.norm_eps,
        }
        matrices = {name: (m.data, m.bits, m.group, m.rows, m.cols) for name, m in weights.matrices.items()}
        embed = None if weights.embed is None else weights.embed.view(np.uint16)
        try:
            self._native = _native.NativeRuntime(
                dims, matrices, weights.vectors, embed, cos, sin, kv_blocks, threads or default_threads(), isa or ""
            )
        except ValueError as error:
            raise FulgurError(
                f"the CPU kernels cannot run this model: {error}", hint="`fulgur doctor` lists them."
            ) from None
        self.isa: str = self._native.isa
        self.threads: int = self._native.threads
        self._argmax = np.zeros(MAX_ROWS, np.int32)

    def step(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, logit_rows: Int, logits: Float | None = None
    ) -> Int:
        """See `reference.Runtime.step`. The result is a view that the next step overwrites."""
        self._native.step(tokens, positions, sequences, tables, logit_rows, self._argmax, logits)
        return self._argmax[: len(logit_rows)]

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block (a sequence that forks in the middle of a block)."""
        self._native.copy_block(source, target)

    def scan(self, context: int, *, multiply: bool) -> float:
        """Seconds to read the weights as a step of one row does, and the keys and values of `context` tokens, and
        nothing else; with `multiply` to unpack and multiply the weights too: what no step can beat."""
        return float(self._native.scan(context, multiply))

    @property
    def weight_bytes(self) -> int:
        return int(self._native.weight_bytes)

    @property
    def kv_bytes(self) -> int:
        return int(self._native.kv_bytes)

    def close(self) -> None:
        self._native.close()
