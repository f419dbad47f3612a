"""What the model would type at a cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fulgur.errors import UsageError

if TYPE_CHECKING:
    from fulgur.edit.document import Document
    from fulgur.edit.model import Answer, Model


def complete(
    document: Document, line: int, column: int, model: Model, max_tokens: int, *, one_line: bool, unsure: bool = False
) -> Answer:
    """Complete the rest of the line, or several lines. `line` and `column` count from 1.

    The server cuts the file around the cursor. The rest of a line ends where the model is no longer sure, unless
    `unsure` asks for all of it.
    """
    at = cursor(document.text, line, column, document.name)
    before, after = document.text[:at], document.text[at:]
    more: dict[str, Any] = {"min_probability": 0} if unsure else {}
    return model.complete(document.name, before, after, max_tokens, one_line=one_line, **more)


def cursor(text: str, line: int, column: int, name: str) -> int:
    """The offset of a cursor; raises for a position past the end of its line, and says where the line ends."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        raise UsageError(f"{name} has {len(lines)} lines: there is no line {line}")
    if not 1 <= column <= len(lines[line - 1]) + 1:
        raise UsageError(
            f"line {line} of {name} ends at column {len(lines[line - 1]) + 1}: there is no column {column}"
        )
    return sum(len(before) + 1 for before in lines[: line - 1]) + column - 1
