"""Text files as they are on disk: bytes ↔ lines, with byte order mark, encoding and every line's ending kept."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass

from fulgur.errors import FulgurError
from fulgur.workspace.diff import changed_runs

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")


@dataclass
class TextFile:
    """The lines of a file without their endings, and everything needed to write it back."""

    lines: list[str]
    endings: list[str]
    """One per line; the last is empty when the file does not end in a newline."""
    encoding: str = "utf-8"
    mark: bytes = b""

    @classmethod
    def decode(cls, data: bytes, name: str) -> TextFile:
        """The text of a file; FulgurError when it is not text. `encode` returns the same bytes."""
        mark, encoding = next(((m, e) for m, e in _MARKS if data.startswith(m)), (b"", ""))
        body = data[len(mark) :]
        if not encoding and b"\0" in body:
            raise FulgurError(f"{name} is a binary file")
        # Latin-1 decodes any bytes and encodes them back unchanged.
        for candidate in [encoding] if encoding else ["utf-8", "latin-1"]:
            try:
                text = body.decode(candidate)
            except UnicodeDecodeError:
                continue
            return cls(*split_lines(text), candidate, mark)
        raise FulgurError(f"{name} is not valid {encoding}")

    @property
    def newline(self) -> str:
        """The ending for new lines: the most frequent one."""
        counts = Counter(ending for ending in self.endings if ending)
        return counts.most_common(1)[0][0] if counts else "\n"

    @property
    def text(self) -> str:
        """The whole text with its endings."""
        return "".join(line + ending for line, ending in zip(self.lines, self.endings, strict=True))

    @property
    def plain(self) -> str:
        """The whole text with line feeds only, as regions and refactorings see it."""
        return "".join(line + ("\n" if ending else "") for line, ending in zip(self.lines, self.endings, strict=True))

    def with_plain(self, text: str, name: str) -> bytes:
        """The bytes of the file with another text: unchanged lines keep their endings, new ones get the usual one."""
        lines, ends = split_lines(text)
        changed = TextFile(list(self.lines), list(self.endings), self.encoding, self.mark)
        for a, b, c, d in reversed(changed_runs(self.lines, lines)):
            changed.lines[a:b] = lines[c:d]
            changed.endings[a:b] = self.endings[a:b] if b - a == d - c else [self.newline] * (d - c)
        for index in range(len(changed.endings) - 1):
            changed.endings[index] = changed.endings[index] or self.newline
        if changed.endings:
            changed.endings[-1] = (changed.endings[-1] or self.newline) if ends and ends[-1] else ""
        return changed.encode(name)

    def encode(self, name: str) -> bytes:
        """The bytes to write; FulgurError when the file's encoding lacks a new character."""
        try:
            return self.mark + self.text.encode(self.encoding)
        except UnicodeEncodeError as error:
            wrong = error.object[error.start : error.end]
            raise FulgurError(f"{name} is {self.encoding}, which cannot encode {wrong!r}") from None

    def replace(self, start: int, stop: int, new: list[tuple[str, str | None]]) -> None:
        """Replace lines `start:stop` by `new` lines (text, and ending or None for the file's usual one)."""
        newline = self.newline
        open_end = bool(self.lines) and self.endings[-1] == ""
        endings = [newline if ending is None else ending for _, ending in new]
        self.lines[start:stop] = [text for text, _ in new]
        self.endings[start:stop] = endings
        for index in range(len(self.endings) - 1):
            self.endings[index] = self.endings[index] or newline
        if self.endings and open_end:
            self.endings[-1] = ""


def split_lines(text: str) -> tuple[list[str], list[str]]:
    """Lines and endings; only `\\n`, `\\r\\n` and `\\r` end a line."""
    lines, endings = [], []
    for match in _LINE.finditer(text):
        if match.start() == len(text):
            break
        lines.append(match[1])
        endings.append(match[2])
    return lines, endings


def shown_text(data: bytes | None, most: int = 1 << 20) -> str | None:
    """A file's text for display; None for no file, a binary one or one of over `most` bytes."""
    if data is None or len(data) > most:
        return None
    try:
        return TextFile.decode(data, "").text
    except FulgurError:
        return None
