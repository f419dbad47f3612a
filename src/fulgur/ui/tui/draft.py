"""What the person types: the buffer, its history on disk, and the completion menu below it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from fulgur.ui.foreign import whole_text
from fulgur.ui.tui.complete import Completer, Menu


class PrivateHistory(FileHistory):
    """What was typed, readable only by its owner; a disk that cannot be written costs the history, not the prompt."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(self.filename, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(descriptor, 0o600)  # older files may have other modes
            os.close(descriptor)
            super().store_string(string)

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []


class Draft:
    """A draft is never thrown away: whatever takes it off the screen stores it in the history or hands it on."""

    def __init__(self, history: Path, completer: Completer) -> None:
        self._history = PrivateHistory(str(history))
        self._completer = completer
        self.menu: Menu | None = None
        self.completes = True
        self.last_key = -10.0
        self.buffer = Buffer(multiline=True, history=self._history, on_text_changed=self._typed)
        self.buffer.on_cursor_position_changed += self._moved

    @property
    def text(self) -> str:
        return self.buffer.text

    def take(self) -> str:
        """Empty the input and return its text."""
        text = whole_text(self.text)
        self.buffer.reset()
        self.menu = None
        return text

    def give(self, text: str) -> None:
        """Put text into the input, with the cursor at its end."""
        self.buffer.set_document(Document(text, len(text)))
        self.menu = None

    def put_back(self, text: str) -> None:
        """Put text that was taken earlier back before what is typed now."""
        self.give(f"{text}\n{self.text}" if self.text else text)

    def send(self) -> str:
        """Empty the input, add its text to the history and return it."""
        if (whole := whole_text(self.text)) != self.text:  # pasted bytes were not UTF-8, or the locale is not
            self.give(whole)
        text = self.text.strip()
        self.buffer.reset(append_to_history=True)
        self.menu = None
        return text

    def save(self) -> None:
        """Save an unsent draft on exit: it is one Up away next time."""
        if self.text.strip():
            self._history.store_string(whole_text(self.text))

    def accept(self, takes_argument: bool, *, and_run: bool) -> bool:
        """Insert the chosen row of the menu; True if Enter may send the draft: a whole command, or a fully typed file
        name."""
        menu = self.menu
        if menu is None:
            return True
        before, after = self.text[: menu.start], self.text[self.buffer.cursor_position :]
        typed = self.text[menu.start : self.buffer.cursor_position]
        chosen = menu.chosen.text
        whole = typed == chosen
        run = and_run and (whole if menu.kind == "file" else whole or not takes_argument)
        space = "" if run or after.startswith(" ") else " "
        self.buffer.set_document(Document(before + chosen + space + after, len(before + chosen + space)))
        if run or menu.kind != "command":
            self.menu = None
        return run

    def _typed(self, buffer: Buffer) -> None:
        self.last_key = time.monotonic()
        self._moved(buffer)

    def _moved(self, buffer: Buffer) -> None:
        self.menu = self._completer.menu(buffer.text, buffer.cursor_position) if self.completes else None
