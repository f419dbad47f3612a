"""A real terminal for tests: the program runs in a pty, pyte keeps the screen and the scrollback."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte
from waiting import PATIENCE

from fulgur.bench.pty import PtyProgram

ENTER, TAB, ESC, UP, CTRL_C, CTRL_D, CTRL_J = "\r", "\t", "\x1b", "\x1b[A", "\x03", "\x04", "\n"


class Terminal:
    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, columns: int = 80, rows: int = 24
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=20_000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        clean = {name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR", "XTERM_VERSION")}
        full = {**clean, "TERM": "xterm-256color", **env}
        self.program = PtyProgram(command, env=full, cwd=cwd, columns=columns, rows=rows)
        self.raw = b""

    def pump(self, seconds: float = 0.02) -> None:
        data = self.program.read(seconds)
        if data:
            self.raw += data
            self._stream.feed(data)

    def send(self, *keys: str) -> None:
        for key in keys:
            self.program.write(key)

    @property
    def lines(self) -> list[str]:
        """The rows of the screen as they are now."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def everything(self) -> str:
        """Scrollback and screen."""
        width = self.screen.columns
        above = ["".join(row[x].data for x in range(width)).rstrip() for row in self.screen.history.top]
        return "\n".join([*above, *self.lines])

    def colour_of(self, text: str) -> str:
        """The foreground of the first place where the text stands on the screen."""
        for y, line in enumerate(self.screen.display):
            if (x := line.find(text)) >= 0:
                return str(self.screen.buffer[y][x].fg)
        raise AssertionError(f"{text!r} is not on the screen:\n{self.text}")

    def wait(self, what: str | Callable[[], object], seconds: float = PATIENCE) -> None:
        """Until the text is on the screen or in the scrollback, or the condition holds."""
        found = (lambda: what in self.everything) if isinstance(what, str) else what
        end = time.monotonic() + seconds
        while not found():
            if time.monotonic() > end:
                name = what if isinstance(what, str) else getattr(what, "__name__", "the condition")
                raise AssertionError(f"waited {seconds} s for {name!r}; the screen is\n{self.everything[-4000:]}")
            self.pump()

    def settle(self, seconds: float = 0.3) -> None:
        """Read until nothing has come for a while, or something has for ten times as long."""
        start = time.monotonic()
        end = start + seconds
        while time.monotonic() < min(end, start + 10 * seconds):
            before = len(self.raw)
            self.pump()
            if len(self.raw) > before:
                end = time.monotonic() + seconds

    def resize(self, columns: int, rows: int) -> None:
        self.pump(0)
        self.screen.resize(rows, columns)
        self.program.resize(columns, rows)

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Wait for the end."""
        end = time.monotonic() + seconds
        while self.program.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"still running; the screen is\n{self.text}")
            self.pump()
        self.settle(0.05)
        assert self.program.exit_code is not None
        return self.program.exit_code

    def close(self) -> None:
        self.program.close()
