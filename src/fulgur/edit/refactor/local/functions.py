"""Refactorings of one function: its first statements, its head, its docstring. `@name` selects one of several."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from types import NoneType

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, aimed, definition, expression, only, rest
from fulgur.edit.refactor.source import Edit, Function, Source, Unusable, dotted, names_in

# Decorators that turn a method into an attribute.
PROPERTIES = frozenset({"property", "cached_property", "setter", "getter", "deleter"})


def parameters(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def defaults(function: Function) -> dict[str, ast.expr]:
    """Default value by parameter name."""
    positional = [*function.args.posonlyargs, *function.args.args]
    found = dict(zip((arg.arg for arg in positional[::-1]), function.args.defaults[::-1], strict=False))
    for arg, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if value is not None:
            found[arg.arg] = value
    return found


def parameter(function: Function, name: str) -> ast.arg:
    return only([arg for arg in parameters(function) if arg.arg == name], f"parameter {name}")


def first_in(src: Piece, function: Function | None) -> tuple[int, str, list[ast.stmt]]:
    """The offset for a new first statement (after the docstring), its indentation, and the statements that follow."""
    if function is not None:
        first = src.body_start(function)
        body = function.body[function.body.index(first) :]
    else:
        first = src.top[1] if len(src.top) > 1 and src.docstring(ast.Module(src.top, [])) else src.top[0]
        body = src.top[src.top.index(first) :]
    if not src.alone_on_lines(first):
        raise Unusable("two statements share a line")
    return src.line_start(src.first_line(first)), src.text[src.line_start(first.lineno) : src.start(first)], body


def check_known(src: Piece, function: Function | None, name: str) -> None:
    if function is not None and not any(arg.arg == name for arg in ast.walk(function.args) if isinstance(arg, ast.arg)):
        raise RefactorError(f"{function.name} has no parameter {name}")
    if not name.isidentifier():
        raise RefactorError(f"{name} is not a name")


def insert_first(src: Piece, function: Function | None, lines: list[str], test: str) -> Edits:
    """Insert statements at the start of the body, unless it already begins with a test of the same condition."""
    at, indent, body = first_in(src, function)
    dump = expression(test)
    checks = [s.test for s in body[:4] if isinstance(s, (ast.If, ast.Assert))]
    same = [s for s in body[:4] if isinstance(s, ast.If) and ast.dump(s.test) == dump and not s.orelse]
    given = same[0].body[0] if len(same) == 1 and len(same[0].body) == 1 else None
    wanted = lines[-1].strip()
    if isinstance(given, ast.Return) and wanted.startswith("return") and src.segment(given) != wanted:
        return [Edit(*src.span(given), wanted)]  # the guard exists, but returns another value
    if any(ast.dump(check) == dump for check in checks):
        raise RefactorError(f"{test} is already tested there")
    return [Edit(at, at, "".join(f"{indent}{line}\n" for line in lines))]


def guard_none(src: Piece, args: tuple[str, ...]) -> Edits:
    """`guard_none PARAMETER raise EXCEPTION | return VALUE`"""
    function, (name, action, *more) = aimed(src, args)
    check_known(src, function, name)
    if not more or action not in ("raise", "return"):
        raise RefactorError("a guard has to raise or return something")
    value = " ".join(more)
    expression(value)
    does = f'raise {value}("{name} must not be None")' if action == "raise" else f"return {value}"
    return insert_first(src, function, [f"if {name} is None:", f"{src.unit}{does}"], f"{name} is None")


def raise_if_empty(src: Piece, args: tuple[str, ...]) -> Edits:
    function, (name, kind) = aimed(src, args)
    check_known(src, function, name)
    expression(kind)
    lines = [f"if not {name}:", f'{src.unit}raise {kind}("{name} must not be empty")']
    return insert_first(src, function, lines, f"not {name}")


def add_assert(src: Piece, args: tuple[str, ...]) -> Edits:
    function, others = aimed(src, args)
    condition = rest(others, 0)
    return insert_first(src, function, [f"assert {condition}"], condition)


def log_entry(src: Piece, args: tuple[str, ...]) -> Edits:
    function, (logger, level) = aimed(src, args)
    at, indent, body = first_in(src, function)
    first = src.segment(body[0])
    if re.match(rf"{re.escape(logger)}\.\w+\(", first):
        raise RefactorError("the function already begins with a log line")
    if not re.fullmatch(r"[\w.]+", logger) or not level.isidentifier():
        raise RefactorError(f"{logger}.{level} is not a logger's method")
    what = f"{function.name} called" if function else "called"
    return [Edit(at, at, f'{indent}{logger}.{level}("{what}")\n')]


def wrap_body(src: Piece, args: tuple[str, ...]) -> Edits:
    """`wrap_body EXCEPTION VALUE`: puts the whole body in a try whose handler returns the value."""
    function, others = aimed(src, args)
    kind, value = others[0], rest(others, 1)
    expression(kind)
    expression(value)
    at, indent, body = first_in(src, function)
    if not src.movable(body) or isinstance(body[0], ast.Try) or (function is None and not src.ends_block):
        raise RefactorError("the body is already in a try, or cannot be moved")
    end = src.whole_lines(body[-1])[1]
    text = src.reindent(at, end, 1)
    text += "" if text.endswith("\n") else "\n"
    return [Edit(at, end, f"{indent}try:\n{text}{indent}except {kind}:\n{indent}{src.unit}return {value}\n")]


def make_async(src: Piece, args: tuple[str, ...]) -> Edits:
    function, _ = definition(src, args)
    if isinstance(function, ast.AsyncFunctionDef):
        return []
    return [Edit(src.start(function), src.start(function), "async ")]


def signature_end(src: Piece, function: Function) -> tuple[int, int]:
    """The offsets after the closing parenthesis of the parameters, and of the colon that ends the head."""
    start, depth, closed = src.start(function), 0, -1
    first_line = function.lineno
    text = src.text[start : src.start(function.body[0])]
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line, column = token.start
            at = start + column if line == 1 else src.line_start(first_line + line - 1) + column
            depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
            if token.type == tokenize.OP and token.string == ")" and depth == 0 and closed < 0:
                closed = at + 1
            if token.type == tokenize.OP and token.string == ":" and depth == 0:
                return closed, at
    except (tokenize.TokenError, SyntaxError, IndentationError):
        pass
    raise Unusable("the signature of the function cannot be read")


def annotation_edits(src: Piece, function: Function, arg: ast.arg, kind: str) -> Edits:
    expression(kind)
    if arg.annotation is not None:
        same = expression(kind) == ast.dump(arg.annotation)
        return [] if same else [Edit(*src.span(arg.annotation), kind)]
    at, default = src.start(arg) + len(arg.arg), defaults(function).get(arg.arg)
    if default is None:
        return [Edit(at, at, f": {kind}")]
    if not re.fullmatch(r"\s*=\s*", src.text[at : src.start(default)]):
        raise Unusable("the default is in parentheses")
    return [Edit(at, src.start(default), f": {kind} = ")]


def annotate(src: Piece, args: tuple[str, ...]) -> Edits:
    function, others = definition(src, args)
    return annotation_edits(src, function, parameter(function, others[0]), rest(others, 1))


def return_edits(src: Piece, function: Function, kind: str) -> Edits:
    expression(kind)
    if function.returns is not None:
        return [] if ast.dump(function.returns) == expression(kind) else [Edit(*src.span(function.returns), kind)]
    closed, colon = signature_end(src, function)
    return [Edit(closed, colon, f" -> {kind}")]


def annotate_return(src: Piece, args: tuple[str, ...]) -> Edits:
    function, others = definition(src, args)
    return return_edits(src, function, rest(others, 0))


def add_type_hints(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_type_hints a: int, b: str -> bool`: adds hints where there are none yet."""
    function, others = definition(src, args)
    given, _, returned = rest(others, 0).partition("->")
    try:
        parsed = ast.parse(f"def f({given}): pass").body[0]
    except SyntaxError:
        raise RefactorError(f"{given!r} is not a list of type hints") from None
    assert isinstance(parsed, ast.FunctionDef)
    edits = return_edits(src, function, returned.strip()) if returned.strip() and function.returns is None else []
    for arg in parameters(parsed):
        mine = parameter(function, arg.arg)
        if arg.annotation is not None and mine.annotation is None:
            edits += annotation_edits(src, function, mine, ast.unparse(arg.annotation))
    return edits


