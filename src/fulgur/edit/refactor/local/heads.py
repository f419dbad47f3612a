"""Refactorings of a function's head and parameters: decorators, static methods, types, literals, attributes."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.functions import new_parameter, parameter, parameters, signature_end
from fulgur.edit.refactor.local.piece import Edits, Piece, definition, expression, only
from fulgur.edit.refactor.source import Edit, dotted


def remove_decorator(src: Piece, args: tuple[str, ...]) -> Edits:
    """`remove_decorator NAME`: removes it from the only function or class of the region that has it."""
    name = args[0].lstrip("@")
    nodes = [*src.functions(), *src.of(ast.ClassDef)]
    found = [
        decorator
        for node in nodes
        for decorator in node.decorator_list
        if name in (dotted(_bare(decorator)), (dotted(_bare(decorator)) or "").rpartition(".")[2])
    ]
    decorator = only(found, f"decorator {name}")
    first, last = decorator.lineno, decorator.end_lineno or decorator.lineno
    if not src.lines[first - 1].lstrip().startswith("@"):
        raise RefactorError(f"@{name} is not on a line of its own")
    return [Edit(src.line_start(first), src.line_end(last), "")]


def _bare(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def make_static(src: Piece, args: tuple[str, ...]) -> Edits:
    """Make a method that does not use `self` or `cls` a static method."""
    function, _ = definition(src, args)
    taken = parameters(function)
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    if not taken or taken[0].arg not in ("self", "cls") or function.args.posonlyargs:
        raise RefactorError(f"{function.name} is not a method that takes self")
    if taken[0].arg in used or "super" in used or "__class__" in used:
        raise RefactorError(f"{function.name} uses {taken[0].arg}")
    if function.decorator_list or function.name.startswith("__"):
        raise RefactorError(f"{function.name} has a decorator, or Python calls it")
    start, at = src.start(taken[0]), src.line_start(src.first_line(function))
    end = src.start(taken[1]) if len(taken) > 1 else src.end(taken[0])
    if len(taken) == 1 or function.args.vararg or function.args.kwonlyargs:
        rest = re.match(r"\s*,\s*", src.text[src.end(taken[0]) : signature_end(src, function)[0]])
        end = src.end(taken[0]) + (len(rest[0]) if rest else 0)
    decorator = f"{src.indent(function)}@staticmethod\n"
    return [Edit(at, at, decorator), Edit(start, end, "")]


def accept_type(src: Piece, args: tuple[str, ...]) -> Edits:
    """`accept_type NEW [OLD]`: adds a type to the only isinstance, or to the only one for OLD."""
    new, old = args[0], args[1] if len(args) > 1 else ""
    expression(new)
    found = []
    for call in src.of(ast.Call):
        if dotted(call.func) != "isinstance" or len(call.args) != 2:
            continue
        kinds = call.args[1].elts if isinstance(call.args[1], ast.Tuple) else [call.args[1]]
        if not old or old in [dotted(kind) for kind in kinds]:
            found.append((call.args[1], kinds))
    kind, kinds = only(found, f"isinstance{f' for {old}' if old else ''}")
    if new in [dotted(one) for one in kinds]:
        raise RefactorError(f"{new} is already accepted")
    end = src.end(kinds[-1])
    if isinstance(kind, ast.Tuple):
        return [Edit(end, end, f", {new}")]
    return [Edit(src.start(kind), src.start(kind), "("), Edit(end, end, f", {new})")]


def extract_parameter(src: Piece, args: tuple[str, ...]) -> Edits:
    """`extract_parameter VALUE NAME`: a literal that occurs once in the body becomes the default of a new parameter."""
    value, name = args
    function, _ = definition(src, ())
    dump = expression(value)
    doc = src.docstring(function)
    inside = [node for statement in function.body if statement is not doc for node in ast.walk(statement)]
    found = [node for node in inside if isinstance(node, ast.expr) and ast.dump(node) == dump]
    node = only(found, value)
    if any(isinstance(above, ast.JoinedStr) for above in src.ancestors(node)) or node not in src.parents:
        raise RefactorError(f"{value} is in an f-string")
    return [*new_parameter(src, (f"{name}={value}",)), Edit(*src.span(node), name)]


def remove_return_type(src: Piece, args: tuple[str, ...]) -> Edits:
    """Remove the return annotation."""
    function, _ = definition(src, args)
    if function.returns is None:
        raise RefactorError(f"{function.name} has no return type")
    closed, colon = signature_end(src, function)
    return [Edit(closed, colon, "")]


def store_parameter(src: Piece, args: tuple[str, ...]) -> Edits:
    """`store_parameter NAME ATTRIBUTE`: adds `self.x = x` after the last parameter that the constructor stores."""
    function, (name, attribute) = definition(src, args)
    parameter(function, name)
    if function.name != "__init__":
        raise RefactorError(f"{function.name} is not a constructor")
    kept = [
        statement
        for statement in function.body
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Name)
        and re.match(r"self\.\w+\b", src.segment(statement))
    ]  # fmt: skip
    if re.search(rf"\bself\.{re.escape(attribute)} *(?::[^=\n]+)?=", src.segment(function)):
        raise RefactorError(f"self.{attribute} is already set there")
    if not kept or not src.alone_on_lines(kept[-1]):
        raise RefactorError("the constructor stores no other parameter, so it is unclear where this one goes")
    at = src.whole_lines(kept[-1])[1]
    lead = "" if src.text[:at].endswith("\n") else "\n"
    return [Edit(at, at, f"{lead}{src.indent(kept[-1])}self.{attribute} = {name}\n")]
