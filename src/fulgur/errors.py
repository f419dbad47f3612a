"""Errors a user can act on: what was wrong, where, and what to do."""

from __future__ import annotations


class FulgurError(Exception):
    """A mistake or a missing thing that a person can fix; shown as one message, never as a traceback.

    `hint` says what to do next. `exit_code` is what a command ends with: 1 the work failed, 2 wrong use.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(FulgurError):
    """The command, an option or a config key was used wrongly."""

    exit_code = 2
