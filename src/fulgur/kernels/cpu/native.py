"""The C++ runtime: the same interface as `reference.Runtime`, at the memory limit of the machine."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.cpu import _native
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.family import DELTA, SLIDING
from fulgur.model.rope import rope_tables
from fulgur.model.weights import Weights

Int = npt.NDArray[np.int32]
Float = npt.NDArray[np.float32]

MAX_ROWS = 256
SLOTS = 32  # sequences that may run at once if layers have a state; a slot takes memory only once it is used


def isas() -> list[str]:
    """Instruction sets with kernels that this CPU runs, best first."""
    return list(_native.isas())


def default_threads() -> int:
    """The number of cores this process may run on, at most eight: a small model gains nothing from more."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)


class NativeStates:
    """The recurrent states of the running sequences, and snapshots of them."""

    def __init__(self, runtime: _native.NativeRuntime, slots: int, snapshots: int) -> None:
        self._native, self.slots, self.snapshots = runtime, slots, snapshots

    @property
    def snapshot_bytes(self) -> int:
        return int(self._native.snapshot_bytes)

    def save(self, slot: int, position: int, snapshot: int) -> None:
        """Keep the state that sequence `slot` has after `position` tokens, one of the last steps' positions."""
        self._native.save_state(slot, position, snapshot)

    def restore(self, snapshot: int, slot: int) -> None:
        self._native.restore_state(snapshot, slot)

    def copy(self, source: int, target: int) -> None:
        """Copy the state of sequence `source` to sequence `target`."""
        self._native.copy_state(source, target)


def _dims(config: ModelConfig, context: int, kv_bits: int) -> dict[str, object]:
    delta, scaling = config.delta or DeltaShape(0, 0, 0, 0, 0), config.query_scaling or (0.0, 1)
    return {
        "vocab": config.vocab_size,
        "d_model": config.d_model,
        "layers": config.n_layers,
        "heads": config.n_heads,
        "kv_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "d_ffn": config.dense_width,
        "context": context,
        "max_rows": MAX_ROWS,
        "eps": config.norm_eps,
        "rotary": config.rotated,
        "gated": int(config.traits.gated),
        "query_beta": scaling[0],
        "query_context": scaling[1],
        "windows": [config.window if kind == SLIDING else 0 for kind in config.kinds],
        "experts": config.n_experts,
        "chosen": config.experts_per_token,
        "d_expert": config.d_expert,
        "softmax_all": int(not (config.norm_topk or config.traits.router_after)),
        "limit": config.swiglu_limit,
        "alpha": config.swiglu_alpha,
        "k_heads": delta.k_heads,
        "v_heads": delta.v_heads,
        "k_dim": delta.k_dim,
        "v_dim": delta.v_dim,
        "taps": delta.taps,
        "slots": SLOTS,
        "draft_vocab": config.draft_vocab,
        "kv_bits": kv_bits,
    }


class Runtime:
    """One quantised model and its KV cache on a few persistent threads.

    Dense weights are copied once onto huge pages in the order a step reads them. Experts, and matrices in pairs of
    tiles, are read where they are, by default in the memory map of their file. A row's result is bit-identical whatever
    else is in the step.
    """

    block_tokens: int = _native.BLOCK_TOKENS
    max_rows: int = MAX_ROWS
    prefill_rows: int = 256
    streaming: None = None
    prefilling: None = None

    def __init__(
        self,
        weights: Weights,
        *,
        kv_blocks: int,
        threads: int | None = None,
        isa: str | None = None,
        snapshots: int = 8,
        kv_bits: int = 16,
    ) -> None:
        """`snapshots`: states of recurrent layers that can be kept for prefixes, besides those of running sequences.
        `kv_bits`: of a key or value in the cache, 16 (bf16) or 8."""
        config = weights.config
        self.kv_blocks = kv_blocks
        self.vocab_size = config.vocab_size
        self.max_context = min(config.max_context, kv_blocks * self.block_tokens)
        cos, sin = rope_tables(config, self.max_context)
        matrices = {name: (m.data, m.bits, m.group, m.rows, m.cols, m.paired) for name, m in weights.matrices.items()}
        experts = {name: (m.data, m.bits, m.group, m.rows, m.cols) for name, m in weights.experts.items()}
        # The kernels compute the softmax in base 2.
        sinks = {name: v * np.float32(np.log2(np.e)) for name, v in weights.vectors.items() if name.endswith(".sinks")}
        embed = None if weights.embed is None else weights.embed.view(np.uint16)
        try:
            self._native = _native.NativeRuntime(
                _dims(config, self.max_context, kv_bits),
                matrices,
                {**weights.vectors, **sinks},
                weights.plain,
                experts,
                embed,
                cos,
                sin,
                kv_blocks,
                threads or default_threads(),
                snapshots if DELTA in config.kinds else 0,
                isa or "",
            )
        except ValueError as error:
            raise FulgurError(
                f"the CPU kernels cannot run this model: {error}", hint="`fulgur doctor` lists them."
            ) from None
        self.isa: str = self._native.isa
        self.threads: int = self._native.threads
        recurrent = DELTA in config.kinds
        self._states = NativeStates(self._native, SLOTS, snapshots) if recurrent else None
        self._drafts = config.draft_vocab > 0
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

    @property
    def states(self) -> NativeStates | None:
        """The recurrent states, if the model has layers with one."""
        return self._states

    @property
    def drafting(self) -> Runtime | None:
        """This runtime if the model has a head that drafts, else None."""
        return self if self._drafts else None

    def draft(self, token: int, position: int, sequence: int, tables: Int, length: int) -> list[int]:
        """See `engine.runtime.DraftingRuntime`."""
        out = np.empty(length, np.int32)
        count = self._native.draft(token, position, sequence, tables, out)
        return out[:count].tolist()

    def catch_up(self, sequence: int, tables: Int) -> None:
        self._native.catch_up(sequence, tables)

    def scan(self, context: int, *, multiply: bool) -> float:
        """Seconds to read the weights as a step of one row does and the keys and values of `context` tokens; with
        `multiply`, to unpack and multiply the weights too. No step can be faster."""
        return float(self._native.scan(context, multiply))

    @property
    def weight_bytes(self) -> int:
        return int(self._native.weight_bytes)

    @property
    def kv_bytes(self) -> int:
        return int(self._native.kv_bytes)

    def close(self) -> None:
        self._native.close()
