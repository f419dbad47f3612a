"""Limit a refactoring to the place an instruction names: "use f-strings for the error messages" means only those.

A refactoring of a whole region changes every line that it fits. Where the instruction names its subject, the other
lines stay as they are. If no changed line belongs to that subject, the edit is not what was asked for.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections.abc import Callable, Iterator

from fulgur.edit.refactor.source import FUNCTIONS, Source, Unusable
from fulgur.edit.refactor.verify import identifiers
from fulgur.text.edit_format import Call

_WHOLE = """is_none not_in use_isinstance optional_union use_truthiness modern_super drop_keys use_in
augmented_assignment use_literal chain_comparison use_fstring quotes remove_comments remove_prints"""
_ONE = """early_return remove_else_return merge_nested_if use_ternary use_dict_get use_with use_comprehension
use_enumerate use_items use_any_all"""
_PLACE = re.compile(
    r"\b(?:for|in|on|inside|within|with) (?:the |this |that |both |all |two |its |our )*`?(?P<word>[A-Za-z_]\w*)`?"
    r"(?: (?P<kind>messages?|texts?))?(?:\(\))?(?=[\s,.;!?)]|$)"
)
_RAISED = re.compile(r"(?:errors?|exceptions?)(?: (?:messages?|texts?))?|messages?|raises?|warnings?")
_TOLD = frozenset({"warn", "warning", "error", "exception", "debug", "info", "critical", "log", "fail", "exit"})


def narrowed(call: Call, instruction: str, before: str, after: str, at: tuple[int, int]) -> str | None:
    """The text after a call, changed only where the instruction says; None when no change is where it says."""
    if call.name not in {*_WHOLE.split(), *_ONE.split()}:
        return after
    wanted = _wanted(instruction, before, at)
    if wanted is None:
        return after
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    kept, some = [], False
    for a, b, c, d in _hunks(old, new):
        meant = old[a:b] != new[c:d] and wanted(range(a + 1, b + 1), "".join([*old[a:b], *new[c:d]]))
        kept += new[c:d] if meant else old[a:b]
        some = some or meant
    if not some:
        return None
    return "".join(kept) if call.name in _WHOLE.split() else after


def _hunks(old: list[str], new: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """Matching spans of both texts; where a run of lines is replaced by equally many, one pair of lines at a time."""
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "replace" and b - a == d - c:
            yield from ((a + i, a + i + 1, c + i, c + i + 1) for i in range(b - a))
        else:
            yield a, b, c, d


def _wanted(instruction: str, text: str, at: tuple[int, int]) -> Callable[[range, str], bool] | None:
    """A test, by number and text, whether changed lines are what the instruction names; None when it names no place."""
    try:
        source = Source(text)
    except Unusable:
        return None
    named = identifiers(text[at[0] : at[1]]) - set(dir(builtins))
    for match in _PLACE.finditer(instruction):
        word = match["word"]
        if _RAISED.fullmatch(f"{word} {match['kind']}" if match["kind"] else word) and word not in named:
            spans = [node for node in ast.walk(source.tree) if _says_something(node)]
            return lambda lines, changed: any(_inside(lines, node) for node in spans)
        if word in named and match["kind"] is None:
            owners = [n for n in ast.walk(source.tree) if isinstance(n, (*FUNCTIONS, ast.ClassDef)) and n.name == word]
            pattern = re.compile(rf"\b{re.escape(word)}\b")
            return lambda lines, changed: (
                pattern.search(changed) is not None or any(_inside(lines, node) for node in owners)
            )
    return None


def _says_something(node: ast.AST) -> bool:
    """Whether a node raises an exception, warns or logs."""
    if isinstance(node, ast.Raise):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TOLD


def _inside(lines: range, node: ast.AST) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return bool(lines) and first <= lines[0] and lines[-1] <= last
