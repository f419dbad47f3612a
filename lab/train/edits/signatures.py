"""Operations on a function's head: type hints, defaults, parameters, decorators, docstrings, async."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from fulgur.edit.refactor.local.functions import defaults, unannotate
from fulgur.edit.refactor.source import Edit, Function, Source, Unusable, dotted, names_in
from fulgur.text.edit_format import Call
from lab.train.edits import values
from lab.train.edits.example import Change, operation, shuffled


def parameters(function: Function) -> list[ast.arg]:
    """Every named parameter in order, without `self`, `cls` and star arguments."""
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [arg for arg in named if arg.arg not in ("self", "cls", "mcs", "_")]


def usual(function: Function) -> dict[str, str]:
    return {"func": function.name}


@operation("inverse")
def annotate_parameter(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        typed = [arg for arg in parameters(function) if arg.annotation is not None and src.one_line(arg)]
        if not typed:
            continue
        arg = rng.choice(typed)
        assert arg.annotation is not None
        edit = unannotate(src, function, arg)
        slots = {"func": function.name, "param": arg.arg, "type": src.segment(arg.annotation)}
        if len(slots["type"]) <= 40:
            yield Change([edit], slots, inverse=True, within=src.whole_lines(function))


@operation("inverse")
def annotate_return(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        if function.returns is None or not src.one_line(function.returns):
            continue
        start = src.text.rfind(")", 0, src.start(function.returns)) + 1
        if not re.fullmatch(r"\s*->\s*", src.text[start : src.start(function.returns)]):
            continue
        kind = src.segment(function.returns)
        slots = {"func": function.name, "type": kind}
        edit = Edit(start, src.end(function.returns), "")
        returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
        none = kind == "None" and all(value is None for value in returned)
        if none and rng.random() < 0.5:
            yield Change(
                [edit], {"func": function.name}, inverse=True, variant="infer", within=src.whole_lines(function)
            )
        elif len(kind) <= 40:
            yield Change([edit], slots, inverse=True, within=src.whole_lines(function))


@operation("inverse")
def add_type_hints(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        args = parameters(function)
        if not args or function.returns is None or any(arg.annotation is None for arg in args):
            continue
        if (
            function.args.vararg
            or function.args.kwarg
            or len(args) > 5
            or function.lineno != function.returns.end_lineno
        ):
            continue
        edits = [unannotate(src, function, arg) for arg in args]
        start = src.text.rfind(")", 0, src.start(function.returns)) + 1
        if re.fullmatch(r"\s*->\s*", src.text[start : src.start(function.returns)]):
            edits.append(Edit(start, src.end(function.returns), ""))
            yield Change(edits, usual(function), inverse=True, within=src.whole_lines(function))


@operation("forward")
def remove_type_hints(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        starred = [arg for arg in (function.args.vararg, function.args.kwarg) if arg and arg.annotation]
        if starred or any(isinstance(node, ast.AnnAssign) for node in ast.walk(function)):
            continue
        hints = [arg.annotation for arg in parameters(function)] + [function.returns]
        spans = [src.span(hint) for hint in hints if hint is not None]
        if spans:
            yield Change(slots=usual(function), cover=(spans[0][0], spans[-1][1]), within=src.whole_lines(function))


@operation("forward")
def change_default(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        found = [(n, d) for n, d in defaults(function).items() if isinstance(d, ast.Constant) and src.one_line(d)]
        if not found:
            continue
        name, default = rng.choice(found)
        old, new = src.segment(default), values.other_value(default, rng)
        if len(old) <= 30 and not isinstance(default.value, bytes):
            slots = {"func": function.name, "param": name, "old": old, "new": new}
            yield Change(slots=slots, cover=src.span(default), within=src.whole_lines(function))


def last_parameter(src: Source, function: Function) -> tuple[int, str]:
    """The position of a new last parameter with a default, and the text before it."""
    args = function.args
    if args.kwonlyargs or args.vararg or args.kwarg:
        raise Unusable("star arguments")
    ordinary = [*args.posonlyargs, *args.args]
    if not ordinary:
        open_parenthesis = src.text.find("(", src.start(function))
        if not re.match(r"\(\s*\)", src.text[open_parenthesis:]):
            raise Unusable("no parentheses")
        return open_parenthesis + 1, ""
    last: ast.AST = ordinary[-1]
    if ordinary[-1].arg in defaults(function):
        last = defaults(function)[ordinary[-1].arg]
    end = src.end(last)
    if function.lineno != last.end_lineno:  # type: ignore[attr-defined]
        line_start = src.line_start(last.lineno)  # type: ignore[attr-defined]
        indent = re.match(r"\s*", src.text[line_start:])
        if not src.text[end : end + 2].startswith(",\n") or indent is None:
            raise Unusable("head over lines")
        return end, f",\n{indent[0]}"
    return end, ", "


@operation("forward")
def add_parameter(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        where, _ = last_parameter(src, function)
        name = values.fresh({arg.arg for arg in parameters(function)} | names_in(function), values.PARAMETERS, rng)
        default = values.literal_for(name, rng)
        annotated = any(arg.annotation for arg in parameters(function))
        slots = {"func": function.name, "param": name, "value": default}
        if annotated:
            slots["type"] = values.annotation(default, rng)
        variant = "typed" if annotated else ""
        head = (where, src.start(function.body[0]))
        yield Change(slots=slots, variant=variant, cover=head, within=src.whole_lines(function))


@operation("call")
def add_parameter_callers(src: Source, rng: random.Random) -> Iterator[Change]:
    called: dict[str, int] = {}
    for node in src.of(ast.Call):
        if isinstance(node.func, ast.Name):
            called[node.func.id] = called.get(node.func.id, 0) + 1
    for function in shuffled(src.of(ast.FunctionDef), rng):
        if not isinstance(src.parents.get(function), ast.Module) or not called.get(function.name):
            continue
        if function.args.vararg or function.args.kwarg or function.args.kwonlyargs:
            continue
        name = values.fresh({arg.arg for arg in parameters(function)} | names_in(function), values.PARAMETERS, rng)
        passed = values.literal_for(name, rng)
        slots = {"func": function.name, "param": name, "value": passed}
        call = Call("add_parameter", (function.name, name, passed))
        whole = src.whole_lines(function)
        yield Change([], slots, call=call, cover=whole, within=whole, noop=False)


@operation("call")
def remove_parameter(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        whole = src.whole_lines(function)
        if rng.random() < 0.75:  # real code seldom has unused parameters, so insert one
            where, before = last_parameter(src, function)
            taken = {arg.arg for arg in parameters(function)} | names_in(function)
            name = values.fresh(taken, values.PARAMETERS, rng)
            default = f"={values.literal_for(name, rng)}" if defaults(function) or rng.random() < 0.4 else ""
            edits = [Edit(where, where, f"{before}{name}{default}")]
        elif parameters(function):
            name, edits = rng.choice(parameters(function)).arg, []
        else:
            continue
        slots = {"func": function.name, "param": name}
        call = Call("remove_parameter", (function.name, name))
        yield Change(edits, slots, call=call, cover=whole, within=whole, spoils=bool(edits))


@operation("call")
def rename_parameter(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        args = [arg for arg in parameters(function) if len(arg.arg) > 1]
        if not args:
            continue
        arg = rng.choice(args)
        new = values.variation(arg.arg, names_in(function) | {a.arg for a in parameters(function)}, rng)
        slots = {"func": function.name, "param": arg.arg, "old": arg.arg, "new": new}
        call = Call("rename_parameter", (function.name, arg.arg, new))
        yield Change([], slots, call=call, cover=src.whole_lines(function), within=src.whole_lines(function))


@operation("inverse")
def add_decorator(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        if not function.decorator_list:
            if rng.random() < 0.1:
                slots = {"func": function.name, "decorator": rng.choice(values.DECORATORS)}
                whole = src.whole_lines(function)
                yield Change(slots=slots, cover=whole, within=whole)
            continue
        first = function.decorator_list[0]
        if not src.one_line(first) or len(src.segment(first)) > 50 or src.trailing_comment(first):
            continue
        slots = {"func": function.name, "decorator": src.segment(first)}
        edit = Edit(src.line_start(first.lineno), src.line_end(first.lineno), "")
        whole = src.whole_lines(function)
        yield Change([edit], slots, inverse=True, cover=whole, within=whole)


@operation("forward", heldout=True)
def remove_decorator(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        if not function.decorator_list:
            continue
        decorator = rng.choice(function.decorator_list)
        name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name is None or not src.one_line(decorator):
            continue
        edit = Edit(src.line_start(decorator.lineno), src.line_end(decorator.lineno), "")
        yield Change(
            [edit],
            {"func": function.name, "decorator": name},
            cover=src.whole_lines(function),
            within=src.whole_lines(function),
        )


@operation("inverse")
def add_docstring(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled([*src.functions(), *src.of(ast.ClassDef)], rng):
        doc = src.docstring(function)
        if doc is None or len(function.body) < 2 or not src.alone_on_lines(doc) or not src.one_line(doc):
            continue
        start, end = src.whole_lines(doc)
        text = str(doc.value.value).strip()  # type: ignore[attr-defined]
        end = max(
            end,
            src.line_start(src.first_line(function.body[1])) if not src.text[end:].lstrip(" ").startswith("#") else end,
        )
        if src.text[start:end].strip() != src.segment(doc) or not 8 <= len(text) <= 90:
            continue
        kind, whole = "class" if isinstance(function, ast.ClassDef) else "function", src.whole_lines(function)
        if rng.random() < 0.5 and '"' not in text and "\\" not in text:
            slots = {"func": function.name, "text": text}
            yield Change([Edit(start, end, "")], slots, inverse=True, variant="text", cover=whole, within=whole)
        elif kind == "function":
            yield Change([Edit(start, end, "")], {"func": function.name}, inverse=True, cover=whole, within=whole)


@operation("forward")
def remove_docstring(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        doc = src.docstring(function)
        if doc is None or len(function.body) < 2 or not src.alone_on_lines(doc):
            continue
        if any(src.docstring(n) for n in ast.walk(function) if n is not function and isinstance(n, ast.FunctionDef)):
            continue
        start, end = src.whole_lines(doc)
        while src.text[end : end + 1] == "\n":
            end += 1
        yield Change(slots=usual(function), cover=(start, end), within=src.whole_lines(function))


@operation("forward")
def make_async(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.of(ast.FunctionDef), rng):
        if function.name.startswith("__") or any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(function)):
            continue
        at = src.start(function)
        yield Change(slots=usual(function), cover=(at, at), within=src.whole_lines(function))


@operation("inverse", limit=8)
def add_await(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Await), rng):
        if not isinstance(node.value, ast.Call) or not re.match(r"await +\S", src.segment(node)):
            continue
        name = dotted(node.value.func)
        if name is None:
            continue
        edit = Edit(src.start(node), src.start(node.value), "")
        yield Change([edit], {"call": name}, inverse=True, unique=f"{name}(")
