"""Bugs of the program itself: shown on the screen and logged; the screen and the draft survive."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def log_crash(error: BaseException, log: Path) -> str:
    """Append the traceback to the log; return the error and its place in one line."""
    with suppress(OSError), log.open("a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


class CapturedStderr(io.TextIOBase):
    """Turns what a library prints to stderr into remarks, so that it does not garble the live area."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.strip():
                self._tell(line)
        return len(text)
