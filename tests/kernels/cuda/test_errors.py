"""What is missing or too small, found where it shows: the driver's library, PyTorch, the bindings, NVRTC, memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import emulated_gpu
import fake_cuda
import gpu_check as check
import numpy as np
import pytest
import torch
from small_models import SMALL

from fulgur.errors import FulgurError
from fulgur.kernels.cuda import device, runtime, weights
from fulgur.kernels.cuda.open import kv_blocks, usable
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.shapes import SHAPES


def working(monkeypatch: pytest.MonkeyPatch, folder: Path, **driver: int) -> None:
    """A driver, and a PyTorch that says it can use it."""
    monkeypatch.setattr(device, "LIBRARY", fake_cuda.build(folder, **driver))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    pytest.importorskip("cuda.bindings")
    working(monkeypatch, folder, count=2)
    gpus = device.survey()
    assert len(gpus) == 2 and gpus[0] == gpus[1] == usable(1)
    gpu = gpus[0]
    assert (gpu.name, gpu.capability, gpu.driver, gpu.cooperative) == ("Fake H200", (9, 0), (13, 1), True)
    assert gpu.memory == 141 << 30 and gpu.shared == 227 << 10 and abs(gpu.bandwidth / 4.917e12 - 1) < 1e-3


def test_no_driver_and_a_broken_one(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(device, "LIBRARY", "libcuda-that-is-not-there.so.1")
    with pytest.raises(FulgurError, match="no NVIDIA driver"):
        usable()
    for options, message in (
        ({"init": 100}, "shows no GPU"),
        ({"init": 803}, "cuInit returned error 803"),
        ({"count": 0}, "shows no GPU"),
    ):
        working(monkeypatch, folder, **options)
        with pytest.raises(FulgurError, match=message) as caught:
            usable()
        assert caught.value.hint


def test_pytorch_that_cannot(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    working(monkeypatch, folder)
    with pytest.raises(FulgurError, match="GPU 3 does not exist; 1 found"):
        usable(3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FulgurError, match=r"CUDA 13.0\) cannot use this driver \(CUDA 13.1\)"):
        usable()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(FulgurError, match="built without CUDA"):
        usable()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(FulgurError, match="needs PyTorch"):
        usable()


def test_an_old_gpu_no_bindings_no_nvrtc(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    working(monkeypatch, folder, major=7)
    with pytest.raises(FulgurError, match=r"compute capability 7\.0; 8\.0 or newer"):
        usable()
    working(monkeypatch, folder)
    bindings = pytest.importorskip("cuda.bindings")
    from cuda.bindings import nvrtc

    def missing() -> Any:
        raise RuntimeError("Failed to dlopen libnvrtc.so.13")  # as the bindings do

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    with pytest.raises(FulgurError, match=r"needs NVRTC .* libnvrtc.so.13") as caught:
        usable()
    assert ".[gpu]" in str(caught.value.hint)
    monkeypatch.delattr(bindings, "driver", raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(FulgurError, match="needs cuda-bindings"):
        usable()


def out_of_memory(monkeypatch: pytest.MonkeyPatch, name: str, at_least: int) -> None:
    """torch's own error for a tensor of that many elements, as the allocator raises it."""
    real = getattr(torch, name)

    def allocate(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        if made.numel() >= at_least:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 60.00 GiB.")
        return made

    monkeypatch.setattr(torch, name, allocate)


def test_too_little_memory_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(SMALL["qwen2"], weights="int4", ctas=2)
    tensors = check.shared_tensors(SMALL["qwen2"], "int4", "cpu", 3)
    out_of_memory(monkeypatch, "cat", 1000)  # while a tensor is packed
    with pytest.raises(FulgurError, match="GB of GPU memory, more than is free"):
        weights.assemble(plan, lambda name: (tensors[name], None), "cpu")
    out_of_memory(monkeypatch, "empty", 100_000)
    with pytest.raises(FulgurError, match="GB of GPU memory, more than is free") as caught:
        weights.empty(plan, "cpu")
    assert "bits" in str(caught.value.hint)


def test_too_little_memory_for_the_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_gpu.install(monkeypatch, folder)
    out_of_memory(monkeypatch, "zeros", 2 * 2 * check.KV_BLOCKS * 2 * 64 * 32)
    with pytest.raises(FulgurError, match="KV cache of 2,560 tokens needs") as caught:
        check.small_runtime("qwen2", "int4", "persistent", "cpu")
    assert "kv_tokens" in str(caught.value.hint)


def test_prefill_that_runs_out_of_memory_takes_fewer_rows(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_gpu.install(monkeypatch, folder)
    monkeypatch.setattr(runtime, "PREFILL_FROM", 16)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    model, _ = check.small_runtime("qwen2", "int4", "persistent", "cpu")
    real, sizes, most = model._prompts.prefill.parts, [], 0

    def parts(tokens: Any, position: int, table: Any) -> Any:
        sizes.append(len(tokens))
        if len(tokens) > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return real(tokens, position, table)

    monkeypatch.setattr(model._prompts.prefill, "parts", parts)
    tokens = np.arange(1, 36, dtype=np.int32)
    answers = []
    for limit in (100, 20, 2):  # all at once; half of it, the rest by the kernels; everything by the kernels
        most = limit
        logits = np.zeros((1, model.vocab_size), np.float32)
        last, at = np.array([34], np.int32), np.arange(35, dtype=np.int32)
        model.step(tokens, at, np.zeros(35, np.int32), check.table(), last, logits)
        answers.append(logits[0])
    assert sizes == [34, 34, 17, 34, 17]
    for answer in answers[1:]:
        assert np.linalg.norm(answer - answers[0]) < 0.05 * np.linalg.norm(answers[0])
    model.close()


def test_the_cache_is_what_the_gpu_has_room_for() -> None:
    plan = make_plan(SHAPES["qwen3-coder-30b-a3b"], weights="fp8")
    per_token = 2 * 2 * 48 * 4 * 128
    assert kv_blocks(plan, None, "bf16", 110 << 30) == 2 * 262144 // 64  # two contexts
    tight = kv_blocks(plan, None, "bf16", 20 << 30) * 64
    assert 0.5 * (20 << 30) < tight * per_token < 0.9 * (20 << 30)
    assert kv_blocks(plan, 100_000, "bf16", 20 << 30) == -(-100_000 // 64)
    for tokens, free in ((None, 3 << 30), (300_000, 20 << 30)):
        with pytest.raises(FulgurError, match="are free, enough for"):
            kv_blocks(plan, tokens, "bf16", free)
    with pytest.raises(FulgurError, match="too small"):
        kv_blocks(plan, 10, "bf16", 110 << 30)
