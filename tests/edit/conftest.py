from pathlib import Path

import pytest


@pytest.fixture
def project(workspace: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of the files that the test's module names in `FILES`."""
    for name, text in request.module.FILES.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return workspace
