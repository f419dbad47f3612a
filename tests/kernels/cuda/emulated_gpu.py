"""The emulator in place of CUDA and host memory as the device's, for the runtime as it is.

Launches run one after another on a thread of their own while the host goes on, as on a GPU's stream: the kernels see
what the host writes to the mailbox meanwhile, and a missing wait shows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import emulate
import emulated_sample
import gpu_check as check
import pytest
import torch

from fulgur.kernels.cuda import drivers, runtime, together
from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.prefill import Prefill

GPU = Gpu("emulated", (9, 0), 2, 1 << 30, 227 << 10)


class Stream:
    """The queue of the only device."""

    cuda_stream = 0
    queue = ThreadPoolExecutor(1)
    last: Future[None] | None = None

    def synchronize(self) -> None:
        if Stream.last is not None:
            Stream.last.result()

    def record_event(self) -> Event:
        return Event(False)

    def query(self) -> bool:
        return Stream.last is None or Stream.last.done()


class Graph:
    """As torch's graphs: keeps launches while it captures and runs them on replay."""

    capturing: Graph | None = None

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def replay(self) -> None:
        for launch in self.launches:
            Stream.last = Stream.queue.submit(launch)


class Event:
    """A moment, about: everything that torch does on the CPU is done at once."""

    def __init__(self, enable_timing: bool) -> None: ...

    def record(self, stream: Stream) -> None:
        self.at = perf_counter()

    def synchronize(self) -> None:
        Stream().synchronize()

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


@contextmanager
def capture(graph: Graph, stream: Stream) -> Iterator[None]:
    Graph.capturing = graph
    yield
    Graph.capturing = None


class Module:
    folder: Path
    seed = 0
    launched: ClassVar[list[str]] = []

    def __init__(self, built: tuple[Any, str, bool]) -> None:
        plan, driver, profile = built
        self.library = emulate.build(plan, driver, self.folder, profile=profile)

    def launch(self, name: str, args: Any, *, ctas: int, threads: int, shared: int, **_: Any) -> None:
        def now() -> None:
            Module.seed += 1
            Module.launched.append(name)
            function = ctypes.cast(getattr(self.library, name), ctypes.c_void_p)
            assert self.library.emulate(function, ctypes.byref(args), ctas, threads, shared, Module.seed) == 0

        if Graph.capturing is None:
            Stream.last = Stream.queue.submit(now)
        else:
            Graph.capturing.launches.append(now)

    def close(self) -> None: ...


def submit(launch: Any) -> None:
    Stream.last = Stream.queue.submit(launch)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    Module.folder, Stream.last = folder, None
    Module.launched.clear()
    emulated_sample.install(monkeypatch, folder, submit)
    monkeypatch.setattr(drivers, "Module", Module)
    monkeypatch.setattr(drivers, "build", lambda plan, name, *_, profile=False: (plan, name, profile))
    monkeypatch.setattr(runtime, "probe", lambda *_: GPU)
    monkeypatch.setattr(runtime, "prefill_for", lambda weights, kv, rope, *_: Prefill(weights, kv, rope))
    monkeypatch.setattr(together, "few_step", lambda *_: None)
    monkeypatch.setattr(runtime, "PREFILL_FROM", 512)
    monkeypatch.setattr(check, "probe", lambda *_: GPU)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    for name, value in (
        ("Stream", Stream), ("stream", lambda _: nullcontext()), ("synchronize", Stream().synchronize),
        ("CUDAGraph", Graph), ("graph", capture), ("current_stream", Stream),
        ("mem_get_info", lambda: (1 << 34, 1 << 34)), ("Event", Event),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
