"""A shell command read as bash would read it, or not at all.

Only plain words, quotes without expansions, and `&&`, `||`, `;`, `|` between commands are understood. Everything that
bash would expand, substitute, assign, redirect or define (`$`, backticks, globs, braces, here-documents, functions,
assignments, comments, escapes, job control) gives None, and whoever asks must ask a person. Two redirections are plain
enough to pass: `2>&1`, and throwing output away to `/dev/null`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class SimpleCommand:
    """One command as words; `piped` when it reads what the command before it writes."""

    words: tuple[str, ...]
    piped: bool = False


# `~` expands at the start of a word and behind `=` and `:`, not inside `HEAD~2`.
_BARE = re.compile(r"(?:[A-Za-z0-9_./:,@%+=^-]|(?<=[A-Za-z0-9^])~)+")
_SINGLE = re.compile(r"'([^'\x00-\x1f\x7f]*)'")
_DOUBLE = re.compile(r'"([^"$`\\!\x00-\x1f\x7f]*)"')
_THROWN_AWAY = re.compile(r"(?:2>&1|2?>[ \t]?/dev/null)(?=[ \t;|&]|$)")
_SEPARATOR = re.compile(r"(&&|\|\||;(?!;)|\|(?![&|]))")
_NAME = re.compile(r"[A-Za-z0-9_./+-]+")  # of a program: no assignment (`a=b`), no job (`%1`)
_RESERVED = frozenset(
    {"if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "select", "function"}
    | {"time", "coproc", "in"}
)
_BLANK = re.compile(r"[ \t]+")


def simple_commands(command: str) -> list[SimpleCommand] | None:
    """The commands of a line in order, or None when any part of it is not plainly understood."""
    found: list[SimpleCommand] = []
    words: list[str] = []
    piped = False
    position = 0
    while position < len(command):
        if blank := _BLANK.match(command, position):
            position = blank.end()
        elif separator := _SEPARATOR.match(command, position):
            if not words:
                return None
            found.append(SimpleCommand(tuple(words), piped))
            words, piped, position = [], separator.group() == "|", separator.end()
        elif words and (thrown := _THROWN_AWAY.match(command, position)):
            position = thrown.end()
        else:
            word, position = _word(command, position)
            if word is None:
                return None
            words.append(word)
    if not words:
        return None
    found.append(SimpleCommand(tuple(words), piped))
    firsts = [simple.words[0] for simple in found]
    return found if all(_NAME.fullmatch(first) and first not in _RESERVED for first in firsts) else None


def _word(command: str, start: int) -> tuple[str | None, int]:
    """The word that starts here, and where it ends; None for one that bash would make something else of."""
    position, pieces = start, []
    while position < len(command) and command[position] not in " \t;|&":
        for kind in (_BARE, _SINGLE, _DOUBLE):
            if piece := kind.match(command, position):
                break
        else:
            return None, position
        pieces.append(piece.group(piece.lastindex or 0))
        position = piece.end()
    # Nothing moved: a lone `&`. The rest of the line is for nobody but a person.
    return ("".join(pieces), position) if position > start else (None, position)
