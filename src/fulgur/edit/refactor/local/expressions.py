"""Refactorings that change every expression of one kind in a region."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import OPPOSITE, Edits, Piece, only
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Source, Unusable, dotted

SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitOr: "|",
    ast.BitAnd: "&",
}
RISING, FALLING = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)


def is_none(src: Piece, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.Compare):
        right = node.comparators[0]
        if len(node.ops) != 1 or not (isinstance(right, ast.Constant) and right.value is None):
            continue
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            start, end = src.end(node.left), src.start(right)
            text = re.sub("==", "is", src.text[start:end]).replace("!=", "is not")
            edits.append(Edit(start, end, text if text != src.text[start:end] else " is "))
    return edits


def not_in(src: Piece, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.UnaryOp):
        inner = node.operand
        if not isinstance(node.op, ast.Not) or not isinstance(inner, ast.Compare) or len(inner.ops) != 1:
            continue
        words = {ast.In: "not in", ast.Is: "is not"}
        if type(inner.ops[0]) in words and src.one_line(node):
            left, right = src.segment(inner.left), src.segment(inner.comparators[0])
            edits.append(Edit(*src.span(node), f"{left} {words[type(inner.ops[0])]} {right}"))
    return edits


def use_isinstance(src: Piece, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.Compare):
        left, right = node.left, node.comparators[0]
        if len(node.ops) != 1 or not isinstance(left, ast.Call) or dotted(left.func) != "type" or len(left.args) != 1:
            continue
        wrong = isinstance(node.ops[0], (ast.NotEq, ast.IsNot))
        if dotted(right) and src.one_line(node) and (wrong or isinstance(node.ops[0], (ast.Eq, ast.Is))):
            text = f"isinstance({src.segment(left.args[0])}, {src.segment(right)})"
            edits.append(Edit(*src.span(node), f"not {text}" if wrong else text))
    return edits


def in_annotation(src: Source, node: ast.AST) -> bool:
    child = node
    for ancestor in src.ancestors(node):
        if isinstance(ancestor, ast.arg) and ancestor.annotation is child:
            return True
        if isinstance(ancestor, ast.AnnAssign):
            return ancestor.annotation is child
        if isinstance(ancestor, FUNCTIONS):
            return ancestor.returns is child
        if isinstance(ancestor, ast.stmt):
            return False
        child = ancestor
    return False


def optional_union(src: Source, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.Subscript):
        kind = (dotted(node.value) or "").split(".")[-1]
        if kind == "Union" and isinstance(node.slice, ast.Tuple) and src.one_line(node) and in_annotation(src, node):
            parts = [src.segment(one) for one in node.slice.elts]
            if not any(re.search(r"\b(?:Union|Optional)\b|^[\"']", part) for part in parts):
                edits.append(Edit(*src.span(node), " | ".join(parts)))
            continue
        if kind != "Optional" or not src.one_line(node):
            continue
        inner = src.segment(node.slice)
        if re.fullmatch(r"[\w.\[\], \"']+", inner) and "Optional" not in inner and in_annotation(src, node):
            edits.append(Edit(*src.span(node), f"{inner} | None"))
    return edits


def use_truthiness(src: Source, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.Compare):
        left = node.left
        if len(node.ops) != 1 or not isinstance(left, ast.Call) or dotted(left.func) != "len" or len(left.args) != 1:
            continue
        right, parent = node.comparators[0], src.parents.get(node)
        while isinstance(parent, ast.BoolOp):  # only its truth value matters there
            parent = src.parents.get(parent)
        if not isinstance(right, ast.Constant) or not isinstance(parent, (ast.If, ast.While)) or not src.one_line(node):
            continue
        kind = (type(node.ops[0]), right.value)
        inner = src.segment(left.args[0])
        if not re.fullmatch(r"[\w.\[\]()'\"]+", inner):
            continue
        if kind in ((ast.Eq, 0), (ast.Lt, 1)):
            edits.append(Edit(*src.span(node), f"not {inner}"))
        elif kind in ((ast.Gt, 0), (ast.NotEq, 0), (ast.GtE, 1)):
            edits.append(Edit(*src.span(node), inner))
    return edits


def modern_super(src: Piece, args: tuple[str, ...]) -> Edits:
    calls = [node for node in src.of(ast.Call) if dotted(node.func) == "super" and len(node.args) == 2]
    edits = [Edit(*src.span(node), "super()") for node in calls if all(map(dotted, node.args))]
    return edits + [edit for node in src.of(ast.Call) if (edit := _by_base(src, node)) is not None]


def _by_base(src: Piece, node: ast.Call) -> Edit | None:
    """`Base.method(self, …)` -> `super().method(…)` in the method of this name, if the class has only this base."""
    function = src.function_of(node)
    called, first = node.func, node.args[0] if node.args else None
    if not isinstance(called, ast.Attribute) or function is None or called.attr != function.name:
        return None
    mine = function.args.args[0].arg if function.args.args else ""
    owner = src.class_of(function)
    bases = [dotted(base) for base in owner.bases] if owner is not None else src.bases
    if not isinstance(first, ast.Name) or first.id != mine or bases != [dotted(called.value)] or len(bases) != 1:
        return None
    rest = [*node.args[1:], *node.keywords]
    end = src.start(rest[0]) if rest else src.end(first)
    return Edit(src.start(called.value), end, f"super().{called.attr}(")


def drop_keys(src: Source, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "keys" or node.args or not src.one_line(node):
            continue
        parent = src.parents.get(node)
        looped = isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is node
        tested = isinstance(parent, ast.Compare) and isinstance(parent.ops[-1], (ast.In, ast.NotIn))
        if looped or tested:
            edits.append(Edit(src.end(node.func.value), src.end(node), ""))
    return edits


def compared(node: ast.expr, sign: type[ast.cmpop]) -> str | None:
    """`x` of `x == value`, if the value is a constant or a name."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], sign):
        return None
    plain = isinstance(node.comparators[0], (ast.Constant, ast.Name, ast.Attribute))
    return dotted(node.left) if plain else None


