"""What the program itself remembers about projects: whether they are trusted, and which commands were allowed for good.

Kept in `projects.json` of Fulgur's home, apart from the config people write.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from fulgur.errors import FulgurError


class _Project(msgspec.Struct, forbid_unknown_fields=True):
    trusted: bool | None = None
    approved: list[list[str]] = []


class ProjectRecords:
    """Reads and changes `projects.json`; every change is one atomic replace under a lock."""

    def __init__(self, home: Path) -> None:
        self.path = home / "projects.json"

    def trusted(self, project: Path) -> bool | None:
        """True or False when it was decided, None when nobody was asked yet."""
        value = self._read().get(str(project), {}).get("trusted")
        return value if isinstance(value, bool) else None

    def set_trusted(self, project: Path, trusted: bool) -> None:
        """Record the decision."""
        with self._change() as records:
            records.setdefault(str(project), {})["trusted"] = trusted

    def approved(self, project: Path) -> list[tuple[str, ...]]:
        """Command prefixes that may run without asking."""
        return [tuple(prefix) for prefix in self._read().get(str(project), {}).get("approved", [])]

    def approve(self, project: Path, prefix: tuple[str, ...]) -> None:
        """Remember a command prefix for this project."""
        with self._change() as records:
            known = records.setdefault(str(project), {}).setdefault("approved", [])
            if list(prefix) not in known:
                known.append(list(prefix))

    def forget(self, project: Path) -> None:
        """Forget the prefixes of this project."""
        with self._change() as records:
            records.get(str(project), {}).pop("approved", None)

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            msgspec.convert(data, dict[str, _Project])
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError):
            raise FulgurError(
                f"{self.path} is damaged", hint="Move it away; Fulgur will ask for trust and approvals again."
            ) from None
        return cast("dict[str, Any]", data)

    @contextlib.contextmanager
    def _change(self) -> Iterator[dict[str, Any]]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.path.with_suffix(".lock"), "w") as lock:
            _lock(lock.fileno(), self.path)
            records = self._read()
            yield records
            temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(records, file, indent=1, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)


def _lock(descriptor: int, path: Path) -> None:
    """Wait half a second at most: a change takes milliseconds, and a lock held for longer must not stop the screen."""
    for _ in range(50):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.01)
    raise FulgurError(f"{path} is locked by another process", hint="Nothing was recorded; try again.")
