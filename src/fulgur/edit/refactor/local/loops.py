"""Loops -> comprehensions, enumerate, items, any and all."""

from __future__ import annotations

import ast

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, negated, only
from fulgur.edit.refactor.source import Edit, dotted

EMPTY = {"[]": "list", "list()": "list", "{}": "dict", "dict()": "dict", "set()": "set"}


def neighbours(src: Piece, node: ast.stmt) -> tuple[ast.stmt | None, ast.stmt | None]:
    block = src.block_of(node)
    index = block.index(node)
    return (block[index - 1] if index else None), (block[index + 1] if index + 1 < len(block) else None)


def use_comprehension(src: Piece, args: tuple[str, ...]) -> Edits:
    found = [pair for node in src.of(ast.For) if (pair := comprehension(src, node)) is not None]
    if not found and (calls := [edits for node in src.of(ast.Call) if (edits := from_call(src, node))]):
        return only(calls, "list, set or dictionary made from a generator")
    return [only(found, "loop that only fills a list, set or dictionary")]


def from_call(src: Piece, node: ast.Call) -> Edits:
    """`dict((k, v) for …)`, `set([x for …])`, `list(x for …)`"""
    kind, given = dotted(node.func), node.args[0] if len(node.args) == 1 and not node.keywords else None
    if kind not in ("dict", "set", "list") or not isinstance(given, (ast.GeneratorExp, ast.ListComp)):
        return []
    start, end = src.start(given) + 1, src.end(given) - 1  # without its own brackets, which may be those of the call
    inner = src.text[start:end].strip()
    if kind == "dict":
        pair = given.elt
        if not isinstance(pair, ast.Tuple) or len(pair.elts) != 2 or src.text[src.start(pair)] != "(":
            return []
        if any(isinstance(part, ast.Starred) for part in pair.elts):
            return []
        key, value = (src.segment(part) for part in pair.elts)
        inner = f"{key}: {value}{src.text[src.end(pair) : end]}".rstrip()
    return [Edit(*src.span(node), f"[{inner}]" if kind == "list" else f"{{{inner}}}")]


def comprehension(src: Piece, node: ast.For) -> Edit | None:
    before, after = neighbours(src, node)
    if (
        not isinstance(before, (ast.Assign, ast.AnnAssign))
        or before.value is None
        or node.orelse
        or len(node.body) != 1
    ):
        return None
    targets = before.targets if isinstance(before, ast.Assign) else [before.target]
    name, kind = dotted(targets[0]), EMPTY.get(src.segment(before.value))
    if len(targets) != 1:
        return None
    inner, condition = node.body[0], ""
    if isinstance(inner, ast.If) and len(inner.body) == 1 and not inner.orelse:
        condition = f" if {src.segment(inner.test)}"
        if isinstance(inner.test, (ast.IfExp, ast.Lambda)):
            return None
        inner = inner.body[0]
    element = added(src, inner, name or "", kind or "")
    if name is None or kind is None or element is None or "#" in src.text[src.start(before) : src.end(node)]:
        return None
    clause = f" for {src.segment(node.target)} in {src.segment(node.iter)}{condition}"
    if sum(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node)) > 1:
        return None  # it reads what it has so far
    text = f"[{element}{clause}]" if kind == "list" else f"{{{element}{clause}}}"
    if name == "result" and isinstance(after, ast.Return) and after.value and dotted(after.value) == name:
        return Edit(src.start(before), src.end(after), f"return {text}")
    head = src.text[src.start(before) : src.start(before.value)]  # with its annotation
    return Edit(src.start(before), src.end(node), f"{head}{text}")


def added(src: Piece, statement: ast.stmt, name: str, kind: str) -> str | None:
    """What a statement adds to the list, set or dictionary `name`, as the element of a comprehension."""
    if kind == "dict" and isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        place = statement.targets[0]
        if dotted(place.value) == name and len(statement.targets) == 1:
            return f"{src.segment(place.slice)}: {src.segment(statement.value)}"
    call = statement.value if isinstance(statement, ast.Expr) else None
    method = {"list": "append", "set": "add"}.get(kind)
    if isinstance(call, ast.Call) and method and dotted(call.func) == f"{name}.{method}" and len(call.args) == 1:
        return None if call.keywords or isinstance(call.args[0], ast.Starred) else src.segment(call.args[0])
    return None


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
        raise RefactorError("a comment stands in the loop")
    test = src.segment(inner.test) if some else negated(src, inner.test)
    clause = f"for {src.segment(node.target)} in {src.segment(node.iter)}"
    text = f"return {'any' if some else 'all'}({test} {clause})"
    return [Edit(src.start(node), src.end(after), text)]  # type: ignore[arg-type]
