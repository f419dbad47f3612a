"""Rewrite loops with enumerate, items, any and all."""

from __future__ import annotations

import ast

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, negated, only
from fulgur.edit.refactor.source import Edit, dotted


def neighbours(src: Piece, node: ast.stmt) -> tuple[ast.stmt | None, ast.stmt | None]:
    block = src.block_of(node)
    index = block.index(node)
    return (block[index - 1] if index else None), (block[index + 1] if index + 1 < len(block) else None)


def fetched(src: Piece, node: ast.For, index: str) -> tuple[ast.Assign, str, str] | None:
    """(statement, item, collection) of a loop that begins with `item = collection[index]`."""
    first = node.body[0]
    if not isinstance(first, ast.Assign) or not isinstance(first.value, ast.Subscript) or len(node.body) < 2:
        return None
    item, items = dotted(first.targets[0]), dotted(first.value.value)
    plain = isinstance(first.targets[0], ast.Name) and len(first.targets) == 1 and src.alone_on_lines(first)
    if not plain or item is None or items is None or src.segment(first.value.slice) != index:
        return None
    return first, item, items


def use_enumerate(src: Piece, args: tuple[str, ...]) -> Edits:
    found = []
    for node in src.of(ast.For):
        index, call = dotted(node.target), node.iter
        first = fetched(src, node, index) if index else None
        if first and isinstance(call, ast.Call) and src.segment(call) == f"range(len({first[2]}))":
            found.append((node, index, *first))
    node, index, statement, item, items = only(found, "loop over range(len(…)) that begins by taking the item")
    head = Edit(src.start(node.target), src.end(node.iter), f"{index}, {item} in enumerate({items})")
    return [head, Edit(*src.whole_lines(statement), "")]


def use_items(src: Piece, args: tuple[str, ...]) -> Edits:
    found = []
    for node in src.of(ast.For):
        key = dotted(node.target)
        first = fetched(src, node, key) if key else None
        if first and src.segment(node.iter) in (first[2], f"{first[2]}.keys()"):
            found.append((node, key, *first))
    node, key, statement, value, mapping = only(found, "loop over keys that begins by taking the value")
    head = Edit(src.start(node.target), src.end(node.iter), f"{key}, {value} in {mapping}.items()")
    return [head, Edit(*src.whole_lines(statement), "")]


def use_any_all(src: Piece, args: tuple[str, ...]) -> Edits:
    found = []
    for node in src.of(ast.For):
        after, inner = neighbours(src, node)[1], node.body[0]
        if len(node.body) != 1 or node.orelse or not isinstance(inner, ast.If) or inner.orelse or len(inner.body) != 1:
            continue
        values = [s.value.value for s in (inner.body[0], after)
                  if isinstance(s, ast.Return) and isinstance(s.value, ast.Constant)]  # fmt: skip
        if len(values) == 2 and {*values} == {True, False} and all(isinstance(v, bool) for v in values):
            found.append((node, inner, after, bool(values[0])))
    node, inner, after, some = only(found, "loop that returns True or False")
    if "#" in src.text[src.start(node) : src.end(after)] or not src.one_line(inner.test):  # type: ignore[arg-type]
        raise RefactorError("the loop contains a comment")
    test = src.segment(inner.test) if some else negated(src, inner.test)
    clause = f"for {src.segment(node.target)} in {src.segment(node.iter)}"
    text = f"return {'any' if some else 'all'}({test} {clause})"
    return [Edit(src.start(node), src.end(after), text)]  # type: ignore[arg-type]
