"""A region cut out of a file and parsed by itself, with the helpers that its refactorings share."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Function, Source, Unusable

Edits = list[Edit]
# The implementation of a call: takes the region and the call's arguments, returns edits, or none if nothing changes.
Refactoring = Callable[["Piece", tuple[str, ...]], Edits]
Found = TypeVar("Found")

OPPOSITE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", ">="),
    ast.GtE: (">=", "<"),
    ast.Gt: (">", "<="),
    ast.LtE: ("<=", ">"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}


class Piece(Source):
    """Whole lines of a file, with the text `above` and `below` them.

    Indented lines are wrapped in an `if 1:` that is not part of `nodes`."""

    def __init__(self, region: str, below: str = "", above: str = "") -> None:
        self.shift = "if 1:\n" if region[:1] in (" ", "\t") else ""
        super().__init__(self.shift + region)
        if not self.tree.body:
            raise Unusable("there is no code in it")
        self.below, self.above = below, above
        self.top: list[ast.stmt] = self.tree.body
        if self.shift:
            wrapper = self.tree.body[0]
            assert isinstance(wrapper, ast.If)
            self.nodes[ast.If].remove(wrapper)
            self.wrapper, self.top = wrapper, wrapper.body

    @property
    def ends_block(self) -> bool:
        """Whether the text after the region belongs to an outer block, so that its last statement ends its block."""
        following = next((line for line in self.below.split("\n") if line.strip()), "")
        return len(following) - len(following.lstrip()) < self.top[0].col_offset or not following

    @property
    def bases(self) -> list[str]:
        """The bases of the class whose body contains the region; none if its head is not a plain one."""
        margin = self.top[0].col_offset
        for line in reversed(self.above.split("\n")):
            if line.strip() and not line.lstrip().startswith("#") and len(line) - len(line.lstrip()) < margin:
                head = re.fullmatch(r"\s*class \w+\(([\w., ]*)\):.*", line)
                return [base.strip() for base in head[1].split(",")] if head else []
        return []

    def at_block_end(self, statement: ast.stmt) -> bool:
        block = self.block_of(statement)
        return block[-1] is statement and (block is not self.top or self.ends_block)


def only(found: list[Found], what: str) -> Found:
    """The one item found; refuses when there is none or more than one."""
    if not found:
        raise RefactorError(f"there is no {what} here")
    if len(found) > 1:
        raise RefactorError(f"there is more than one {what} here", hint="Name a smaller part.")
    return found[0]


def meant(wanted: str, known: Iterable[str | None]) -> str:
    """The known name that is meant: an equal one, else the only one ending in it, else ignoring case; or `wanted`."""
    names = {name for name in known if name}
    lowered = wanted.lower()
    for found in (
        [name for name in names if name == wanted],
        [name for name in names if name.endswith(f".{wanted}")],
        [name for name in names if name.lower() == lowered or name.lower().endswith(f".{lowered}")],
    ):
        if found:
            return only(found, wanted)
    return wanted


def expression(text: str) -> str:
    """The dump of an expression's syntax tree, for comparisons that ignore layout."""
    try:
        return ast.dump(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        raise RefactorError(f"{text} is not an expression") from None


def flat(src: Source, node: ast.expr) -> str:
    """An expression on one line; Unusable where that would change it."""
    text = src.segment(node)
    if src.one_line(node):
        return text
    if "#" in text:
        raise Unusable("an expression contains a comment")
    text = re.sub(r"[ \t]*\\?\n[ \t]*", " ", text)
    text = re.sub(r"(?<=[(\[{]) | ?,?(?= ?[)\]}]) ?", lambda found: "," if found[0].strip() else "", text)
    for joined in (re.sub(r",(?=[)\]}])", "", text), text):
        if expression(joined) == ast.dump(node):
            return joined
    raise Unusable("a string spans several lines")


def if_head_end(src: Source, node: ast.If) -> tuple[int, int]:
    """Offsets of the colon that ends the head of an `if`, and of the line after it."""
    match = re.compile(r"\s*\)*\s*(:)[ \t]*\n").match(src.text, src.end(node.test))
    if match is None:
        raise Unusable("the line of the if is too complex")
    return match.start(1), match.end()


def negated(src: Source, test: ast.expr) -> str:
    """The opposite of a condition, as a developer writes it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return flat(src, test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        old, new = OPPOSITE[type(test.ops[0])]
        between = src.text[src.end(test.left) : src.start(test.comparators[0])]
        if re.sub(r"\s+", " ", between.strip()) == old:
            return f"{flat(src, test.left)} {new} {flat(src, test.comparators[0])}"
    if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return f"not {flat(src, test)}"
    return f"not ({flat(src, test)})"


def plain_if(src: Source, node: ast.If) -> bool:
    """An `if` on its own lines (no elif), and no comment in its head."""
    try:
        colon, _ = if_head_end(src, node)
    except Unusable:
        return False
    return (
        src.text.startswith("if", src.start(node))
        and "#" not in src.text[src.start(node) : colon]
        and node.body[0].lineno > src.line_of(colon)
        and not src.indent(node).strip()
    )


def has_elif(src: Source, node: ast.If) -> bool:
    return bool(node.orelse) and isinstance(node.orelse[0], ast.If) and src.text.startswith(
        "elif", src.start(node.orelse[0])
    )  # fmt: skip


def else_line(src: Source, node: ast.If) -> int:
    """The line of the `else:`."""
    line = src.first_line(node.orelse[0]) - 1
    while line > node.lineno and src.lines[line - 1].strip() != "else:":
        line -= 1
    if line <= (node.body[-1].end_lineno or 0):
        raise Unusable("the else is not on a line of its own")
    return line


def aimed(src: Piece, args: tuple[str, ...]) -> tuple[Function | None, tuple[str, ...]]:
    """The function a call is about, and the other arguments: `@name`, or the only outermost function of the region.

    None for a region without an outermost function: a run of statements from the start of a body.
    """
    if args and args[0].startswith("@"):
        named = [function for function in src.functions() if function.name == args[0][1:]]
        return only(named, f"function {args[0][1:]}"), args[1:]
    outermost = [s for s in src.top if isinstance(s, FUNCTIONS)]
    if not outermost and any(isinstance(s, ast.ClassDef) for s in src.top):
        raise RefactorError("it is unclear which function", hint="Name the function.")
    return (only(outermost, "function") if outermost else None), args


def definition(src: Piece, args: tuple[str, ...]) -> tuple[Function, tuple[str, ...]]:
    function, rest = aimed(src, args)
    if function is None:
        raise RefactorError("there is no function here", hint="Name the function.")
    return function, rest


def rest(args: tuple[str, ...], start: int) -> str:
    """The arguments from `start` on, joined: the last argument of many calls may contain spaces."""
    text = " ".join(args[start:])
    if not text:
        raise RefactorError("the call has too few arguments")
    return text


def bindings(src: Piece) -> dict[str, list[tuple[ast.AST, bool]]]:
    """All bindings of bare names in the file, by name; False if a condition decides whether the name is bound.

    Names in a class body are left out: functions do not see them."""
    try:
        tree = ast.parse(f"{src.above}{src.text[len(src.shift) :]}{src.below}")
    except (SyntaxError, ValueError, RecursionError):
        tree = src.tree
    found: dict[str, list[tuple[ast.AST, bool]]] = {}
    nobody: frozenset[str] = frozenset()
    stack: list[tuple[ast.AST, bool, bool, frozenset[str]]] = [(tree, True, False, nobody)]
    while stack:
        node, sure, member, both = stack.pop()
        if not member and (name := _bound_by(node)) is not None:
            found.setdefault(name, []).append((node, sure or name in both))
        under = sure and not isinstance(node, (ast.If, ast.Try, ast.TryStar, ast.Match, ast.For, ast.While))
        of_class = isinstance(node, ast.ClassDef) or (member and not isinstance(node, (*FUNCTIONS, ast.Lambda)))
        if isinstance(node, ast.If) and (sure or both):
            either = assigned_in([node])
            both = either if sure else either & both
        stack += [(child, under, of_class, both) for child in ast.iter_child_nodes(node)]
    return found


def assigned_in(block: list[ast.stmt]) -> frozenset[str]:
    """The names that every path through these statements assigns to; considers only plain assignments and ifs."""
    found: set[str] = set()
    for statement in block:
        if isinstance(statement, ast.Assign):
            found |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.If):
            found |= assigned_in(statement.body) & assigned_in(statement.orelse)
    return frozenset(found)


def _bound_by(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.alias):
        return (node.asname or node.name).split(".")[0]
    if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return node.name
    return None