def change_default(src: Piece, args: tuple[str, ...]) -> Edits:
    function, others = definition(src, args)
    name, value = others[0], rest(others, 1)
    default = defaults(function).get(name)
    if default is None:
        raise RefactorError(f"{function.name} has no default for {name}")
    if expression(value) == ast.dump(default):
        return []
    arg = parameter(function, name)
    kind, new = dotted(arg.annotation) if arg.annotation else None, ast.parse(value, mode="eval").body
    if kind in _LITERALS and isinstance(new, ast.Constant) and not isinstance(new.value, _LITERALS[kind]):
        raise RefactorError(f"{name} is annotated as {kind}, which {value} is not")
    return [*(may_be_none(src, arg) if value == "None" else []), Edit(*src.span(default), value)]


_LITERALS: dict[str | None, tuple[type, ...]] = {
    "str": (str, NoneType), "bytes": (bytes, NoneType), "int": (int, NoneType), "float": (int, float, NoneType),
    "bool": (bool, NoneType),
}  # fmt: skip


def may_be_none(src: Piece, arg: ast.arg) -> Edits:
    """Edits that make a parameter's annotation accept None; none if it already does."""
    kind = src.segment(arg.annotation) if arg.annotation is not None else ""
    if not kind or re.search(r"\b(?:None|Optional|Any|object)\b", kind) or isinstance(arg.annotation, ast.Constant):
        return []
    assert arg.annotation is not None
    return [Edit(*src.span(arg.annotation), or_none(kind, f"{src.above}{src.text}{src.below}"))]


