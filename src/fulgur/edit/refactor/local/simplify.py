"""Shorter equivalents: conditions that are returned, loops that only yield, handlers that only pass, and so on."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, flat, negated, only, plain_if
from fulgur.edit.refactor.local.statements import following
from fulgur.edit.refactor.source import Edit, Unusable, dotted

_YES_NO = frozenset({"isinstance", "issubclass", "callable", "hasattr", "any", "all", "bool"})
_YES_NO_METHODS = frozenset(
    {"startswith", "endswith", "isdigit", "isalpha", "isupper", "islower", "isspace", "isalnum", "exists", "is_file"}
)


def is_yes_no(node: ast.expr) -> bool:
    """Whether an expression is always True or False."""
    if isinstance(node, ast.Compare):
        return True  # for numbers and texts; an overloaded == with other results is not used as a test
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.BoolOp):
        return all(is_yes_no(value) for value in node.values)
    if isinstance(node, ast.Call):
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return dotted(node.func) in _YES_NO or method in _YES_NO_METHODS
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def return_condition(src: Piece, args: tuple[str, ...]) -> Edits:
    """`if a: return True` followed by `return False` -> `return a`."""
    found = []
    for node in src.of(ast.If):
        other = node.orelse[0] if len(node.orelse) == 1 else following(src, node) if not node.orelse else None
        values = [_returned(one) for one in (node.body[0], other)]
        if plain_if(src, node) and len(node.body) == 1 and other and {*values} == {True, False}:
            found.append((node, other, values[0]))
    node, other, yes = only(found, "if that returns True or False")
    if "#" in src.text[src.start(node) : src.line_end(other.end_lineno or 0)]:
        raise RefactorError("a comment is in the way")
    test = flat(src, node.test) if yes else negated(src, node.test)
    if not (is_yes_no(node.test) or not yes):
        test = f"bool({test})"
    return [Edit(src.start(node), src.end(other), f"return {test}")]


def _returned(statement: ast.stmt | None) -> object:
    value = statement.value if isinstance(statement, ast.Return) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, bool) else None


def use_yield_from(src: Piece, args: tuple[str, ...]) -> Edits:
    """`for x in y: yield x` -> `yield from y`."""
    edits = []
    for node in src.of(ast.For):
        does = node.body[0].value if len(node.body) == 1 and isinstance(node.body[0], ast.Expr) else None
        target = node.target.id if isinstance(node.target, ast.Name) else None
        plain = isinstance(does, ast.Yield) and isinstance(does.value, ast.Name) and does.value.id == target
        if not plain or node.orelse or src.has_comment(node) or isinstance(src.function_of(node), ast.AsyncFunctionDef):
            continue
        inside = src.function_of(node)
        others = [n for n in ast.walk(inside or src.tree) if isinstance(n, ast.Name) and n.id == target]
        if len(others) == 2:
            edits.append(Edit(*src.span(node), f"yield from {flat(src, node.iter)}"))
    return edits


def use_suppress(src: Piece, args: tuple[str, ...]) -> Edits:
    """`try: … except E: pass` -> `with contextlib.suppress(E): …`."""
    name = "suppress" if re.search(r"^from contextlib import .*\bsuppress\b", src.above, re.MULTILINE) else ""
    edits = []
    for node in src.of(ast.Try):
        handler = node.handlers[0] if len(node.handlers) == 1 else None
        passes = handler is not None and len(handler.body) == 1 and isinstance(handler.body[0], ast.Pass)
        if handler is None or not passes or handler.type is None or node.orelse or node.finalbody:
            continue
        start = src.start(node)
        body = src.text[src.start(node) : src.line_start(node.body[0].lineno)]
        if "#" in src.text[src.start(handler) : src.line_end(handler.end_lineno or 0)] or "#" in body:
            raise RefactorError("the handler contains a comment")
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        listed = ", ".join(src.segment(kind) for kind in kinds)
        edits.append(Edit(start, src.start(node) + len("try"), f"with {name or 'contextlib.suppress'}({listed})"))
        edits.append(Edit(src.line_start(handler.lineno), src.line_end(handler.end_lineno or 0), ""))
    return edits


def membership_in(src: Piece, args: tuple[str, ...]) -> Edits:
    """`membership_in tuple|set`: `x in [a, b]` -> `x in (a, b)` or `x in {a, b}`."""
    old, marks = ("[", "()") if args[0] == "tuple" else ("[(", "{}")
    edits = []
    for node in src.of(ast.Compare):
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if not isinstance(operator, (ast.In, ast.NotIn)) or not isinstance(right, (ast.List, ast.Tuple)):
                continue
            start, end = src.span(right)
            if len(right.elts) < 2 or src.text[start] not in old:
                continue
            if args[0] == "set" and not all(isinstance(one, ast.Constant) for one in right.elts):
                raise RefactorError("some of the values may be unhashable")
            edits += [Edit(start, start + 1, marks[0]), Edit(end - 1, end, marks[1])]
    return edits


def join_strings(src: Piece, args: tuple[str, ...]) -> Edits:
    """`"a" "b"` on one line -> `"ab"`."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(src.text).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        raise Unusable("the code cannot be tokenized") from None
    edits = []
    for one, two in itertools.pairwise(tokens):
        if one.type != tokenize.STRING or two.type != tokenize.STRING or one.end[0] != two.start[0]:
            continue
        heads = [re.match(r"([A-Za-z]*)('''|\"\"\"|'|\")", token.string) for token in (one, two)]
        if not heads[0] or not heads[1] or heads[0][0] != heads[1][0] or len(heads[0][2]) == 3:
            continue
        at = src.line_start(one.end[0]) + one.end[1]
        edits.append(Edit(at - 1, src.line_start(two.start[0]) + two.start[1] + len(heads[1][0]), ""))
    return edits


