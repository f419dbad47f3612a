"""The examples run as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import LiveServer

from fulgur.server.config import load

EXAMPLES = Path(__file__).parents[1] / "examples"
EMBEDDED = EXAMPLES.parent / "src" / "fulgur" / "assets" / "60M"


def run(name: str, server: LiveServer, *words: str, **variables: str) -> str:
    environment = {**os.environ, "FULGUR_URL": server.base_url, **variables}
    program = [sys.executable, str(EXAMPLES / name), *words]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=True, timeout=90).stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == {"complete.py", "steer.py", "server.toml"}


def test_complete() -> None:
    with LiveServer(folder=EMBEDDED) as server:
        assert run("complete.py", server, FULGUR_MODEL="local").strip() == "a + b"


def test_steer() -> None:
    counting = {"match": "Count", "times": 1, "steps": [{"text": " ".join(map(str, range(1, 51)))}]}
    with LiveServer(counting, {"steps": [{"text": "Goodbye."}]}, rate=200) as server:
        said = run("steer.py", server, "scripted")
    assert said.startswith("1 2 3") and said.rstrip().endswith("Goodbye.") and "50" not in said


def test_server_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    config = load(EXAMPLES / "server.toml")
    assert config.models["coder"].backend == "vllm" and config.pools["gpu"].concurrent == 4
