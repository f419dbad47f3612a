"""Which models fit this machine, and how fast each would be: bytes read per token against the bandwidth."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from fulgur.hub.catalogue import CATALOGUE, Entry

# The fraction of the read bandwidth that decoding reaches, measured on one H200 (docs/gpu.md) and two cores of an EPYC;
# experts on a CPU reached 0.56 to 0.66 on two AMX cores (docs/log.md). Families on the GPU's general driver have not
# been measured: they are assumed to reach what its graph driver does.
GPU_DENSE, GPU_EXPERTS = 0.85, 0.62
GENERAL_DENSE, GENERAL_EXPERTS = 0.7, 0.33
CPU_DENSE, CPU_EXPERTS = 0.75, 0.60
CONTEXT = 32_768  # tokens of keys and values that must fit beside the weights
OVERHEAD_GB = 1.5  # what the process and its buffers take


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model could run."""

    name: str
    memory_gb: float  # that is available
    bandwidth_gb_s: float
    gpu: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """One model on one device. `why_not` is empty when it runs."""

    entry: Entry
    device: Device
    need_gb: float
    tokens_s: float
    why_not: str


def fit(devices: list[Device], on_cpu: set[str], on_gpu: set[str]) -> list[Fit]:
    """Every model of the catalogue on the device that suits it best, the runnable ones first. The sets are families."""

    def best(entry: Entry) -> Fit:
        return max((_on(entry, device, on_gpu if device.gpu else on_cpu) for device in devices), key=_rank)

    found = [best(entry) for entry in CATALOGUE]
    return sorted(found, key=_rank, reverse=True)


def _rank(fit: Fit) -> tuple[bool, float]:
    return not fit.why_not, fit.tokens_s


def _on(entry: Entry, device: Device, families: set[str]) -> Fit:
    weights = entry.disk_gb if device.gpu else entry.memory_gb_4
    context = min(CONTEXT, entry.context)
    need = weights + entry.kv_bytes * context / 1e9 + entry.state_mb / 1e3 + OVERHEAD_GB
    if device.gpu:
        from fulgur.kernels.cuda.plan import DECODE_FEATURES
        from fulgur.model.random import tiny_config

        general = not tiny_config(entry.family).features <= DECODE_FEATURES
        dense, experts = (GENERAL_DENSE, GENERAL_EXPERTS) if general else (GPU_DENSE, GPU_EXPERTS)
        share, read = (experts if entry.experts else dense), entry.read_gb
    else:
        share, read = (CPU_EXPERTS if entry.experts else CPU_DENSE), entry.read_gb_4
    why = ""
    if entry.family not in families:
        why = f"its family ({entry.family}) does not run on {device.name} yet"
    elif need > device.memory_gb:
        why = f"needs {need:.1f} GB, {device.name} has {device.memory_gb:.1f}"
    return Fit(entry, device, need, device.bandwidth_gb_s * share / read, why)


def families() -> tuple[set[str], set[str]]:
    """The families that run on the CPU, and those whose features the GPU engine has."""
    from fulgur.kernels.cuda.plan import FEATURES
    from fulgur.model.family import FAMILIES
    from fulgur.model.random import tiny_config

    return set(FAMILIES), {name for name in FAMILIES if set(tiny_config(name).features) <= set(FEATURES)}


def devices() -> list[Device]:
    """The CPU, and each GPU that can be used."""
    from fulgur.engine.load import free_memory
    from fulgur.errors import FulgurError
    from fulgur.kernels.cpu import _native, native
    from fulgur.kernels.cuda.device import survey

    bandwidth = _native.read_bandwidth(512 << 20, native.default_threads(), 0.2)
    found = [Device("the CPU", free_memory() / 1e9, bandwidth, gpu=False)]
    with contextlib.suppress(FulgurError):  # no driver: the CPU alone
        found += [Device(gpu.name, gpu.memory / 1e9, gpu.bandwidth / 1e9, gpu=True) for gpu in survey()]
    return found
