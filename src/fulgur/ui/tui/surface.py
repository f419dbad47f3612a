"""What is on the screen: the transcript above, the live area below, and the program's own remarks in both."""

from __future__ import annotations

import asyncio
import errno
import signal
from pathlib import Path
from typing import Any

from fulgur.ui.tui import blocks
from fulgur.ui.tui.crash import log_crash
from fulgur.ui.tui.screen import Screen
from fulgur.ui.tui.theme import Row
from fulgur.ui.tui.transcript import Transcript

TERMINAL_GONE = 128 + signal.SIGHUP  # exit code


class Surface:
    """A screen with a transcript; the Tui adds the agent and the keys."""

    def __init__(self, screen: Screen, crash_log: Path) -> None:
        self.screen = screen
        self.transcript = Transcript(screen.width)
        self.notice = ""
        self._crash_log = crash_log
        screen.before_frame = self._closed_rows

    def _closed_rows(self) -> list[Row]:
        self.transcript.width = self.screen.width
        return self.transcript.take()

    def say(self, text: str) -> None:
        """Show a remark that stays on screen."""
        self.show(blocks.note(text, self.screen.width))

    def show(self, rows: list[Row]) -> None:
        """Show rows of the program's own."""
        self.transcript.add("note", rows)
        self.screen.request_frame()

    def complain(self, message: str, hint: str, *, warning: bool = False) -> None:
        """Show an error or a warning."""
        self.transcript.add("problem", blocks.problem(message, hint, self.screen.width, warning=warning))
        self.screen.request_frame()

    def tell(self, text: str, seconds: float = 3.0) -> None:
        """Show a notice above the input that disappears by itself."""
        self.notice = text
        self.screen.request_frame()
        if self.screen.loop is not None:
            self.screen.loop.call_later(seconds, self._untell, text)

    def _untell(self, text: str) -> None:
        if self.notice == text:
            self.notice = ""
            self.screen.request_frame()

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report every error in a callback; none of them ends the session."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EPIPE, errno.EBADF):
            self.quit(TERMINAL_GONE)
        elif error is not None:
            self.crashed(error)

    def quit(self, code: int) -> None:
        """Leave the screen."""
        if self.screen.is_running and not self.screen.is_done:
            self.screen.exit(result=code)

    def crashed(self, error: BaseException) -> None:
        """Report a bug; the screen goes on."""
        where = log_crash(error, self._crash_log)
        self.complain(f"internal error: {where}", f"the draft is kept; details in {self._crash_log}")
