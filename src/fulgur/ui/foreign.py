"""The one place that shows text from others: models, tools, files, servers.

Characters that move the cursor, hide, reorder or look like nothing (controls, escape sequences, zero width, fillers,
bidirectional marks, variation selectors, tags) are shown as `<U+200B>`, a run of the same one as `<U+200B×9>`. Use
`shown` for reading, `code` for lines of files, and `exact` for what a person decides about. `exact` drops nothing and
counts gaps that could push text out of sight, so that what it shows can only mean one text. On a pipe or in a file,
stdout gets the text unchanged, since a program reads it; stderr is for people.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable
from itertools import groupby
from typing import TextIO

# Printable according to Unicode's categories, and yet invisible or nearly so.
_FILLERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
# Parts of emoji, or of words in scripts that join letters: harmless in prose, where they are dropped.
_JOINERS = re.compile("(?:^|(?<=[^\x00-\x7f]))[\u200c\u200d](?=[^\x00-\x7f]|$)|(?:^|(?<=[#*0-9\x80-\U0010ffff]))\ufe0f")
_NOT_PLAIN = re.compile(r"[^\n -~]+")
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_COLOURS = {"+": "32", "-": "31", "@": "36"}


def hides(char: str) -> bool:
    """Whether a character does not plainly show as itself."""
    return not char.isprintable() or bool(_FILLERS.match(char))


def shown(text: str) -> str:
    """Make text readable: lines stay lines, tabs become spaces, unusual spaces become plain ones."""
    if text.isascii() and text.isprintable():
        return text
    text = _JOINERS.sub("", text.replace("\r\n", "\n").replace("\t", "    "))
    return _written(text, lambda char: " " if unicodedata.category(char) == "Zs" else "")


def code(text: str) -> str:
    """Show lines of a file: like `shown`, but nothing is dropped and every unusual space is named."""
    return _written(text.replace("\t", "    "), lambda char: "")


def exact(text: str) -> str:
    """Show text that a person decides about: no other text looks like this. Newlines stay; long gaps are counted."""
    text = re.sub(r"<(?=U\+)", _named("<"), text)
    text = _written(text, lambda char: "", lambda char: unicodedata.category(char) in ("Mn", "Me"))
    text = re.sub(r" {9,}|\n{4,}", lambda gap: _named(gap.group()[0], len(gap.group())), text)
    return re.sub(r" (?= *(?:\n|$))", _named(" "), text)


def _written(text: str, instead: Callable[[str], str], also: Callable[[str], bool] = lambda char: False) -> str:
    """Replace each character that hides (or that `also` selects) by its substitute, or else by its name."""

    def written(match: re.Match[str]) -> str:
        parts = []
        for char, run in groupby(match.group()):
            times = sum(1 for _ in run)
            parts.append(instead(char) * times or _named(char, times) if hides(char) or also(char) else char * times)
        return "".join(parts)

    return _NOT_PLAIN.sub(written, text)


def uncoloured(text: str) -> str:
    """Strip the colours from a program's output."""
    return _SGR.sub("", text)


def has_screen() -> bool:
    """Whether a person types and reads here."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def whole_text(argument: str) -> str:
    """Decode a command-line argument: bytes that are not UTF-8 become replacement characters."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def one_row(text: str) -> str:
    """`exact`, without line breaks."""
    return exact(text).replace("\n", " ⏎ ")


def _named(char: str, times: int = 1) -> str:
    return f"<U+{ord(char):04X}{f'×{times}' if times > 1 else ''}>"


def json_text(text: str) -> str:
    """Escape such characters in JSON; the meaning stays the same."""
    if text.isascii() and text.isprintable():
        return text
    units = (char if char == "\n" or not hides(char) else char.encode("utf-16-be", "surrogatepass") for char in text)
    return "".join(unit if isinstance(unit, str) else _json_escaped(unit) for unit in units)


def _json_escaped(units: bytes) -> str:
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def out(text: str = "", *, end: str = "\n") -> None:
    """Write to stdout: readable on a terminal, unchanged to a file or a pipe."""
    _write(sys.stdout, (shown(text) if sys.stdout.isatty() else text) + end)


def out_json(text: str) -> None:
    """Write one line of JSON to stdout."""
    _write(sys.stdout, json_text(text) + "\n")


def out_diff(diff: str) -> None:
    """Write a unified diff to stdout; on a terminal with hidden characters named and in colour."""
    if not sys.stdout.isatty():
        _write(sys.stdout, diff)
        return
    coloured = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    for line in code(diff).removesuffix("\n").split("\n"):
        sgr = "1" if line.startswith(("+++ ", "--- ")) else _COLOURS.get(line[:1], "")
        _write(sys.stdout, f"\x1b[{sgr}m{line}\x1b[0m\n" if sgr and coloured else f"{line}\n")


def note(text: str) -> None:
    """Write a line for people to stderr."""
    _write(sys.stderr, shown(text) + "\n")


def progress(text: str) -> bool:
    """Redraw the current line on stderr; False, with nothing written, if that is not a terminal."""
    if not sys.stderr.isatty():
        return False
    _write(sys.stderr, f"\r\x1b[K{shown(text)}")
    return True


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a name that is not UTF-8, or a terminal with few characters
        known = stream.encoding or "ascii"
        stream.write(text.encode(known, "backslashreplace").decode(known))
    stream.flush()


def log_to_stderr() -> None:
    """Log records to stderr as readable lines."""
    import logging

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return shown(super().format(record))

    handler = logging.StreamHandler()
    handler.setFormatter(Formatter("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
