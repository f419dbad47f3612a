"""Checkpoints: a stage can be interrupted at any minute and continues from its last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fulgur.errors import FulgurError

FILE = "checkpoint.pt"
DONE = "done"  # appears beside the last checkpoint of a stage that ran to its end


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint atomically: a crash while writing leaves the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (FILE + ".partial")
    torch.save(state, partial)
    partial.replace(folder / FILE)


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    path = folder / FILE
    if not path.exists():
        return None
    state = torch.load(path, map_location=device, weights_only=True)
    return dict(state)


def load_weights(folder: Path, device: torch.device | str = "cpu") -> tuple[str, dict[str, torch.Tensor]]:
    """Load (shape name, weights) from a stage's last checkpoint."""
    state = load(folder, device)
    if state is None:
        raise FulgurError(f"{folder}: no checkpoint", hint="Run the stage before this one first.")
    return state["shape"], state["model"]
