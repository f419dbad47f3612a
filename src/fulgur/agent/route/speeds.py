"""How fast each model was when it last answered here, for the list of models."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

_FEWEST_TOKENS = 32  # shorter answers say too little about speed
_WORTH_WRITING = 0.1


class Speeds:
    """`speeds.json` of Fulgur's home: tokens a second by `provider:model`."""

    def __init__(self, home: Path) -> None:
        self._file = home / "speeds.json"

    def all(self) -> dict[str, float]:
        """Every measured model; empty if the file cannot be read."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, float])
        return {}

    def note(self, name: str, tokens: int, rate: float) -> None:
        """Record that an answer of so many tokens was written at this rate."""
        known = self.all()
        if tokens < _FEWEST_TOKENS or abs(known.get(name, 0.0) - rate) <= _WORTH_WRITING * rate:
            return
        with contextlib.suppress(OSError):  # not worth an error
            part = self._file.with_suffix(f".{os.getpid()}.tmp")
            part.write_bytes(msgspec.json.encode({**known, name: round(rate, 1)}))
            os.replace(part, self._file)
