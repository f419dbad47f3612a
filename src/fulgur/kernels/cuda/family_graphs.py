"""The CUDA graphs of the general driver, captured at their first use.

hidden   a step over the rows, without the output head
logits   the same with it
see      the drafting head: what it stores for its rows
guess    the same, and what it expects after them
"""

from __future__ import annotations

from typing import Any

from fulgur.kernels.cuda.family_kernels import FamilyKernels
from fulgur.kernels.cuda.family_step import FamilyStep
from fulgur.kernels.cuda.prefill_kernels import Launch


class FamilyGraphs:
    def __init__(self, kernels: FamilyKernels, step: FamilyStep, stream: Any) -> None:
        self._kernels, self._step, self.stream = kernels, step, stream
        self._captured: dict[tuple[str, int], Any] = {}

    def warm(self) -> None:
        """Load every kernel, which a capture cannot do: each once, with the most shared memory that it will need. The
        step has no rows yet, so they return at once."""
        names = ("logits", "guess") if self._step.config.draft_vocab else ("logits",)
        largest: dict[str, Launch] = {}
        for launch in (launch for name in names for launch in self._launches(name, self._step.plan.rows)):
            if launch.name not in largest or largest[launch.name].shared < launch.shared:
                largest[launch.name] = launch
        for launch in largest.values():
            self._kernels.run(launch)
        self.stream.synchronize()

    def replay(self, name: str, rows: int) -> None:
        """Queue a graph."""
        import torch

        rows = 1 if rows == 1 else self._step.plan.rows
        if (name, rows) not in self._captured:
            self._captured[name, rows] = self.captured(self._launches(name, rows))
        with torch.cuda.stream(self.stream):
            self._captured[name, rows].replay()

    def captured(self, launches: list[Launch]) -> Any:
        """A graph of launches, each of which waits for the one before it."""
        import torch

        graph = torch.cuda.CUDAGraph()
        self.stream.synchronize()
        with torch.cuda.graph(graph, stream=self.stream):
            for launch in launches:
                self._kernels.run(launch)
        return graph

    def close(self) -> None:
        self._captured.clear()
        self._kernels.close()

    def _launches(self, name: str, rows: int) -> list[Launch]:
        if name in ("see", "guess"):
            return self._step.draft_launches(name == "guess", rows)
        launches = self._step.launches(rows)
        return launches if name == "logits" else launches[:-1]
