"""Folders that every test may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from databases import postgres, redis, redis_running  # noqa: F401 - fixtures
from hypothesis import HealthCheck, settings

# A busy machine draws examples slowly; that says nothing of the code under test.
settings.register_profile("fulgur", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fulgur")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named after their argument: made of their content (gzip holds the time) two workers' names differ."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty FULGUR_HOME."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("FULGUR_HOME", str(folder))
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder
