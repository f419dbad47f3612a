"""`fulgur doctor`: what this machine can do, which kernels are used, and what is missing for more."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError
from fulgur.sandbox import start
from fulgur.ui.foreign import out, out_json
from fulgur.workspace.folders import embedded_models, embedded_name

if TYPE_CHECKING:
    from fulgur.kernels.cuda.device import Gpu

MEGABYTE = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(args: argparse.Namespace) -> int:
    facts = dict(examine())
    if args.json:
        out_json(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            out(f"{name:<{width}}  {value}")
    return 0


def examine() -> Iterator[tuple[str, str]]:
    """Yield names and findings in the order they are shown."""
    from fulgur import __version__
    from fulgur.bench.report import machine
    from fulgur.kernels.cpu import _native, native

    yield "fulgur", f"{__version__}, Python {platform.python_version()}"
    yield "cpu", f"{machine()['cpu']}, {native.default_threads()} threads used of {os.cpu_count()} cores"
    first, *others = native.isas()
    yield "kernels", f"{first} (also here: {', '.join(others)})"
    small, large = (_native.read_bandwidth(size * MEGABYTE, native.default_threads(), 0.2) for size in (32, 512))
    yield "read bandwidth", f"{small:.0f} GB/s over 32 MB, {large:.0f} GB/s over 512 MB"
    yield "bound for decode", f"{small * 1e9 / 33e6:,.0f} tok/s for 60M parameters in 4 bits"
    yield "embedded models", embedded()
    yield from gpu()
    yield from sandbox()
    yield "ripgrep", start.program("rg") or "not found: search uses the built-in one, which is slower"


def embedded() -> str:
    names = [embedded_name(folder) for folder in embedded_models()]
    return ", ".join(names) if names else "none in this build: `python -m lab.train run` trains them"


def gpu() -> Iterator[tuple[str, str]]:
    """What the driver reports about each GPU, what the engine can do with it, and what is missing."""
    from fulgur.kernels.cuda.device import survey

    try:
        found = survey()
    except FulgurError as error:
        yield "gpu", f"none: {error.message}; the CPU engine is used"
        return
    for index, device in enumerate(found):
        major, minor = device.capability
        facts = (
            f"{device.name}, sm_{major}{minor}",
            f"{device.multiprocessors} multiprocessors",
            f"{device.memory / 1e9:.0f} GB",
            f"{device.bandwidth / 1e12:.2f} TB/s by clock and bus",
            f"{device.l2 >> 20} MB L2",
            f"driver for CUDA {device.driver[0]}.{device.driver[1]}",
        )
        yield f"gpu {index}", ", ".join(facts)
        yield f"gpu {index} engine", _gpu_engine(index, device)


def _gpu_engine(index: int, device: Gpu) -> str:
    """Called last, because importing torch takes seconds."""
    from fulgur.kernels.cuda.build import architecture
    from fulgur.kernels.cuda.open import usable

    try:
        usable(index)
    except FulgurError as error:
        return f"cannot be used: {error.message}. {error.hint or ''}".rstrip()
    import torch

    abilities = {
        "persistent kernel (cooperative launch)": device.cooperative,
        "dependent launch": device.dependent_launch,
    }
    can = "; ".join(f"{name}: {'yes' if there else 'no'}" for name, there in abilities.items())
    can += f"; {device.shared >> 10} KB of shared memory a CTA"
    free = torch.cuda.mem_get_info(index)[0]
    return f"builds for {architecture(device.capability)}; {can}; {free / 1e9:.0f} GB free"


def sandbox() -> Iterator[tuple[str, str]]:
    """Which sandbox works here, and which promises of SECURITY.md it keeps."""
    from fulgur.sandbox.choose import probes
    from fulgur.sandbox.promises import kept_here, world

    found = (f"{probe.name} {'works' if probe.usable else f'does not: {probe.reason}'}" for probe in probes())
    yield "sandbox", "; ".join(found)
    kept, broken = kept_here()
    if world() is None:
        yield "sandbox keeps", "nothing: commands are refused"
        return
    yield "sandbox keeps", f"by {world()}: {'; '.join(kept)}"
    yield "sandbox does not keep", "; ".join(broken) or "nothing: every promise holds here"
