"""Instructions that are the resulting code: `total += price`, `x if y else None`, `use a in (1, 2)`.

Refactorings that only rewrite code in another style are tried in turn; the one that produces this code is meant.
"""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.place import Place
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local import LOCAL
from fulgur.edit.refactor.local.exact import places_of
from fulgur.edit.refactor.local.piece import Piece
from fulgur.edit.refactor.source import Edit, Unusable, apply_edits, parse_region
from fulgur.edit.refactor.verify import words
from fulgur.text.edit_format import Call

# These make independent edits, so that one of them can be applied alone.
_EACH = """augmented_assignment use_in use_isinstance use_truthiness use_or is_none not_in chain_comparison use_literal
drop_keys direct_attribute use_fstring modern_super merge_isinstance"""
# The edits of these belong together.
_TOGETHER = """use_ternary use_dict_get and_or use_any_all return_condition use_items use_comprehension use_generator"""
_SAID = re.compile(
    r"(?:(?:just|simply|use|write|should be|prefer|better:?|can be|could be|why not|make it|do|simplify (?:it )?to|"
    r"shorten to|it'?s just) )*`?(?P<code>.+?)`?(?: (?:is enough|suffices|would do|will do|works|reads better))?"
    r"(?: for (?:the )?(?P<name>\w+))?\??",
    re.IGNORECASE | re.DOTALL,
)


def by_example(said: str, place: Place) -> Call | None:
    """The change that produces the code in the instruction; None if there is no such change, or more than one."""
    match = _SAID.fullmatch(said.strip())
    wanted = _dump(match["code"]) if match else None
    if match is None or wanted is None or _times(wanted, place.region) or (piece := _piece(place.region)) is None:
        return None
    found = {made for name in f"{_EACH} {_TOGETHER}".split() if (made := _made(piece, name, wanted)) is not None}
    call = _as_text(place.region, found.pop()) if len(found) == 1 else None
    if call is not None and match["name"] and match["name"] not in words(" ".join(call.args)):
        return None  # the instruction says "for x", but the change is about something else
    return call


def makes(place: Place, name: str, said: str) -> bool:
    """Whether this refactoring produces exactly the code in the instruction."""
    wanted, piece = _dump(said), _piece(place.region)
    return wanted is not None and piece is not None and _made(piece, name, wanted) is not None


def _piece(region: str) -> Piece | None:
    """The region, parsed once for all refactorings that are tried; None where it cannot be parsed."""
    try:
        return Piece(region)
    except (Unusable, ValueError, IndexError, RecursionError):
        return None


def _dump(text: str) -> str | None:
    """The dump of one nontrivial statement or expression; None for a word or two of English.

    For an `if` or `while`, that of the condition."""
    text = re.sub(r"^(?:if|elif|while) (?=.)", "", text.strip().rstrip(":"))
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    if len(body) != 1 or not re.search(r"[=(\[{<>+\"']| (?:in|is|or|and|if) ", text):
        return None
    node: ast.AST = body[0].value if isinstance(body[0], ast.Expr) else body[0]
    if isinstance(node, (ast.Name, ast.Constant, ast.Attribute, ast.AnnAssign)):
        return None
    return ast.dump(node)


def _times(wanted: str, region: str) -> int:
    """How often the region contains this code."""
    kind = wanted.partition("(")[0]  # skip nodes of other types
    try:
        nodes = [node for node in ast.walk(parse_region(region)) if type(node).__name__ == kind]
        return sum(ast.dump(node) == wanted for node in nodes)
    except (Unusable, RecursionError):
        return 0


def _made(piece: Piece, name: str, wanted: str) -> str | None:
    """The region after the one change of this refactoring that produces the code; None for no or several results."""
    try:
        edits = LOCAL[name][2](piece, ())
    except (RefactorError, Unusable, ValueError, IndexError, RecursionError):
        return None
    choices = [[edit] for edit in edits] if name in _EACH.split() else [edits]
    results = {
        after for chosen in choices if (after := _applied(piece, chosen)) is not None and _times(wanted, after) == 1
    }
    return results.pop() if len(results) == 1 else None


def _applied(piece: Piece, edits: list[Edit]) -> str | None:
    try:
        after = apply_edits(piece.text, edits)[len(piece.shift) :]
        parse_region(after)
    except (Unusable, ValueError):
        return None
    return after


def _as_text(before: str, after: str) -> Call | None:
    """The difference as one exact replacement, with as many surrounding lines as make it unique."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[len(before) - 1 - end] == after[len(after) - 1 - end]:
        end += 1
    first = start = before.rfind("\n", 0, start) + 1
    stop = before.find("\n", len(before) - end)
    stop = len(before) if stop < 0 else stop
    while before.count(before[start:stop]) > 1:
        if start == 0 and stop == len(before):
            return None
        start = before.rfind("\n", 0, max(start - 1, 0)) + 1
        further = before.find("\n", stop + 1)
        stop = len(before) if further < 0 else further
    new = after[start : len(after) - (len(before) - stop)]
    # Omit the indentation if the text is unique without it.
    margin = len(before[first:]) - len(before[first:].lstrip(" \t"))
    bare = before[start + margin : stop]
    if (
        start == first
        and new[:margin] == before[start : start + margin]
        and places_of(before, bare) == [start + margin]
    ):
        return Call("replace_text", (bare, new[margin:]))
    return Call("replace_text", (before[start:stop], new))
