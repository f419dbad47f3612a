"""Fixes for lint findings: two isinstance calls, `a and b or c`, `while 1`, an unused `as e`, readlines()."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.functions import with_parameter
from fulgur.edit.refactor.local.piece import Edits, Piece, bindings, definition, flat, only
from fulgur.edit.refactor.source import FUNCTIONS, Edit, dotted


def merge_isinstance(src: Piece, args: tuple[str, ...]) -> Edits:
    """`isinstance(a, B) or isinstance(a, C)` -> `isinstance(a, (B, C))`."""
    found = []
    for node in src.of(ast.BoolOp):
        calls = [value for value in node.values if isinstance(value, ast.Call) and dotted(value.func) == "isinstance"]
        plain = [call for call in calls if len(call.args) == 2 and not call.keywords]
        about = {ast.dump(call.args[0]) for call in plain}
        if isinstance(node.op, ast.Or) and len(plain) == len(node.values) and len(about) == 1:
            found.append((node, plain))
    node, calls = only(found, "pair of isinstance calls on one value")
    if dotted(calls[0].args[0]) is None:
        raise RefactorError(f"`{src.segment(calls[0].args[0])}` would be evaluated once instead of twice")
    if "#" in src.segment(node):
        raise RefactorError("a comment is in the way")
    kinds = [kind for call in calls for kind in _kinds(call.args[1])]
    # `or` stops evaluating at the first test that holds; in a tuple all the types are evaluated.
    later = kinds[len(_kinds(calls[0].args[1])) :]
    if unknown := next((kind for kind in later if not _is_known(src, kind)), None):
        raise RefactorError(f"`{src.segment(unknown)}` would always be evaluated, and may be undefined")
    text = f"isinstance({src.segment(calls[0].args[0])}, ({', '.join(flat(src, kind) for kind in kinds)}))"
    start, end = src.span(node)
    bracketed = src.text[start - 1] == "(" and src.text[end : end + 1] == ")" and src.text[start - 2] in " ("
    return [Edit(start - bracketed, end + bracketed, text)]


def _kinds(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _is_known(src: Piece, kind: ast.expr) -> bool:
    """Whether a class certainly exists as a builtin or in the file, also as `module.Class`; or is `type(None)`."""
    if isinstance(kind, ast.Call):
        return ast.unparse(kind) == "type(None)"
    root, _, member = (dotted(kind) or "").partition(".")
    bound = bindings(src).get(root, [])
    if member:  # only for an import: whether anything else has the member is unknown
        return bool(bound) and all(isinstance(one, ast.alias) and sure for one, sure in bound)
    return all(sure for _, sure in bound) if bound else hasattr(builtins, root)


def and_or(src: Piece, args: tuple[str, ...]) -> Edits:
    """`a and b or c` -> `b if a else c`, where b is always true."""
    found = []
    for node in src.of(ast.BoolOp):
        first = node.values[0]
        chooses = isinstance(node.op, ast.Or) and len(node.values) == 2
        if chooses and isinstance(first, ast.BoolOp) and isinstance(first.op, ast.And) and len(first.values) == 2:
            found.append((node, first.values[0], first.values[1], node.values[1]))
    node, test, yes, no = only(found, "`and` … `or` that chooses a value")
    if not _always_true(src, yes):
        raise RefactorError(f"`{src.segment(yes)}` may be false, and then the other value is chosen")
    if any(isinstance(part, (ast.IfExp, ast.Lambda)) for part in (test, yes, no)) or "#" in src.segment(node):
        raise RefactorError("the expression is too complex")
    parent = src.parents.get(node)
    text = f"{flat(src, yes)} if {flat(src, test)} else {flat(src, no)}"
    whole = isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.keyword, ast.Subscript)) or (
        isinstance(parent, ast.Call) and node in parent.args
    )
    start, end = src.span(node)
    bracketed = src.text[start - 1] == "(" and src.text[end : end + 1] == ")"
    return [Edit(start, end, text if whole or bracketed else f"({text})")]


def _always_true(src: Piece, node: ast.expr) -> bool:
    """Whether a node is a class, a function, a nonzero number or a nonempty text."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if not isinstance(node, ast.Name):
        return False
    bound = bindings(src).get(node.id, [])
    if not bound:
        return callable(getattr(builtins, node.id, None))
    return all(isinstance(one, (*FUNCTIONS, ast.ClassDef)) for one, _ in bound)


def while_true(src: Piece, args: tuple[str, ...]) -> Edits:
    """`while 1` -> `while True`."""
    ones = [n.test for n in src.of(ast.While) if isinstance(n.test, ast.Constant) and n.test.value == 1]
    return [Edit(*src.span(test), "True") for test in ones if src.segment(test) == "1"]


