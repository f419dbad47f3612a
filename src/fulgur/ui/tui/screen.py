"""The terminal in two parts: rows that are committed once to its scrollback, and a live area below them.

Every frame is one write: erase the live area, print the closed rows, draw the live area again. Nothing above the live
area is ever redrawn, so selecting, copying, searching and scrolling are the terminal's own.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Size
from prompt_toolkit.output.vt100 import Vt100_Output

from fulgur.ui.tui.theme import Row
from fulgur.ui.tui.wrap import cells

FRAME_SECONDS = 1 / 30
KEPT_ROWS = 1000  # for Ctrl-L
_NOTICE_SECONDS = 0.4  # a terminal may report its new size this late (tmux waits for a quarter of a second)


class FrameOutput(Vt100_Output):
    """Buffers output until the frame is complete, then sends it to the terminal in one synchronised write."""

    _held = 0
    _paste_wanted = False
    _paste_active = False

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Show everything written inside at once; terminals without mode 2026 still get a single write."""
        self._held += 1
        if self._held == 1:
            self.write_raw("\x1b[?2026h")
        try:
            yield
        finally:
            self._held -= 1
            if self._held == 0:
                self._settle_paste()
                self.write_raw("\x1b[?2026l")
                self.flush()

    def flush(self) -> None:
        if not self._held:
            self._settle_paste()
            super().flush()

    def erase_down(self) -> None:
        # tmux moves the screen into its history if it is erased from the very first cell, so begin one cell later.
        self.write_raw("\x1b[K\x1b[C\x1b[J\x1b[D")

    # The renderer toggles bracketed paste around every erase: send only real changes.
    def enable_bracketed_paste(self) -> None:
        self._paste_wanted = True

    def disable_bracketed_paste(self) -> None:
        self._paste_wanted = False

    def _settle_paste(self) -> None:
        if self._paste_wanted != self._paste_active:
            self._paste_active = self._paste_wanted
            self.write_raw("\x1b[?2004h" if self._paste_wanted else "\x1b[?2004l")


def _terminal_size() -> Size:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:  # the terminal has gone away; the signal that says so is on its way
        columns = rows = 0
    return Size(rows=rows or 24, columns=columns or 80)


class Screen(Application[int]):
    """The application, with prompt_toolkit's layout as the live area; `before_frame` returns the rows to print above
    it."""

    def __init__(self, **options: Any) -> None:
        # Asking the terminal for the cursor position costs a round trip per frame, and nothing here needs it.
        self.frames = FrameOutput(sys.stdout, _terminal_size, term=os.environ.get("TERM"), enable_cpr=False)
        super().__init__(
            full_screen=False, output=self.frames, max_render_postpone_time=None, erase_when_done=True, **options
        )
        self.ttimeoutlen = self.timeoutlen = 0.05  # how long Esc waits for the rest of a sequence
        self.before_frame: Callable[[], Sequence[Row]] = list
        self._kept: deque[Row] = deque(maxlen=KEPT_ROWS)
        self._frame_due = False
        self._last_frame = 0.0
        self._drawn_width = 0
        self._last_drawn = 0.0
        # xterm cuts rows off when it gets narrower; other terminals fold them.
        self._folds = "XTERM_VERSION" not in os.environ or "TMUX" in os.environ

    @property
    def width(self) -> int:
        return self.frames.get_size().columns

    def request_frame(self) -> None:
        """Draw soon: at most 30 frames a second, and none while nothing changes."""
        if self._frame_due or self.loop is None:
            return
        self._frame_due = True
        wait = self._last_frame + FRAME_SECONDS - self.loop.time()
        self.loop.call_later(max(wait, 0.0), self.draw_frame)

    def draw_frame(self) -> None:
        """Draw one frame now."""
        self._frame_due = False
        if self.loop is None or not self.is_running:
            return
        self._last_frame = self.loop.time()
        rows = self.before_frame()
        with self.frames.frame():
            self._follow_size()
            if rows or self._shrinks():
                self.renderer.erase(leave_alternate_screen=False)
            self._print(rows)
            self._redraw()

    def flush_rows(self) -> None:
        """Print the rows still waiting, at the end, when the live area is gone."""
        with self.frames.frame():
            self._print(self.before_frame())

    def redraw_all(self) -> None:
        """Clear the terminal and print the last rows again (Ctrl-L)."""
        size = self.frames.get_size()
        with self.frames.frame():
            self.renderer.clear()
            for row in list(self._kept)[-size.rows :]:
                self.frames.write_raw(row + "\r\n")
            self._redraw()

    def forget(self) -> None:
        """Clear the terminal and the rows kept for Ctrl-L."""
        self._kept.clear()
        self.redraw_all()

    def copy(self, text: str) -> None:
        """Put text into the terminal's clipboard (OSC 52)."""
        self._tell_terminal(f"52;c;{base64.b64encode(text.encode()).decode()}")

    def notify(self, how: str, text: str) -> None:
        """Notify a person who looks elsewhere; `text` is always our own words."""
        if how == "bell":
            self._write_beside("\a")
        elif how in ("osc9", "osc777"):
            self._tell_terminal(f"9;{text}" if how == "osc9" else f"777;notify;fulgur;{text}")

    def _tell_terminal(self, command: str) -> None:
        sequence = f"\x1b]{command}\x07"
        if "TMUX" in os.environ:  # tmux passes only wrapped sequences to the terminal around it
            sequence += "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
        self._write_beside(sequence)

    def _write_beside(self, sequence: str) -> None:
        with self.frames.frame():
            self.frames.write_raw(sequence)

    def _print(self, rows: Sequence[Row]) -> None:
        if rows:
            self._kept.extend(rows)
            self.frames.write_raw("".join(f"{row}\r\n" for row in rows))

    def _shrinks(self) -> bool:
        """Whether the live area is about to shrink, which the renderer never does by itself."""
        last = self.renderer.last_rendered_screen
        if last is None:
            return False
        size = self.frames.get_size()
        return self.layout.container.preferred_height(size.columns, size.rows).preferred < last.height

    def _on_resize(self) -> None:
        self._redraw()
        self.request_frame()

    def _redraw(self, render_as_done: bool = False) -> None:
        # A frame or a key may be handled before the signal that reports a new size.
        with self.frames.frame():
            self._follow_size()
            super()._redraw(render_as_done)
        self._last_drawn = time.monotonic()

    def _follow_size(self) -> None:
        """After a change of width, erase the live area where the terminal has moved it to."""
        width = self.width
        if self._drawn_width not in (0, width):
            folded = self._rows_folded()
            self.frames.cursor_up(folded)
            self.renderer.erase(leave_alternate_screen=False)
            if folded and time.monotonic() - self._last_drawn < _NOTICE_SECONDS:
                # The area may have been drawn after the terminal got narrow: then nothing was folded, and rows above
                # the live area were erased. A row shown twice is better than one lost.
                self.frames.write_raw("".join(f"{row}\r\n" for row in list(self._kept)[-folded:]))
        self._drawn_width = width

    def _rows_folded(self) -> int:
        """The rows that a narrower terminal has added above the cursor by folding long ones."""
        last, width = self.renderer.last_rendered_screen, max(self.width, 1)
        if last is None or not self._folds:
            return 0
        cursor = last.get_cursor_position(self.layout.current_window)
        added = 0
        for y in range(cursor.y + 1):
            row = last.data_buffer[y]
            text = "".join(row[x].char for x in range(max(row, default=-1) + 1)).rstrip()
            length = cells(text) if y < cursor.y else cursor.x + 1
            added += max(length - 1, 0) // width
        return added
