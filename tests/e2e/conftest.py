from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / "build" / "e2e"
PACKAGES = {"@openai/codex": "0.166.0", "openai": "7.53.0", "ws": "8"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(90))  # a client that waits for ever fails its test, not the run


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The real clients from npm, installed once into a folder that git ignores."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: the real clients cannot be fetched")
    stamp = CACHE / "installed"
    wanted = " ".join(f"{name}@{version}" for name, version in PACKAGES.items())
    if not stamp.is_file() or stamp.read_text() != wanted:
        CACHE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(CACHE), *wanted.split()]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        stamp.write_text(wanted)
    return CACHE / "node_modules"


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, a long context: enough for Codex's prompt."""
    from fulgur.bench.chat_model import write_chat_model

    return write_chat_model(tmp_path_factory.mktemp("model") / "random", d_model=64)
