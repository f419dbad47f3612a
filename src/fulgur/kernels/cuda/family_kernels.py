"""The kernels of the general driver (csrc/family.cu, gemv.cu): their arguments byte by byte, and launches."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fulgur.kernels.cuda.build import architecture, cubin_of, sources
from fulgur.kernels.cuda.device import Gpu, Module
from fulgur.kernels.cuda.family_plan import ROWS, WARPS, FamilyPlan
from fulgur.kernels.cuda.formats import Format
from fulgur.kernels.cuda.prefill_kernels import Launch, StepAttend, StepRope, structure

_P, _I, _F, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_longlong
MOST_CHOSEN = 16
NORMED, VECTOR, GATED = range(3)  # operands of a product
THREADS = 32 * WARPS

Gemv = structure(
    "Gemv", a=(_P, "rows weights x norm z in_ out h bias routing"), b=(_L, "copy_bytes"),
    c=(_I, "operand width in_stride z_stride head choices tiles blocks cut matrix_rows out_stride bias_stride batch"),
    d=(_F, "eps limit alpha"), e=(_P, "route logits route_bias"),
    f=(_I, "logit_stride experts top shared_expert over_all pad"),
)  # fmt: skip
Begin = structure("Begin", a=(_P, "rows embed x known"), b=(_I, "width pad"))
Delta = structure(
    "Delta", a=(_P, "rows mixed ba taps decay dt_bias state out"), b=(_L, "slot_floats"),
    c=(_I, "stride ba_stride k_heads v_heads k_dim v_dim taps_count pad"),
)  # fmt: skip
Draft = structure("Draft", a=(_P, "rows embed hidden embed_norm hidden_norm out"), b=(_I, "width"), c=(_F, "eps"))
Hidden = structure("Hidden", a=(_P, "rows x norm ring"), b=(_I, "width"), c=(_F, "eps"))
STRUCTURES = (Gemv, Begin, Delta, Draft, Hidden, StepRope, StepAttend)  # as run_family.cpp counts
ROUTING_BYTES = ROWS * MOST_CHOSEN * (4 + 4 + ROWS + 4) + 16
DELTA_BYTES = 4 * (ROWS * (128 + 128 + 32 + 3) + 4 * 8 * 32)


def _short(fmt: Format) -> str:
    return fmt.name.replace("-", "_")


def kernel_name(outcome: str, fmt: Format) -> str:
    return f"gemv_{outcome}_{_short(fmt)}"


def modules(plan: FamilyPlan) -> dict[str, tuple[str, str]]:
    """What is compiled: the stem of a source and its instances.h."""
    formats = {m.format.name: m.format for m in plan.matrices.values()}
    products = {_short(f): ("gemv", f"GEMV({_short(f)}, {_short(f).upper()})\n") for f in formats.values()}
    return {"family": ("family", ""), **products}


class FamilyKernels:
    """The compiled kernels of a model, and where they run."""

    def __init__(self, plan: FamilyPlan, gpu: Gpu, stream: Any) -> None:
        self.ctas = gpu.multiprocessors
        self._stream, self._dependent = stream.cuda_stream, gpu.dependent_launch
        arch, wanted = architecture(gpu.capability), modules(plan)

        def one(module: tuple[str, str]) -> bytes:
            stem, text = module
            return cubin_of(stem, {**sources(stem), "instances.h": text}, arch)

        with ThreadPoolExecutor(min(len(wanted), os.cpu_count() or 1)) as pool:
            cubins = dict(zip(wanted, pool.map(one, wanted.values()), strict=True))
        self._modules = {name: Module(cubin) for name, cubin in cubins.items()}

    def run(self, launch: Launch) -> None:
        """Launch it, or add it to the graph that is being captured."""
        name = launch.name
        short = name.split("_", 2)[2] if name.startswith("gemv_") else "family"
        self._modules[short].launch(
            name, launch.arguments, ctas=launch.ctas, threads=launch.threads, shared=launch.shared,
            stream=self._stream, dependent=self._dependent,
        )  # fmt: skip

    def close(self) -> None:
        for module in self._modules.values():
            module.close()
