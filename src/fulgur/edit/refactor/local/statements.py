"""Refactorings of one statement of a region; they refuse if several could be meant."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import (
    Edits,
    Piece,
    else_line,
    flat,
    has_elif,
    if_head_end,
    negated,
    only,
    plain_if,
)
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Unusable, dotted

LONGEST = 100  # characters of a generated line
JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
CLOSING = ("open", "connect", "socket", "urlopen", "Path", "ZipFile", "create_connection")


def dedented(src: Piece, start: int, end: int) -> str:
    text = src.reindent(start, end, -1)
    return text if text.endswith("\n") else f"{text}\n"


def early_return(src: Piece, args: tuple[str, ...]) -> Edits:
    """`if a: … else: return x` and, at the end of a function, `if a: …` -> a guard that returns first."""
    found = []
    for node in src.of(ast.If):
        if not plain_if(src, node) or has_elif(src, node) or not src.movable(node.body):
            continue
        block_ends = src.at_block_end(node) and (
            isinstance(src.parents.get(node), FUNCTIONS) or any(node is statement for statement in src.top)
        )
        alone = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.Return)
        guarded = alone and src.one_line(node.orelse[0]) and not src.has_comment(node.orelse[0])
        rest = not node.orelse and block_ends and (not isinstance(node.body[0], JUMPS) or len(node.body) > 1)
        if guarded or rest:
            found.append(node)
    tails = [node for node in found if src.at_block_end(node)]
    node = only(tails if len(found) > 1 and tails else found, "condition around the rest of a function")
    indent, start, end = src.indent(node), *src.whole_lines(node)
    guard = src.segment(node.orelse[0]) if node.orelse else "return"
    stop = src.line_start(else_line(src, node)) if node.orelse else end
    body = dedented(src, if_head_end(src, node)[1], stop)
    return [Edit(start, end, f"{indent}if {negated(src, node.test)}:\n{indent}{src.unit}{guard}\n{body}")]


def remove_else_return(src: Piece, args: tuple[str, ...]) -> Edits:
    found = [
        node
        for node in src.of(ast.If)
        if node.orelse and not has_elif(src, node) and isinstance(node.body[-1], JUMPS) and src.movable(node.orelse)
        and src.text.startswith("if", src.start(node))
    ]  # fmt: skip
    if not found and (chains := [c for node in src.of(ast.If) if (c := leaving_chain(src, node))]):
        chain = only(chains, "chain of branches that exit")
        edits = [Edit(src.start(branch), src.start(branch) + 4, "if") for branch in chain[1:]]
        return edits + ([_dedented_else(src, chain[0], chain[-1])] if chain[-1].orelse else [])
    node = only(found, "else after a branch that exits")
    return [_dedented_else(src, node, node)]


def leaving_chain(src: Piece, node: ast.If) -> list[ast.If]:
    """An `if` with its `elif`s, if all branches but the last leave; empty for a plain if."""
    if not src.text.startswith("if", src.start(node)) or not has_elif(src, node):
        return []
    chain = [node]
    while has_elif(src, chain[-1]):
        inner = chain[-1].orelse[0]
        if not isinstance(inner, ast.If) or not isinstance(chain[-1].body[-1], JUMPS):
            return []
        chain.append(inner)
    last = chain[-1]
    return chain if not last.orelse or (isinstance(last.body[-1], JUMPS) and src.movable(last.orelse)) else []


def _dedented_else(src: Piece, outer: ast.If, node: ast.If) -> Edit:
    line, end = else_line(src, node), src.whole_lines(outer)[1]
    return Edit(src.line_start(line), end, dedented(src, src.line_end(line), end))


def merge_nested_if(src: Piece, args: tuple[str, ...]) -> Edits:
    found = [
        (node, node.body[0])
        for node in src.of(ast.If)
        if plain_if(src, node) and not node.orelse and len(node.body) == 1 and isinstance(node.body[0], ast.If)
        and plain_if(src, node.body[0]) and not node.body[0].orelse and src.movable(node.body)
    ]  # fmt: skip
    node, inner = only(found, "if that contains only another if")
    if "#" in src.text[if_head_end(src, node)[1] : src.line_start(inner.lineno)]:
        raise RefactorError("a comment is between the two conditions")
    joined = " and ".join(bracketed(src, test) for test in (node.test, inner.test))
    body = dedented(src, if_head_end(src, inner)[1], src.whole_lines(node)[1])
    return [Edit(*src.whole_lines(node), f"{src.indent(node)}if {joined}:\n{body}")]


def bracketed(src: Piece, test: ast.expr) -> str:
    loose = isinstance(test, (ast.IfExp, ast.Lambda, ast.NamedExpr)) or (
        isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
    )
    return f"({flat(src, test)})" if loose else flat(src, test)


def swap_branches(src: Piece, args: tuple[str, ...]) -> Edits:
    found = [node for node in src.of(ast.If) if plain_if(src, node) and node.orelse and not has_elif(src, node)]
    node = only(found, "if with an else")
    line = else_line(src, node)
    colon, below = if_head_end(src, node)
    first = (below, src.line_start(line))
    second = (src.line_end(line), src.line_end(node.end_lineno or 0))
    upper, lower = src.text[slice(*first)], src.text[slice(*second)]
    lower += "" if lower.endswith("\n") else "\n"
    head = Edit(src.start(node), colon, f"if {negated(src, node.test)}")
    return [head, Edit(*first, lower), Edit(*second, upper)]


def use_ternary(src: Piece, args: tuple[str, ...]) -> Edits:
    """`if a: x = 1 else: x = 2`, the same with returns, a return right after `if a: return 1`, and `return x` right
    after `if a: x = 1`."""
    found: list[tuple[ast.If, ast.stmt, str, ast.expr, ast.expr]] = []
    for node in src.of(ast.If):
        if not plain_if(src, node) or has_elif(src, node) or len(node.body) != 1 or len(node.orelse) > 1:
            continue
        one, two = node.body[0], node.orelse[0] if node.orelse else following(src, node)
        changed = one.targets[0] if isinstance(one, ast.Assign) and len(one.targets) == 1 else None
        if two is None or "#" in src.text[src.start(node) : src.line_end(two.end_lineno or 0)]:
            continue
        if isinstance(one, ast.Return) and isinstance(two, ast.Return) and one.value and two.value:
            found.append((node, two, "return ", one.value, two.value))
        elif isinstance(one, ast.Assign) and isinstance(two, ast.Return) and isinstance(changed, ast.Name):
            if isinstance(two.value, ast.Name) and two.value.id == changed.id and not node.orelse:
                found.append((node, two, "return ", one.value, two.value))
        elif isinstance(one, ast.Assign) and isinstance(two, ast.Assign) and len(one.targets) == len(two.targets) == 1:
            target = src.segment(one.targets[0])
            if target == src.segment(two.targets[0]) and node.orelse:
                found.append((node, two, f"{target} = ", one.value, two.value))
    node, last, head, yes, no = only(found, "if/else that chooses one value")
    if isinstance(yes, ast.Tuple) or isinstance(no, ast.Tuple):
        raise RefactorError("the values are tuples")
    chosen = f"({flat(src, yes)})" if isinstance(yes, (ast.IfExp, ast.Lambda)) else flat(src, yes)
    parts = [chosen, f"if {flat(src, node.test)}", f"else {flat(src, no)}"]
    text, indent = f"{head}{' '.join(parts)}", src.indent(node)
    if len(indent) + len(text) > LONGEST:
        text = f"{head}(\n{''.join(f'{indent}{src.unit}{part}{chr(10)}' for part in parts)}{indent})"
    return [Edit(src.start(node), src.end(last), text)]


def following(src: Piece, node: ast.If) -> ast.stmt | None:
    """The return right after an `if`; None if there is none."""
    block = src.block_of(node)
    after = block[block.index(node) + 1 :][:1]
    return after[0] if after and isinstance(after[0], ast.Return) else None


def expand_ternary(src: Piece, args: tuple[str, ...]) -> Edits:
    found: list[tuple[ast.IfExp, ast.Assign | ast.Return, str]] = []
    for node in src.of(ast.IfExp):
        statement = src.parents.get(node)
        if not isinstance(statement, (ast.Assign, ast.Return)) or not src.alone_on_lines(statement):
            continue
        if isinstance(statement, ast.Return):
            found.append((node, statement, "return "))
        elif len(statement.targets) == 1:
            found.append((node, statement, f"{src.segment(statement.targets[0])} = "))
    node, statement, head = only(found, "conditional expression as the value of a statement")
    if src.has_comment(statement):
        raise RefactorError("it has a comment")
    indent = src.indent(statement)
    text = f"if {flat(src, node.test)}:\n{indent}{src.unit}{head}{flat(src, node.body)}\n{indent}else:\n"
    return [Edit(*src.span(statement), f"{text}{indent}{src.unit}{head}{flat(src, node.orelse)}")]


def use_dict_get(src: Piece, args: tuple[str, ...]) -> Edits:
    found: list[tuple[ast.If, ast.stmt, str]] = []
    for node in src.of(ast.If):
        test, both = node.test, [*node.body, *node.orelse]
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.In) or len(test.ops) != 1:
            continue
        if returned := _get_returned(src, node, test):
            found.append((node, *returned))
            continue
        if len(node.body) != 1 or len(node.orelse) != 1 or not all(isinstance(s, ast.Assign) for s in both):
            continue
        one, two = node.body[0], node.orelse[0]
        assert isinstance(one, ast.Assign) and isinstance(two, ast.Assign)
        key, mapping, target = src.segment(test.left), dotted(test.comparators[0]), src.segment(one.targets[0])
        same = target == src.segment(two.targets[0]) and src.segment(one.value) == f"{mapping}[{key}]"
        if mapping and same and src.one_line(two) and not src.has_comment(node):
            found.append((node, node, f"{target} = {mapping}.get({key}, {src.segment(two.value)})"))
    node, last, text = only(found, "if/else that looks a key up")
    return [Edit(src.start(node), src.end(last), re.sub(r", None\)$", ")", text))]


def _get_returned(src: Piece, node: ast.If, test: ast.Compare) -> tuple[ast.stmt, str] | None:
    """`if k in d: return d[k]` and the return of a plain value after it or in the else."""
    other = node.orelse[0] if len(node.orelse) == 1 else following(src, node) if not node.orelse else None
    one = node.body[0]
    if len(node.body) != 1 or not isinstance(one, ast.Return) or not isinstance(other, ast.Return):
        return None
    key, mapping = src.segment(test.left), dotted(test.comparators[0])
    if one.value is None or mapping is None or src.segment(one.value) != f"{mapping}[{key}]":
        return None
    plain = other.value is None or isinstance(other.value, (ast.Constant, ast.Name))
    if not plain or "#" in src.text[src.start(node) : src.end(other)]:
        return None
    return other, f"return {mapping}.get({key}, {src.segment(other.value) if other.value else None})"


def return_directly(src: Piece, args: tuple[str, ...]) -> Edits:
    found = []
    for node in src.of(ast.Return):
        block = src.block_of(node)
        before = block[block.index(node) - 1] if block.index(node) else None
        if isinstance(before, (ast.With, ast.AsyncWith)) and "#" not in src.text[src.start(before) : src.end(node)]:
            before = before.body[-1]  # the value assigned last in a with block can be returned inside it
        if not isinstance(node.value, ast.Name) or not isinstance(before, (ast.Assign, ast.AnnAssign)):
            continue
        targets = before.targets if isinstance(before, ast.Assign) else [before.target]
        if len(targets) != 1 or before.value is None:
            continue
        if dotted(targets[0]) == node.value.id and (not args or node.value.id == args[0]):
            found.append((before, node))
    before, node = only(found, "variable that is only returned")
    between = src.text[src.end(before) : src.start(node)]
    if between.strip() or src.trailing_comment(node):
        raise RefactorError("a comment is in the way")
    assert before.value is not None
    value = src.text[src.start(before.value) : src.end(before)]
    if not src.one_line(before) and not src.movable([before]):
        raise Unusable("a string spans several lines")
    return [Edit(src.start(before), src.end(node), f"return {value}")]


def use_with(src: Piece, args: tuple[str, ...]) -> Edits:
    found = []
    for close in src.of(ast.Expr):
        called = dotted(close.value.func) if isinstance(close.value, ast.Call) else None
        if called is None or not called.endswith(".close") or called.count(".") != 1:
            continue
        block, name = src.block_of(close), called.split(".")[0]
        for opened in block[: block.index(close)]:
            if isinstance(opened, ast.Assign) and dotted(opened.targets[0]) == name and len(opened.targets) == 1:
                value = opened.value
                maker = (dotted(value.func) or "").split(".")[-1] if isinstance(value, ast.Call) else ""
                if maker in CLOSING and src.one_line(opened):
                    found.append((opened, close, name))
    opened, close, name = only(found, "file that is opened and closed")
    block = src.block_of(close)
    inside, after = block[block.index(opened) + 1 : block.index(close)], block[block.index(close) + 1 :]
    if not inside or not src.movable(inside) or read_again(name, after):
        raise RefactorError(f"{name} is used after it is closed, or cannot be moved")
    start, stop = src.whole_lines(opened)[1], src.line_start(close.lineno)
    head = f"{src.indent(opened)}with {src.segment(opened.value)} as {name}:"
    tail = src.text[src.end(opened) : start]
    body = src.reindent(start, stop, 1)
    return [Edit(src.whole_lines(opened)[0], src.whole_lines(close)[1], f"{head}{tail}{body}")]


def read_again(name: str, statements: list[ast.stmt]) -> bool:
    """Whether these statements read the name before they assign to it."""
    uses = [n for s in statements for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == name]
    first = min(uses, key=lambda node: (node.lineno, node.col_offset), default=None)
    return first is not None and isinstance(first.ctx, ast.Load)


def remove_prints(src: Piece, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.Expr):
        if isinstance(node.value, ast.Call) and dotted(node.value.func) == "print" and src.alone_on_lines(node):
            others = [s for s in src.block_of(node) if not printing(s)]
            edits.append(Edit(*src.whole_lines(node), "" if others else f"{src.indent(node)}pass\n"))
    return edits


def printing(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Call) and dotted(value.func) == "print"


def log_prints(src: Piece, args: tuple[str, ...]) -> Edits:
    """`print(x)` -> `logger.level(x)`, for prints of one value; the default level is `info`."""
    logger, level = args if len(args) == 2 else (args[0], "info")
    if not re.fullmatch(r"[\w.]+", logger) or not level.isidentifier():
        raise RefactorError(f"{logger}.{level} is not a logger's method")
    calls = [node.value for node in src.of(ast.Expr) if isinstance(node.value, ast.Call)]
    plain = [c for c in calls if dotted(c.func) == "print" and len(c.args) == 1 and not c.keywords]
    return [Edit(*src.span(call.func), f"{logger}.{level}") for call in plain]