def drop_exception_name(src: Piece, args: tuple[str, ...]) -> Edits:
    """`drop_exception_name [NAME]`: `except E as e` -> `except E`, where the handler does not read e."""
    edits = []
    for node in src.of(ast.ExceptHandler):
        if node.name is None or node.type is None or (args and node.name != args[0]):
            continue
        if any(isinstance(n, ast.Name) and n.id == node.name for s in node.body for n in ast.walk(s)):
            if args:
                raise RefactorError(f"a handler uses {node.name}")
            continue
        if (other := _outside_handlers(src, node, node.name)) is not None:
            # Python deletes the name at the end of the handler; without it, a variable of that name would survive.
            raise RefactorError(f"line {src.line_of(src.start(other))} uses {node.name} outside the handler")
        match = re.compile(r"\)?\s+as\s+\w+").match(src.text, src.end(node.type))
        if match is None:
            raise RefactorError("the except line is too complex")
        keep = ")" if match[0].startswith(")") else ""
        edits.append(Edit(match.start(), match.end(), keep))
    if not edits:
        raise RefactorError(f"no except here names its exception {args[0]}" if args else "every exception name is used")
    return edits


def _outside_handlers(src: Piece, handler: ast.ExceptHandler, name: str) -> ast.Name | None:
    """A use of the name in the same function, outside all handlers that bind it."""
    function = src.function_of(handler)
    for node in src.all(ast.Name):
        around = list(src.ancestors(node))
        if node.id != name or (function is not None and function not in around):
            continue
        if not any(isinstance(one, ast.ExceptHandler) and one.name == name for one in around):
            return node
    return None


# Calls that change the contents of a file, or which file a path names.
_CHANGING = frozenset({"open", "write_text", "write_bytes", "unlink", "truncate"})


def iterate_file(src: Piece, args: tuple[str, ...]) -> Edits:
    """`for line in f.readlines()` -> `for line in f`, if nothing else touches f before its last line is read."""
    loops: list[ast.For | ast.comprehension] = [*src.of(ast.For), *src.of(ast.comprehension)]
    found = [
        (loop, loop.iter, loop.iter.func.value)
        for loop in loops
        if isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Attribute)
        and loop.iter.func.attr == "readlines" and not loop.iter.args and not loop.iter.keywords
    ]  # fmt: skip
    loop, call, file = only(found, "loop over readlines()")
    whole = src.parents[loop] if isinstance(loop, ast.comprehension) else loop
    in_call = {id(node) for node in ast.walk(call)}
    inside = [node for node in ast.walk(whole) if id(node) not in in_call]
    root = (dotted(file) or "").split(".")[0]
    later = isinstance(whole, ast.GeneratorExp) or (
        any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in inside) and not _held_open(src, whole, root)
    )
    if later:
        raise RefactorError("the lines would be read later than before, when the file may be closed")
    stops = any(isinstance(node, ast.Break) for node in inside)
    used = [node for node in src.all(ast.Name) if root and node.id == root and id(node) not in in_call]
    if any(id(node) in {id(one) for one in inside} for node in used):
        raise RefactorError(f"the loop uses {root} itself")
    if stops and any(src.start(node) > src.end(whole) for node in used):
        raise RefactorError(f"the loop may stop early, and {root} is used after it")
    for node in inside:
        called = (dotted(node.func) or "").split(".") if isinstance(node, ast.Call) else [""]
        if called[-1] in _CHANGING or called[0] in ("os", "shutil"):
            raise RefactorError("the loop changes files, and this one is read meanwhile")
    return [Edit(src.end(file), src.end(call), "")]


def _held_open(src: Piece, node: ast.AST, name: str) -> bool:
    """Whether an enclosing `with` binds this name."""
    return any(
        isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name
        for around in src.ancestors(node)
        if isinstance(around, ast.With)
        for item in around.items
    )


def variable_to_parameter(src: Piece, args: tuple[str, ...]) -> Edits:
    """`variable_to_parameter NAME`: a local that is set once, to a literal, becomes a parameter with that default."""
    function, (name,) = definition(src, args)
    stored = [
        n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
    ]
    sets = [s for s in function.body if isinstance(s, ast.Assign) and [dotted(t) for t in s.targets] == [name]]
    node = only(sets, f"assignment to {name} in the body of {function.name}")
    if len(stored) != 1 or not _is_number_or_text(node.value):
        raise RefactorError(f"{name} is set more than once, or not to a literal")
    taken = {arg.arg for arg in ast.walk(function) if isinstance(arg, ast.arg)}
    declared = [n for n in ast.walk(function) if isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names]
    if name in taken or declared:
        raise RefactorError(f"{name} means something else in {function.name} too")
    if not src.alone_on_lines(node) or len(function.body) == 1:
        raise RefactorError(f"the assignment to {name} cannot be removed")
    if src.has_comment(node):
        raise RefactorError("a comment is in the way")
    return [*with_parameter(src, function, f"{name}={src.segment(node.value)}"), Edit(*src.whole_lines(node), "")]


def _is_number_or_text(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    return isinstance(node, ast.Constant)
