"""The kernels of the general driver on the CPU: stands in for `family_kernels.FamilyKernels`."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import emulated_gpu
import pytest
from emulate import compiled, emulator

from fulgur.kernels.cuda import family_kernels, family_plan, family_runtime
from fulgur.kernels.cuda.batch_step import StepRows
from fulgur.kernels.cuda.build import sources
from fulgur.kernels.cuda.family_prefill import FamilyPrefill
from fulgur.kernels.cuda.formats import FORMATS
from fulgur.kernels.cuda.prefill_kernels import Launch


def build(folder: Path) -> ctypes.CDLL:
    """All formats in one library, so that it is built once for all tests."""
    names = [name.replace("-", "_") for name in FORMATS]
    texts = {**sources("family"), **sources("gemv"), "instances.h": "".join(f"GEMV({n}, {n.upper()})\n" for n in names)}
    return ctypes.CDLL(str(compiled("family", {**texts, **emulator()}, "run_family.cpp", folder)))


class EmulatedKernels:
    def __init__(self, folder: Path) -> None:
        self._library, self.ctas, self._seed = build(folder), 1, 0
        kinds = family_kernels.STRUCTURES
        sizes = [ctypes.sizeof(kind) for kind in (*kinds, StepRows)]
        sizes += [family_kernels.ROUTING_BYTES, family_plan.ROOM, family_kernels.DELTA_BYTES]
        assert [self._library.size_of(i) for i in range(len(sizes))] == sizes

    def run(self, launch: Launch) -> None:
        arguments = type(launch.arguments).from_buffer_copy(launch.arguments)
        graph = emulated_gpu.Graph.capturing
        if graph is None:
            emulated_gpu.submit(lambda: self._now(launch, arguments))
        else:
            graph.launches.append(lambda: self._now(launch, arguments))

    def close(self) -> None: ...

    def _now(self, launch: Launch, arguments: Any) -> None:
        self._seed += 1
        function = ctypes.cast(getattr(self._library, launch.name), ctypes.c_void_p)
        of = ctypes.byref(arguments)
        hung = self._library.emulate_one(function, of, launch.ctas, launch.threads, launch.shared, self._seed)
        assert hung == 0, f"{launch.name}: {hung} threads hang (or, if negative, shared memory was overrun)"


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The emulator in place of CUDA, for `FamilyRuntime` as it is."""
    emulated_gpu.install(monkeypatch, folder)
    monkeypatch.setattr(family_runtime, "FamilyKernels", lambda *_: EmulatedKernels(folder))
    monkeypatch.setattr(family_runtime, "probe", lambda *_: emulated_gpu.GPU)
    monkeypatch.setattr(family_runtime, "prefill_for", lambda *given: FamilyPrefill(*given[:5]))
