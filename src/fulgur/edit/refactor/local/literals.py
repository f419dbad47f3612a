"""Add or change items of lists and dictionaries, arguments of calls, members of enums and fields of classes."""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import re
import tokenize

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, expression, meant, only, rest
from fulgur.edit.refactor.local.variables import named_calls
from fulgur.edit.refactor.source import Edit, dotted


def appended(src: Piece, last: ast.AST | None, owner: ast.AST, text: str) -> Edit:
    """Append an element inside the brackets of `owner`, on its own line if the last element ends its line."""
    if last is None:
        return Edit(src.end(owner) - 1, src.end(owner) - 1, text)
    end, line = src.end(last), src.line_of(src.start(last))
    after = re.match(r",?[ ]*(#[^\n]*)?\n", src.text[end : src.end(owner)])
    margin = src.text[src.line_start(line) : src.start(last)]
    if after is None:
        return Edit(end, end, f", {text}")
    margin = margin if not margin.strip() else (re.match(r"\s*", margin) or [""])[0]
    if after[0].startswith(","):
        return Edit(end + after.end(), end + after.end(), f"{margin}{text},\n")
    return Edit(end, end, f",\n{margin}{text}")


def literal(src: Piece, name: str, kinds: tuple[type[ast.expr], ...]) -> ast.expr:
    found: list[tuple[str, ast.expr]] = []
    statements: list[ast.Assign | ast.AnnAssign] = [*src.of(ast.Assign), *src.of(ast.AnnAssign)]
    for statement in statements:
        target = dotted(statement.targets[0] if isinstance(statement, ast.Assign) else statement.target)
        if target is not None and isinstance(statement.value, kinds):
            found.append((target, statement.value))
    name = meant(name, (target for target, _ in found))
    return only([value for target, value in found if target == name], f"list or dictionary {name}")


def literal_kind(src: Piece, args: tuple[str, ...]) -> Edits:
    """`literal_kind NAME tuple|list|set`: changes the brackets of a literal that is never modified here."""
    name, kind = args
    node = literal(src, name, (ast.List, ast.Tuple, ast.Set))
    elements = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []
    start, end = src.span(node)
    around = f"{src.above}\n{src.text}\n{src.below}"
    if re.search(
        rf"\b{re.escape(name)}(?:\.(?:append|extend|insert|remove|pop|sort|add|update)\b| *\+=|\[[^\]]*\] *=[^=])",
        around,
    ):
        raise RefactorError(f"{name} is changed somewhere")
    if re.search(rf"\b{re.escape(name)} *\+|\+ *{re.escape(name)}\b", around):
        raise RefactorError(f"{name} is concatenated with `+`, which needs the same type on both sides")
    ordered = rf"\b{re.escape(name)}(?:\[|\.index\b)|\bin {re.escape(name)}:|join\({name}"
    if kind == "set" and re.search(ordered, around):
        raise RefactorError(f"the order of {name} matters somewhere")
    if kind == "set" and not all(isinstance(one, ast.Constant) for one in elements):
        raise RefactorError("some of the values may be unhashable")
    if src.text[start] not in "[({" or len(elements) < 2 or isinstance(node, ast.Set):
        raise RefactorError(f"{name} is not a plain list or tuple")
    marks = {"tuple": "()", "list": "[]", "set": "{}"}[kind]
    return [Edit(start, start + 1, marks[0]), Edit(end - 1, end, marks[1])] if src.text[start] != marks[0] else []


