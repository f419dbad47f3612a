"""The kernels of prefill on the CPU: stands in for `prefill_kernels.Kernels`."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import emulated_gpu
from emulate import compiled, emulator

from fulgur.kernels.cuda import family_prefill_fast, prefill_kernels
from fulgur.kernels.cuda.build import sources
from fulgur.kernels.cuda.family_plan import FamilyPlan
from fulgur.kernels.cuda.plan import Plan


def build(modules: dict[str, tuple[str, str]], folder: Path) -> ctypes.CDLL:
    """All sources of prefill in one library."""
    texts = {"instances.h": "".join(text for _, text in modules.values())}
    for stem in ("prefill", "batch", "wide", "delta_prefill", "prompt"):
        texts |= sources(stem)
    texts["prefill.cu"] = texts["prefill.cu"].replace('#include "instances.h"', "")  # once, after both
    return ctypes.CDLL(str(compiled("prefill", {**texts, **emulator()}, "run_prefill.cpp", folder)))


class EmulatedKernels(prefill_kernels.Kernels):
    def __init__(self, plan: Plan | FamilyPlan, folder: Path, ctas: int = 3) -> None:
        made = prefill_kernels.modules(plan) if isinstance(plan, Plan) else family_prefill_fast.modules(plan)
        self._library, self.ctas, self._seed = build(made, folder), ctas, 0
        sizes = [ctypes.sizeof(kind) for kind in (*prefill_kernels.STRUCTURES, *family_prefill_fast.STRUCTURES)]
        sizes += [family_prefill_fast.SOLVE_BYTES, family_prefill_fast.SCAN_BYTES]
        assert [self._library.size_of(i) for i in range(len(sizes))] == sizes
        self.launched: list[str] = []

    def run(self, launch: prefill_kernels.Launch) -> None:
        self._now(launch, launch.arguments)

    def run_dependent(self, launch: prefill_kernels.Launch) -> None:
        """Into the graph that is being captured."""
        arguments = type(launch.arguments).from_buffer_copy(launch.arguments)
        graph = emulated_gpu.Graph.capturing
        assert graph is not None
        graph.launches.append(lambda: self._now(launch, arguments))

    def close(self) -> None: ...

    def _now(self, launch: prefill_kernels.Launch, arguments: Any) -> None:
        self._seed += 1
        self.launched.append(launch.name)
        function = ctypes.cast(getattr(self._library, launch.name), ctypes.c_void_p)
        of = ctypes.byref(arguments)
        hung = self._library.emulate_one(function, of, launch.ctas, launch.threads, launch.shared, self._seed)
        assert hung == 0, f"{launch.name}: {hung} threads hang (or, if negative, shared memory was overrun)"
