"""The CUDA sources compile for every generation of GPU that is supported; cubins are cached; errors say what to do."""

from __future__ import annotations

import logging
import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from small_models import SMALL

from fulgur.bench.gpu_decode import TABLE
from fulgur.bench.gpu_families import formats_of
from fulgur.errors import FulgurError
from fulgur.kernels.cuda import build as building
from fulgur.kernels.cuda import family_prefill_fast, prefill_kernels
from fulgur.kernels.cuda.family_plan import make_family_plan
from fulgur.kernels.cuda.header import header, layout
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.shapes import FAMILY_SHAPES, SHAPES

# Between them: both drivers, every format, experts or not, and the oldest, the measured and a newer architecture.
CASES = [
    ("qwen3-coder-30b-a3b", "fp8", "persistent", "sm_90a"),
    ("llama-3.2-1b", "bf16", "graph", "sm_80"),
    ("qwen3-coder-30b-a3b", "int4", "graph", "sm_100"),
    ("qwen2.5-coder-7b", "int4-64", "persistent", "sm_120"),
    ("qwen2.5-coder-7b", "int4-64", "graph", "sm_90a"),
]


PRODUCTS = [("qwen3-coder-30b-a3b", "fp8"), ("qwen2.5-coder-7b", "int4-64"), ("llama-3.2-1b", "bf16")]
HYBRIDS = ("qwen3.6-35b-a3b", "qwen3.6-27b", "qwen3-next-80b-a3b")


def has_nvrtc() -> bool:
    try:
        building._nvrtc_version()
    except FulgurError:
        return False
    return True


