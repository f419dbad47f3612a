"""`fulgur doctor`: what this machine can do, which kernels are used, and what is missing for more."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fulgur.errors import FulgurError

MEGABYTE = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(args: argparse.Namespace) -> int:
    facts = dict(examine())
    if args.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            print(f"{name:<{width}}  {value}")
    return 0


def examine() -> Iterator[tuple[str, str]]:
    """Name and finding, in the order they are shown."""
    from fulgur import __version__
    from fulgur.bench.report import machine
    from fulgur.kernels import _native, native

    yield "fulgur", f"{__version__}, Python {platform.python_version()}"
    yield "cpu", f"{machine()['cpu']}, {native.default_threads()} threads used of {os.cpu_count()} cores"
    first, *others = native.isas()
    yield "kernels", f"{first} (also here: {', '.join(others)})"
    small, large = (_native.read_bandwidth(size * MEGABYTE, native.default_threads(), 0.2) for size in (32, 512))
    yield "read bandwidth", f"{small:.0f} GB/s over 32 MB, {large:.0f} GB/s over 512 MB"
    yield "bound for decode", f"{small * 1e9 / 33e6:,.0f} tok/s for 60M parameters in 4 bits"
    yield "embedded models", embedded()
    yield "gpu", gpu()
    yield "sandbox", sandbox()
    yield "ripgrep", shutil.which("rg") or "not found: search uses the built-in one, which is slower"


def embedded() -> str:
    import fulgur

    assets = Path(fulgur.__file__).parent / "assets"
    names = sorted(path.parent.name for path in assets.glob("*/weights.safetensors"))
    return ", ".join(names) if names else "none in this build: `runs/embedded.sh` trains them"


def gpu() -> str:
    """From the driver's own tool first: asking torch costs seconds, and the CPU install has none."""
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA driver found: the CPU engine is used"
    query = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi failed ({error}): is the driver loaded?"
    from fulgur.kernels.gpu.build import architecture
    from fulgur.kernels.gpu.device import probe

    found = "; ".join(done.stdout.strip().splitlines())
    try:
        device = probe()
        return f"{found}; the GPU engine builds for {architecture(device.capability)}"
    except FulgurError as error:
        return f"{found}; the GPU engine cannot use it: {error.message}"


def sandbox() -> str:
    from fulgur.sandbox.choose import probes

    return "; ".join(f"{probe.name} {'works' if probe.usable else f'does not: {probe.reason}'}" for probe in probes())
