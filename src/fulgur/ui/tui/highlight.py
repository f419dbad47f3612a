"""Colours for code, line by line, so that a line is coloured before its block has ended."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from fulgur.ui.tui.theme import Span

_QUOTES = re.compile(r"'''|\"\"\"")


class Highlighter:
    """Colours the lines of one block. Pygments sees single lines, so multi-line strings are tracked here."""

    def __init__(self, language: str) -> None:
        self._lexer = _lexer(language)
        self._python = language.lower() in ("python", "py", "python3")
        self._open: str | None = None  # the quote of a string that continues from the line before

    def line(self, text: str, *, closed: bool = True) -> list[Span]:
        """The spans of one line; `closed=False` peeks at a line that is still growing."""
        before = self._open
        after = _follow(text, before) if self._python else None
        if closed:
            self._open = after
        if before is not None:
            end = text.find(before)
            if end < 0:
                return [("string", text)]
            end += 3
            return [("string", text[:end]), *self._lex(text[end:])]
        return self._lex(text)

    def _lex(self, text: str) -> list[Span]:
        if self._lexer is None or not text:
            return [("", text)]
        spans: list[Span] = []
        for token, piece in self._lexer.get_tokens(text):
            piece = piece.rstrip("\n")
            if not piece:
                continue
            meaning = _meaning(str(token))
            if spans and spans[-1][0] == meaning:
                spans[-1] = (meaning, spans[-1][1] + piece)
            else:
                spans.append((meaning, piece))
        return spans


def _follow(text: str, quote: str | None) -> str | None:
    """The triple quote that is open after this line."""
    position = 0
    while match := _QUOTES.search(text, position):
        if quote is None:
            if text.lstrip().startswith("#"):
                return None
            quote = match.group()
        elif match.group() == quote:
            quote = None
        position = match.end()
    return quote


@lru_cache(maxsize=512)
def _meaning(token: str) -> str:
    kind = token.removeprefix("Token.")
    if kind.startswith("Keyword") or kind == "Operator.Word":
        return "keyword"
    if kind.startswith(("Literal.String", "String")):
        return "string"
    if kind.startswith("Comment"):
        return "comment"
    if kind.startswith(("Literal.Number", "Number")):
        return "number"
    if kind.startswith(("Name.Function", "Name.Class", "Name.Decorator", "Name.Tag")):
        return "name"
    return ""


@lru_cache(maxsize=32)
def _lexer(language: str) -> Any:
    if not language:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def language_of(path: str) -> str:
    """Pygments' name for the language of a file, by its suffix; empty if unknown."""
    return _BY_SUFFIX.get(path.rsplit(".", 1)[-1].lower(), "") if "." in path else ""


_BY_SUFFIX = {
    "py": "python",
    "pyi": "python",
    "js": "javascript",
    "jsx": "jsx",
    "ts": "typescript",
    "tsx": "tsx",
    "rs": "rust",
    "go": "go",
    "c": "c",
    "h": "c",
    "cc": "cpp",
    "cpp": "cpp",
    "hpp": "cpp",
    "cu": "cpp",
    "java": "java",
    "kt": "kotlin",
    "rb": "ruby",
    "php": "php",
    "sh": "bash",
    "bash": "bash",
    "zsh": "bash",
    "json": "json",
    "toml": "toml",
    "yaml": "yaml",
    "yml": "yaml",
    "sql": "sql",
    "html": "html",
    "css": "css",
}


def warm() -> None:
    """Load the most used lexer, so that the first code block does not wait for it."""
    Highlighter("python").line("x = 1")
