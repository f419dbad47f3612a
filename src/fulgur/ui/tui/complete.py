"""Completion of `/commands`, their arguments and `@files`: a small menu below the input."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fulgur.ui.tui.files import FileIndex

_AT = re.compile(r"(?:^|(?<=[\s(,]))@([^\s@]*)$")


@dataclass(frozen=True)
class Choice:
    """One row of the menu."""

    text: str
    note: str = ""


@dataclass
class Menu:
    """What can replace the text from `start` to the cursor."""

    start: int
    choices: Sequence[Choice]
    kind: str  # command, argument or file
    index: int = 0

    def move(self, step: int) -> None:
        self.index = (self.index + step) % len(self.choices)

    @property
    def chosen(self) -> Choice:
        return self.choices[self.index]

    def window(self, height: int) -> tuple[int, Sequence[Choice]]:
        """The number of the first visible row, and the rows around the chosen one."""
        first = max(0, min(self.index - height // 2, len(self.choices) - height))
        return first, self.choices[first : first + height]


class Completer:
    """Finds the menu for a draft. `commands` and `arguments` come from the slash commands."""

    def __init__(
        self, files: FileIndex, commands: Sequence[Choice], arguments: Callable[[str], Sequence[Choice]]
    ) -> None:
        self.files = files
        self._commands = commands
        self._arguments = arguments

    def menu(self, text: str, cursor: int) -> Menu | None:
        before = text[:cursor]
        if before.startswith("/") and "\n" not in text:
            return self._slash(before)
        if match := _AT.search(before):
            self.files.refresh()
            self.files.wait(0.03)
            found = self.files.search(match.group(1))
            # A fully typed name needs no menu.
            if found and found != [match.group(1)]:
                return Menu(match.start(1) - 1, [Choice(f"@{path}") for path in found], "file")
        return None

    def _slash(self, before: str) -> Menu | None:
        command, space, argument = before.partition(" ")
        if not space:
            choices = [choice for choice in self._commands if choice.text.startswith(command)]
            return Menu(0, choices, "command") if choices else None
        words = argument.lower()
        offered = self._arguments(command)
        choices = [choice for choice in offered if words in choice.text.lower() or words in choice.note.lower()]
        if not choices or [choice.text for choice in choices] == [argument]:
            return None
        return Menu(len(command) + 1, choices, "argument")
