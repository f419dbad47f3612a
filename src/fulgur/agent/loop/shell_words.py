"""Parses a shell command as bash would, or not at all.

Only plain words, quotes without expansions, and `&&`, `||`, `;`, `|` between commands are understood. Everything that
bash would expand, substitute, assign, redirect or define (`$`, backticks, globs, braces, here-documents, functions,
assignments, comments, escapes, job control) gives None, and the caller must ask a person. Two redirections are simple
enough to pass: `2>&1`, and discarding output to `/dev/null`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class SimpleCommand:
    """One command as words; `piped` if it reads the output of the command before it."""

    words: tuple[str, ...]
    piped: bool = False


# `~` expands at the start of a word and after `=` and `:`, not inside `HEAD~2`.
_BARE = re.compile(r"(?:[A-Za-z0-9_./:,@%+=^-]|(?<=[A-Za-z0-9^])~)+")
_SINGLE = re.compile(r"'([^'\x00-\x1f\x7f]*)'")
_DOUBLE = re.compile(r'"([^"$`\\!\x00-\x1f\x7f]*)"')
_THROWN_AWAY = re.compile(r"(?:2>&1|2?>[ \t]?/dev/null)(?=[ \t;|&]|$)")
_SEPARATOR = re.compile(r"(&&|\|\||;(?!;)|\|(?![&|]))")
_NAME = re.compile(r"[A-Za-z0-9_./+-]+")  # a program's name: no assignment (`a=b`), no job (`%1`)
_RESERVED = frozenset(
    {"if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "select", "function"}
    | {"time", "coproc", "in"}
)
_BLANK = re.compile(r"[ \t]+")


def simple_commands(command: str) -> list[SimpleCommand] | None:
    """Parse the commands of a line, in order; None if any part is not plainly understood."""
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
    """Return the word that starts here and where it ends; None for a word that bash would change."""
    position, pieces = start, []
    while position < len(command) and command[position] not in " \t;|&":
        for kind in (_BARE, _SINGLE, _DOUBLE):
            if piece := kind.match(command, position):
                break
        else:
            return None, position
        pieces.append(piece.group(piece.lastindex or 0))
        position = piece.end()
    # No progress: a lone `&`. Only a person can judge such a line.
    return ("".join(pieces), position) if position > start else (None, position)
