"""Small changes of one thing: a comparison, a docstring, an attribute that keeps a parameter, a list's brackets."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.functions import documented, parameter
from fulgur.edit.refactor.local.literals import literal
from fulgur.edit.refactor.local.piece import OPPOSITE, Edits, Piece, definition, only, rest
from fulgur.edit.refactor.source import Edit, dotted

_SIGNS = {sign: kind for kind, (sign, _) in OPPOSITE.items()}


def change_operator(src: Piece, args: tuple[str, ...]) -> Edits:
    """`change_operator OLD NEW`: the only comparison with this sign."""
    old, new = args
    if old not in _SIGNS or new not in _SIGNS:
        raise RefactorError(f"{old} or {new} is no comparison")
    found = []
    for node in src.of(ast.Compare):
        sides = [node.left, *node.comparators]
        for index, sign in enumerate(node.ops):
            if isinstance(sign, _SIGNS[old]):
                found.append((src.end(sides[index]), src.start(sides[index + 1])))
    start, end = only(found, f"comparison with {old}")
    between = src.text[start:end]
    if between.count(old) != 1:
        raise RefactorError("the comparison is not plain")
    return [Edit(start, end, between.replace(old, new))]


def set_docstring(src: Piece, args: tuple[str, ...]) -> Edits:
    """`set_docstring TEXT`: another text for a docstring of one line."""
    node, others = documented(src, args)
    doc, text = src.docstring(node), rest(others, 0)
    if doc is None:
        raise RefactorError(f"{node.name} has no docstring")
    if not src.one_line(doc) and str(getattr(doc.value, "value", "")).strip().count("\n"):
        raise RefactorError("the docstring has more than one line")
    if '"""' in text or "\\" in text or text.endswith('"'):
        raise RefactorError("this text cannot stand in a docstring")
    return [Edit(*src.span(doc), f'"""{text}"""')]


def store_parameter(src: Piece, args: tuple[str, ...]) -> Edits:
    """`store_parameter NAME ATTRIBUTE`: `self.x = x`, behind the last parameter that the constructor keeps."""
    function, (name, attribute) = definition(src, args)
    parameter(function, name)
    if function.name != "__init__":
        raise RefactorError(f"{function.name} is no constructor")
    kept = [
        statement
        for statement in function.body
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Name)
        and re.match(r"self\.\w+\b", src.segment(statement))
    ]  # fmt: skip
    if re.search(rf"\bself\.{re.escape(attribute)} *(?::[^=\n]+)?=", src.segment(function)):
        raise RefactorError(f"self.{attribute} is set there already")
    if not kept or not src.alone_on_lines(kept[-1]):
        raise RefactorError("the constructor keeps no other parameter, so that it is not clear where this one goes")
    at = src.whole_lines(kept[-1])[1]
    lead = "" if src.text[:at].endswith("\n") else "\n"
    return [Edit(at, at, f"{lead}{src.indent(kept[-1])}self.{attribute} = {name}\n")]


def literal_kind(src: Piece, args: tuple[str, ...]) -> Edits:
    """`literal_kind NAME tuple|list|set`: other brackets for a literal that nothing here changes."""
    name, kind = args
    node = literal(src, name, (ast.List, ast.Tuple, ast.Set))
    elements = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []
    start, end = src.span(node)
    around = f"{src.above}\n{src.text}\n{src.below}"
    if re.search(
        rf"\b{re.escape(name)}(?:\.(?:append|extend|insert|remove|pop|sort|add|update)\b| "
        rf"*\+=|\[[^\]]*\] *=[^=])",
        around,
    ):
        raise RefactorError(f"{name} is changed somewhere")
    if kind == "set" and not all(isinstance(one, ast.Constant) for one in elements):
        raise RefactorError("not all of the values can be in a set for sure")
    if src.text[start] not in "[({" or len(elements) < 2 or isinstance(node, ast.Set):
        raise RefactorError(f"{name} is not a plain list or tuple")
    marks = {"tuple": "()", "list": "[]", "set": "{}"}[kind]
    return [Edit(start, start + 1, marks[0]), Edit(end - 1, end, marks[1])] if src.text[start] != marks[0] else []


def remove_base(src: Piece, args: tuple[str, ...]) -> Edits:
    """`remove_base CLASS BASE`: one of the bases that a class names."""
    node = only([n for n in src.of(ast.ClassDef) if n.name == args[0]], f"class {args[0]}")
    base = only([b for b in node.bases if dotted(b) == args[1]], f"base {args[1]} of {args[0]}")
    if len(node.bases) == 1 and not node.keywords:
        match = re.compile(r"class\s+\w+\s*(\([^()]*\))").match(src.text, src.start(node))
        if match is None:
            raise RefactorError(f"the head of {args[0]} is not plain")
        return [Edit(match.start(1), match.end(1), "")]
    index = node.bases.index(base)
    if index + 1 < len(node.bases):
        return [Edit(src.start(base), src.start(node.bases[index + 1]), "")]
    return (
        [Edit(src.end(node.bases[index - 1]), src.end(base), "")]
        if index
        else [Edit(src.start(base), src.start(node.keywords[0].value) - len(node.keywords[0].arg or "") - 1, "")]
    )
