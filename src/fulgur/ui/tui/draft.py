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
    """What was typed, readable by its owner alone; a disk that cannot be written costs the history, not the prompt."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(self.filename, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(descriptor, 0o600)  # it may be older than this rule
            os.close(descriptor)
            super().store_string(string)

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []


class Draft:
    """A draft is never thrown away: whatever takes it from the screen puts it into the history or hands it on."""

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
        """Empty the input and hand its text over."""
        text = whole_text(self.text)
        self.buffer.reset()
        self.menu = None
        return text

    def give(self, text: str) -> None:
        """Put text into the input, the cursor at its end."""
        self.buffer.set_document(Document(text, len(text)))
        self.menu = None

    def put_back(self, text: str) -> None:
        """Text that was taken before what is typed now."""
        self.give(f"{text}\n{self.text}" if self.text else text)

    def send(self) -> str:
        """Empty the input, remember its text in the history and hand it over."""
        if (
            whole := whole_text(self.text)
        ) != self.text:  # bytes that are no UTF-8 were pasted, or it is not the locale
            self.give(whole)
        text = self.text.strip()
        self.buffer.reset(append_to_history=True)
        self.menu = None
        return text

    def save(self) -> None:
        """At the end: an unsent draft is one Up away next time."""
        if self.text.strip():
            self._history.store_string(whole_text(self.text))

    def accept(self, takes_argument: bool, *, and_run: bool) -> bool:
        """Put the chosen row of the menu in place; true when Enter may send the draft: a whole command, or
        a file named to its end."""
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
