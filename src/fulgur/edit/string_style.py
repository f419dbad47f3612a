"""Apply a change of string style (quotes or prefix) to all strings of a file that are written the old way."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection
from dataclasses import dataclass

_STRING = re.compile(r"(\w*)('''|\"\"\"|'|\")(.*)\2", re.DOTALL)


@dataclass(frozen=True)
class StringStyle:
    """`old` and `new` are a prefix and a quote, such as u and '."""

    old: tuple[str, str]
    new: tuple[str, str]

    def applied(self, text: str, spared: Collection[int]) -> str:
        """The text with every string written the new way, except on the `spared` lines (from 1)."""
        lines = text.splitlines(keepends=True)
        for token in reversed(_strings(text) or []):
            (row, first), (last_row, last) = token.start, token.end
            if row == last_row and row not in spared:
                line = lines[row - 1]
                lines[row - 1] = line[:first] + self._written(token.string) + line[last:]
        return "".join(lines)

    def _written(self, string: str) -> str:
        prefix, quote, body = _parts(string)
        if quote != self.old[1] or (prefix != self.old[0] and self.old[0] != self.new[0]):
            return string
        if quote != self.new[1] and (self.new[1] in body or f"\\{quote}" in body):
            return string  # its body would need different escapes
        if self.old[0] != self.new[0]:
            prefix = self.new[0]
        return f"{prefix}{self.new[1]}{body}{self.new[1]}"


def string_style(before: str, after: str) -> StringStyle | None:
    """The change of style between two versions of a line; None if anything else changed."""
    old, new = _strings(before), _strings(after)
    if old is None or new is None or len(old) != len(new) or _without(before, old) != _without(after, new):
        return None
    styles = set()
    for one, two in zip(old, new, strict=True):
        (*was, body), (*now, same) = _parts(one.string), _parts(two.string)
        if body != same:
            return None
        if was != now:
            styles.add(StringStyle((was[0], was[1]), (now[0], now[1])))
    if len(styles) != 1:
        return None
    [style] = styles
    # r, b and f change what a string means, and triple quotes suit only some strings.
    same_kind = style.old[0] == style.new[0] or {style.old[0].lower(), style.new[0].lower()} == {"", "u"}
    return style if same_kind and len(style.old[1]) == len(style.new[1]) else None


def _strings(text: str) -> list[tokenize.TokenInfo] | None:
    found: list[tokenize.TokenInfo] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                found.append(token)
    except (tokenize.TokenError, IndentationError):  # a single line often leaves brackets open
        pass
    except SyntaxError:
        return None
    return found


def _without(line: str, strings: list[tokenize.TokenInfo]) -> list[str]:
    """The code between the strings of one line."""
    ends = [0, *(token.end[1] for token in strings)]
    starts = [*(token.start[1] for token in strings), len(line)]
    return [line[end:start] for end, start in zip(ends, starts, strict=True)]


def _parts(string: str) -> tuple[str, str, str]:
    found = _STRING.fullmatch(string)
    return (found[1], found[2], found[3]) if found else ("", "", string)
