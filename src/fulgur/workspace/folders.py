"""Fulgur's own folders: its home, and the assets that ship in the package."""

from __future__ import annotations

import os
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "assets"
TOKENIZER = ASSETS / "tokenizer.json"  # shared by all embedded models


def home() -> Path:
    """Settings, sessions and logs of this user: `FULGUR_HOME`, else `~/.fulgur`."""
    return Path(os.environ.get("FULGUR_HOME") or Path.home() / ".fulgur").absolute()


def expanded(path: str | Path) -> Path:
    """The path with `~` and `~user` expanded; unlike `Path.expanduser`, it does not raise for an unknown user."""
    return Path(os.path.expanduser(path))


def embedded_models() -> list[Path]:
    """The folders of the models that ship, largest (the default) first."""
    files = ASSETS.glob("*/weights.safetensors")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_size, reverse=True)]


def embedded_name(folder: Path) -> str:
    """The name by which an embedded model is served and chosen: `fulgur-60m`."""
    return f"fulgur-{folder.name.lower()}"
