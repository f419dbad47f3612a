"""The models that were fetched: folders under `models` in Fulgur's home. Incomplete ones are not offered."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import FulgurError, UsageError
from fulgur.workspace import folders

RECORD = "fetched.json"  # repository, revision and files: written last: its presence says that the folder is complete
PART = ".part"  # suffix of a folder that is being written


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model folder and where it came from."""

    name: str
    path: Path
    repo: str
    revision: str
    size: int

    @property
    def weights(self) -> Path:
        """What the engine is given: the folder, or the first GGUF file in it (some hubs keep them in folders)."""
        files = sorted(self.path.rglob("*.gguf"))
        return files[0] if files and not (self.path / "config.json").exists() else self.path


def root() -> Path:
    return folders.home() / "models"


def fetched() -> list[Fetched]:
    """Every complete model, by name."""
    found = (_read(record.parent) for record in sorted(root().glob(f"*/{RECORD}")))
    return [model for model in found if model is not None]


def _read(folder: Path) -> Fetched | None:
    if folder.suffix == PART:
        return None
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        size = sum(int(file["size"]) for file in record["files"])
        return Fetched(folder.name, folder, str(record["repo"]), str(record["revision"]), size)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def get(name: str) -> Fetched:
    models = {model.name: model for model in fetched()}
    if name not in models:
        have = ", ".join(models) or "none"
        raise UsageError(
            f"there is no fetched model {name!r}", hint=f"Fetched: {have}. `fulgur models pull` fetches more."
        )
    return models[name]


@contextmanager
def writing(part: Path) -> Iterator[None]:
    """Make the folder of a model that is being written, and keep others from writing into it at the same time."""
    part.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(part, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        name = part.name.removesuffix(PART)
        raise FulgurError(f"another process is writing {name}", hint="Wait until it is done.") from None
    finally:
        os.close(descriptor)


def remove(name: str) -> int:
    """Delete a model, complete or not; returns the bytes that became free."""
    folder, part = root() / name, root() / (name + PART)
    there = [path for path in (folder, part) if path.is_dir() and path.parent == root() and not path.is_symlink()]
    if not there or name in (".", "..") or Path(name).name != name:
        get(name)  # says what is here
        raise FulgurError(f"{folder} is not a model folder")
    freed = sum(file.stat().st_size for path in there for file in path.rglob("*") if file.is_file())
    for path in there:
        shutil.rmtree(path)
    return freed
