"""Operations on expressions, most of them inverse: human code is spoiled, and the human text is the answer."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from fulgur.edit.refactor.local import expressions as local
from fulgur.edit.refactor.local.expressions import in_annotation
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Source, Unusable, dotted
from lab.train.edits.example import Change, operation

SAFE_PARENTS = (ast.If, ast.While, ast.BoolOp, ast.Return, ast.Assign, ast.Assert)
TEST_PARENTS = (ast.If, ast.While, ast.Return, ast.Assign, ast.Assert)


def parenthesised(src: Source, node: ast.AST) -> bool:
    """Whether a parenthesis stands directly before the node: its own, or that of a call or tuple."""
    return src.text[: src.start(node)].rstrip(" ").endswith("(")


@operation("inverse", sites=True, absent=r"[=!]=\s*None\b")
def is_none(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in src.of(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Is, ast.IsNot)) or not src.one_line(node):
            continue
        right = node.comparators[0]
        if not (isinstance(right, ast.Constant) and right.value is None):
            continue
        start, end = src.end(node.left), src.start(right)
        word, sign = (r"\bis\s+not\b", "!=") if isinstance(node.ops[0], ast.IsNot) else (r"\bis\b", "==")
        spoiled, count = re.subn(word, sign, src.text[start:end])
        if count == 1:
            yield Change([Edit(start, end, spoiled)], inverse=True)


@operation("inverse", sites=True, absent=r"\bnot\s+[\w.\[\]'\"]+\s+in\b|\bnot\s+[\w.]+\s+is\b")
def not_in(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in src.of(ast.Compare):
        if len(node.ops) != 1 or not src.one_line(node) or not isinstance(src.parents.get(node), SAFE_PARENTS):
            continue
        if isinstance(node.ops[0], ast.NotIn):
            word, plain = r"\bnot\s+in\b", "in"
        elif isinstance(node.ops[0], ast.IsNot) and not isinstance(node.comparators[0], ast.Constant):
            word, plain = r"\bis\s+not\b", "is"
        else:
            continue
        start, end = src.end(node.left), src.start(node.comparators[0])
        spoiled, count = re.subn(word, plain, src.text[start:end])
        if count == 1 and not parenthesised(src, node.left):
            yield Change([Edit(src.start(node), src.start(node), "not "), Edit(start, end, spoiled)], inverse=True)


@operation("inverse", sites=True, absent=r"\btype\([^()]*\)\s*(==|is)\s")
def use_isinstance(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in src.of(ast.Call):
        if not (isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2):
            continue
        kind = dotted(node.args[1])
        if kind is None or not src.one_line(node) or not isinstance(src.parents.get(node), SAFE_PARENTS):
            continue
        start, end = src.span(node)
        yield Change([Edit(start, end, f"type({src.segment(node.args[0])}) == {kind}")], inverse=True)


def split_fstring(segment: str) -> tuple[str, list[str], list[str]]:
    """Split a plain one-line f-string (no conversions, specs or nested quotes) into quote, literal parts and
    expressions."""
    match = re.fullmatch(r"[fF](\"|')(.*)\1", segment)
    if match is None or segment[2:4] in ('""', "''"):
        raise Unusable("not a plain f-string")
    quote, body = match.groups()
    literals, expressions, current, position = [], [], "", 0
    while position < len(body):
        letter = body[position]
        if letter == quote or (letter == "\\" and body[position : position + 2] not in ("\\n", "\\t")):
            raise Unusable("quotes or escapes")
        if body[position : position + 2] in ("{{", "}}"):
            raise Unusable("braces")
        if letter == "{":
            close = body.find("}", position)
            expression = body[position + 1 : close]
            if close < 0 or not re.fullmatch(r"[\w.\[\]()+*/, -]+", expression) or expression.strip() != expression:
                raise Unusable("not a plain field")
            literals.append(current)
            expressions.append(expression)
            current, position = "", close + 1
            continue
        current += letter
        position += 1
    if (
        not expressions
        or not "".join(literals) + current
        or any("%" in part or "{" in part or "}" in part for part in [*literals, current])
    ):
        raise Unusable("no fields")
    return quote, [*literals, current], expressions


@operation("inverse", sites=True, absent=r"\.format\(|[\"']\s*%\s*[\w(]|\bstr\(|[\"']\s*\+|\+\s*[\"']")
def use_fstring(src: Source, rng: random.Random) -> Iterator[Change]:
    if not src.of(ast.JoinedStr):
        return
    style = rng.choice(["format", "format", "percent", "concat"])
    for node in src.of(ast.JoinedStr):
        parent = src.parents.get(node)
        if not src.one_line(node) or not isinstance(parent, (ast.Call, ast.Assign, ast.Return, ast.keyword, ast.Dict)):
            continue
        try:
            quote, literals, expressions = split_fstring(src.segment(node))
        except Unusable:
            continue
        if style == "format":
            text = quote + "{}".join(literals) + quote + f".format({', '.join(expressions)})"
        elif style == "percent":
            joined = ", ".join(expressions)
            value = joined if len(expressions) == 1 and re.fullmatch(r"[\w.]+", joined) else f"({joined})"
            if len(expressions) == 1 and value.startswith("("):
                value = f"({joined},)"
            text = quote + "%s".join(literals) + quote + f" % {value}"
        else:
            parts = []
            for index, literal in enumerate(literals):
                if literal:
                    parts.append(quote + literal + quote)
                if index < len(expressions):
                    parts.append(f"str({expressions[index]})")
            text = " + ".join(parts)
        start, end = src.span(node)
        yield Change([Edit(start, end, text)], inverse=True)


@operation("inverse", sites=True, absent=r"\bOptional\[")
def optional_union(src: Source, rng: random.Random) -> Iterator[Change]:
    for edit in local.optional_union(src, ()):
        yield Change([edit])
    if "Optional[" in src.text:
        return
    for node in src.of(ast.BinOp):
        right = node.right
        if not isinstance(node.op, ast.BitOr) or not isinstance(right, ast.Constant) or right.value is not None:
            continue
        plain = isinstance(node.left, (ast.Name, ast.Attribute, ast.Subscript)) and src.one_line(node)
        outermost = isinstance(src.parents.get(node), (ast.arg, ast.AnnAssign, *FUNCTIONS))
        if plain and outermost and in_annotation(src, node):
            yield Change([Edit(*src.span(node), f"Optional[{src.segment(node.left)}]")], inverse=True)


@operation("forward", sites=True, absent=r"\blen\([^()]*\)\s*(==|>|!=|>=|<)\s*[01]\b", limit=8)
def use_truthiness(src: Source, rng: random.Random) -> Iterator[Change]:
    for edit in local.use_truthiness(src, ()):
        yield Change([edit])


@operation("inverse", sites=True, absent=r"\bsuper\(\w+, ?\w+\)")
def modern_super(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in src.of(ast.Call):
        if not (isinstance(node.func, ast.Name) and node.func.id == "super") or node.args or not src.one_line(node):
            continue
        function = src.function_of(node)
        owner = src.class_of(function) if function else None
        if function and owner and function.args.args:
            start, end = src.span(node)
            yield Change([Edit(start, end, f"super({owner.name}, {function.args.args[0].arg})")], inverse=True)


@operation("forward", sites=True, absent=r"\.keys\(\)", limit=8)
def drop_keys(src: Source, rng: random.Random) -> Iterator[Change]:
    for edit in local.drop_keys(src, ()):
        yield Change([edit])


@operation("inverse", sites=True, absent=r"== [^:\n]* or [^:\n]*==|!= [^:\n]* and [^:\n]*!=")
def use_in(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in src.of(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.In, ast.NotIn)) or not src.one_line(node):
            continue
        group = node.comparators[0]
        if not isinstance(group, ast.Tuple) or not 2 <= len(group.elts) <= 3:
            continue
        left = dotted(node.left)
        if left is None or not isinstance(src.parents.get(node), TEST_PARENTS):
            continue
        if not all(isinstance(item, (ast.Constant, ast.Attribute, ast.Name)) for item in group.elts):
            continue
        sign, joint = ("==", " or ") if isinstance(node.ops[0], ast.In) else ("!=", " and ")
        text = joint.join(f"{left} {sign} {src.segment(item)}" for item in group.elts)
        yield Change([Edit(*src.span(node), text)], inverse=True)


SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.BitOr: "|",
}


@operation("inverse", sites=True, absent=r"(?m)^\s*([\w.]+) = \1 [-+*/|]")
def augmented_assignment(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in src.of(ast.AugAssign):
        target, sign = dotted(node.target), SIGNS.get(type(node.op))
        atom = isinstance(node.value, (ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        if target and sign and atom and src.one_line(node):
            text = f"{target} = {target} {sign} {src.segment(node.value)}"
            yield Change([Edit(*src.span(node), text)], inverse=True)


@operation("inverse", sites=True, absent=r"\b(list|dict|tuple)\(\)")
def use_literal(src: Source, rng: random.Random) -> Iterator[Change]:
    nodes: list[ast.List | ast.Dict] = [*src.of(ast.List), *src.of(ast.Dict)]
    for node in nodes:
        empty = not (node.elts if isinstance(node, ast.List) else node.keys)
        if empty and src.one_line(node) and isinstance(src.parents.get(node), (ast.Assign, ast.AnnAssign, ast.Return)):
            yield Change([Edit(*src.span(node), "list()" if isinstance(node, ast.List) else "dict()")], inverse=True)


@operation("inverse", sites=True, absent=r"[<>]=? ([\w.]+) and \1 [<>]", limit=8)
def chain_comparison(src: Source, rng: random.Random) -> Iterator[Change]:
    ordering = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    for node in src.of(ast.Compare):
        if len(node.ops) != 2 or not all(isinstance(op, ordering) for op in node.ops) or not src.one_line(node):
            continue
        middle = dotted(node.comparators[0])
        if middle and isinstance(src.parents.get(node), TEST_PARENTS):
            end = src.end(node.comparators[0])
            if src.text[end : end + 1] == " ":
                yield Change([Edit(end, end, f" and {middle}")], inverse=True)


@operation("inverse", sites=True, heldout=True, absent=r"for (\w+) in .*:\n\s+yield \1\n")
def yield_from(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in src.of(ast.YieldFrom):
        statement = src.parents.get(node)
        if not isinstance(statement, ast.Expr) or not src.one_line(statement) or not src.alone_on_lines(statement):
            continue
        indent, item = src.indent(statement), rng.choice(["item", "value", "x", "entry"])
        text = f"for {item} in {src.segment(node.value)}:\n{indent}    yield {item}"
        yield Change([Edit(*src.span(statement), text)], inverse=True)


@operation("inverse", sites=True, limit=8)
def raise_from(src: Source, rng: random.Random) -> Iterator[Change]:
    for handler in src.of(ast.ExceptHandler):
        if handler.name is None:
            continue
        raises = [node for node in ast.walk(handler) if isinstance(node, ast.Raise) and node.exc is not None]
        if len(raises) != 1 or raises[0].exc is None:
            continue
        cause = raises[0].cause
        if isinstance(cause, ast.Name) and cause.id == handler.name:
            function = src.function_of(handler)
            open_raises = [
                n for n in ast.walk(function or src.tree) if isinstance(n, ast.Raise) and n.exc and not n.cause
            ]
            if not any(isinstance(a, ast.ExceptHandler) for n in open_raises for a in src.ancestors(n)):
                start, end = src.end(raises[0].exc), src.end(cause)
                if re.fullmatch(r"\s+from\s+\w+", src.text[start:end]):
                    yield Change([Edit(start, end, "")], inverse=True)


@operation("forward", sites=True, limit=2)
def string_quotes(src: Source, rng: random.Random) -> Iterator[Change]:
    variant = rng.choice(["double", "single"])
    for edit in local.quotes(src, (variant,)):
        yield Change([edit], variant=variant)