def with_nvcc(texts: dict[str, str], driver: str, arch: str, folder: Path) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    target = f"-gencode=arch=compute_{arch[3:]},code={arch}"
    command = ["nvcc", "-cubin", "-std=c++17", target, "-o", "out.cubin", f"{driver}.cu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "weights"), [*PRODUCTS, ("gpt-oss-20b", "mxfp4"), ("qwen3.6-27b", "fp8")])
def test_prefill_compiles_without_spills(name: str, weights: str, tmp_path: Path) -> None:
    """The kernels between products, and the largest tile of gate and up: the one with the most registers. Steps have
    smaller tiles, whose products may still wait for each other."""
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed")
    if name in SHAPES:
        made = prefill_kernels.modules(make_plan(SHAPES[name], weights=weights, rows=1))
    else:
        made = family_prefill_fast.modules(make_family_plan(FAMILY_SHAPES[name], formats_of(name, weights)))
    largest = [key for key in made if key.startswith(("swiglu", "clamped")) and key.endswith("128")]
    largest += [key for key in made if key.startswith("step_") and key.endswith(("_16", "_64"))]
    for stem, text in (made[key] for key in ("prefill", "step", "delta", *largest) if key in made):
        for file, source in {**building.sources(stem), "instances.h": text}.items():
            (tmp_path / file).write_text(source, encoding="utf-8")
        target = ["-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-o", "out.cubin", f"{stem}.cu"]
        command = ["nvcc", "-cubin", "-std=c++17", *building.OPTIONS[1:], *target]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "C75" not in done.stderr, done.stderr  # products that wait for each other
        spilled = [int(size) for size in re.findall(r"(\d+) bytes spill stores", done.stderr)]
        assert spilled and max(spilled) <= 16, done.stderr


@pytest.mark.parametrize(("stem", "format"), [("family", ""), ("sample", ""), ("gemv", "mxfp4")])
def test_the_general_driver_compiles_without_spills(stem: str, format: str, tmp_path: Path) -> None:
    """What is between products, products in the format that takes the most registers, and the choice of tokens."""
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed")
    text = f"GEMV({format}, {format.upper()})\n" if format else ""
    for file, source in {**building.sources(stem), "instances.h": text}.items():
        (tmp_path / file).write_text(source, encoding="utf-8")
    target = "-gencode=arch=compute_90a,code=sm_90a"
    command = ["nvcc", "-cubin", "-std=c++17", *building.OPTIONS[1:], target, "-Xptxas", "-v", "-o", "out.cubin"]
    done = subprocess.run([*command, f"{stem}.cu"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spilled = [int(size) for size in re.findall(r"(\d+) bytes spill stores", done.stderr)]
    assert spilled and max(spilled) == 0, done.stderr


@pytest.mark.parametrize(("name", "weights", "driver", "arch"), CASES)
def test_sources_compile(name: str, weights: str, driver: str, arch: str, tmp_path: Path) -> None:
    plan = make_plan(SHAPES[name], weights=weights, rows=1)
    memory = layout(plan, driver, wgmma=arch == "sm_90a")
    if has_nvrtc():
        cubin = building.build(plan, driver, memory, arch, cache=tmp_path)
        assert cubin[:4] == b"\x7fELF"
        (stored,) = tmp_path.iterdir()
        stored.write_bytes(b"cached")
        assert building.build(plan, driver, memory, arch, cache=tmp_path) == b"cached"
    elif shutil.which("nvcc"):
        with_nvcc({**building.sources(driver), "constants.h": header(plan, driver, memory)}, driver, arch, tmp_path)
    else:
        pytest.skip("neither NVRTC (nvidia-cuda-nvrtc, cuda-bindings) nor nvcc is installed")


def stack_frames(cubin: bytes) -> list[int]:
    """Bytes of local memory of every function: the attribute 0x11 of the sections of type CUDA_INFO."""
    found, (table,), (size, count) = [], struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<HH", cubin, 58)
    for i in range(count):
        kind, offset, length = struct.unpack_from("<4xI16xQQ", cubin, table + i * size)
        at = offset
        while kind == 0x70000000 and at < offset + length:
            form, attribute, value = struct.unpack_from("<BBH", cubin, at)
            at += 4
            if form == 4:
                if attribute == 0x11:
                    found.append(struct.unpack_from("<4xI", cubin, at)[0])
                at += value
    return found


@pytest.mark.skipif(not has_nvrtc(), reason="NVRTC (nvidia-cuda-nvrtc, cuda-bindings) is not installed")
@pytest.mark.parametrize(
    ("name", "weights", "kv_dtype"),
    [*((n, w, kv) for n, w, _ in TABLE for kv in ("bf16", "fp8")), *((n, "fp8", "bf16") for n in HYBRIDS)],
)
def test_nothing_is_spilled_where_it_was_measured(
    name: str, weights: str, kv_dtype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A few spilled registers cost a sixth of the speed on an H200, `wgmma` that wait for each other 3%."""
    caplog.set_level(logging.INFO)
    plan = replace(make_plan({**SHAPES, **FAMILY_SHAPES}[name], weights=weights, rows=1), kv_dtype=kv_dtype)
    cubin = building.build(plan, "persistent", layout(plan, "persistent", wgmma=True), "sm_90a", cache=tmp_path)
    frames = stack_frames(cubin)
    assert frames and not any(frames)
    assert "serialized" not in caplog.text


@pytest.mark.skipif(not has_nvrtc(), reason="NVRTC (nvidia-cuda-nvrtc, cuda-bindings) is not installed")
@pytest.mark.parametrize(("name", "folder"), [("widen", Path(__file__).parent), ("bandwidth", building.SOURCES)])
def test_sources_of_checks_and_bench_compile(name: str, folder: Path) -> None:
    plan = make_plan(SMALL["llama"], weights="fp8")
    texts = {**building.sources(name, folder), "constants.h": header(plan, "persistent", layout(plan, "persistent"))}
    assert building.compile_source(f"{name}.cu", texts, "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.skipif(not has_nvrtc(), reason="NVRTC (nvidia-cuda-nvrtc, cuda-bindings) is not installed")
def test_a_compiler_error_is_shown() -> None:
    with pytest.raises(FulgurError, match=r"broken\.cu does not compile for sm_90a:\n.*identifier \"wrong\""):
        building.compile_source("broken.cu", {"broken.cu": "__global__ void k() { wrong(); }"}, "sm_90a")


def test_gpus_that_are_too_old_are_refused() -> None:
    with pytest.raises(FulgurError, match=r"compute capability 7\.5"):
        building.architecture((7, 5))
    assert [building.architecture(c) for c in ((8, 0), (8, 6), (9, 0), (12, 0))] == [
        "sm_80",
        "sm_86",
        "sm_90a",
        "sm_120",
    ]


def test_without_a_gpu_the_runtime_says_so() -> None:
    import torch

    from fulgur.kernels.cuda.runtime import open_random

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(FulgurError, match=r"NVIDIA driver|without CUDA"):
        open_random(SMALL["llama"], weights="bf16", kv_blocks=4)
