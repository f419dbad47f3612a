"""Behaviour-preserving inverse operations on statements: the human form is the answer, a long-winded equivalent the
region."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

from fulgur.edit.refactor.local.piece import negated, plain_if
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Source, dotted, names_in
from lab.train.edits.example import Change, operation, shuffled

JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def rest_of_block(src: Source, statement: ast.stmt, most: int = 14) -> list[ast.stmt]:
    """The statements after this one in its block, if they can be moved."""
    block = src.block_of(statement)
    rest = block[block.index(statement) + 1 :]
    lines = (rest[-1].end_lineno or 0) - rest[0].lineno if rest else 99
    return rest if rest and lines < most and src.movable(rest) and all(src.alone_on_lines(s) for s in rest) else []


@operation("behavioural")
def early_return(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.If), rng):
        if not plain_if(src, node) or node.orelse or len(node.body) != 1 or not isinstance(node.body[0], ast.Return):
            continue
        guard, parent = node.body[0], src.parents.get(node)
        rest = rest_of_block(src, node)
        if not rest or not isinstance(parent, FUNCTIONS) or not src.one_line(guard) or src.trailing_comment(guard):
            continue
        if any(isinstance(n, FUNCTIONS) for s in rest for n in ast.walk(s)) or guard.lineno != node.lineno + 1:
            continue
        indent = src.indent(node)
        start, end = src.whole_lines(node)[0], src.whole_lines(rest[-1])[1]
        moved = src.reindent(src.line_start(src.first_line(rest[0])), end, 1)
        between = src.text[src.line_end(guard.lineno) : src.line_start(src.first_line(rest[0]))]
        if "#" in between:
            continue
        text = f"{indent}if {negated(src, node.test)}:\n{moved}"
        if guard.value is not None:
            tail = "" if text.endswith("\n") else "\n"
            text += f"{tail}{indent}else:\n{indent}    {src.segment(guard)}\n"
        yield Change([Edit(start, end, text)], {"cond": src.segment(node.test)}, inverse=True)


@operation("behavioural")
def remove_else_return(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.If), rng):
        if not plain_if(src, node) or node.orelse or not isinstance(node.body[-1], JUMPS):
            continue
        rest = rest_of_block(src, node, 9)
        if not rest or isinstance(rest[0], ast.If) or isinstance(rest[-1], FUNCTIONS):
            continue
        begin, end = src.line_end(node.end_lineno or 0), src.whole_lines(rest[-1])[1]
        gap = src.text[begin : src.line_start(src.first_line(rest[0]))]
        if "#" in gap:
            continue
        word = type(node.body[-1]).__name__.lower()
        text = f"{src.indent(node)}else:\n" + src.reindent(src.line_start(src.first_line(rest[0])), end, 1)
        yield Change([Edit(begin, end, text)], {"jump": word}, inverse=True, once=r"\belse:")


Comp = ast.ListComp | ast.SetComp | ast.DictComp


def as_loop(src: Source, name: str, node: Comp, indent: str) -> str | None:
    """Write a comprehension as a loop that fills `name`."""
    if len(node.generators) != 1:
        return None
    generator = node.generators[0]
    parts: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    parts += [generator.target, generator.iter, *generator.ifs]
    if generator.is_async or len(generator.ifs) > 1 or not all(src.one_line(part) for part in parts):
        return None
    if name in names_in(node) or "#" in src.segment(node) or any(isinstance(n, ast.NamedExpr) for n in ast.walk(node)):
        return None
    if isinstance(node, ast.DictComp):
        empty, add = "{}", f"{name}[{src.segment(node.key)}] = {src.segment(node.value)}"
    elif isinstance(node, ast.SetComp):
        empty, add = "set()", f"{name}.add({src.segment(node.elt)})"
    else:
        element = src.segment(node.elt)
        if isinstance(node.elt, ast.Tuple) and not element.startswith("("):
            return None
        empty, add = "[]", f"{name}.append({element})"
    lines = [f"{name} = {empty}", f"{indent}for {src.segment(generator.target)} in {src.segment(generator.iter)}:"]
    inner = indent + "    "
    if generator.ifs:
        lines.append(f"{inner}if {src.segment(generator.ifs[0])}:")
        inner += "    "
    lines.append(inner + add)
    return "\n".join(lines)


def loops(src: Source, rng: random.Random, inverse: bool) -> Iterator[Change]:
    nodes: list[Comp] = [*src.of(ast.ListComp), *src.of(ast.SetComp), *src.of(ast.DictComp)]
    for node in shuffled(nodes, rng):
        statement = src.parents.get(node)
        if not isinstance(statement, (ast.Assign, ast.Return)) or not src.alone_on_lines(statement):
            continue
        if src.has_comment(statement):
            continue
        indent = src.indent(statement)
        kind = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict"}[type(node)]
        if isinstance(statement, ast.Return):
            text = as_loop(src, "result", node, indent)
            text = f"{text}\n{indent}return result" if text else None
            name = "result"
        elif len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            text = as_loop(src, name, node, indent)
        else:
            continue
        if text:
            added = {"list": r"\.append\(", "set": r"\.add\(", "dict": r"\] = "}[kind]
            once = added if inverse else r"[\[{(][^\n]*\n?[^\n]*\bfor\b"
            slots = {"name": name, "kind": kind}
            yield Change([Edit(*src.span(statement), text)], slots, inverse=inverse, once=once)


@operation("behavioural", limit=8)
def use_comprehension(src: Source, rng: random.Random) -> Iterator[Change]:
    yield from loops(src, rng, True)


@operation("behavioural", heldout=True)
def comprehension_to_loop(src: Source, rng: random.Random) -> Iterator[Change]:
    yield from loops(src, rng, False)


@operation("behavioural", limit=8)
def use_enumerate(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.For), rng):
        call, target = node.iter, node.target
        if not (isinstance(call, ast.Call) and dotted(call.func) == "enumerate" and len(call.args) == 1):
            continue
        items = dotted(call.args[0])
        if items is None or call.keywords or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            continue
        index, item = target.elts
        if not isinstance(index, ast.Name) or not isinstance(item, ast.Name) or node.body[0].lineno == node.lineno:
            continue
        head = Edit(src.start(target), src.end(call), f"{index.id} in range(len({items}))")
        if src.text[src.end(call) : src.line_end(node.lineno)].strip() != ":":
            continue
        at = src.line_end(node.lineno)
        inner = src.indent(node) + "    "
        fetch = Edit(at, at, f"{inner}{item.id} = {items}[{index.id}]\n")
        yield Change(
            [head, fetch], {"name": items, "index": index.id, "item": item.id}, inverse=True, once=r"range\(len"
        )


@operation("behavioural", limit=8)
def use_items(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.For), rng):
        call, target = node.iter, node.target
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "items"):
            continue
        mapping = dotted(call.func.value)
        if mapping is None or call.args or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            continue
        key, value = target.elts
        if not isinstance(key, ast.Name) or not isinstance(value, ast.Name) or node.body[0].lineno == node.lineno:
            continue
        if src.text[src.end(call) : src.line_end(node.lineno)].strip() != ":":
            continue
        at, inner = src.line_end(node.lineno), src.indent(node) + "    "
        head = Edit(src.start(target), src.end(call), f"{key.id} in {mapping}")
        fetch = Edit(at, at, f"{inner}{value.id} = {mapping}[{key.id}]\n")
        yield Change([head, fetch], {"name": mapping, "key": key.id, "item": value.id}, inverse=True)


@operation("behavioural", limit=8)
def use_any_all(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Return), rng):
        call = node.value
        if not isinstance(call, ast.Call) or dotted(call.func) not in ("any", "all") or len(call.args) != 1:
            continue
        generator = call.args[0]
        if not isinstance(generator, ast.GeneratorExp) or len(generator.generators) != 1 or src.has_comment(node):
            continue
        clause = generator.generators[0]
        parts = [generator.elt, clause.target, clause.iter]
        if clause.ifs or clause.is_async or not all(src.one_line(part) for part in parts):
            continue
        if not src.alone_on_lines(node):
            continue
        indent, word = src.indent(node), dotted(call.func)
        test = src.segment(generator.elt) if word == "any" else negated(src, generator.elt)
        found = "True" if word == "any" else "False"
        other = "False" if word == "any" else "True"
        head = f"for {src.segment(clause.target)} in {src.segment(clause.iter)}:"
        text = f"{head}\n{indent}    if {test}:\n{indent}        return {found}\n{indent}return {other}"
        yield Change([Edit(*src.span(node), text)], {"word": word or "any"}, inverse=True, once=r"\bfor\b")


@operation("behavioural", limit=8)
def use_with(src: Source, rng: random.Random) -> Iterator[Change]:
    leaving = (ast.Return, ast.Yield, ast.YieldFrom, ast.Continue, ast.Break)
    for node in shuffled(src.of(ast.With), rng):
        item = node.items[0]
        if len(node.items) != 1 or not isinstance(item.optional_vars, ast.Name) or node.body[0].lineno == node.lineno:
            continue
        opened = dotted(item.context_expr.func) if isinstance(item.context_expr, ast.Call) else None
        if opened is None or opened.split(".")[-1] not in ("open", "Path", "connect", "socket", "urlopen", "ZipFile"):
            continue
        if not src.movable(node.body) or not src.one_line(item.context_expr) or len(node.body) > 10:
            continue
        if any(isinstance(inner, leaving) for inner in ast.walk(node)) or not src.alone_on_lines(node):
            continue
        indent, name = src.indent(node), item.optional_vars.id
        body = src.reindent(src.line_end(node.lineno), src.whole_lines(node)[1], -1)
        text = f"{indent}{name} = {src.segment(item.context_expr)}\n{body}"
        text += f"{'' if text.endswith(chr(10)) else chr(10)}{indent}{name}.close()\n"
        yield Change([Edit(*src.whole_lines(node), text)], {"name": name, "call": opened}, inverse=True)


def ternaries(src: Source, rng: random.Random, inverse: bool) -> Iterator[Change]:
    for node in shuffled(src.of(ast.IfExp), rng):
        statement = src.parents.get(node)
        if (
            not isinstance(statement, (ast.Assign, ast.Return))
            or not src.one_line(statement)
            or src.has_comment(statement)
        ):
            continue
        if (
            not src.alone_on_lines(statement)
            or isinstance(node.orelse, ast.IfExp)
            or src.segment(statement).endswith(")(")
        ):
            continue
        if isinstance(statement, ast.Assign) and len(statement.targets) != 1:
            continue
        head = "return " if isinstance(statement, ast.Return) else f"{src.segment(statement.targets[0])} = "
        if src.segment(statement) != head + src.segment(node):
            continue
        slots = {} if isinstance(statement, ast.Return) else {"name": src.segment(statement.targets[0])}
        if not inverse:
            yield Change(slots=slots, cover=src.span(statement), once=r"\belse\b(?!:)")
            continue
        indent = src.indent(statement)
        text = f"if {src.segment(node.test)}:\n{indent}    {head}{src.segment(node.body)}\n{indent}else:\n"
        text += f"{indent}    {head}{src.segment(node.orelse)}"
        yield Change([Edit(*src.span(statement), text)], slots, inverse=True, once=r"\belse:")


@operation("behavioural")
def use_ternary(src: Source, rng: random.Random) -> Iterator[Change]:
    yield from ternaries(src, rng, True)


@operation("behavioural")
def expand_ternary(src: Source, rng: random.Random) -> Iterator[Change]:
    yield from ternaries(src, rng, False)


@operation("behavioural", limit=8)
def use_dict_get(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Assign), rng):
        call = node.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "get"):
            continue
        mapping, target = dotted(call.func.value), dotted(node.targets[0])
        if mapping is None or target is None or len(node.targets) != 1 or not 1 <= len(call.args) <= 2 or call.keywords:
            continue
        if not src.one_line(node) or src.has_comment(node) or not isinstance(call.args[0], (ast.Constant, ast.Name)):
            continue
        key, indent = src.segment(call.args[0]), src.indent(node)
        default = src.segment(call.args[1]) if len(call.args) == 2 else "None"
        text = f"if {key} in {mapping}:\n{indent}    {target} = {mapping}[{key}]\n{indent}else:\n"
        text += f"{indent}    {target} = {default}"
        yield Change(
            [Edit(*src.span(node), text)],
            {"name": mapping, "key": key, "target": target},
            inverse=True,
            once=r"\belse:",
        )


@operation("behavioural")
def merge_nested_if(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.If), rng):
        test = node.test
        if not plain_if(src, node) or node.orelse or not isinstance(test, ast.BoolOp) or len(test.values) != 2:
            continue
        if not isinstance(test.op, ast.And) or not src.movable(node.body) or (node.end_lineno or 0) - node.lineno > 12:
            continue
        indent = src.indent(node)
        first, second = (src.segment(value) for value in test.values)
        body = src.reindent(src.line_end(node.lineno), src.whole_lines(node)[1], 1)
        text = f"{indent}if {first}:\n{indent}    if {second}:\n{body}"
        yield Change([Edit(*src.whole_lines(node), text)], {"cond": first}, inverse=True)


@operation("behavioural")
def return_directly(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Return), rng):
        if node.value is None or isinstance(node.value, (ast.Name, ast.Constant)) or not src.alone_on_lines(node):
            continue
        function = src.function_of(node)
        if function is None or src.has_comment(node) or not src.movable([node]) or src.text[src.start(node) + 6] != " ":
            continue
        name = rng.choice(["result", "res", "ret", "value", "output", "rv", "out", "tmp"])
        if name in names_in(function):
            continue
        shift = len(name) + 3 - len("return ")
        if not src.one_line(node) and shift:
            continue
        text = f"{name} = {src.segment(node.value)}\n{src.indent(node)}return {name}"
        yield Change([Edit(*src.span(node), text)], {"name": name}, inverse=True)
