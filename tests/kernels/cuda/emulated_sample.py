"""The kernels that choose tokens on the CPU: stands in for the `Module` of `sampling.py`."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from emulate import compiled, emulator

from fulgur.kernels.cuda import sampling
from fulgur.kernels.cuda.build import sources


def build(folder: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(compiled("sample", {**sources("sample"), **emulator()}, "run_sample.cpp", folder)))


class SampleModule:
    """`submit` runs a launch now, or in the order of an emulated stream."""

    folder: Path
    seed = 0
    submit: Any = staticmethod(lambda launch: launch())

    def __init__(self, _cubin: Any) -> None:
        self.library = build(self.folder)
        found = [self.library.size_of(i) for i in range(4)]
        assert found[:3] == [ctypes.sizeof(sampling.SampleRow), ctypes.sizeof(sampling.Sample), 32]
        assert found[3] <= sampling.ROOM

    def launch(self, name: str, args: Any, *, ctas: int, threads: int, shared: int, **_: Any) -> None:
        args = type(args).from_buffer_copy(args)

        def now() -> None:
            SampleModule.seed += 1
            function = ctypes.cast(getattr(self.library, name), ctypes.c_void_p)
            hung = self.library.emulate_sample(function, ctypes.byref(args), ctas, threads, shared, SampleModule.seed)
            assert hung == 0, f"{name}: {hung} threads hang (or, if negative, shared memory was overrun)"

        type(self).submit(now)

    def close(self) -> None: ...


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, submit: Any) -> None:
    SampleModule.folder = folder
    monkeypatch.setattr(SampleModule, "submit", staticmethod(submit))
    monkeypatch.setattr(sampling, "Module", SampleModule)
    monkeypatch.setattr(sampling, "cubin_of", lambda *_: b"")
