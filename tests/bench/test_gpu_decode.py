"""The GPU's timing programs run on a bare GPU machine: torch and cuda-bindings, no other package, no C++ build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
BARE = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if name == "fulgur.kernels.cpu._native" or top in {missing!r}:
            raise ModuleNotFoundError(f"{{name}} is not on a bare GPU machine")

sys.meta_path.insert(0, Missing())
import {module}
"""
MISSING = {"msgspec", "aiohttp", "jinja2", "llguidance", "rich", "prompt_toolkit", "pygments", "pathspec", "jedi"}


@pytest.mark.parametrize("module", ["fulgur.bench.gpu_decode", "fulgur.bench.gpu_peer"])
def test_it_needs_no_other_package(module: str) -> None:
    code = BARE.format(missing=MISSING, module=module)
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
