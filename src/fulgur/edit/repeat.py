"""Repeat the last change of a file on the other lines that it fits."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from fulgur.edit.refactor.source import FUNCTIONS, Unusable, parse
from fulgur.edit.replay import replayed
from fulgur.edit.string_style import string_style
from fulgur.edit.substitution import rules
from fulgur.text.edit_format import RecentEdit

Pair = tuple[str, str]


def repeated(text: str, recent: Sequence[RecentEdit], changed: Collection[int], *, python: bool = True) -> str:
    """The text with changes of single lines repeated on other lines; `changed` lines (from 1) stay as they are."""
    pairs = list(dict.fromkeys(_pairs(recent)))
    for pair in reversed(pairs):
        text = _followed(text, pair, pairs, changed, python)
    return text


def _pairs(recent: Sequence[RecentEdit]) -> Iterator[Pair]:
    """Changed lines, before and after."""
    for edit in recent:
        before, after = edit.before.splitlines(), edit.after.splitlines()
        if len(before) == len(after):
            yield from ((one, two) for one, two in zip(before, after, strict=True) if one.strip() != two.strip())


def _followed(text: str, pair: Pair, pairs: Sequence[Pair], changed: Collection[int], python: bool) -> str:
    """The text after the first rule for a change that fits another line and that no change contradicts."""
    if python and (style := string_style(*pair)) is not None:
        return style.applied(text, changed)
    if python and (refactored := replayed(text, *pair, changed)) != text:
        return refactored
    lines = text.split("\n")
    for rule in rules(*pair):
        if any(rule.applied(one) not in (one, two) for one, two in pairs):
            continue
        new = [line if number in changed else rule.applied(line) for number, line in enumerate(lines, 1)]
        if new != lines and rule.gives_none:
            new = _returning_nothing(text, lines, new)
        if new != lines:
            return "\n".join(new)
    return text


def _returning_nothing(text: str, old: list[str], new: list[str]) -> list[str]:
    """The new lines where they belong to functions that return nothing, otherwise the old ones."""
    try:
        tree = parse(text)
    except Unusable:
        return old
    nothing = set()
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and not _gives(node):
            nothing |= set(range(node.lineno, node.body[0].lineno))
    return [two if number in nothing else one for number, (one, two) in enumerate(zip(old, new, strict=True), 1)]


def _gives(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function returns or yields a value, nested functions aside."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom) or (isinstance(node, ast.Return) and node.value is not None):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)
    return False
