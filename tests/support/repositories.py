"""git for tests: without anybody's own configuration."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> str:
    """Its output; the test fails when git does."""
    clean = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *who, *words], cwd=folder, env=clean, check=True, capture_output=True, text=True
    ).stdout