def use_in(src: Piece, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.BoolOp):
        sign, word = (ast.Eq, "in") if isinstance(node.op, ast.Or) else (ast.NotEq, "not in")
        run: list[ast.Compare] = []
        for value in [*node.values, None]:
            name = compared(value, sign) if value is not None else None
            if run and (name is None or name != dotted(run[0].left)):
                if len(run) > 1 and "#" not in src.text[src.start(run[0]) : src.end(run[-1])]:
                    items = ", ".join(src.segment(one.comparators[0]) for one in run)
                    left = src.segment(run[0].left)
                    edits.append(Edit(src.start(run[0]), src.end(run[-1]), f"{left} {word} ({items})"))
                run = []
            if name is not None and isinstance(value, ast.Compare):
                run.append(value)
    return edits


def augmented_assignment(src: Piece, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.Assign):
        value, target = node.value, dotted(node.targets[0])
        if len(node.targets) != 1 or target is None or not isinstance(value, ast.BinOp) or not src.one_line(node):
            continue
        sign = SIGNS.get(type(value.op))
        if sign and dotted(value.left) == target and src.start(value) == src.start(value.left):
            right = src.text[src.end(value.left) : src.end(node)].strip().removeprefix(sign).strip()
            edits.append(Edit(*src.span(node), f"{target} {sign}= {right}"))
    return edits


def use_literal(src: Piece, args: tuple[str, ...]) -> Edits:
    empty = {"list": "[]", "dict": "{}", "tuple": "()"}
    calls = [node for node in src.of(ast.Call) if not node.args and not node.keywords]
    return [Edit(*src.span(c), empty[dotted(c.func) or ""]) for c in calls if dotted(c.func) in empty]


def chain_comparison(src: Piece, args: tuple[str, ...]) -> Edits:
    edits = []
    for node in src.of(ast.BoolOp):
        if not isinstance(node.op, ast.And) or not src.one_line(node):
            continue
        done = -1
        for index, (one, two) in enumerate(zip(node.values, node.values[1:], strict=False)):
            edit = chained(src, one, two) if index > done else None
            if edit is not None:
                edits.append(edit)
                done = index + 1
    return edits


def chained(src: Piece, one: ast.expr, two: ast.expr) -> Edit | None:
    """`a < b and b < c` and `b > a and b < c` as a chain."""
    if not isinstance(one, ast.Compare) or not isinstance(two, ast.Compare):
        return None
    ops = [*one.ops, *two.ops]
    middle = dotted(two.left)
    if middle is None:
        return None
    same = all(isinstance(op, RISING) for op in ops) or all(isinstance(op, FALLING) for op in ops)
    if same and dotted(one.comparators[-1]) == middle:
        return Edit(src.end(one), src.end(two.left), "")
    apart = isinstance(one.ops[0], FALLING) and isinstance(two.ops[0], RISING)
    if apart and len(ops) == 2 and dotted(one.left) == middle:
        low = "<" if isinstance(one.ops[0], ast.Gt) else "<="
        high = "<" if isinstance(two.ops[0], ast.Lt) else "<="
        text = f"{src.segment(one.comparators[0])} {low} {middle} {high} {src.segment(two.comparators[0])}"
        return Edit(src.start(one), src.end(two), text)
    return None


