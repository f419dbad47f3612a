from pathlib import Path

import pytest

from fulgur.edit.checks.members import process


@pytest.fixture(autouse=True)
def surroundings(home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Commands write in `sub`: without mounts of its own, Landlock lets them make nothing new at the top.
    (workspace / "sub").mkdir()
    # No test depends on how fast the machine is: the checks may take their time.
    monkeypatch.setattr(process, "MOST_SECONDS", 60.0)
    monkeypatch.setattr(process, "START_SECONDS", 120.0)
