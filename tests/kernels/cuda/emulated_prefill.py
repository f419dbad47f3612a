"""The kernels of prefill on the CPU: stands in for `prefill_kernels.Kernels`."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from pathlib import Path

import pytest
from emulate import COMPILER, HERE

from fulgur.kernels.cuda import prefill_kernels
from fulgur.kernels.cuda.build import sources
from fulgur.kernels.cuda.plan import Plan


def build(plan: Plan, folder: Path) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("no C++ compiler (g++ or clang++) to build the emulated CUDA sources with")
    made = prefill_kernels.modules(plan).values()
    texts = {**sources("prefill"), **sources("wide"), "instances.h": "".join(text for _, text in made)}
    texts["prefill.cu"] = texts["prefill.cu"].replace('#include "instances.h"', "")  # once, after both
    texts |= {path.name: path.read_text(encoding="utf-8") for path in HERE.iterdir()}
    library = folder / f"prefill-{hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as build_folder:
            for file, text in texts.items():
                (Path(build_folder) / file).write_text(text, encoding="utf-8")
            command = [COMPILER, "-O1", "-w", "-U_FORTIFY_SOURCE", "-std=c++17", "-shared", "-fPIC", "run_prefill.cpp"]
            done = subprocess.run([*command, "-o", str(library)], cwd=build_folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


class EmulatedKernels(prefill_kernels.Kernels):
    def __init__(self, plan: Plan, folder: Path, ctas: int = 3) -> None:
        self._library, self.ctas, self._seed = build(plan, folder), ctas, 0
        found = [self._library.size_of(i) for i in range(len(prefill_kernels.STRUCTURES))]
        assert found == [ctypes.sizeof(kind) for kind in prefill_kernels.STRUCTURES]
        self.launched: list[str] = []

    def run(self, launch: prefill_kernels.Launch) -> None:
        self._seed += 1
        self.launched.append(launch.name)
        function = ctypes.cast(getattr(self._library, launch.name), ctypes.c_void_p)
        of = ctypes.byref(launch.arguments)
        hung = self._library.emulate_one(function, of, launch.ctas, launch.threads, launch.shared, self._seed)
        assert hung == 0, f"{launch.name}: {hung} threads hang (or, if negative, shared memory was overrun)"
