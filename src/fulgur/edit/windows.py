"""Choose one of several places that a refactoring fits: the one that the instruction names.

"Use a ternary for value_out", where two ifs choose a value: the refactoring is tried on each run of statements
separately, and only the result that the words of the instruction select is kept.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fulgur.edit.refactor import LOCAL, RefactorError, apply_local
from fulgur.edit.refactor.local.piece import Piece
from fulgur.edit.refactor.source import BLOCKS, Unusable
from fulgur.edit.refactor.verify import identifiers
from fulgur.text.edit_format import Call

_ORDER = {"first": 0, "1st": 0, "second": 1, "2nd": 1, "third": 2, "last": -1, "final": -1}
_BLOCKS: dict[str, tuple[type[ast.AST], ...]] = {
    "except": (ast.ExceptHandler,), "handler": (ast.ExceptHandler,), "loop": (ast.For, ast.While),
    "for": (ast.For,), "while": (ast.While,), "try": (ast.Try,), "with": (ast.With,),
}  # fmt: skip
_LONGEST = 3


@dataclass(frozen=True)
class Found:
    """The result for one run of statements: the region's new text, the run's lines, and the run before and after."""

    text: str
    first: int
    last: int
    changed: str


def picked(region: str, call: Call, instruction: str) -> str | None:
    """The region after the refactoring at the place that is meant; None where the instruction does not say which."""
    if call.name not in LOCAL:
        return None
    try:
        piece = Piece(region)
    except Unusable:
        return None
    found = sorted(_tried(piece, region, call), key=lambda one: one.first)
    chosen = _by_words(piece, found, instruction, call)
    return chosen[0].text if len(chosen) == 1 else None


def _tried(piece: Piece, region: str, call: Call) -> Iterator[Found]:
    seen: set[str] = set()
    shift = len(piece.shift)
    for block in _blocks(piece):
        for size in range(1, _LONGEST + 1):
            for index in range(len(block) - size + 1):
                run = block[index : index + size]
                start = piece.whole_lines(run[0])[0] - shift
                end = piece.whole_lines(run[-1])[1] - shift
                if start < 0 or not all(piece.alone_on_lines(s) for s in (run[0], run[-1])):
                    continue
                try:
                    made = apply_local(region[start:end], call, region[end:], region[:start])
                except RefactorError:
                    continue
                text = region[:start] + made + region[end:]
                if text not in seen:
                    seen.add(text)
                    yield Found(text, piece.first_line(run[0]), run[-1].end_lineno or 0, f"{region[start:end]}{made}")


def _blocks(piece: Piece) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(piece.tree):
        for field in BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _by_words(piece: Piece, found: list[Found], instruction: str, call: Call) -> list[Found]:
    """The results that the instruction selects: by a name, by their order, or by the block that contains them."""
    said = instruction.lower()
    named = (identifiers(piece.text) & set(re.findall(r"\w+", instruction))) - {w for a in call.args for w in a.split()}
    for name in sorted(named):
        having = [one for one in found if re.search(rf"\b{re.escape(name)}\b", one.changed)]
        given = [one for one in found if re.search(rf"^\s*{re.escape(name)} *=", one.changed, re.MULTILINE)]
        if len(given) == 1 or 0 < len(having) < len(found):
            return given if len(given) == 1 else having
    for word, index in _ORDER.items():
        if re.search(rf"\bthe {word}\b", said) and len(found) > 1:
            return [found[index]] if -len(found) <= index < len(found) else []
    for word, kinds in _BLOCKS.items():
        if re.search(rf"\b(?:in|inside|within) the {word}\b", said):
            spans = [(n.lineno, n.end_lineno) for n in ast.walk(piece.tree) if isinstance(n, kinds)]  # type: ignore[attr-defined]
            return [one for one in found if any(a <= one.first and one.last <= (b or 0) for a, b in spans)]
    return []
