"""Scope-aware forward operations: renames, extracting and inlining.

A rename is always answered with a call: the refactoring is exact, sees every use, and copies nothing. The network only
has to read the instruction.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from fulgur.edit.refactor.source import FUNCTIONS, Function, Source, names_in
from fulgur.text.edit_format import Call
from lab.train.edits import values
from lab.train.edits.example import Change, operation, shuffled
from lab.train.edits.signatures import parameters

SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)
CONDITIONAL = (ast.Lambda, *COMPREHENSIONS, ast.IfExp, ast.BoolOp, ast.Await)  # evaluated late, repeatedly or never
# Names for an extracted constant: numbers, then texts.
CONSTANTS = ["TIMEOUT", "DEFAULT_NAME", "MAX_SIZE", "LIMIT", "DEFAULT_VALUE", "PREFIX"]
CONSTANTS += ["BATCH_SIZE", "SEPARATOR", "DELAY"]
TEXTS = ["DEFAULT_NAME", "SEPARATOR", "PREFIX", "MESSAGE", "KEY_NAME"]


def local_uses(src: Source, function: Function) -> dict[str, list[ast.Name]]:
    """The local variables of a function without inner scopes, each with all its uses (including those in f-strings)."""
    names: dict[str, list[ast.Name]] = {}
    banned = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    stored: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, SCOPES) and node is not function:
            return {}
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            banned.update(node.names)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            banned.add(node.name or "")
        elif isinstance(node, ast.alias):
            banned.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name):
            names.setdefault(node.id, []).append(node)
            if not isinstance(node.ctx, ast.Load):
                stored.add(node.id)
    return {name: uses for name, uses in names.items() if name in stored and name not in banned}


@operation("call", limit=4)
def rename_local(src: Source, rng: random.Random) -> Iterator[Change]:
    outer = {node.id for node in src.of(ast.Name) if src.function_of(node) is None} | imported(src)
    for function in shuffled(src.functions(), rng):
        uses = local_uses(src, function)
        inner = {
            name for node in ast.walk(function) if isinstance(node, ast.comprehension) for name in names_in(node.target)
        }
        found = sorted(name for name in uses if name != "_" and name not in outer | inner)
        if not found or src.function_of(function) is not None:
            continue
        old = rng.choice(found)
        taken = names_in(function) | {arg.arg for arg in parameters(function)}
        new = values.variation(old, taken, rng)
        slots = {"old": old, "new": new, "func": function.name}
        inside = [use for use in uses[old] if use in src.parents]  # not in f-strings, so that its place is known
        cover = src.span(rng.choice(inside)) if inside and rng.random() < 0.4 else src.whole_lines(function)
        yield Change([], slots, call=Call("rename", (old, new)), cover=cover, within=src.whole_lines(function))


def imported(src: Source) -> set[str]:
    """Names that imports and definitions bind anywhere in the file."""
    found = {node.name for node in src.functions()} | {node.name for node in src.of(ast.ClassDef)}
    return found | {alias.asname or alias.name for alias in src.of(ast.alias)}


@operation("call", limit=4)
def rename_symbol(src: Source, rng: random.Random) -> Iterator[Change]:
    taken = {node.id for node in src.of(ast.Name)}
    symbols: list[ast.stmt] = [s for s in src.tree.body if isinstance(s, (*FUNCTIONS, ast.ClassDef))]
    for owner in src.of(ast.ClassDef):
        symbols += [s for s in owner.body if isinstance(s, FUNCTIONS) and not s.name.startswith("__")]
    constants = [s for s in src.tree.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)]
    for node in shuffled([*symbols, *constants[:6]], rng):
        if isinstance(node, ast.Assign):
            assert isinstance(node.targets[0], ast.Name)
            old, kind = node.targets[0].id, "constant" if node.targets[0].id.isupper() else "variable"
        else:
            old = node.name
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            if isinstance(src.parents.get(node), ast.ClassDef):
                kind = "method"
        if kind == "function" and rng.random() < 0.3:
            new = values.fresh(taken, values.FUNCTIONS, rng)
        else:
            new = values.variation(old, taken, rng)
        slots = {"old": old, "new": new, "kind": kind}
        uses = [n for n in src.of(ast.Name) if n.id == old and src.function_of(n)]
        if uses and rng.random() < 0.3:
            cover = src.span(rng.choice(uses))
        else:
            cover = src.whole_lines(node)
        if old.startswith("__") or len(old) < 2:
            continue
        yield Change([], slots, call=Call("rename", (old, new)), cover=cover)


@operation("call")
def use_keywords(src: Source, rng: random.Random) -> Iterator[Change]:
    local = {
        f.name: f for f in src.tree.body if isinstance(f, FUNCTIONS) and not f.args.vararg and not f.args.posonlyargs
    }
    for node in shuffled(src.of(ast.Call), rng):
        if not isinstance(node.func, ast.Name) or node.func.id not in local or not node.args:
            continue
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            continue
        slots = {"call": node.func.id, "func": node.func.id}
        yield Change([], slots, call=Call("use_keywords", (node.func.id,)), cover=src.span(node))


@operation("call")
def extract_constant(src: Source, rng: random.Random) -> Iterator[Change]:
    taken = {node.id for node in src.of(ast.Name)}
    for node in shuffled(src.of(ast.Constant), rng):
        value = node.value
        if isinstance(value, (bool, bytes)) or value is None or value is Ellipsis or value in (0, 1, "", 2, -1):
            continue
        text = src.segment(node)
        function, parent = src.function_of(node), src.parents.get(node)
        if (
            function is None
            or len(text) > 30
            or not src.one_line(node)
            or isinstance(parent, (ast.Expr, ast.Subscript))
        ):
            continue
        if isinstance(parent, ast.arguments) or not re.fullmatch(r"[\w.]+|\"[^\"\\]*\"|'[^'\\]*'", text):
            continue
        hint = parent.arg if isinstance(parent, ast.keyword) and parent.arg else None
        pool = CONSTANTS
        if isinstance(value, str):
            words = re.findall(r"[A-Za-z]+", value)[:2]
            pool = [*(["_".join(words).upper()] if words else []), *TEXTS]
        name = hint.upper() if hint and rng.random() < 0.6 else values.fresh(taken, pool, rng)
        if name in taken or not name.isidentifier():
            continue
        slots = {"value": text, "new": name, "func": function.name}
        call = Call("extract_constant", (text, name))
        yield Change([], slots, call=call, cover=src.span(node), unique=text if len(text) > 2 else None)


@operation("scope")
def extract_variable(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Call), rng):
        parent = src.parents.get(node)
        if not isinstance(parent, (ast.Call, ast.keyword, ast.BinOp, ast.Compare, ast.Dict, ast.Return)):
            continue
        statement = src.statement(node)
        simple = isinstance(statement, (ast.Assign, ast.Return, ast.Expr))
        function = src.function_of(node)
        if not simple or function is None or not src.alone_on_lines(statement) or not src.one_line(node):
            continue
        if any(isinstance(n, CONDITIONAL) for n in (*src.ancestors(node), *ast.walk(node))):
            continue
        text = src.segment(node)
        taken = names_in(function) | {arg.arg for arg in parameters(function)}
        if not 6 <= len(text) <= 60:
            continue
        name = values.fresh(taken, values.LOCALS, rng)
        cover = (src.line_start(statement.lineno), src.end(node))
        yield Change(slots={"expr": text, "new": name}, cover=cover, unique=text)


@operation("scope")
def inline_variable(src: Source, rng: random.Random) -> Iterator[Change]:
    for function in shuffled(src.functions(), rng):
        for name, uses in shuffled(sorted(local_uses(src, function).items(), key=lambda pair: pair[0]), rng):
            stores = [use for use in uses if isinstance(use.ctx, ast.Store)]
            loads = [use for use in uses if isinstance(use.ctx, ast.Load)]
            if len(stores) != 1 or len(loads) != 1 or len(uses) != 2:
                continue
            statement, use = src.parents.get(stores[0]), loads[0]
            if use not in src.parents or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                continue
            block = src.block_of(statement)
            index = block.index(statement)
            if index + 1 >= len(block) or block[index + 1] is not src.statement(use) or src.has_comment(statement):
                continue
            if not isinstance(block[index + 1], (ast.Return, ast.Assign, ast.Expr)) or not src.one_line(statement):
                continue
            between = [
                a for a in src.ancestors(use) if isinstance(a, (ast.Lambda, ast.comprehension, ast.GeneratorExp))
            ]
            allowed = (ast.Call, ast.keyword, ast.Return, ast.Assign, ast.Expr)
            if between or not isinstance(src.parents[use], allowed) or not src.alone_on_lines(statement):
                continue
            if isinstance(statement.value, (ast.Tuple, ast.Yield, ast.GeneratorExp)):
                continue
            cover = (src.whole_lines(statement)[0], src.whole_lines(block[index + 1])[1])
            yield Change(slots={"name": name, "func": function.name}, cover=cover)
            break
