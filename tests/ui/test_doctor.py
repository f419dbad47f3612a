"""What the doctor says of GPUs: from the driver alone, and what is missing to use one."""

from __future__ import annotations

import pytest

from fulgur.errors import FulgurError
from fulgur.kernels.cuda import device
from fulgur.kernels.cuda import open as opening
from fulgur.kernels.cuda.device import Gpu
from fulgur.ui.commands.doctor import gpu

FOUND = Gpu("Fake H200", (9, 0), 132, 141 << 30, 227 << 10, True, 60 << 20, 4.917e12, (13, 1))


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LIBRARY", "libcuda-that-is-not-there.so.1")
    ((name, text),) = gpu()
    assert name == "gpu" and "no NVIDIA driver" in text and "the CPU engine is used" in text


def test_a_gpu_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(index: int = 0) -> Gpu:
        raise FulgurError("the GPU engine needs NVRTC", hint="pip install it.")

    monkeypatch.setattr(device, "survey", lambda: [FOUND])
    monkeypatch.setattr(opening, "usable", missing)
    facts = dict(gpu())
    for part in ("Fake H200, sm_90", "132 multiprocessors", "151 GB", "4.92 TB/s", "60 MB L2", "CUDA 13.1"):
        assert part in facts["gpu 0"]
    assert facts["gpu 0 engine"] == "cannot be used: the GPU engine needs NVRTC. pip install it."


def test_a_gpu_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(device, "survey", lambda: [FOUND])
    monkeypatch.setattr(opening, "usable", lambda index=0: FOUND)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index=0: (100 << 30, 141 << 30))
    text = dict(gpu())["gpu 0 engine"]
    assert text.startswith("builds for sm_90a; persistent kernel (cooperative launch): yes; dependent launch: yes")
    assert "227 KB of shared memory" in text and "107 GB free" in text
