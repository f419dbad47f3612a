from pathlib import Path

import pytest

from fulgur.edit.checks.members import process


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("FULGUR_HOME", str(folder))
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    # Commands write in `sub`: without mounts of its own, Landlock lets them make nothing new at the top.
    (folder / "sub").mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on how fast the machine is: the checks may take their time."""
    monkeypatch.setattr(process, "MOST_SECONDS", 60.0)
    monkeypatch.setattr(process, "START_SECONDS", 120.0)
