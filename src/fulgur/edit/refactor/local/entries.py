"""Remove elements of lists, tuples, sets and dictionaries, or change their values."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.literals import literal
from fulgur.edit.refactor.local.piece import Edits, Piece, expression, only, rest
from fulgur.edit.refactor.source import Edit

_LISTS = (ast.List, ast.Tuple, ast.Set)


def remove_item(src: Piece, args: tuple[str, ...]) -> Edits:
    """`remove_item NAME VALUE`: removes an element of a list, or an entry of a dictionary by its key."""
    wanted = expression(rest(args, 1))
    node = literal(src, args[0], (*_LISTS, ast.Dict))
    if isinstance(node, ast.Dict):
        entries = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        all_of: list[tuple[ast.expr, ast.expr]] = [(key or value, value) for key, value in entries]
    else:
        assert isinstance(node, _LISTS)
        all_of = [(one, one) for one in node.elts]
    first, last = only([pair for pair in all_of if ast.dump(pair[0]) == wanted], f"{rest(args, 1)} in {args[0]}")
    if isinstance(node, ast.Set) and len(all_of) == 1:
        raise RefactorError(f"{args[0]} would be an empty dictionary")
    if isinstance(node, ast.Tuple) and len(all_of) < 3:
        raise RefactorError(f"{args[0]} would be left with one element, or none")
    return [_without(src, node, src.start(first), src.end(last))]


def _without(src: Piece, owner: ast.expr, start: int, end: int) -> Edit:
    """Remove an element with its comma, and with its line if it is alone on it."""
    text = src.text
    after = re.compile(r"[ \t]*,").match(text, end)
    lead, line = text[src.line_start(src.line_of(start)) : start], src.line_of(end)
    tail = text[after.end() if after else end : src.line_end(line)]
    alone = not lead.strip() and (not tail.strip() or tail.lstrip().startswith("#"))
    if alone and (after or lead):
        if after is None:  # the last element, without a trailing comma: remove the comma of the one before it
            before = re.compile(r",\s*$").search(text, src.start(owner), start)
            return Edit(before.start() if before else start, end, "")
        return Edit(src.line_start(src.line_of(start)), src.line_end(line), "")
    if after:
        space = re.compile(r"[ \t]*").match(text, after.end())
        return Edit(start, space.end() if space else after.end(), "")
    before = re.compile(r",\s*$").search(text[:start])
    return Edit(before.start() if before else start, end, "")


def set_entry(src: Piece, args: tuple[str, ...]) -> Edits:
    """`set_entry NAME KEY VALUE`: a new value for an existing key of a dictionary."""
    node, wanted, value = literal(src, args[0], (ast.Dict,)), expression(args[1]), rest(args, 2)
    assert isinstance(node, ast.Dict)
    pairs = zip(node.keys, node.values, strict=True)
    old = only([v for key, v in pairs if key is not None and ast.dump(key) == wanted], f"{args[1]} in {args[0]}")
    return [] if ast.dump(old) == expression(value) else [Edit(*src.span(old), value)]