def add_item(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_item NAME VALUE`"""
    node, text = literal(src, args[0], (ast.List, ast.Tuple, ast.Set)), rest(args, 1)
    assert isinstance(node, (ast.List, ast.Tuple, ast.Set))
    if any(ast.dump(item) == expression(text) for item in node.elts):
        raise RefactorError(f"{text} is already in {args[0]}")
    if src.text[src.start(node)] not in "[({" or not _in_brackets(src.segment(node)):
        raise RefactorError(f"{args[0]} is written without brackets")
    return [appended(src, node.elts[-1] if node.elts else None, node, text)]


def _in_brackets(text: str) -> bool:
    """Whether the last bracket closes the first: `(a), (b)` is a tuple without its own brackets."""
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            if depth == 0:
                return token.end == (text.count("\n") + 1, len(text.rpartition("\n")[2]))
    return False


def add_entry(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_entry NAME KEY VALUE`"""
    node, key, value = literal(src, args[0], (ast.Dict,)), args[1], rest(args, 2)
    assert isinstance(node, ast.Dict)
    expression(value)
    if any(known is not None and ast.dump(known) == expression(key) for known in node.keys):
        raise RefactorError(f"{key} is already in {args[0]}")
    return [appended(src, node.values[-1] if node.values else None, node, f"{key}: {value}")]


def add_keyword(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_keyword CALL PARAMETER VALUE`"""
    name, value = args[1], rest(args, 2)
    node = only(named_calls(src, args[0]), f"call of {args[0]}")
    expression(value)
    kind = getattr(builtins, dotted(node.func) or "", None)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        raise RefactorError(f"{args[0]} takes no keyword arguments")
    if kind is not None and not _takes(kind, name):
        raise RefactorError(f"{args[0]} takes no argument {name}")
    if any(keyword.arg == name for keyword in node.keywords) or not name.isidentifier():
        raise RefactorError(f"{args[0]} is already given {name}")
    arguments: list[ast.AST] = [*node.args, *node.keywords]
    last = max(arguments, key=src.end) if arguments else None
    generator = len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp)
    if generator and src.end(node.args[0]) == src.end(node):
        raise RefactorError("the only argument is a generator without parentheses")
    return [appended(src, last, node, f"{name}={value}")]


# Parameters of builtins that have no introspectable signature.
_HIDDEN = {(int, "base"), (str, "encoding"), (str, "errors"), (bytes, "encoding"), (max, "key"), (max, "default"),
           (min, "key"), (min, "default")}  # fmt: skip


def _takes(function: object, name: str) -> bool:
    """Whether a builtin is known to have this parameter."""
    try:
        known = inspect.signature(function).parameters  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return function is dict or (function, name) in _HIDDEN
    return name in known or any(one.kind is one.VAR_KEYWORD for one in known.values())


def set_keyword(src: Piece, args: tuple[str, ...]) -> Edits:
    """`set_keyword CALL PARAMETER VALUE`, if exactly one call passes this parameter by name."""
    value = rest(args, 2)
    keywords = [k for call in named_calls(src, args[0]) for k in call.keywords if k.arg == args[1]]
    node = only(keywords, f"call of {args[0]} with {args[1]}")
    return [] if expression(value) == ast.dump(node.value) else [Edit(*src.span(node.value), value)]


def class_named(src: Piece, name: str) -> ast.ClassDef:
    return only([node for node in src.of(ast.ClassDef) if node.name == name], f"class {name}")


def after_last(src: Piece, node: ast.ClassDef, known: list[ast.stmt], name: str, text: str) -> Edits:
    if not known:
        raise RefactorError(f"{node.name} has nothing of this kind to add to")
    for statement in node.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if target is not None and dotted(target) == name:
            raise RefactorError(f"{node.name} already has {name}")
    at = src.whole_lines(known[-1])[1]
    lead = "" if src.text[:at].endswith("\n") else "\n"
    return [Edit(at, at, f"{lead}{src.indent(known[-1])}{text}\n")]


def add_member(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_member CLASS NAME VALUE`"""
    node, name, value = class_named(src, args[0]), args[1], rest(args, 2)
    expression(value)
    members: list[ast.stmt] = [s for s in node.body if isinstance(s, ast.Assign)]
    return after_last(src, node, members, name, f"{name} = {value}")


def add_field(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_field CLASS name: type = value`"""
    node, text = class_named(src, args[0]), rest(args, 1)
    try:
        parsed = ast.parse(text).body
    except SyntaxError:
        parsed = []
    if len(parsed) != 1 or not isinstance(parsed[0], ast.AnnAssign):
        raise RefactorError(f"{text} is not a field")
    fields: list[ast.stmt] = [s for s in node.body if isinstance(s, ast.AnnAssign)]
    given = [s for s in fields if isinstance(s, ast.AnnAssign) and s.value is not None]
    heads = [ast.unparse(decorator) for decorator in node.decorator_list]
    if given and parsed[0].value is None and not any("kw_only=True" in head for head in heads):
        first = dotted(given[0].target) if isinstance(given[0], ast.AnnAssign) else ""
        raise RefactorError(f"a field without a default cannot follow {first}, which has one", hint="Give it one.")
    return after_last(src, node, fields, dotted(parsed[0].target) or "", text)
