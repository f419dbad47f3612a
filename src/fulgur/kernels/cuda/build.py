"""Compile the CUDA sources for one plan with NVRTC at run time; cubins are cached by all their inputs."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.device import INSTALL
from fulgur.kernels.cuda.header import Layout, header
from fulgur.kernels.cuda.plan import Plan

SOURCES = Path(__file__).parent / "csrc"
# The sources say where to fuse a product and a sum, so results never depend on inlining.
OPTIONS = ("--std=c++17", "--fmad=false")
OLDEST = (8, 0)  # bf16 matrix instructions and cp.async


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fulgur" / "cubins"


def architecture(capability: tuple[int, int]) -> str:
    """The target of a compute capability; Hopper's own instructions need the `a` form."""
    if capability < OLDEST:
        raise FulgurError(
            f"this GPU has compute capability {capability[0]}.{capability[1]}; 8.0 or newer is needed",
            hint="Ampere (A100, RTX 30) and later GPUs work; use the CPU here.",
        )
    return f"sm_{capability[0]}{capability[1]}" + ("a" if capability == (9, 0) else "")


def sources(program: str, folder: Path = SOURCES) -> dict[str, str]:
    """The program's file (a driver's, or one of `folder`) and every header of the kernels."""
    files = [folder / f"{program}.cu", *sorted(SOURCES.glob("*.cuh"))]
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def build(
    plan: Plan, driver: str, memory: Layout, arch: str, *, cache: Path | None = None, profile: bool = False
) -> bytes:
    """The cubin of a driver for a plan; with `profile` it counts the cycles of every part of a step."""
    return cubin_of(driver, {**sources(driver), "constants.h": header(plan, driver, memory, profile)}, arch, cache)


def cubin_of(stem: str, texts: dict[str, str], arch: str, cache: Path | None = None) -> bytes:
    """Compile `stem`.cu of these texts, or take the result from the cache on disk."""
    digest = hashlib.sha256(repr((sorted(texts.items()), arch, OPTIONS, _nvrtc_version())).encode()).hexdigest()[:32]
    path = (cache or cache_folder()) / f"{stem}-{arch}-{digest}.cubin"
    if path.exists():
        return path.read_bytes()
    cubin = compile_source(f"{stem}.cu", texts, arch)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(cubin)
    temporary.replace(path)
    return cubin


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise FulgurError(f"the GPU engine needs NVRTC and its Python bindings: {error}", hint=INSTALL) from None
    return nvrtc


def _nvrtc_version() -> tuple[int, int]:
    _, major, minor = _nvrtc().nvrtcVersion()
    return major, minor


def compile_source(name: str, texts: dict[str, str], arch: str) -> bytes:
    """Compile texts in memory. A failure raises with the compiler's log; warnings are logged."""
    nvrtc = _nvrtc()
    others = {key: text for key, text in texts.items() if key != name}

    def value(result: tuple[Any, ...]) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise FulgurError(f"NVRTC failed on {name}: {result[0]}")
        return result[1] if len(result) > 1 else None

    bodies, names = [text.encode() for text in others.values()], [key.encode() for key in others]
    program = value(nvrtc.nvrtcCreateProgram(texts[name].encode(), name.encode(), len(others), bodies, names))
    options = [f"-arch={arch}".encode(), *(option.encode() for option in OPTIONS)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    size = value(nvrtc.nvrtcGetProgramLogSize(program))
    text = ""
    if size > 1:  # the bindings fill the buffer in place, and Python shares all bytes objects of length 1
        log = b" " * size
        value(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0 ").decode(errors="replace").strip()
        logging.getLogger(__name__).info("%s for %s: %s", name, arch, text)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise FulgurError(f"{name} does not compile for {arch}:\n{text}", hint="Update the NVRTC package.")
    cubin = b" " * value(nvrtc.nvrtcGetCUBINSize(program))
    value(nvrtc.nvrtcGetCUBIN(program, cubin))
    nvrtc.nvrtcDestroyProgram(program)
    return cubin
