"""Cells and rows: how wide text is in a terminal, and where a row ends."""

from __future__ import annotations

from prompt_toolkit.utils import get_cwidth


def cells(text: str) -> int:
    """The columns that the text takes; wide characters take two."""
    return len(text) if text.isascii() else get_cwidth(text)


def cut(text: str, width: int) -> int:
    """How many characters of `text` fit into `width` columns."""
    if text.isascii():
        return min(len(text), width)
    used = 0
    for index, char in enumerate(text):
        used += get_cwidth(char)
        if used > width:
            return index
    return len(text)


def break_row(text: str, width: int) -> tuple[str, str] | None:
    """Split off the first row of a paragraph, at a space if there is one; None while everything fits.

    The split never changes when more text follows, so a row can be committed while its paragraph still streams.
    """
    fits = cut(text, width)
    if fits >= len(text):
        return None
    if text[fits] == " ":
        row, rest = text[:fits], text[fits + 1 :]
        # Only spaces are beyond the edge; the next word may still come, and a new row would show nothing.
        return None if not rest.strip(" ") else (row, rest.lstrip(" "))
    space = text.rfind(" ", 0, fits)
    if space > 0 and text[:space].strip(" "):
        return text[:space], text[space + 1 :]
    return text[: max(fits, 1)], text[max(fits, 1) :]


def shorten(text: str, width: int) -> str:
    """One row of at most `width` columns; what does not fit ends in an ellipsis."""
    text = text.replace("\n", " ⏎ ")
    return text if cells(text) <= width else text[: cut(text, width - 1)] + "…"
