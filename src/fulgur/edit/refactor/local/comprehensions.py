"""Loops that only fill a list, a set or a dictionary -> comprehensions, where the difference is not observable."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.loops import neighbours
from fulgur.edit.refactor.local.piece import Edits, Piece, bindings, only
from fulgur.edit.refactor.local.statements import LONGEST
from fulgur.edit.refactor.source import FUNCTIONS, Edit, dotted

EMPTY = {"[]": "list", "list()": "list", "{}": "dict", "dict()": "dict", "set()": "set"}


def use_comprehension(src: Piece, args: tuple[str, ...]) -> Edits:
    found, reasons = [], []
    for node in src.of(ast.For):
        try:
            if (edits := comprehension(src, node)) is not None:
                found.append(edits)
        except RefactorError as error:
            reasons.append(error)
    if not found and (calls := [edits for node in src.of(ast.Call) if (edits := from_call(src, node))]):
        return only(calls, "list, set or dictionary made from a generator")
    if reasons and not found:
        raise reasons[0]
    return only(found, "loop that only fills a list, set or dictionary")


def from_call(src: Piece, node: ast.Call) -> Edits:
    """`dict((k, v) for …)`, `set([x for …])`, `list(x for …)`"""
    kind, given = dotted(node.func), node.args[0] if len(node.args) == 1 and not node.keywords else None
    if kind not in ("dict", "set", "list") or not isinstance(given, (ast.GeneratorExp, ast.ListComp)):
        return []
    if kind in bindings(src):
        raise RefactorError(f"{kind} means something else in this file")
    if "#" in src.segment(node):
        raise RefactorError("a comment is in the way")
    start, end = src.start(given) + 1, src.end(given) - 1  # without its own brackets, which may be those of the call
    inner = src.text[start:end].strip()
    if kind == "dict":
        pair = given.elt
        if not isinstance(pair, ast.Tuple) or len(pair.elts) != 2 or src.text[src.start(pair)] != "(":
            return []
        if any(isinstance(part, ast.Starred) for part in pair.elts):
            return []
        key, value = (src.segment(part) for part in pair.elts)
        inner = f"{key}: {value}{src.text[src.end(pair) : end]}".rstrip()
    return [Edit(*src.span(node), f"[{inner}]" if kind == "list" else f"{{{inner}}}")]


def begun(src: Piece, node: ast.For) -> ast.stmt | None:
    """The statement that creates the collection a loop fills: right before the loop, or before other assignments."""
    block = src.block_of(node)
    above = block[: block.index(node)]
    filled = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    for index, before in enumerate(reversed(above)):
        if isinstance(before, (ast.Assign, ast.AnnAssign)) and src.segment(before.value or before) in EMPTY:
            target = before.targets[0] if isinstance(before, ast.Assign) else before.target
            if index == 0 or (isinstance(target, ast.Name) and target.id in filled):
                return before
        if not isinstance(before, ast.Assign):
            return None
    return None


def comprehension(src: Piece, node: ast.For) -> Edits | None:
    before, after = begun(src, node), neighbours(src, node)[1]
    if (
        not isinstance(before, (ast.Assign, ast.AnnAssign))
        or before.value is None
        or node.orelse
        or len(node.body) != 1
    ):
        return None
    targets = before.targets if isinstance(before, ast.Assign) else [before.target]
    name, kind = dotted(targets[0]), EMPTY.get(src.segment(before.value))
    if len(targets) != 1:
        return None
    inner, condition = node.body[0], ""
    if isinstance(inner, ast.If) and len(inner.body) == 1 and not inner.orelse:
        condition = f"if {src.segment(inner.test)}"
        if isinstance(inner.test, (ast.IfExp, ast.Lambda)):
            return None
        inner = inner.body[0]
    element = added(src, inner, name or "", kind or "")
    if name is None or kind is None or element is None or "#" in src.text[src.start(node) : src.end(node)]:
        return None
    block = src.block_of(node)
    between = block[block.index(before) + 1 : block.index(node)]
    if _reads_so_far(node, name):
        raise RefactorError(f"the loop may read {name} while filling it")
    if _seen_unfinished(src, before, node, name):
        raise RefactorError(f"after an exception, {name} would lose the items added so far")
    if _leaks(src, node):
        raise RefactorError("the loop variable is used after the loop")
    if between and not _can_wait(src, before, between, name):
        return None
    clause = f"for {src.segment(node.target)} in {src.segment(node.iter)}"
    head = src.text[src.start(before) : src.start(before.value)]  # with its annotation
    opened, closed = "[]" if kind == "list" else "{}"
    indent, parts = src.indent(before), [element, clause, *([condition] if condition else [])]
    text = f"{opened}{' '.join(parts)}{closed}"
    if len(indent) + len(head) + len(text) > LONGEST and "\n" not in text:
        text = f"{opened}\n{''.join(f'{indent}{src.unit}{part}{chr(10)}' for part in parts)}{indent}{closed}"
    if between:
        return [Edit(*src.whole_lines(before), ""), Edit(*src.span(node), f"{head}{text}")]
    if "#" in src.text[src.start(before) : src.start(node)]:
        return None
    if name == "result" and isinstance(after, ast.Return) and after.value and dotted(after.value) == name:
        return [Edit(src.start(before), src.end(after), f"return {text}")]
    return [Edit(src.start(before), src.end(node), f"{head}{text}")]


def _reads_so_far(node: ast.For, name: str) -> bool:
    """Whether the loop may read what it has filled so far, directly or in a method of the same object."""
    parts = list(ast.walk(node))
    if sum(dotted(part) == name for part in parts if isinstance(part, (ast.Name, ast.Attribute))) > 1:
        return True
    root, _, member = name.partition(".")
    own = [part for part in parts if isinstance(part, ast.Name) and part.id == root]
    harmless = [part for part in parts if isinstance(part, ast.Attribute) and dotted(part.value) == root]
    called = {id(part.func) for part in parts if isinstance(part, ast.Call)}
    return bool(member) and (len(own) > len(harmless) or any(id(part) in called for part in harmless))


def _seen_unfinished(src: Piece, before: ast.stmt, node: ast.For, name: str) -> bool:
    """Whether code that runs after an exception in the loop may read what was filled until then."""
    function, child = src.function_of(node), node
    for around in src.ancestors(node):
        if around is function:
            break
        swallows = isinstance(around, (ast.With, ast.AsyncWith)) and "suppress" in ast.unparse(around.items[0])
        tried = isinstance(around, (ast.Try, ast.TryStar)) and any(child is one for one in around.body)
        if swallows or tried:
            reads = [part for part in src.all(ast.Name) if dotted(part) == name.split(".")[0]]
            if any(src.start(part) > src.end(around.body[-1]) for part in reads):  # type: ignore[attr-defined]
                return True
        child = around  # type: ignore[assignment]
    if function is None and any(re.search(r"^\s*try:|suppress\(", head) for head in _heads(src)):
        return _named_below(src, {name.split(".")[0]})
    return False


def _heads(src: Piece) -> list[str]:
    """The lines above a region that open its enclosing blocks, up to that of the function."""
    margin, found = src.top[0].col_offset, []
    for line in reversed(src.above.split("\n")):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < margin:
            margin = indent
            found.append(line)
            if re.match(r"\s*(?:async )?def ", line):
                break
    return found


def _named_below(src: Piece, names: set[str]) -> bool:
    """Whether the rest of the function, below the region, contains one of these names."""
    rest = re.split(r"^\s*(?:@|(?:async )?def |class )", src.below, maxsplit=1, flags=re.MULTILINE)[0]
    return any(re.search(rf"\b{re.escape(name)}\b", rest) for name in names)


def _leaks(src: Piece, node: ast.For) -> bool:
    """Whether the loop variable may be read after the loop."""
    if any(isinstance(part, (ast.Attribute, ast.Subscript)) for part in ast.walk(node.target)):
        return True  # the loop sets an attribute or an element
    names = {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
    if src.function_of(node) is None and src.shift and _named_below(src, names):
        return True
    scope: ast.AST = src.function_of(node) or src.tree
    own = {id(part) for one in ast.walk(scope) if _binds(one, names) for part in ast.walk(one)}
    return any(
        part.id in names and isinstance(part.ctx, ast.Load) and id(part) not in own
        and src.start(part) > src.end(node) and (scope is src.tree or scope in src.ancestors(part))
        for part in src.all(ast.Name)
    )  # fmt: skip


def _binds(node: ast.AST, names: set[str]) -> bool:
    """Whether a node is a loop, comprehension or lambda that itself binds one of these names."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        targets: list[ast.AST] = [node.target]
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        targets = [part.target for part in node.generators]
    elif isinstance(node, ast.Lambda):
        targets = [node.args]
    else:
        return False
    bound = {getattr(part, "id", getattr(part, "arg", None)) for one in targets for part in ast.walk(one)}
    return bool(bound & names)


