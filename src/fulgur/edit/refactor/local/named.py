"""Changes of one thing that an instruction names: a statement, a call, a message, a lambda, a base, a handler."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.exact import the_class
from fulgur.edit.refactor.local.functions import first_in, insert_first, may_be_none
from fulgur.edit.refactor.local.piece import Edits, Piece, aimed, expression, only
from fulgur.edit.refactor.source import Edit, dotted, names_in


def return_if(src: Piece, args: tuple[str, ...]) -> Edits:
    """`return_if CONDITION [VALUE]`: adds a guard at the start of the function; without a value, a bare return."""
    function, (condition, *value) = aimed(src, args)
    test = ast.parse(condition.strip(), mode="eval").body
    if function is None:
        raise RefactorError("it is unclear which function")
    known = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    classes = {word for word in names_in(test) if word[:1].isupper() or word[:1] == "_"}  # `isinstance(x, Version)`
    if missing := sorted(names_in(test) - known - classes - set(dir(builtins))):
        raise RefactorError(f"{missing[0]} is not a parameter of {function.name}")
    first_in(src, function)
    does = f"return {value[0]}" if value else "return"
    return insert_first(src, function, [f"if {condition}:", f"{src.unit}{does}"], condition)


def delete_statement(src: Piece, args: tuple[str, ...]) -> Edits:
    """`delete_statement CODE`: deletes the only statement equal to this code."""
    try:
        wanted = ast.parse(args[0].strip()).body
    except (SyntaxError, ValueError):
        wanted = []
    if len(wanted) != 1:
        raise RefactorError(f"{args[0]} is not a statement")
    dump = ast.dump(wanted[0])
    found = [node for node in src.of(type(wanted[0])) if ast.dump(node) == dump and src.alone_on_lines(node)]
    node = only(found, f"statement {args[0]}")
    assert isinstance(node, ast.stmt)
    if len(src.block_of(node)) == 1:
        raise RefactorError(f"{args[0]} is the only statement of its block")
    return [Edit(*src.whole_lines(node), "")]


def unwrap_call(src: Piece, args: tuple[str, ...]) -> Edits:
    """`unwrap_call NAME [ARGUMENT]`: the only `NAME(x)` becomes `x`; ARGUMENT selects the call by its argument."""
    calls = [
        call
        for call in src.of(ast.Call)
        if dotted(call.func) == args[0] and len(call.args) == 1 and not call.keywords
        and not isinstance(call.args[0], (ast.Starred, ast.GeneratorExp))
        and (len(args) < 2 or _is_about(src.segment(call.args[0]), args[1]))
    ]  # fmt: skip
    call = only(calls, f"call of {args[0]} with one argument")
    inner = call.args[0]
    if not isinstance(inner, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)):
        raise RefactorError(f"the argument of {args[0]} is not a plain value")
    return [Edit(*src.span(call), src.segment(inner))]


def _is_about(argument: str, words: str) -> bool:
    """Whether an argument is this code exactly, or calls this name: "the split" means `s.split(sep)`."""
    return argument == words or re.search(rf"\b{re.escape(words)}\(", argument) is not None


def set_message(src: Piece, args: tuple[str, ...]) -> Edits:
    """`set_message TEXT`: replaces the only error message by a text, or by an f-string as written."""
    texts = [
        node.exc.args[0]
        for node in src.of(ast.Raise)
        if isinstance(node.exc, ast.Call) and len(node.exc.args) == 1 and _is_text(node.exc.args[0])
    ]
    text = only(texts, "error message")
    new = args[0]
    if re.match(r"[fF][\"']", new):
        expression(new)
        return [Edit(*src.span(text), new)]
    quote = src.segment(text)[-1] if isinstance(text, (ast.Constant, ast.JoinedStr)) else '"'
    if quote in new or "\\" in new or "\n" in new:
        raise RefactorError(f"this text contains {quote}, a backslash or a line break")
    return [Edit(*src.span(text), f"{quote}{new}{quote}")]


def _is_text(node: ast.expr) -> bool:
    """Whether a node is a string: plain, formatted or an f-string."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) and _is_text(node.left)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "format" and _is_text(node.func.value)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def lambda_to_def(src: Piece, args: tuple[str, ...]) -> Edits:
    """`lambda_to_def [NAME]`: `f = lambda x: …` becomes a function."""
    found = [
        node
        for node in src.of(ast.Assign)
        if isinstance(node.value, ast.Lambda) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        and (not args or node.targets[0].id == args[0])
    ]  # fmt: skip
    node = only(found, "lambda that is given a name")
    value, target = node.value, node.targets[0]
    assert isinstance(value, ast.Lambda) and isinstance(target, ast.Name)
    if not src.alone_on_lines(node) or src.end(node) != src.end(value):
        raise RefactorError("the lambda shares its line with other code")
    head = src.text[src.start(value) + len("lambda") : src.start(value.body)].rstrip().removesuffix(":").strip()
    if head.count("(") != head.count(")"):  # the body is parenthesised
        raise RefactorError("the body of the lambda is in parentheses")
    indent, body = src.indent(node), src.segment(value.body)
    if "\n" in body:
        raise RefactorError("the lambda spans several lines")
    return [Edit(*src.span(node), f"def {target.id}({head}):\n{indent}{src.unit}return {body}")]


