"""Remove unused variables, wrap a value in a call, replace the result of a whole function."""

from __future__ import annotations

import ast

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, definition, expression, only
from fulgur.edit.refactor.source import Edit, dotted, names_in


def remove_variable(src: Piece, args: tuple[str, ...]) -> Edits:
    """`remove_variable NAME`: removes one that is set and never read; a value with a call stays as a statement."""
    name = args[0]
    everywhere = [node for node in ast.walk(src.tree) if isinstance(node, ast.Name) and node.id == name]
    statements: list[ast.Assign | ast.AnnAssign] = [*src.of(ast.Assign), *src.of(ast.AnnAssign)]
    set_in = [
        statement
        for statement in statements
        if dotted(statement.targets[0] if isinstance(statement, ast.Assign) else statement.target) == name
    ]
    plain = [s for s in set_in if not isinstance(s, ast.Assign) or len(s.targets) == 1]
    if not set_in or any(src.function_of(statement) is None for statement in set_in):
        raise RefactorError(f"there is no local variable {name} here")
    if len(everywhere) != len(plain):
        raise RefactorError(f"{name} is used, or set in another way")
    edits = []
    for statement in plain:
        if not src.alone_on_lines(statement):
            raise RefactorError(f"{name} is set on a line with other code")
        value = statement.value
        does = value is not None and any(isinstance(n, (ast.Call, ast.Await, ast.Yield)) for n in ast.walk(value))
        if value is not None and does:
            edits.append(Edit(src.start(statement), src.start(value), ""))
        elif len(src.block_of(statement)) == 1:
            edits.append(Edit(*src.span(statement), "pass"))
        else:
            edits.append(Edit(*src.whole_lines(statement), ""))
    return edits


def wrap_value(src: Piece, args: tuple[str, ...]) -> Edits:
    """`wrap_value FUNCTION EXPRESSION`: the only occurrence of an expression becomes the argument of a call."""
    function, wanted = args
    dump = expression(wanted)
    expression(function)
    kinds = type(ast.parse(wanted.strip(), mode="eval").body)
    found = [
        node
        for node in src.of(kinds)
        if ast.dump(node) == dump and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    ]
    node = only(found, wanted)
    parent = src.parents.get(node)
    if isinstance(parent, ast.Call) and dotted(parent.func) == function:
        raise RefactorError(f"{wanted} is already passed to {function}()")
    if isinstance(parent, ast.Call) and parent.func is node and not isinstance(src.parents.get(parent), ast.Attribute):
        node, parent = parent, src.parents.get(parent)  # naming a function means its result
    if isinstance(parent, ast.Call) and dotted(parent.func) == function:
        raise RefactorError(f"{wanted} is already passed to {function}()")
    if (isinstance(parent, ast.Call) and parent.func is node) or isinstance(parent, ast.Starred):
        raise RefactorError(f"{wanted} is not a value there")
    return [Edit(src.start(node), src.start(node), f"{function}("), Edit(src.end(node), src.end(node), ")")]


def only_return(src: Piece, args: tuple[str, ...]) -> Edits:
    """`only_return VALUE`: for a function that only selects what it returns."""
    function, (value,) = definition(src, args)
    expression(value)
    first = src.body_start(function)
    body = function.body[function.body.index(first) :]
    known = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    tree = ast.parse(value.strip(), mode="eval")
    read = names_in(ast.Module(body, []))
    if not all(_chooses(statement) for statement in body):
        raise RefactorError(f"{function.name} does more than return a value")
    if not known & names_in(tree) or not names_in(tree) & read:
        raise RefactorError(f"{value} has nothing to do with what {function.name} returns")
    if "#" in src.text[src.start(first) : src.end(body[-1])]:
        raise RefactorError("a comment is in the way")
    return [Edit(src.start(first), src.end(body[-1]), f"return {value}")]


def _chooses(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return all(_chooses(one) for one in [*statement.body, *statement.orelse])
    return isinstance(statement, ast.Return)
