"""The one place that shows text of others: models, tools, files, servers.

Characters that move the cursor, hide, reorder or look like nothing (controls, escape sequences, zero width, fillers,
bidirectional marks, variation selectors, tags) are shown as `<U+200B>`, several of the same as `<U+200B×9>`.
`shown` is for reading, `code` for lines of files, `exact` for what a person decides about: nothing is dropped, gaps
that could push text out of sight are counted, and what is shown can only mean one text. On a pipe or into a file
stdout gets the text as it is, since a program reads it; stderr is for people.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable
from itertools import groupby
from typing import TextIO

# Printable by Unicode's categories, and yet nothing or nearly nothing is seen of them.
_FILLERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
# Part of an emoji, or of words in scripts that join: harmless in prose, and left out there.
_JOINERS = re.compile("(?:^|(?<=[^\x00-\x7f]))[\u200c\u200d](?=[^\x00-\x7f]|$)|(?:^|(?<=[#*0-9\x80-\U0010ffff]))\ufe0f")
_NOT_PLAIN = re.compile(r"[^\n -~]+")
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_COLOURS = {"+": "32", "-": "31", "@": "36"}


def hides(char: str) -> bool:
    """Whether a character is not plainly seen as itself."""
    return not char.isprintable() or bool(_FILLERS.match(char))


def shown(text: str) -> str:
    """Text for reading. Lines stay lines, a tab becomes spaces, unusual spaces become usual ones."""
    if text.isascii() and text.isprintable():
        return text
    text = _JOINERS.sub("", text.replace("\r\n", "\n").replace("\t", "    "))
    return _written(text, lambda char: " " if unicodedata.category(char) == "Zs" else "")


def code(text: str) -> str:
    """Lines of a file: as `shown`, but nothing is dropped and every unusual space is named."""
    return _written(text.replace("\t", "    "), lambda char: "")


def exact(text: str) -> str:
    """Text to decide about: only this text is shown this way. Newlines stay; long gaps are counted."""
    text = re.sub(r"<(?=U\+)", _named("<"), text)
    text = _written(text, lambda char: "", lambda char: unicodedata.category(char) in ("Mn", "Me"))
    text = re.sub(r" {9,}|\n{4,}", lambda gap: _named(gap.group()[0], len(gap.group())), text)
    return re.sub(r" (?= *(?:\n|$))", _named(" "), text)


def _written(text: str, instead: Callable[[str], str], also: Callable[[str], bool] = lambda char: False) -> str:
    """Every character that hides (or is meant by `also`) by what stands for it, else by its name."""

    def written(match: re.Match[str]) -> str:
        parts = []
        for char, run in groupby(match.group()):
            times = sum(1 for _ in run)
            parts.append(instead(char) * times or _named(char, times) if hides(char) or also(char) else char * times)
        return "".join(parts)

    return _NOT_PLAIN.sub(written, text)


def uncoloured(text: str) -> str:
    """A program's output without its colours."""
    return _SGR.sub("", text)


def has_screen() -> bool:
    """Whether a person types and reads here."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def whole_text(argument: str) -> str:
    """An argument of the command line as text: bytes that are no UTF-8 are shown as such instead of kept apart."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def one_row(text: str) -> str:
    """`exact` without line breaks."""
    return exact(text).replace("\n", " ⏎ ")


def _named(char: str, times: int = 1) -> str:
    return f"<U+{ord(char):04X}{f'×{times}' if times > 1 else ''}>"


def json_text(text: str) -> str:
    """JSON that means the same and has no such character in it."""
    if text.isascii() and text.isprintable():
        return text
    units = (char if char == "\n" or not hides(char) else char.encode("utf-16-be", "surrogatepass") for char in text)
    return "".join(unit if isinstance(unit, str) else _json_escaped(unit) for unit in units)


def _json_escaped(units: bytes) -> str:
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def out(text: str = "", *, end: str = "\n") -> None:
    """Write to stdout: for reading on a terminal, as it is into a file or a pipe."""
    _write(sys.stdout, (shown(text) if sys.stdout.isatty() else text) + end)


def out_json(text: str) -> None:
    """Write one line of JSON to stdout."""
    _write(sys.stdout, json_text(text) + "\n")


def out_diff(diff: str) -> None:
    """Write a unified diff to stdout, on a terminal exact and in colour."""
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
    """Draw a line over the one before on stderr; False where that is no terminal, and nothing was written."""
    if not sys.stderr.isatty():
        return False
    _write(sys.stderr, f"\r\x1b[K{shown(text)}")
    return True


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a name that is not UTF-8, or a terminal that has few characters
        known = stream.encoding or "ascii"
        stream.write(text.encode(known, "backslashreplace").decode(known))
    stream.flush()


def log_to_stderr() -> None:
    """Log records as lines for people."""
    import logging

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return shown(super().format(record))

    handler = logging.StreamHandler()
    handler.setFormatter(Formatter("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