def or_none(kind: str, file: str) -> str:
    """A type that may be None, in the style of this file."""
    modern = re.search(r"\| None\b|^from __future__ import annotations", file, re.MULTILINE)
    return f"{kind} | None" if modern and "Optional[" not in file else f"Optional[{kind}]"


def new_parameter(src: Piece, args: tuple[str, ...]) -> Edits:
    """`new_parameter name: type = default`: adds a last parameter that no caller has to pass."""
    function, others = definition(src, args)
    text = rest(others, 0)
    try:
        parsed = ast.parse(f"def f(*, {text}): pass").body[0]
    except SyntaxError:
        raise RefactorError(f"{text!r} is not a parameter") from None
    assert isinstance(parsed, ast.FunctionDef)
    if len(parsed.args.kwonlyargs) != 1 or parsed.args.kw_defaults[0] is None:
        raise RefactorError("a new parameter needs a default")
    new = parsed.args.kwonlyargs[0].arg
    if new in {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)} | names_in(function):
        raise RefactorError(f"{new} is already a name in {function.name}")
    return with_parameter(src, function, text)


def with_parameter(src: Piece, function: Function, text: str) -> Edits:
    """Add a parameter after the existing ones."""
    if function.args.kwonlyargs or function.args.vararg or function.args.kwarg:
        raise RefactorError(f"{function.name} has star or keyword-only parameters")
    if any(ast.unparse(decorator).rpartition(".")[2] in PROPERTIES for decorator in function.decorator_list):
        raise RefactorError(f"{function.name} is a property, which takes no arguments")
    ordinary = [*function.args.posonlyargs, *function.args.args]
    if not ordinary:
        closed, _ = signature_end(src, function)
        at = src.text.rfind("(", 0, closed) + 1
        return [Edit(at, at, text)]
    last = defaults(function).get(ordinary[-1].arg, ordinary[-1])
    end = src.end(last)
    line = re.match(r"\s*", src.text[src.line_start(ordinary[-1].lineno) :])
    apart = function.lineno != ordinary[-1].lineno and src.text[end : end + 2] == ",\n"
    return [Edit(end, end, f",\n{line[0] if line else ''}{text}" if apart else f", {text}")]


