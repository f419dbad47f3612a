"""The two ways to run a step: one persistent launch, or a CUDA graph with one kernel per phase."""

from __future__ import annotations

from typing import Any

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.build import architecture, build
from fulgur.kernels.cuda.device import Gpu, Module
from fulgur.kernels.cuda.formats import FEEDERS, PREDICTORS, WARPS
from fulgur.kernels.cuda.header import DRIVERS, Layout, layout, predicts_experts
from fulgur.kernels.cuda.plan import Plan
from fulgur.kernels.cuda.records import Args

THREADS = 32 * WARPS
FEEDER = 32 * FEEDERS


def persistent_threads(plan: Plan, memory: Layout) -> int:
    return THREADS + FEEDER + (32 * PREDICTORS if predicts_experts(plan, memory.operand.wgmma) else 0)


class Driver:
    """Kernels of one plan. `run` enqueues `steps` decode steps (or one step of several rows) on a stream."""

    def __init__(self, name: str, plan: Plan, gpu: Gpu, args: Args, *, profile: bool = False) -> None:
        if name not in DRIVERS:
            raise FulgurError(f"unknown driver {name!r}", hint=f"Choose one of: {', '.join(DRIVERS)}.")
        self.name, self.plan, self._gpu, self._args = name, plan, gpu, args
        self.memory = layout(plan, name, gpu.shared, wgmma=gpu.wgmma)
        self._module = Module(build(plan, name, self.memory, architecture(gpu.capability), profile=profile))
        self._graphs: dict[int, Any] = {}

    def run(self, steps: int, logits: int, stream: Any) -> None:
        """`stream` is torch's; `logits` a device address or 0. The state was uploaded before, on the same stream."""
        if self.name == "persistent":
            args = self._copy(logits)
            self._module.launch(
                "decode_persistent", args, ctas=self.plan.ctas, threads=persistent_threads(self.plan, self.memory),
                shared=self.memory.total, stream=stream.cuda_stream, cooperative=True,
            )  # fmt: skip
            return
        import torch

        graph = self._graph(logits, stream)
        with torch.cuda.stream(stream):
            for _ in range(steps):
                graph.replay()

    def warm(self, stream: Any) -> None:
        """Load every kernel. The state says that the run is over, so they return at once."""
        if self.name == "persistent":
            self.run(1, 0, stream)
        else:
            self.launch_phases(0, stream.cuda_stream)

    def launch_phases(self, logits: int, stream: int) -> None:
        """Launch the kernels of one step one by one; the graph captures them."""
        for phase in self.plan.phases():
            args = self._copy(logits)
            args.layer = phase.layer
            self._module.launch(
                f"step_{phase.name}", args, ctas=1 if phase.name == "finish" else self.plan.ctas,
                threads=THREADS + (FEEDER if phase.matrix else 0),
                shared=self.memory.attention_only if phase.name == "attention" else self.memory.total, stream=stream,
                dependent=self._gpu.dependent_launch,
            )  # fmt: skip

    def _copy(self, logits: int) -> Args:
        args = Args.from_buffer_copy(self._args)
        args.logits = logits or None
        return args

    def _graph(self, logits: int, stream: Any) -> Any:
        import torch

        if logits not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                self.launch_phases(logits, torch.cuda.current_stream().cuda_stream)
            self._graphs[logits] = graph
        return self._graphs[logits]

    def close(self) -> None:
        self._graphs.clear()
        self._module.close()


def args_of(buffers: dict[str, Any], **numbers: int) -> Args:
    """The kernels' arguments from tensors by their names."""
    args = Args(**numbers)
    for name, tensor in buffers.items():
        setattr(args, name, tensor.data_ptr())
    return args
