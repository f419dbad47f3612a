from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty FULGUR_HOME; that of the screen's tests is only told to the terminals they start."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("FULGUR_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def surroundings(home: Path, workspace: Path) -> None:
    (workspace / "sub").mkdir()
