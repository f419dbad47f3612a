"""Forward operations from a template: guards, logging, try/except, assertions, swapped branches, changed values."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from fulgur.edit.refactor.local import expressions as local
from fulgur.edit.refactor.local.piece import has_elif, plain_if
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Function, Source, Unusable, dotted, names_in
from lab.train.edits import values
from lab.train.edits.example import Change, operation, shuffled
from lab.train.edits.signatures import parameters


def body_insertion(src: Source, function: Function) -> tuple[int, int]:
    """The empty span where a new first statement goes: after the docstring."""
    doc = src.docstring(function)
    at = src.line_start(src.first_line(src.body_start(function)))
    if doc is not None and "#" in src.text[src.line_end(doc.end_lineno or 0) : at]:
        raise Unusable("comment before the body")
    return at, at


def tests_parameter(function: Function, name: str) -> bool:
    """Whether the function already begins with a check of this parameter."""
    checks = [s for s in function.body[:4] if isinstance(s, (ast.If, ast.Assert))]
    return any(name in names_in(statement.test) for statement in checks)


@operation("templated")
def guard_none(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        args = [arg.arg for arg in parameters(function) if not tests_parameter(function, arg.arg)]
        if not args:
            continue
        name = rng.choice(args)
        cover = body_insertion(src, function)
        slots = {"func": function.name, "param": name}
        if rng.random() < 0.5:
            variant, slots["exc"] = "raise", rng.choice(["ValueError", "ValueError", "TypeError", "RuntimeError"])
        else:
            variant, slots["value"] = "return", rng.choice(["None", "None", "False", "[]", "{}", "0", '""', "True"])
        yield Change(slots=slots, variant=variant, cover=cover, within=src.whole_lines(function))


@operation("templated")
def raise_on_empty(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        args = [arg.arg for arg in parameters(function) if not tests_parameter(function, arg.arg)]
        if not args:
            continue
        name, kind = (
            rng.choice(args),
            rng.choice(["ValueError", "ValueError", "ValueError", "TypeError", "RuntimeError"]),
        )
        slots = {"func": function.name, "param": name, "exc": kind}
        yield Change(slots=slots, cover=body_insertion(src, function), within=src.whole_lines(function))


@operation("templated")
def log_entry(src: Source, rng: random.Random) -> Iterator[Change]:
    known = [name for name in ("logger", "log", "LOG", "_logger", "LOGGER") if re.search(rf"(?m)^{name} = ", src.text)]
    for function in shuffled(src.functions(), rng):
        logger = known[0] if known else "logger"
        level = rng.choice(values.LEVELS)
        cover = body_insertion(src, function)
        first = src.text[cover[0] : cover[0] + 60].strip()
        if first.startswith((f"{logger}.", "log", "print(")):
            continue
        slots = {"func": function.name, "logger": logger, "level": level}
        needs = None if logger == "logger" else "logger"
        yield Change(slots=slots, cover=cover, within=src.whole_lines(function), needs=needs)


@operation("templated")
def add_assert(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        args = [arg.arg for arg in parameters(function) if not tests_parameter(function, arg.arg)]
        if not args:
            continue
        name = rng.choice(args)
        kind = rng.choice(["int", "str", "list", "dict", "float", "bytes", "tuple"])
        conditions = [
            f"{name} is not None",
            f"{name} > 0",
            f"{name} >= 0",
            f"isinstance({name}, {kind})",
            f"len({name}) > 0",
            name,
        ]
        cond = rng.choice(conditions)
        slots = {"func": function.name, "param": name, "cond": cond}
        yield Change(slots=slots, cover=body_insertion(src, function), within=src.whole_lines(function))


def called_statements(src: Source, rng: random.Random) -> Iterator[tuple[ast.stmt, str, Function]]:
    """Yield simple statements inside functions that are about one named call."""
    for node in shuffled([*src.of(ast.Expr), *src.of(ast.Assign)], rng):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        name = dotted(call.func) if isinstance(call, ast.Call) else None
        function = src.function_of(node)
        if name and function and src.alone_on_lines(node) and src.movable([node]):
            yield node, name, function


@operation("templated", limit=4)
def wrap_try(src: Source, rng: random.Random) -> Iterator[Change]:
    logger = next(
        (name for name in ("logger", "log", "LOG", "_logger") if re.search(rf"(?m)^{name} = ", src.text)), "logger"
    )
    for statement, name, function in called_statements(src, rng):
        if any(isinstance(a, ast.Try) for a in src.ancestors(statement)):
            continue
        kind = values.caught(rng)
        choices = ["return", "pass", "log", "raise"]
        if any(isinstance(a, (ast.For, ast.While)) for a in src.ancestors(statement) if not isinstance(a, FUNCTIONS)):
            choices.append("continue")
        variant = rng.choice(choices)
        slots = {"call": name, "exc": kind, "func": function.name}
        if variant == "return":
            slots["value"] = rng.choice(["None", "None", "False", "[]", "{}", "0", '""'])
        elif variant == "log":
            slots["logger"], slots["level"] = logger, rng.choice(["exception", "error", "warning", "exception"])
        elif variant == "raise":
            slots["new"] = values.exception(rng, but=kind)
        yield Change(slots=slots, variant=variant, cover=src.whole_lines(statement), unique=f"{name}(")


@operation("templated")
def wrap_body_try(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        first = src.body_start(function)
        body = function.body[function.body.index(first) :]
        if not src.movable(body) or isinstance(first, ast.Try) or (function.end_lineno or 0) - function.lineno > 35:
            continue
        kind, value = values.caught(rng), rng.choice(["None", "None", "False", "[]", "0"])
        whole = src.whole_lines(function)
        slots = {"func": function.name, "exc": kind, "value": value}
        yield Change(slots=slots, cover=(src.line_start(src.first_line(first)), whole[1]), within=whole)


@operation("templated")
def swap_branches(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.If), rng):
        if not plain_if(src, node) or not node.orelse or has_elif(src, node):
            continue
        if isinstance(node.test, (ast.Compare, ast.Name, ast.Attribute, ast.Call, ast.UnaryOp)):
            slots = {"cond": src.segment(node.test)}
            yield Change(slots=slots, unique="else:", cover=src.whole_lines(node), noop=False)


@operation("forward")
def change_return(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Return), rng):
        old = src.segment(node.value) if node.value else ""
        if not src.one_line(node) or not 0 < len(old) <= 24:
            continue
        new = rng.choice(
            [v for v in ["None", "False", "True", "[]", "{}", "0", '""', "-1", "1", "self", "()"] if v != old]
        )
        function = src.function_of(node)
        slots = {"old": old, "new": new} | ({"func": function.name} if function else {})
        yield Change(slots=slots, cover=src.span(node), unique=f"return {old}")


@operation("forward")
def change_exception(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Raise), rng):
        call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if not isinstance(call, ast.Name):
            continue
        slots = {"old": call.id, "new": values.exception(rng, but=call.id)}
        yield Change(slots=slots, cover=src.span(call), unique=f"raise {call.id}")


@operation("inverse")
def narrow_except(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.ExceptHandler), rng):
        if node.type is None or src.segment(node.type) in ("Exception", "BaseException") or not src.one_line(node.type):
            continue
        start, end = src.span(node.type)
        kind = src.segment(node.type)
        if isinstance(node.type, ast.Tuple) and not kind.startswith("("):
            continue
        if node.name is None and rng.random() < 0.3:
            start -= 1
            yield Change([Edit(start, end, "")], {"exc": kind}, inverse=True, unique="except:", variant="bare")
        else:
            yield Change([Edit(start, end, "Exception")], {"exc": kind}, inverse=True, unique="except Exception")


@operation("forward", heldout=True)
def change_operator(src: Source, rng: random.Random) -> Iterator[Change]:
    signs = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!=")}
    for node in shuffled(src.of(ast.Compare), rng):
        if len(node.ops) != 1 or type(node.ops[0]) not in signs or not src.one_line(node):
            continue
        old, new = signs[type(node.ops[0])]  # type: ignore[index]
        start, end = src.end(node.left), src.start(node.comparators[0])
        if src.text[start:end].strip() == old and len(src.segment(node)) <= 40:
            slots = {"old": old, "new": new, "left": src.segment(node.left), "right": src.segment(node.comparators[0])}
            slots["cond"] = src.segment(node)
            yield Change([Edit(start, end, f" {new} ")], slots, unique=src.segment(node))


@operation("forward")
def change_value(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled([*src.of(ast.Assign), *src.of(ast.AnnAssign)], rng):
        name = dotted(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        value = node.value
        if (
            name is None
            or not isinstance(value, ast.Constant)
            or not src.one_line(node)
            or isinstance(value.value, bytes)
        ):
            continue
        if (isinstance(node, ast.Assign) and len(node.targets) != 1) or len(src.segment(value)) > 40:
            continue
        slots = {"name": name, "old": src.segment(value), "new": values.other_value(value, rng)}
        head = src.text[src.start(node) : src.start(value)]
        yield Change(slots=slots, cover=src.span(value), unique=head)


@operation("inverse", sites=True, absent=r"\bprint\(")
def print_to_logger(src: Source, rng: random.Random) -> Iterator[Change]:
    logged: dict[tuple[str, str], list[ast.Call]] = {}
    printed = []
    for statement in src.of(ast.Expr):
        call = statement.value
        if (
            not isinstance(call, ast.Call)
            or len(call.args) != 1
            or call.keywords
            or not isinstance(call.func, (ast.Attribute, ast.Name))
        ):
            continue
        if isinstance(call.func, ast.Name):
            if call.func.id == "print":
                printed.append(call)
            continue
        logger = dotted(call.func.value)
        if logger in values.LOGGERS and call.func.attr in ("debug", "info", "warning", "error"):
            logged.setdefault((logger or "", call.func.attr), []).append(call)
    if logged:
        (logger, level), calls = rng.choice(list(logged.items()))
        for call in calls:
            yield Change([Edit(*src.span(call.func), "print")], {"logger": logger, "level": level}, inverse=True)
    elif printed:
        logger, level = rng.choice(values.LOGGERS), rng.choice(values.LEVELS)
        for call in printed:
            yield Change([Edit(*src.span(call.func), f"{logger}.{level}")], {"logger": logger, "level": level})


@operation("inverse")
def remove_prints(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        if "print(" in src.text[slice(*src.whole_lines(function))]:
            continue
        names = sorted(names_in(function) - {"self", "cls", "None", "super"}) or ["here"]
        places = [
            s for s in ast.walk(function) if isinstance(s, ast.stmt) and s is not function and src.alone_on_lines(s)
        ]
        doc = src.docstring(function)
        places = [
            s
            for s in places
            if s is not doc and not src.text.startswith("elif", src.start(s)) and s.lineno > function.lineno
        ]
        if not places:
            continue
        edits = {}
        for statement in rng.sample(places, min(len(places), rng.choice([1, 1, 2, 3]))):
            name = rng.choice(names)
            text = rng.choice(
                [
                    f"print({name})",
                    f'print("{name}", {name})',
                    f'print(f"{{{name}=}}")',
                    'print("here")',
                    f'print("DEBUG:", {name})',
                ]
            )
            at = src.line_start(src.first_line(statement))
            edits[at] = Edit(at, at, f"{src.indent(statement)}{text}\n")
        yield Change(list(edits.values()), {"func": function.name}, inverse=True, within=src.whole_lines(function))


@operation("forward", sites=True, absent=r"(?m)^\s*#|\s#\s", limit=2)
def remove_comments(src: Source, rng: random.Random) -> Iterator[Change]:
    if "#" not in src.text or len(src.lines) > 1500 or rng.random() < 0.6:
        return
    for edit in local.remove_comments(src, ()):
        if edit.start >= src.line_start(3):  # the first lines are often a licence or an encoding
            yield Change([edit])
