"""Where a step of the GPU's general driver spends its time: `python -m fulgur.bench.gpu_families --phases --models A`.

Each kind of launch is timed alone, in a graph of those of all layers one after another, so that weights come from
memory; then the layers of each kind, and the whole step. Alone, a launch waits for one of its own kind as it would for
its predecessor. A layer's time beyond the sum of its launches is the cost of waiting for other kinds; time below that
sum is overlap.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from fulgur.kernels.cuda.prefill_kernels import Launch
from fulgur.model.family import DELTA

if TYPE_CHECKING:
    from fulgur.kernels.cuda.family_runtime import FamilyRuntime

REPEATS = 9
ROWS = (1, 4)


def labels(runtime: FamilyRuntime, kind: str) -> list[str]:
    """The labels of a layer's launches, in order."""
    mixed = ["ba", "qkv", "delta"] if kind == DELTA else ["qkv", "rope", "attend"]
    return [*mixed, "o", *(["router"] if runtime.config.n_experts else []), "gate_up", "down"]


def phases(runtime: FamilyRuntime, bandwidth: float, position: int) -> list[str]:
    """The lines of a table; afterwards the sequence and its state are useless."""
    table = np.arange(runtime.kv_blocks, dtype=np.int32)[None]
    lines = [f"{'launch':24} {'rows':>4} {'us':>8} {'MB':>8} {'share':>6}"]
    for rows in ROWS:
        at = np.arange(position, position + rows, dtype=np.int32)
        tokens = np.random.default_rng(rows).integers(0, runtime.vocab_size, rows).astype(np.int32)
        runtime.step(tokens, at, np.zeros(rows, np.int32), table, np.arange(rows, dtype=np.int32))
        lines += _of(runtime, bandwidth, rows)
    return lines


def _of(runtime: FamilyRuntime, bandwidth: float, rows: int) -> list[str]:
    step, plan = runtime.steps, runtime.plan
    kinds = runtime.config.kinds
    whole = step.launches(rows)
    layers = [step.layer(f"layers.{i}.", kind) for i, kind in enumerate(kinds)]
    lines = []

    def line(label: str, launches: list[Launch], each: int, megabytes: float = 0.0) -> None:
        took = _seconds(runtime, launches) / each
        share = f"{megabytes * 1e6 / took / bandwidth:6.2f}" if megabytes else " " * 6
        lines.append(f"{label:24} {rows:4} {1e6 * took:8.2f} {megabytes:8.2f} {share}")

    for kind in dict.fromkeys(kinds):
        own = [i for i, of in enumerate(kinds) if of == kind]
        for place, label in enumerate(labels(runtime, kind)):
            matrix = plan.matrices.get(f"layers.{own[0]}.{label}")
            megabytes = 0.0 if matrix is None else matrix.bytes_per_row / 1e6
            line(f"{kind} {label}", [layers[i][place] for i in own], len(own), megabytes)
        megabytes = sum(
            m.bytes_per_row / 1e6 for name, m in plan.matrices.items() if name.startswith(f"layers.{own[0]}.")
        )
        line(f"{kind} layer", [launch for i in own for launch in layers[i]], len(own), megabytes)
    line("head", [whole[-1]] * 2, 2, plan.matrices["head"].bytes_per_row / 1e6)
    line("step", whole, 1, plan.weight_bytes_per_token / 1e6)
    return lines


def _seconds(runtime: FamilyRuntime, launches: list[Launch]) -> float:
    """Seconds for a graph of these launches: the median of several replays."""
    import torch

    graph, times = runtime.graphs.captured(launches), []
    stream: Any = runtime.graphs.stream
    for _ in range(REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record(stream)
            graph.replay()
            end.record(stream)
        stream.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return median(times[2:])
