"""The progress of an evaluation, saved so that a killed run can resume."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from fulgur.errors import FulgurError
from fulgur.eval.agent.attempt import Result


class Progress:
    """The results so far, one line each in a file next to that of `--json`."""

    def __init__(self, json_file: Path | None, asked: dict[str, Any]) -> None:
        self.file = None if json_file is None else json_file.with_name(json_file.name + ".part")
        self.results: dict[str, Result] = {}
        self._asked = asked

    def __enter__(self) -> Progress:
        if self.file is None:
            return self
        lines = self.file.read_bytes().splitlines() if self.file.is_file() else []
        if lines and lines[0] != msgspec.json.encode(self._asked):
            raise FulgurError(
                f"{self.file} is an unfinished run with other settings: {lines[0].decode(errors='replace')}",
                hint="Repeat that command to finish it, or delete the file.",
            )
        for text in lines[1:]:
            with contextlib.suppress(msgspec.DecodeError):  # truncated by the kill: that task runs again
                result = msgspec.json.decode(text, type=Result)
                self.results[result.name] = result
        kept = [msgspec.json.encode(self._asked), *map(msgspec.json.encode, self.results.values())]
        self.file.write_bytes(b"".join(text + b"\n" for text in kept))
        return self

    def add(self, result: Result) -> None:
        """Save a result; it is on disk when this returns."""
        self.results[result.name] = result
        if self.file is not None:
            with self.file.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def finish(self) -> None:
        """Remove the file: all results are complete, and the rows contain them."""
        if self.file is not None:
            self.file.unlink()

    def __exit__(self, *error: object) -> None:
        if self.file is not None and self.file.is_file() and not self.results:
            self.file.unlink()  # nothing to resume
