"""Arguments and results: normalise a parameter first, wrap the return value, remove a try, swap arguments."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.functions import defaults, first_in, parameter
from fulgur.edit.refactor.local.piece import Edits, Piece, definition, expression, only, rest
from fulgur.edit.refactor.local.variables import named_calls
from fulgur.edit.refactor.source import FUNCTIONS, Edit, dotted


def value_returns(src: Piece, function: ast.AST) -> list[ast.Return]:
    """The returns of a function that have a value, without those of nested functions."""
    return [node for node in src.of(ast.Return) if src.function_of(node) is function and node.value is not None]


def wrap_return(src: Piece, args: tuple[str, ...]) -> Edits:
    """`wrap_return FUNCTION`: the value of the only return becomes the argument of a call."""
    function, (name,) = definition(src, args)
    node = only(value_returns(src, function), "return of a value")
    value = node.value
    assert value is not None
    if isinstance(value, ast.Call) and dotted(value.func) == name:
        raise RefactorError(f"the value already goes through {name}()")
    text = src.text[src.start(value) : src.end(node)]
    if isinstance(value, ast.GeneratorExp) or (text[:1] == "(" and text[-1:] == ")" and isinstance(value, ast.Tuple)):
        text = text[1:-1] if isinstance(value, ast.GeneratorExp) else text
    elif isinstance(value, (ast.Tuple, ast.Yield, ast.Starred)) or src.text[src.start(value) - 1] == "(":
        raise RefactorError("the value that is returned cannot be passed on unchanged")
    return [Edit(src.start(value), src.end(node), f"{name}({text})")]


def first_call(src: Piece, args: tuple[str, ...]) -> Edits:
    """`first_call PARAMETER METHOD`: adds `value = value.strip()` at the start of the function."""
    function, (name, method) = definition(src, args)
    argument = parameter(function, name)
    default = defaults(function).get(name)
    empty = isinstance(default, ast.Constant) and default.value is None
    if empty or (argument.annotation and re.search(r"\bNone\b|\bOptional\b", src.segment(argument.annotation))):
        raise RefactorError(f"{name} may be None")
    if re.search(rf"\b{re.escape(name)} is (?:not )?None\b|isinstance\({re.escape(name)}\b", src.segment(function)):
        raise RefactorError(f"{name} may be something other than a string")
    at, indent, body = first_in(src, function)
    line = f"{name} = {name}.{method}()"
    if src.segment(body[0]) == line:
        raise RefactorError(f"{name} already goes through {method}()")
    return [Edit(at, at, f"{indent}{line}\n")]


def remove_try(src: Piece, args: tuple[str, ...]) -> Edits:
    """`remove_try [EXCEPTION]`: replaces the only try by its body."""
    found = []
    for node in src.of(ast.Try):
        kinds = [h.type for h in node.handlers]
        named = len(kinds) == 1 and (not args or (kinds[0] is not None and dotted(kinds[0]) == args[0]))
        if named and not node.orelse and not node.finalbody:
            found.append(node)
    node = only(found, f"try with one except{f' for {args[0]}' if args else ''}")
    if not src.movable(node.body) or src.has_comment(node.handlers[0]):
        raise RefactorError("its body cannot be moved, or its handler contains a comment")
    start = src.line_start(node.body[0].lineno)
    end = src.line_end(node.body[-1].end_lineno or 0)
    if src.text[src.start(node) + len("try") : start].strip() != ":":
        raise RefactorError("the try shares its line with other code")
    return [Edit(src.line_start(node.lineno), src.whole_lines(node)[1], src.reindent(start, end, -1))]


def swap_arguments(src: Piece, args: tuple[str, ...]) -> Edits:
    """`swap_arguments CALL`: swaps the two arguments of the only call of this name."""
    calls = [c for c in named_calls(src, args[0]) if len(c.args) == 2 and not c.keywords]
    call = only(calls, f"call of {args[0]} with two arguments")
    one, two = call.args
    if isinstance(one, ast.Starred) or isinstance(two, ast.Starred):
        raise RefactorError("one of them is a star argument")
    return [Edit(*src.span(one), src.segment(two)), Edit(*src.span(two), src.segment(one))]


def annotate_variable(src: Piece, args: tuple[str, ...]) -> Edits:
    """`annotate_variable NAME TYPE`: annotates a variable at its first assignment, which must be unconditional."""
    name, kind = args[0], rest(args, 1)
    expression(kind)
    found = [
        node
        for node in src.of(ast.Assign)
        if len(node.targets) == 1 and dotted(node.targets[0]) in (name, f"self.{name}")
    ]
    if any(dotted(node.target) in (name, f"self.{name}") for node in src.of(ast.AnnAssign)):
        raise RefactorError(f"{name} already has a type")
    if not found or len({src.function_of(node) for node in found}) != 1:
        raise RefactorError(f"{name} is not set here, or in more than one function")
    node = min(found, key=src.start)
    if any(isinstance(above, (ast.If, ast.Try)) and above is not src.wrapper for above in _inside(src, node)):
        raise RefactorError(f"{name} is set only conditionally")
    end = src.end(node.targets[0])
    return [Edit(end, end, f": {kind}")]


def _inside(src: Piece, node: ast.AST) -> list[ast.AST]:
    """The ancestors of a statement within its function."""
    found = []
    for above in src.ancestors(node):
        if isinstance(above, (*FUNCTIONS, ast.ClassDef)):
            break
        found.append(above)
    return found
