from pathlib import Path

import pytest

from fulgur.sandbox.policy import Policy
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Files


@pytest.fixture
def files(tmp_path: Path, workspace: Path) -> Files:
    policy = Policy.make("workspace-write", workspace, tmp_path / "home")
    return Files(policy, BlobStore(tmp_path / "home/blobs"), tmp_path / "home/journal")
