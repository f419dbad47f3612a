"""A program in a real pseudo terminal: what it prints is read as bytes, keys are written as bytes."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fulgur.sandbox import start


class PtyProgram:
    """Starts the program with the terminal as its stdin, stdout and stderr."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, columns: int = 80, rows: int = 24
    ) -> None:
        self.started = time.perf_counter()
        self.pid, self.fd = start.in_terminal(command, cwd, env, struct.pack("HHHH", rows, columns, 0, 0))
        self.exit_code: int | None = None

    def write(self, keys: str) -> None:
        """Press keys."""
        os.write(self.fd, keys.encode())

    def read(self, seconds: float) -> bytes:
        """Read what is there, waiting at most `seconds`; empty if nothing came or the program has ended."""
        ready, _, _ = select.select([self.fd], [], [], max(seconds, 0))
        if not ready:
            return b""
        try:
            return os.read(self.fd, 65536)
        except OSError:  # how Linux reports that the other side is closed
            return b""

    def resize(self, columns: int, rows: int) -> None:
        """Resize as if the window were dragged: the program gets SIGWINCH."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def poll(self) -> int | None:
        """The exit code once it has ended."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the program if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        """End the program and close the terminal."""
        self.kill()
        while self.poll() is None:
            time.sleep(0.005)
        os.close(self.fd)
