"""Find a parameter in its function's docstring: Sphinx fields, Google and NumPy lists, words in quotes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fulgur.edit.refactor.source import Function, Source

_LISTS = r"(?:Args|Arguments|Parameters|Params|Other Parameters|Keyword Args|Keyword Arguments)"


def described_at(src: Source, function: Function, name: str) -> list[int]:
    """The offsets of the name in the docstring; for a constructor, also in the docstring of its class."""
    owner = src.class_of(function)
    nodes: list[ast.AST] = [function, *([owner] if owner is not None and function.name == "__init__" else [])]
    found: set[int] = set()
    for node in nodes:
        if (docstring := src.docstring(node)) is not None:
            start, end = src.span(docstring)
            found |= {start + at for at in _in_text(src.text[start:end], name)}
    return sorted(found)


def _in_text(text: str, name: str) -> Iterator[int]:
    word = re.escape(name)
    for match in re.finditer(r":(?:param|parameter|arg|argument|key|keyword|kwarg|type)\b([^:\n]*):", text):
        yield from (match.start(1) + m.start() for m in re.finditer(rf"(?<!\w){word}(?!\w)", match[1]))
    for match in re.finditer(rf"(?<![\w`*])(``|`|\*)({word})\1(?![\w`*])", text):
        yield match.start(2)
    for head in re.finditer(rf"^([ \t]*){_LISTS}:?[ \t]*$", text, re.MULTILINE):
        yield from _in_list(text, head.end(), head[1], word)


def _in_list(text: str, at: int, margin: str, word: str) -> Iterator[int]:
    """`name (int): …` below `Args:`, `name : int` below `Parameters`; the list ends at the next heading."""
    entry = re.compile(rf"[ \t]*(?:\w+, )*({word})(?:, \w+)*[ \t]*(?:\([^)\n]*\))?[ \t]*(?::|$)")
    for line in re.finditer(r"[^\n]*(?:\n|$)", text[at + 1 :]):
        body = line[0].rstrip("\n")
        if not line[0]:
            return
        level = body[: len(body) - len(body.lstrip())]
        if re.fullmatch(r"\s*-+\s*", body) or not body.strip():
            continue
        heading = re.fullmatch(r"\s*[A-Z]\w*(?: \w+)?:?", body)
        if len(level) < len(margin) or (level == margin and heading):
            return
        if match := entry.match(body):
            yield at + 1 + line.start() + match.start(1)
