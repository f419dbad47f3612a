"""Strings put together from parts -> f-strings."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.local.piece import Edits, Piece
from fulgur.edit.refactor.source import Edit, dotted

PLAIN = re.compile(r"(\"|')((?:[^\\\"'{}]|\\[nt])*)\1")
FIELDS = re.compile(r"(\"|')((?:[^\\\"'{}]|\\[nt]|\{\d*\})*)\1")


def use_fstring(src: Piece, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.Call):
        if text := from_format(src, node):
            edits.append(Edit(*src.span(node), text))
    for operation in src.of(ast.BinOp):
        text = None
        if isinstance(operation.op, ast.Mod):
            text = from_percent(src, operation)
        elif isinstance(operation.op, ast.Add) and not isinstance(src.parents.get(operation), ast.BinOp):
            text = from_sum(src, operation)
        if text:
            edits.append(Edit(*src.span(operation), text))
    inner = [e for e in edits if any(o is not e and o.start <= e.start and e.end <= o.end for o in edits)]
    return [edit for edit in edits if edit not in inner]


def field(src: Piece, node: ast.expr, quote: str) -> str | None:
    """An expression as it may stand in braces."""
    text = src.segment(node)
    plain = src.one_line(node) and not isinstance(node, (ast.Starred, ast.Lambda, ast.Dict, ast.Set, ast.IfExp))
    return text if plain and not re.search(r"[\\{}#:!]", text) and quote not in text else None


def filled(src: Piece, quote: str, literals: list[str], values: list[ast.expr]) -> str | None:
    fields = [field(src, value, quote) for value in values]
    if len(literals) != len(values) + 1 or not values or None in fields:
        return None
    parts = [literals[0]]
    for name, literal in zip(fields, literals[1:], strict=True):
        parts.append(f"{{{name}}}{literal}")
    return f"f{quote}{''.join(parts)}{quote}"


def from_format(src: Piece, node: ast.Call) -> str | None:
    """`"a {}".format(b)`"""
    function = node.func
    if not isinstance(function, ast.Attribute) or function.attr != "format" or node.keywords:
        return None
    match = FIELDS.fullmatch(src.segment(function.value)) if isinstance(function.value, ast.Constant) else None
    if match is None or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    numbers = re.findall(r"\{(\d*)\}", match[2])
    if any(numbers) and numbers != [str(i) for i in range(len(numbers))]:
        return None
    return filled(src, match[1], re.split(r"\{\d*\}", match[2]), node.args)


def from_percent(src: Piece, node: ast.BinOp) -> str | None:
    """`"a %s" % b`; only plain `%s`."""
    match = PLAIN.fullmatch(src.segment(node.left)) if isinstance(node.left, ast.Constant) else None
    if match is None or re.search(r"%[^s]|%$", match[2]):
        return None
    values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    return filled(src, match[1], match[2].split("%s"), values)


def from_sum(src: Piece, node: ast.BinOp) -> str | None:
    """`"a" + str(b) + "c"`: every part a plain string or a call of `str`."""
    parts: list[ast.expr] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):
        parts.insert(0, left.right)
        left = left.left
    parts.insert(0, left)
    literals, values, quote = [""], [], ""
    for part in parts:
        match = PLAIN.fullmatch(src.segment(part)) if isinstance(part, ast.Constant) else None
        if match is not None and quote in ("", match[1]):
            quote = match[1]
            literals[-1] += match[2]
        elif isinstance(part, ast.Call) and dotted(part.func) == "str" and len(part.args) == 1 and not part.keywords:
            values.append(part.args[0])
            literals.append("")
        else:
            return None
    return filled(src, quote, literals, values) if quote else None
