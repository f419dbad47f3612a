"""Variables and calls by name: inline, extract, await, wrap in try, change a value, a return or an exception."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, expression, meant, only, rest
from fulgur.edit.refactor.source import Edit, Unusable, dotted, names_in

WRITTEN_OUT = (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.JoinedStr)
SCOPES = (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)


def inline(src: Piece, args: tuple[str, ...]) -> Edits:
    """Inline a variable that is set once and used once, in the next statement."""
    name, found = args[0], []
    everywhere = [node for node in ast.walk(src.tree) if isinstance(node, ast.Name) and node.id == name]
    for statement in src.of(ast.Assign):
        if len(statement.targets) != 1 or dotted(statement.targets[0]) != name:
            continue
        function = src.function_of(statement)
        inside = {id(node) for node in ast.walk(function)} if function else {id(n) for n in ast.walk(src.tree)}
        uses = [node for node in everywhere if id(node) in inside and isinstance(node.ctx, ast.Load)]
        stores = [node for node in everywhere if id(node) in inside and not isinstance(node.ctx, ast.Load)]
        if len(uses) == 1 and len(stores) == 1 and uses[0] in src.parents:
            found.append((statement, uses[0]))
    statement, use = only(found, f"variable {name} that is set once and used once")
    block = src.block_of(statement)
    following = block[block.index(statement) + 1 :][:1]
    if not following or src.statement(use) is not following[0] or src.has_comment(statement):
        raise RefactorError(f"{name} is not used by the statement right after it")
    if any(isinstance(a, SCOPES) for a in src.ancestors(use)) or not src.one_line(statement):
        raise RefactorError(f"{name} cannot be inlined without changing the meaning")
    value = src.text[src.start(statement.value) : src.end(statement)]
    plain = isinstance(src.parents[use], (ast.Call, ast.keyword, ast.Return, ast.Assign, ast.Expr))
    atom = isinstance(statement.value, (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript))
    if isinstance(statement.value, (ast.Yield, ast.YieldFrom, ast.GeneratorExp)) or (
        isinstance(statement.value, ast.Tuple) and value[:1] != "("
    ):
        raise RefactorError(f"the value of {name} cannot be moved")
    return [
        Edit(*src.whole_lines(statement), ""), Edit(*src.span(use), value if plain or atom else f"({value})")
    ]  # fmt: skip


def extract_variable(src: Piece, args: tuple[str, ...]) -> Edits:
    """`extract_variable NAME EXPRESSION`: assigns an expression that occurs once to a name, before its statement."""
    name, wanted = args[0], rest(args, 1)
    dump = expression(wanted)
    if not name.isidentifier() or re.search(rf"\b{name}\b", src.text):
        raise RefactorError(f"{name} is not a valid name, or is already used here")
    kinds = {type(ast.parse(wanted.strip(), mode="eval").body)}
    found = [node for kind in kinds for node in src.of(kind) if ast.dump(node) == dump]
    node = only(found, f"expression {wanted}")
    statement = src.statement(node)
    moved = any(isinstance(a, (*SCOPES, ast.IfExp, ast.BoolOp)) for a in src.ancestors(node))
    simple = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr, ast.If, ast.Raise))
    if moved or not simple or not src.alone_on_lines(statement) or src.text.startswith("elif", src.start(statement)):
        raise RefactorError(f"{wanted} cannot be computed earlier without changing the meaning")
    at = src.line_start(statement.lineno)
    text = f"{src.indent(statement)}{name} = {src.segment(node)}\n"
    return [Edit(at, at, text), Edit(*src.span(node), name)]


def named_calls(src: Piece, name: str) -> list[ast.Call]:
    name = meant(name, (dotted(node.func) for node in src.of(ast.Call)))
    return [node for node in src.of(ast.Call) if dotted(node.func) == name]


def add_await(src: Piece, args: tuple[str, ...]) -> Edits:
    calls = named_calls(src, args[0])
    call = only([c for c in calls if not isinstance(src.parents.get(c), ast.Await)], f"call of {args[0]} without await")
    start, end = src.span(call)
    parent = src.parents.get(call)
    tight = isinstance(parent, (ast.Attribute, ast.Subscript)) or (isinstance(parent, ast.Call) and parent.func is call)
    if tight and not (src.text[start - 1] == "(" and src.text[end : end + 1] == ")"):
        return [Edit(start, start, "(await "), Edit(end, end, ")")]
    return [Edit(start, start, "await ")]


def calling(src: Piece, name: str) -> ast.stmt:
    """The statement that is this call, bare or assigned; else the only simple statement that contains it."""
    statements: list[ast.Expr | ast.Assign] = [*src.of(ast.Expr), *src.of(ast.Assign)]
    found: list[ast.stmt] = []
    for statement in statements:
        value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        if isinstance(value, ast.Call) and dotted(value.func) == name and src.alone_on_lines(statement):
            found.append(statement)
    if not found:
        holding = {src.statement(call) for call in src.of(ast.Call) if dotted(call.func) == name}
        simple = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)
        found = [s for s in holding if isinstance(s, simple) and src.alone_on_lines(s)]
    return only(found, f"statement that calls {name}")


def wrap_try(src: Piece, args: tuple[str, ...]) -> Edits:
    """`wrap_try CALL EXCEPTION pass | continue | return VALUE | raise OTHER | log LOGGER LEVEL`"""
    name, kind, action, more = meant(args[0], (dotted(c.func) for c in src.of(ast.Call))), args[1], args[2], args[3:]
    inside = calling(src, name)
    if any(isinstance(a, ast.Try) for a in src.ancestors(inside)) or not src.movable([inside]):
        raise RefactorError(f"{name} is already in a try, or cannot be moved")
    expression(kind)
    head, handler = f"except {kind}:", action
    if action == "return" and more:
        handler = f"return {' '.join(more)}"
    elif action == "raise" and len(more) == 1:
        head, handler = f"except {kind} as error:", f'raise {more[0]}("{name} failed") from error'
    elif action == "log" and len(more) == 2:
        handler = f'{more[0]}.{more[1]}("{name} failed")'
    elif action not in ("pass", "continue") or more:
        raise RefactorError(
            f"{action!r} is not an action for a handler", hint="Use pass, continue, return, raise or log."
        )
    indent, (start, end) = src.indent(inside), src.whole_lines(inside)
    body = src.reindent(start, end, 1)
    body += "" if body.endswith("\n") else "\n"
    return [Edit(start, end, f"{indent}try:\n{body}{indent}{head}\n{indent}{src.unit}{handler}\n")]


def set_value(src: Piece, args: tuple[str, ...]) -> Edits:
    """Change the value of a name that has a plain value, or one computed from constants.

    Other values are replaced only if the new value shares a name with the old one."""
    value = rest(args, 1)
    targets: list[ast.expr] = [s.targets[0] for s in src.of(ast.Assign)] + [s.target for s in src.of(ast.AnnAssign)]
    name = meant(args[0], map(dotted, targets))
    found: list[ast.Assign | ast.AnnAssign] = []
    found += [s for s in src.of(ast.Assign) if len(s.targets) == 1 and dotted(s.targets[0]) == name]
    found += [s for s in src.of(ast.AnnAssign) if s.value is not None and dotted(s.target) == name]
    statement = only(found, f"assignment to {name}")
    assert statement.value is not None
    if expression(value) == ast.dump(statement.value):
        return []
    alike = set(names_in(statement.value)) & set(re.findall(r"\w+", value))
    if not isinstance(statement.value, WRITTEN_OUT) and not _computed(statement.value) and not alike:
        raise RefactorError(f"{name} is not a plain value: {src.segment(statement.value)[:40]}")
    return [Edit(src.start(statement.value), src.end(statement), value)]


def _computed(node: ast.expr) -> bool:
    """Whether an expression consists only of constants, such as `1 << 18` and `60 * 60`."""
    return isinstance(node, ast.BinOp) and all(
        isinstance(part, (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)) for part in ast.walk(node)
    )


def change_return(src: Piece, args: tuple[str, ...]) -> Edits:
    """`change_return NEW OLD`"""
    new, old = args[0], rest(args, 1)
    dump = expression(old)
    expression(new)
    node = only([n for n in src.of(ast.Return) if n.value and ast.dump(n.value) == dump], f"return of {old}")
    assert node.value is not None
    return [] if new == old else [Edit(src.start(node.value), src.end(node), new)]


def raised(node: ast.Raise) -> ast.expr | None:
    return node.exc.func if isinstance(node.exc, ast.Call) else node.exc


def change_exception(src: Piece, args: tuple[str, ...]) -> Edits:
    old, new = args
    kinds = [kind for node in src.of(ast.Raise) if (kind := raised(node)) is not None and dotted(kind) == old]
    if not re.fullmatch(r"[\w.]+", new):
        raise RefactorError(f"{new} is not the name of an exception")
    if new == old and kinds:
        raise RefactorError(f"it already raises {new}")
    return [Edit(*src.span(only(kinds, f"raise of {old}")), new)]


def narrow_except(src: Piece, args: tuple[str, ...]) -> Edits:
    """Catch only these exceptions, in a handler that catches everything or lists more."""
    kinds = [word for word in re.split(r"[\s,()]+|\b(?:or|and)\b", rest(args, 0)) if word]
    kind = kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"
    expression(kind)
    handlers = src.of(ast.ExceptHandler)
    wide = [h for h in handlers if h.type is None or dotted(h.type) in ("Exception", "BaseException")]
    listed = [
        h for h in handlers if isinstance(h.type, ast.Tuple) and set(kinds) < {dotted(one) for one in h.type.elts}
    ]
    if wide and any(
        h.type is not None and set(kinds) & set(re.findall(r"[\w.]+", src.segment(h.type))) for h in handlers
    ):
        raise RefactorError(f"{kind} is already caught by another handler")
    handler = only(wide or listed, "except that catches everything")
    if handler.type is not None:
        return [Edit(*src.span(handler.type), kind)]
    match = re.match(r"except(?=\s*:)", src.text[src.start(handler) :])
    if match is None:
        raise Unusable("no bare except")
    at = src.start(handler) + match.end()
    return [Edit(at, at, f" {kind}")]