def add_decorator(src: Piece, args: tuple[str, ...]) -> Edits:
    function, others = definition(src, args)
    text = rest(others, 0).removeprefix("@")
    dump = expression(text)
    if any(ast.dump(d) == dump for d in function.decorator_list):
        return []
    taken = [arg.arg for arg in parameters(function)]
    if text in ("staticmethod", "classmethod") and taken[:1] == ["self"]:
        raise RefactorError(f"{function.name} takes self")
    if text == "staticmethod" and taken[:1] == ["cls"]:
        raise RefactorError(f"{function.name} takes cls, and a static method gets none")
    kinds = {"staticmethod", "classmethod", "property"}
    if text in kinds and (other := kinds & {ast.unparse(d) for d in function.decorator_list}):
        raise RefactorError(f"{function.name} is already a {other.pop()}")
    as_property = [d for d in function.decorator_list if ast.unparse(d) == "property"]
    if text.rpartition(".")[2] == "cached_property":
        around = f"{src.above}{src.text}{src.below}"
        if re.search(rf"@{re.escape(function.name)}\.(?:setter|getter|deleter)\b|\b__slots__\b", around):
            raise RefactorError(f"{function.name} has a setter, or its class has slots: it cannot be a cached property")
        if as_property:
            return [Edit(*src.span(as_property[0]), text)]  # replace one by the other; they must not be combined
    if as_property and text not in kinds:
        raise RefactorError(f"{function.name} is a property, and @{text} would decorate the property itself")
    if text == "property" and len(taken) != 1:
        raise RefactorError(f"{function.name} takes more than self")
    at = src.line_start(src.first_line(function))
    return [Edit(at, at, f"{src.indent(function)}@{text}\n")]


def unannotate(src: Source, function: Function, arg: ast.arg) -> Edit:
    assert arg.annotation is not None
    start, end = src.start(arg) + len(arg.arg), src.end(arg.annotation)
    default = defaults(function).get(arg.arg)
    return Edit(start, end, "") if default is None else Edit(start, src.start(default), "=")


def remove_type_hints(src: Piece, args: tuple[str, ...]) -> Edits:
    function, _ = definition(src, args)
    stars = [arg for arg in (function.args.vararg, function.args.kwarg) if arg is not None]
    edits = [unannotate(src, function, arg) for arg in [*parameters(function), *stars] if arg.annotation is not None]
    if function.returns is not None:
        closed, colon = signature_end(src, function)
        edits.append(Edit(closed, colon, ""))
    return edits


def documented(src: Piece, args: tuple[str, ...]) -> tuple[Function | ast.ClassDef, tuple[str, ...]]:
    """The function or class whose docstring a call is about, and the other arguments."""
    nodes: list[Function | ast.ClassDef] = [*src.functions(), *src.of(ast.ClassDef)]
    if args and args[0].startswith("@"):
        return only([n for n in nodes if n.name == args[0][1:]], args[0][1:]), args[1:]
    return only([n for n in nodes if n in src.top], "function or class"), args


def add_docstring(src: Piece, args: tuple[str, ...]) -> Edits:
    node, others = documented(src, args)
    text = rest(others, 0)
    if src.docstring(node) is not None:
        raise RefactorError(f"{node.name} already has a docstring")
    if not src.alone_on_lines(node.body[0]) or node.body[0].lineno == node.lineno:
        raise RefactorError(f"the body of {node.name} is not on its own lines")
    if '"""' in text or "\\" in text or text.endswith('"'):
        raise RefactorError('this text contains """ or a backslash, or ends with a double quote')
    at = src.line_start(src.first_line(node.body[0]))
    indent = src.text[src.line_start(node.body[0].lineno) : src.start(node.body[0])]
    return [Edit(at, at, f'{indent}"""{text}"""\n')]


def set_docstring(src: Piece, args: tuple[str, ...]) -> Edits:
    """`set_docstring TEXT`: replaces a docstring of one line."""
    node, others = documented(src, args)
    doc, text = src.docstring(node), rest(others, 0)
    if doc is None:
        raise RefactorError(f"{node.name} has no docstring")
    if not src.one_line(doc) and str(getattr(doc.value, "value", "")).strip().count("\n"):
        raise RefactorError("the docstring has more than one line")
    if '"""' in text or "\\" in text or text.endswith('"'):
        raise RefactorError('this text contains """ or a backslash, or ends with a double quote')
    return [Edit(*src.span(doc), f'"""{text}"""')]


def remove_docstring(src: Piece, args: tuple[str, ...]) -> Edits:
    body = src.top  # for a region that begins with a docstring, below the function's head
    if args or src.docstring(ast.Module(body, [])) is None:
        body = documented(src, args)[0].body
    doc = src.docstring(ast.Module(body, []))
    if doc is None:
        raise RefactorError("there is no docstring here")
    start, end = src.whole_lines(doc)
    if len(body) == 1:
        if body is src.top and not src.ends_block:
            raise RefactorError("the code below this docstring is not part of the edit", hint="Name the function.")
        return [Edit(start, end, f"{src.indent(doc)}pass\n")]
    while src.text[end : end + 1] == "\n":
        end += 1
    return [Edit(start, end, "")]