def _can_wait(src: Piece, before: ast.stmt, between: list[ast.stmt], name: str) -> bool:
    """Whether nothing between the empty value and the loop can observe when the name gets its value."""
    if not src.alone_on_lines(before) or src.has_comment(before):
        return False
    if any(isinstance(part, ast.Name) and part.id == name for one in between for part in ast.walk(one)):
        return False
    function = src.function_of(before)
    if function is None:
        return False  # a variable of the module or of a class, which called code may read
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return False
        if (
            node is not function
            and isinstance(node, (*FUNCTIONS, ast.Lambda, ast.Try))
            and any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))
        ):
            return False
    return True


def added(src: Piece, statement: ast.stmt, name: str, kind: str) -> str | None:
    """The element that a statement adds to the list, set or dictionary `name`, as source for a comprehension."""
    if kind == "dict" and isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        place = statement.targets[0]
        if dotted(place.value) == name and len(statement.targets) == 1:
            return f"{src.segment(place.slice)}: {src.segment(statement.value)}"
    call = statement.value if isinstance(statement, ast.Expr) else None
    method = {"list": "append", "set": "add"}.get(kind)
    if isinstance(call, ast.Call) and method and dotted(call.func) == f"{name}.{method}" and len(call.args) == 1:
        return None if call.keywords or isinstance(call.args[0], ast.Starred) else src.segment(call.args[0])
    return None
