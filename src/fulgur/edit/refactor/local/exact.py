"""Changes that the user spells out literally: texts, guards, bases, handlers and removals."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.functions import first_in, insert_first
from fulgur.edit.refactor.local.piece import Edits, Piece, aimed, expression, only
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Source, dotted, names_in

CONSUMERS = "all any dict frozenset list max min set sorted sum tuple"


def places_of(text: str, wanted: str) -> list[int]:
    """The offsets of a text, except inside a longer word."""
    left = r"(?<!\w)" if re.match(r"\w", wanted) else ""
    right = r"(?!\w)" if re.search(r"\w$", wanted) else ""
    return [match.start() for match in re.finditer(left + re.escape(wanted) + right, text)]


def replace_text(src: Piece, args: tuple[str, ...]) -> Edits:
    """`replace_text OLD NEW`: every place in the region, in strings and comments too."""
    old, new = args
    found = places_of(src.text, old)
    if not found:
        raise RefactorError(f"{old} was not found here")
    return [Edit(at, at + len(old), new) for at in found]


def raise_if(src: Piece, args: tuple[str, ...]) -> Edits:
    """`raise_if CONDITION EXCEPTION`: a guard at the start of the function."""
    function, (condition, kind) = aimed(src, args)
    test = ast.parse(condition.strip(), mode="eval").body
    expression(kind)
    _, _, body = first_in(src, function)
    parameters = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)} if function else set()
    classes = {word for word in names_in(test) if word.lstrip("_")[:1].isupper()}  # `isinstance(x, Version)`
    known = parameters | set(dir(builtins)) | classes if function else names_in(ast.Module(body, []))
    if missing := sorted(names_in(test) - known):
        raise RefactorError(f"{missing[0]} is not a parameter of {function.name if function else 'this function'}")
    wrong = condition.rpartition(" is not None and ")[2]  # what the user said, without the None test added for it
    message = repr(f"{wrong} is not allowed") if '"' in wrong else f'"{wrong} is not allowed"'
    if found := re.fullmatch(r"not isinstance\((\w+), ([\w.]+)\)", wrong):
        message = f'"{found[1]} must be {"an" if found[2][0].lower() in "aeiou" else "a"} {found[2]}"'
    raised = kind if kind.endswith(")") else f"{kind}({message})"
    return insert_first(src, function, [f"if {condition}:", f"{src.unit}raise {raised}"], condition)


def the_class(src: Piece, name: str) -> ast.ClassDef:
    classes = [node for node in src.of(ast.ClassDef) if not name or node.name == name]
    return only([node for node in classes if node in src.top] or classes, f"class {name}".strip())


def change_base(src: Piece, args: tuple[str, ...]) -> Edits:
    """`change_base CLASS NEW [OLD]`: another base; an empty NEW removes it."""
    node, new, old = the_class(src, args[0]), args[1], args[2] if len(args) > 2 else ""
    if new:
        expression(new)
    named = [base for base in node.bases if not old or dotted(base) == old]
    base = only(named, f"base {old} of {node.name}" if old else f"base of {node.name}")
    if new:
        return [Edit(*src.span(base), new)]
    if len(node.bases) > 1 or node.keywords:
        raise RefactorError(f"{node.name} has other bases or keywords too")
    head = src.text[src.start(node) : src.line_start(src.first_line(node.body[0]))]
    match = re.search(rf"class\s+{re.escape(node.name)}(\s*\([^()]*\))", head)
    if match is None:
        raise RefactorError(f"the class line of {node.name} is too complex")
    start = src.start(node)
    return [Edit(start + match.start(1), start + match.end(1), "")]


def catch_also(src: Piece, args: tuple[str, ...]) -> Edits:
    """Add an exception to the only handler that names its exceptions."""
    new = args[0]
    expression(new)
    handlers = [h for h in src.of(ast.ExceptHandler) if h.type is not None]
    # A handler that catches everything needs no more exceptions.
    narrow = [h for h in handlers if h.type is not None and dotted(h.type) not in ("Exception", "BaseException")]
    handler = only(narrow or handlers, "except that names an exception")
    kind = handler.type
    assert kind is not None
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    if new in [dotted(one) for one in kinds]:
        raise RefactorError(f"{new} is already caught there")
    end = src.end(kinds[-1])
    if isinstance(kind, ast.Tuple):
        return [Edit(end, end, f", {new}")]
    return [Edit(src.start(kind), src.start(kind), "("), Edit(end, end, f", {new})")]


def use_generator(src: Piece, args: tuple[str, ...]) -> Edits:
    """`sum([x for x in y])` -> `sum(x for x in y)`."""
    edits = []
    for call in src.of(ast.Call):
        joins = isinstance(call.func, ast.Attribute) and call.func.attr == "join"
        if not (joins or dotted(call.func) in CONSUMERS.split()) or len(call.args) != 1 or call.keywords:
            continue
        if isinstance(call.args[0], ast.ListComp):
            start, end = src.span(call.args[0])
            edits += [Edit(start, start + 1, ""), Edit(end - 1, end, "")]
    return edits


def remove_pass(src: Piece, args: tuple[str, ...]) -> Edits:
    """Remove every `pass` in a block that has other statements."""
    edits = []
    for node in src.of(ast.Pass):
        block = src.block_of(node)
        if len(block) > 1 and src.alone_on_lines(node):
            start, end = src.whole_lines(node)
            while src.text[:start].endswith("\n\n"):
                start -= 1
            edits.append(Edit(start, end, ""))
    return edits


def flatten_elif(src: Piece, args: tuple[str, ...]) -> Edits:
    """Make the only `elif` after a branch that leaves an `if`; [TEST] selects one of several."""
    wanted = expression(args[0]) if args else None
    found = []
    for node in src.of(ast.If):
        inner = node.orelse[0] if len(node.orelse) == 1 else None
        if not isinstance(inner, ast.If) or not src.text.startswith("elif", src.start(inner)):
            continue
        leaves = isinstance(node.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
        if leaves and (wanted is None or ast.dump(inner.test) == wanted):
            found.append((node, inner))
    node, inner = only(found, "elif after a branch that exits")
    if src.text.startswith("elif", src.start(node)):
        raise RefactorError("the branch before it is an elif too")
    start = src.start(inner)
    return [Edit(start, start + 4, "if")]


def delete_symbol(src: Source, name: str, at: tuple[int, int] | None) -> str:
    """Remove a function, method or class that nothing in the file uses."""
    owner, _, last = name.rpartition(".")
    kinds = (*FUNCTIONS, ast.ClassDef)
    found = [n for n in ast.walk(src.tree) if isinstance(n, kinds) and n.name == last]
    if owner:
        found = [n for n in found if getattr(src.parents.get(n), "name", "") == owner.rpartition(".")[2]]
    if len(found) > 1 and at is not None:
        found = [n for n in found if src.whole_lines(n)[0] < at[1] and src.whole_lines(n)[1] > at[0]] or found
    node = only(found, name)
    inside = {id(inner) for inner in ast.walk(node)}
    owned = isinstance(src.parents.get(node), ast.ClassDef)
    for other in ast.walk(src.tree):
        # A bare name in a function is never a method: `next(self)` calls the builtin.
        bare = getattr(other, "id", None) == last and not (owned and src.function_of(other) is not None)
        used = bare or getattr(other, "attr", None) == last
        if used and id(other) not in inside:
            raise RefactorError(f"line {getattr(other, 'lineno', 0)} uses {last}", hint="Change that place first.")
    start, end = src.whole_lines(node)
    body = src.block_of(node)
    text = f"{src.indent(node)}pass\n" if len(body) == 1 else ""
    after = src.text[end:].lstrip("\n")
    before = src.text[:start].rstrip("\n")
    gap = src.text[len(before) : start] if after else "\n"
    return f"{before}{gap}{text}{after}"