def raw_strings(src: Piece, args: tuple[str, ...]) -> Edits:
    """Make patterns passed to `re` raw strings, where the text stays the same."""
    edits = []
    for call in src.of(ast.Call):
        if not (dotted(call.func) or "").startswith(("re.", "regex.")) or not call.args:
            continue
        for node in ast.walk(call.args[0]):
            text = src.segment(node) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if "\\" not in text or text[:1] not in "'\"" or not src.one_line(node):
                continue
            try:
                same = ast.literal_eval(f"r{text}") == node.value  # type: ignore[attr-defined]
            except (SyntaxError, ValueError):
                same = False
            if same:
                edits.append(Edit(src.start(node), src.start(node), "r"))
    return edits


def remove_parentheses(src: Piece, args: tuple[str, ...]) -> Edits:
    """Remove parentheses around a value that is returned, tested or passed to a call."""
    edits = []
    tests = [node.test for node in src.of(ast.If)] + [node.test for node in src.of(ast.While)]
    values = [*tests, *(node.value for node in src.of(ast.Return))]
    for value in values:
        if value is None or not src.one_line(value):
            continue
        start, end = src.span(value)
        if isinstance(value, ast.Tuple) and src.text[start] == "(" and len(value.elts) > 1:
            starred = any(isinstance(one, ast.Starred) for one in value.elts)
            edits += [] if starred else [Edit(start, start + 1, ""), Edit(end - 1, end, "")]
        elif src.text[start - 1] == "(" and src.text[end : end + 1] == ")" and not isinstance(value, ast.NamedExpr):
            space = "" if src.text[start - 2] in " (" else " "
            edits += [Edit(start - 1, start, space), Edit(end, end + 1, "")]
    for call in src.of(ast.Call):
        for value in call.args:
            start, end = src.span(value)
            around = src.text[start - 1] == "(" and src.text[end : end + 1] == ")" and src.one_line(value)
            loose = isinstance(value, (ast.Tuple, ast.GeneratorExp, ast.NamedExpr, ast.Starred, ast.Yield))
            if around and not loose and src.text[: start - 1].rstrip()[-1:] in ",(":
                edits += [Edit(start - 1, start, ""), Edit(end, end + 1, "")]
    return edits


def use_or(src: Piece, args: tuple[str, ...]) -> Edits:
    """`x if x else y` -> `x or y`."""
    edits = []
    for node in src.of(ast.IfExp):
        same = dotted(node.body) is not None and ast.dump(node.body) == ast.dump(node.test)
        loose = isinstance(node.orelse, (ast.IfExp, ast.Lambda, ast.NamedExpr))
        if same and not loose and src.one_line(node):
            edits.append(Edit(*src.span(node), f"{src.segment(node.body)} or {src.segment(node.orelse)}"))
    return edits


def direct_attribute(src: Piece, args: tuple[str, ...]) -> Edits:
    """`setattr(a, "b", c)` -> `a.b = c`, and `getattr(a, "b")` -> `a.b`."""
    edits = []
    for call in src.of(ast.Call):
        said = call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else None
        name = said if isinstance(said, str) and said.isidentifier() and not said.startswith("__") else ""
        if not name or call.keywords or dotted(call.args[0]) is None or not src.one_line(call):
            continue
        if dotted(call.func) == "getattr" and len(call.args) == 2:
            edits.append(Edit(*src.span(call), f"{src.segment(call.args[0])}.{name}"))
        elif dotted(call.func) == "setattr" and len(call.args) == 3 and isinstance(src.parents.get(call), ast.Expr):
            edits.append(Edit(*src.span(call), f"{src.segment(call.args[0])}.{name} = {src.segment(call.args[2])}"))
    return edits


def plain_placeholders(src: Piece, args: tuple[str, ...]) -> Edits:
    """`{str(x)}` in an f-string -> `{x}`, where there is no conversion and no format spec."""
    edits = []
    for node in src.inner.get(ast.FormattedValue, []):
        call = node.value if isinstance(node, ast.FormattedValue) else None
        if not isinstance(call, ast.Call) or dotted(call.func) != "str" or len(call.args) != 1 or call.keywords:
            continue
        if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
            text = src.segment(call)
            if not text.startswith("str(") or isinstance(call.args[0], (ast.Starred, ast.GeneratorExp)):
                raise Unusable("the f-string cannot be read")
            edits.append(Edit(*src.span(call), src.segment(call.args[0])))
    return edits


def unwrap_lambda(src: Piece, args: tuple[str, ...]) -> Edits:
    """`lambda a: f(a)` -> `f`."""
    found = []
    for node in src.of(ast.Lambda):
        call, given = node.body, node.args
        if not isinstance(call, ast.Call) or call.keywords or given.defaults or given.kwonlyargs or given.kwarg:
            continue
        names = [arg.arg for arg in [*given.posonlyargs, *given.args]]
        passed = [one.id if isinstance(one, ast.Name) else "" for one in call.args]
        if names and names == passed and not given.vararg and dotted(call.func) and dotted(call.func) not in names:
            found.append((node, call.func))
    node, function = only(found, "lambda that only calls a function")
    return [Edit(*src.span(node), src.segment(function))]


def drop_u(src: Piece, args: tuple[str, ...]) -> Edits:
    """Remove the `u` prefix of strings, which Python 2 needed."""
    edits = []
    for node in src.of(ast.Constant):
        if isinstance(node.value, str) and re.match(r"[uU][\"']", src.segment(node)):
            edits.append(Edit(src.start(node), src.start(node) + 1, ""))
    return edits
