"""`fulgur serve`: what its flags make of the config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fulgur.server.config import ServerConfig
from fulgur.ui.cli import main
from fulgur.ui.commands import serve


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """The configs that would be served."""
    monkeypatch.setenv("FULGUR_HOME", str(tmp_path / "home"))
    seen: list[ServerConfig] = []

    async def note(config: ServerConfig, *_: Any, **__: Any) -> None:
        seen.append(config)

    monkeypatch.setattr(serve, "_serve", note)
    return seen


def test_a_device_is_for_the_models_that_were_named(served: list[ServerConfig], tmp_path: Path) -> None:
    """The embedded ones can only run on the CPU, and stay."""
    (tmp_path / "coder").mkdir()
    assert main(["serve", "-m", str(tmp_path / "coder"), "--device", "cuda:1"]) == 0
    assert {name: model.device for name, model in served[0].models.items()} == {
        "coder": "cuda:1",
        "fulgur-60m": "auto",
        "fulgur-30m": "auto",
    }


def test_a_gpu_for_the_embedded_models_alone_is_refused(
    served: list[ServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--device", "cuda"]) == 2
    assert "packed for the CPU\n  Name another with -m FOLDER" in capsys.readouterr().err
    assert main(["serve", "--device", "cpu"]) == 0 and len(served) == 1
