"""Which device a model runs on: the one that was named, or what suits the model and the machine; with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError, UsageError

if TYPE_CHECKING:
    from fulgur.engine.load import EngineOptions

KV_DTYPES = {"bf16": 16, "int8": 8, "fp8": 8}  # of keys and values, with their bits
CPU_KV_DTYPES, GPU_KV_DTYPES = ("bf16", "int8"), ("bf16", "fp8")
DEVICES = "auto, cpu, cuda or cuda:N (the N-th GPU, from 0)"
SMALL = 1 << 30  # bytes of weights: below, the CPU is fast enough and starts sooner; the GPU is left to larger models


@dataclass(frozen=True, slots=True)
class Choice:
    """`gpu` is None for the CPU."""

    gpu: int | None
    reason: str


def check_device(name: str) -> None:
    if re.fullmatch(r"auto|cpu|cuda(:\d{1,2})?", name) is None:
        raise UsageError(f"unknown device {name!r}", hint=f"Choose one of: {DEVICES}.")


def bits_of(kv_dtype: str) -> int:
    bits = KV_DTYPES.get(kv_dtype)
    if bits is None:
        raise FulgurError(f"unknown kv_dtype {kv_dtype!r}", hint=f"Choose one of: {', '.join(KV_DTYPES)}.")
    return bits


def choose(options: EngineOptions) -> Choice:
    """Choose where to run. A device that was named is used, or an error says why not; `auto` never fails for lack of a
    GPU."""
    check_device(options.device)
    if options.device.startswith("cuda"):
        for name, unused in (
            ("threads", options.threads),
            ("the reference runtime", options.runtime == "reference"),
        ):
            if unused:
                raise FulgurError(f"{name} applies only to the CPU, but the device is {options.device}")
        choice = Choice(int(options.device.partition(":")[2] or 0), "as requested")
    elif options.device == "cpu":
        choice = Choice(None, "as requested")
    else:
        choice = _automatic(options)
    _check_kv_dtype(options.kv_dtype, choice)
    _check_bits(options.bits, choice)
    return choice


def _check_bits(bits: int | None, choice: Choice) -> None:
    """Raise for weights in bf16 on the CPU, whose kernels have weights in 4 and 8 bits only."""
    if bits == 16 and choice.gpu is None:
        raise FulgurError(
            f"bits = 16 works only on the GPU, but the model would run on the CPU ({choice.reason})",
            hint="Choose 4 or 8 bits for the CPU, or set `device` to another device.",
        )


def _check_kv_dtype(kv_dtype: str, choice: Choice) -> None:
    """Raise if the device cannot store keys and values in the requested type: it is never replaced by another."""
    if kv_dtype not in (CPU_KV_DTYPES if choice.gpu is None else GPU_KV_DTYPES):
        here, there, known = "CPU", "GPU", CPU_KV_DTYPES
        if choice.gpu is not None:
            here, there, known = "GPU", "CPU", GPU_KV_DTYPES
        raise FulgurError(
            f"kv_dtype {kv_dtype!r} works only on the {there}, but the model would run on the {here} ({choice.reason})",
            hint=f"Choose {' or '.join(known)} for the {here}, or set `device` to another device.",
        )


def _automatic(options: EngineOptions) -> Choice:
    from fulgur.kernels.cuda.device import survey

    if options.runtime == "reference" or options.threads:
        return Choice(None, "threads were requested" if options.threads else "the reference runtime was requested")
    if options.kv_dtype not in GPU_KV_DTYPES:
        return Choice(None, f"kv_dtype {options.kv_dtype!r} was requested")
    size = weight_bytes(options.model)
    if size is None:
        return Choice(None, "GGUF files and packed folders run on the CPU")
    if size < SMALL and options.kv_dtype in CPU_KV_DTYPES and options.bits != 16:
        return Choice(None, f"{size / 1e6:,.0f} MB of weights: small enough for the CPU")
    try:
        survey()  # asks the driver, so that a machine without one does not wait for torch
        from fulgur.kernels.cuda.open import check_folder, usable

        gpu = usable()
    except FulgurError as error:
        return Choice(None, f"no usable GPU: {error.message}")
    bits = options.bits or 16
    need = size * bits // 16
    if need > gpu.memory:
        return Choice(None, f"the {gpu.name} has {gpu.memory / 1e9:.0f} GB, the weights need {need / 1e9:.0f} GB")
    try:
        check_folder(options.model)
    except FulgurError as error:
        return Choice(None, error.message)
    return Choice(0, f"{size / 1e9:.1f} GB of weights, and a usable GPU")


def weight_bytes(model: Path) -> int | None:
    """Bytes of the safetensors of a folder; None for what only the CPU reads."""
    if not model.is_dir() or not (model / "config.json").exists():
        return None
    from fulgur.model.config import read_json

    if "fulgur" in read_json(model / "config.json"):
        return None
    sizes = [path.stat().st_size for path in model.glob("*.safetensors")]
    return sum(sizes) if sizes else None
