from pathlib import Path

import pytest

from fulgur.sandbox.policy import Policy
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Files


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def files(tmp_path: Path, workspace: Path) -> Files:
    policy = Policy.make("workspace-write", workspace, tmp_path / "home")
    return Files(policy, BlobStore(tmp_path / "home/blobs"), tmp_path / "home/journal")
