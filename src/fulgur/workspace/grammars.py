"""Tree-sitter grammars by file extension, loaded on first use."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Parser

# extension: (package, function that returns the grammar)
_GRAMMARS = {
    "py": ("tree_sitter_python", "language"),
    "pyi": ("tree_sitter_python", "language"),
    "js": ("tree_sitter_javascript", "language"),
    "jsx": ("tree_sitter_javascript", "language"),
    "mjs": ("tree_sitter_javascript", "language"),
    "cjs": ("tree_sitter_javascript", "language"),
    "ts": ("tree_sitter_typescript", "language_typescript"),
    "mts": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "go": ("tree_sitter_go", "language"),
    "rs": ("tree_sitter_rust", "language"),
    "c": ("tree_sitter_c", "language"),
    "h": ("tree_sitter_c", "language"),
    "java": ("tree_sitter_java", "language"),
}


@functools.cache
def language_for(suffix: str) -> Language | None:
    """The grammar for files that end in `.suffix`; None when there is none."""
    known = _GRAMMARS.get(suffix)
    if known is None:
        return None
    from tree_sitter import Language

    package, function = known
    return Language(getattr(importlib.import_module(package), function)())


def parser_for(suffix: str) -> Parser | None:
    """A parser for files that end in `.suffix`; None when there is no grammar."""
    language = language_for(suffix)
    if language is None:
        return None
    from tree_sitter import Parser

    return Parser(language)