_COMPARISONS = {sign: kind for kind, (sign, _) in OPPOSITE.items()}


def change_operator(src: Piece, args: tuple[str, ...]) -> Edits:
    """`change_operator OLD NEW`: changes the only comparison with this operator."""
    old, new = args
    if old not in _COMPARISONS or new not in _COMPARISONS:
        raise RefactorError(f"{old} or {new} is not a comparison operator")
    found = []
    for node in src.of(ast.Compare):
        sides = [node.left, *node.comparators]
        for index, sign in enumerate(node.ops):
            if isinstance(sign, _COMPARISONS[old]):
                found.append((src.end(sides[index]), src.start(sides[index + 1])))
    start, end = only(found, f"comparison with {old}")
    between = src.text[start:end]
    if between.count(old) != 1:
        raise RefactorError("the comparison is too complex")
    return [Edit(start, end, between.replace(old, new))]


def raise_from(src: Piece, args: tuple[str, ...]) -> Edits:
    """Make raises in a handler name their cause; `raise_from NAME` is for a region without the handler's head."""
    if args:
        bare = [node for node in src.of(ast.Raise) if node.exc is not None and node.cause is None]
        caught = [node for node in bare if any(isinstance(a, ast.ExceptHandler) for a in src.ancestors(node))]
        bare = caught or bare
        cause = only(bare, "raise without a cause").exc
        if cause is None or not args[0].isidentifier():
            raise Unusable("the cause is not a name")
        return [Edit(src.end(cause), src.end(cause), f" from {args[0]}")]
    edits = {}
    for handler in src.of(ast.ExceptHandler):
        for node in ast.walk(handler):
            if not isinstance(node, ast.Raise) or node.exc is None or node.cause is not None or handler.type is None:
                continue
            nearest = next((a for a in src.ancestors(node) if isinstance(a, (ast.ExceptHandler, *FUNCTIONS))), None)
            if nearest is handler and (handler.name is None or dotted(node.exc) != handler.name):
                name = handler.name or ("error" if not re.search(r"\berror\b", src.text) else "exc")
                edits[src.end(node.exc)] = Edit(src.end(node.exc), src.end(node.exc), f" from {name}")
                if handler.name is None:
                    edits[src.end(handler.type)] = Edit(src.end(handler.type), src.end(handler.type), f" as {name}")
    return list(edits.values())


def swapped_quotes(segment: str, old: str, new: str) -> str | None:
    """A one-line string literal with the other quotes; None when its content prevents that."""
    match = re.fullmatch(rf"([a-zA-Z]{{0,2}})({old})([^\\\n]*)({old})", segment)
    if match is None or old in match[3] or new in match[3] or match[3].startswith(old):
        return None
    return f"{match[1]}{new}{match[3]}{new}"


def quotes(src: Source, args: tuple[str, ...]) -> Edits:
    old, new = ("'", '"') if args[0] == "double" else ('"', "'")
    nodes = [node for node in src.of(ast.Constant) if isinstance(node.value, str)]
    edits = []
    for node in [*nodes, *src.of(ast.JoinedStr)]:
        text = swapped_quotes(src.segment(node), old, new) if src.one_line(node) else None
        if text is not None:
            edits.append(Edit(*src.span(node), text))
    return edits


def remove_comments(src: Source, args: tuple[str, ...]) -> Edits:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(src.text).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        raise Unusable("the code cannot be tokenized") from None
    edits = []
    for token in tokens:
        line = token.start[0]
        if token.type != tokenize.COMMENT or (line <= 2 and re.match(r"#!|#.*coding[:=]", token.string)):
            continue
        start = src.line_start(line) + token.start[1]
        if src.text[src.line_start(line) : start].strip():
            while src.text[start - 1] == " ":
                start -= 1
            edits.append(Edit(start, src.line_start(line) + token.end[1], ""))
        else:
            edits.append(Edit(src.line_start(line), src.line_end(line), ""))
    return edits