def add_base(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_base CLASS NEW`: adds a base after the existing ones; replaces `object`."""
    node, new = the_class(src, args[0]), args[1]
    expression(new)
    if new in [dotted(base) for base in node.bases]:
        raise RefactorError(f"{node.name} is already derived from {new}")
    if node.bases:
        last = node.bases[-1]
        if len(node.bases) == 1 and dotted(last) == "object":
            return [Edit(*src.span(last), new)]
        return [Edit(src.end(last), src.end(last), f", {new}")]
    match = re.compile(rf"class\s+{re.escape(node.name)}(\(\s*\))?").match(src.text, src.start(node))
    if match is None or node.keywords:
        raise RefactorError(f"the class line of {node.name} is too complex")
    at = match.start(1) if match[1] else match.end()
    return [Edit(at, match.end(), f"({new})")]


def remove_base(src: Piece, args: tuple[str, ...]) -> Edits:
    """`remove_base CLASS BASE`: removes one of the bases of a class."""
    node = only([n for n in src.of(ast.ClassDef) if n.name == args[0]], f"class {args[0]}")
    base = only([b for b in node.bases if dotted(b) == args[1]], f"base {args[1]} of {args[0]}")
    if len(node.bases) == 1 and not node.keywords:
        match = re.compile(r"class\s+\w+\s*(\([^()]*\))").match(src.text, src.start(node))
        if match is None:
            raise RefactorError(f"the class line of {args[0]} is too complex")
        return [Edit(match.start(1), match.end(1), "")]
    index = node.bases.index(base)
    if index + 1 < len(node.bases):
        return [Edit(src.start(base), src.start(node.bases[index + 1]), "")]
    return (
        [Edit(src.end(node.bases[index - 1]), src.end(base), "")]
        if index
        else [Edit(src.start(base), src.start(node.keywords[0].value) - len(node.keywords[0].arg or "") - 1, "")]
    )


def uncatch(src: Piece, args: tuple[str, ...]) -> Edits:
    """`uncatch EXCEPTION`: removes it from the only handler that lists it among others."""
    found = [
        (handler.type, [dotted(one) for one in handler.type.elts])
        for handler in src.of(ast.ExceptHandler)
        if isinstance(handler.type, ast.Tuple) and args[0] in [dotted(one) for one in handler.type.elts]
    ]
    kinds, names = only(found, f"except that lists {args[0]} among others")
    kept = [src.segment(one) for one, name in zip(kinds.elts, names, strict=True) if name != args[0]]
    if not kept:
        raise RefactorError(f"{args[0]} is the only exception caught there")
    return [Edit(*src.span(kinds), kept[0] if len(kept) == 1 else f"({', '.join(kept)})")]


def add_default(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_default PARAMETER VALUE`, if every parameter after it already has a default."""
    function, (name, value) = aimed(src, args)
    expression(value)
    if function is None:
        raise RefactorError("it is unclear which function")
    ordinary = [*function.args.posonlyargs, *function.args.args]
    required = ordinary[: len(ordinary) - len(function.args.defaults)]
    bare = {a.arg: a for a, v in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if v is None}
    if required and required[-1].arg == name:
        bare[name] = required[-1]
    elif name in {arg.arg for arg in required}:
        raise RefactorError(f"{required[-1].arg} comes after {name} and has no default")
    if name not in bare:
        raise RefactorError(f"{function.name} has no parameter {name} without a default")
    arg = bare[name]
    default = Edit(src.end(arg), src.end(arg), f"{' = ' if arg.annotation else '='}{value}")
    return [*(may_be_none(src, arg) if value == "None" else []), default]
