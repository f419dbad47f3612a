"""Steps over a few rows of several sequences: the general driver over the weights of the decode kernels.

These lie between the decode kernels, where every row reads its own experts, and the kernels for many rows
(`batch_step.py`), whose tiles hold up to 32 rows of an expert. All of them read the same packed blocks, so nothing is
stored twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.batch_step import Int, StepInput
from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.family_kernels import FamilyKernels
from fulgur.kernels.cuda.family_plan import FamilyPlan, Weights, make_family_plan
from fulgur.kernels.cuda.family_step import FamilyStep
from fulgur.kernels.cuda.family_weights import FamilyWeights
from fulgur.kernels.cuda.header import norm_stride
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.plan import Plan
from fulgur.kernels.cuda.prefill_kernels import Launch
from fulgur.kernels.cuda.weights import GpuWeights

BUCKETS = (2, 4, 8)  # numbers of rows that have a graph
ONES = "ones"  # the norm's weight if it is already part of the matrix


def plan_over(plan: Plan, shared: int) -> FamilyPlan | None:
    """The general driver's plan of the same weights, in place; None if its kernels cannot run this model."""
    c, stride = plan.config, norm_stride(plan)
    try:
        made = make_family_plan(
            c, Weights.named(plan.matrices["qkv"].format.name, head=plan.matrices["head"].format.name),
            ctas=plan.ctas, shared=shared,
        )  # fmt: skip
    except FulgurError:
        return None
    for name, matrix in made.matrices.items():
        layer, _, short = name.rpartition(".")
        held = plan.matrices[short]
        assert (held.tiles, held.copy_blocks, held.copies) == (matrix.tiles, matrix.copy_blocks, matrix.copies)
        at = held.offset + (int(layer.rpartition(".")[2]) * plan.layer_stride if layer else 0)
        made.matrices[name] = replace(matrix, offset=at)
    q_norm = 2 * c.d_model
    places = {"attn_norm": 0, "ffn_norm": c.d_model, "q_norm": q_norm, "k_norm": q_norm + c.head_dim,
              "qkv_bias": q_norm + 2 * c.head_dim}  # fmt: skip
    for name, (_, size) in made.vectors.items():
        layer, _, short = name.rpartition(".")
        at = int(layer.rpartition(".")[2]) * stride + places[short] if layer else c.n_layers * stride
        made.vectors[name] = at, size
    made.arena_bytes = plan.arena_bytes
    return made


class _Step(FamilyStep):
    """The usual step, except for the router: its matrix contains the norm's weight (`plan.make_plan`)."""

    def __init__(self, weights: FamilyWeights, given: StepInput, kv: KvCache, rope: Any) -> None:
        import torch

        self._ones = torch.ones(weights.plan.config.d_model, dtype=torch.float32, device=weights.arena.device)
        super().__init__(weights, given.rows, given.tables, kv, rope, None, None, None, None)

    def _vector(self, name: str) -> int | None:
        return int(self._ones.data_ptr()) if name == ONES else super()._vector(name)

    def normed(self, name: str, outcome: str, norm: str, **values: Any) -> Launch:
        return super().normed(name, outcome, ONES if name.endswith(".router") else norm, **values)


class FewStep:
    """Steps of at most `most` rows."""

    def __init__(
        self, plan: FamilyPlan, weights: GpuWeights, given: StepInput, kv: KvCache, rope: Any, kernels: FamilyKernels,
        stream: Any,
    ) -> None:  # fmt: skip
        held = FamilyWeights(plan, weights.arena, weights.norms, weights.embed)
        self.most, self._given, self._kernels, self._stream = plan.rows, given, kernels, stream
        self._step = _Step(held, given, kv, rope)
        self.logits = self._step.buffers["logits"]
        self._graphs: dict[int, Any] = {}

    def run(self, tokens: Int, positions: Int, sequences: Int, tables: Int) -> None:
        """Queue the step; `logits` has a row for each. `sequences` index `tables`."""
        self._given.upload(tokens, positions, sequences, tables)
        self.again(len(tokens))

    def again(self, rows: int) -> None:
        """Queue a step over the rows that are on the device."""
        import torch

        bucket = next(size for size in self._graphs if rows <= size)
        with torch.cuda.stream(self._stream):
            self._graphs[bucket].replay()

    def warm(self) -> None:
        """Load every kernel, with the most shared memory that it will need, then capture. There are no rows yet, so the
        kernels return at once."""
        import torch

        largest: dict[str, Launch] = {}
        for launch in self._step.launches(self.most):
            if launch.name not in largest or largest[launch.name].shared < launch.shared:
                largest[launch.name] = launch
        for launch in largest.values():
            self._kernels.run(launch)
        for bucket in (size for size in BUCKETS if size <= self.most):
            graph = torch.cuda.CUDAGraph()
            self._stream.synchronize()
            with torch.cuda.graph(graph, stream=self._stream):
                for launch in self._step.launches(bucket):
                    self._kernels.run(launch)
            self._graphs[bucket] = graph

    def close(self) -> None:
        self._graphs.clear()
        self._kernels.close()


def few_step(weights: GpuWeights, given: StepInput, kv: KvCache, rope: Any, gpu: Gpu, stream: Any) -> FewStep | None:
    """None if the general driver cannot run the model, or only one row at a time."""
    plan = plan_over(weights.plan, gpu.shared)
    if plan is None or plan.rows < BUCKETS[0]:
        return None
    return FewStep(plan, weights, given, kv, rope, FamilyKernels(plan, gpu, stream), stream)
