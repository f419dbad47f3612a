"""Which lines an edit may touch: the enclosing function, a class, or a window of whole statements, at most 60 lines."""

from __future__ import annotations

import ast
import random

from fulgur.edit.refactor.source import BLOCKS, FUNCTIONS, Source, Unusable

MAX_LINES = 60
MAX_CHARS = 2400


def levels(src: Source, first: int, last: int) -> list[tuple[list[ast.stmt], int, int, ast.AST]]:
    """From the module inwards: the run of statements (block, i, j) that covers the lines, and the block's owner."""
    found: list[tuple[list[ast.stmt], int, int, ast.AST]] = []
    owner: ast.AST = src.tree
    block: list[ast.stmt] = src.tree.body
    while True:
        covering = [i for i, s in enumerate(block) if src.first_line(s) <= last and (s.end_lineno or 0) >= first]
        if not covering:
            return found
        i, j = covering[0], covering[-1]
        if src.first_line(block[i]) > first or (block[j].end_lineno or 0) < last:
            return found
        found.append((block, i, j, owner))
        if i != j:
            return found
        statement = block[i]
        for inner in inner_blocks(statement):
            if inner and src.first_line(inner[0]) <= first and (inner[-1].end_lineno or 0) >= last:
                owner, block = statement, inner
                break
        else:
            return found


def inner_blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [block for field in BLOCKS if isinstance(block := getattr(statement, field, None), list)]
    for handler in getattr(statement, "handlers", []) + getattr(statement, "cases", []):
        blocks.append(handler.body)
    return blocks


def lines_of(src: Source, block: list[ast.stmt], i: int, j: int) -> tuple[int, int]:
    return src.first_line(block[i]), block[j].end_lineno or 0


def fits(src: Source, first: int, last: int) -> bool:
    return last - first < MAX_LINES and src.line_end(last) - src.line_start(first) <= MAX_CHARS


def window(src: Source, block: list[ast.stmt], i: int, j: int, rng: random.Random) -> tuple[int, int] | None:
    """Grow a run of statements by its neighbours up to a random number of lines."""
    if not fits(src, *lines_of(src, block, i, j)):
        return None
    wanted = rng.choice([1, 6, 12, 20, 30, 45])
    while True:
        sides = [(i - 1, j)] * (i > 0) + [(i, j + 1)] * (j + 1 < len(block))
        rng.shuffle(sides)
        for side in sides:
            first, last = lines_of(src, block, *side)
            if last - first < wanted and fits(src, first, last):
                i, j = side
                break
        else:
            return lines_of(src, block, i, j)


def choose_region(
    src: Source, start: int, end: int, rng: random.Random, within: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Return the offsets of a region of whole lines that covers [start, end)."""
    first, last = src.line_of(start), src.line_of(max(start, end - 1))
    found = levels(src, first, last)
    if not found:
        raise Unusable("no statements")
    options: list[tuple[int, int]] = []
    block, i, j, _ = found[-1]
    head = block[i] if i == j and isinstance(block[i], FUNCTIONS) else None
    owners: list[ast.AST] = [entry[3] for entry in found if isinstance(entry[3], (*FUNCTIONS, ast.ClassDef))]
    if head is not None:
        owners.append(head)
    functions = [owner for owner in owners if isinstance(owner, FUNCTIONS)]
    whole = [(src.first_line(o), getattr(o, "end_lineno", 0)) for o in owners]
    inner = [(src.first_line(o), o.end_lineno or 0) for o in functions[-1:]]
    grown = window(src, block, i, j, rng)
    roll = rng.random()
    if roll < 0.65:
        options = [*inner, *([grown] if grown else []), *whole]
    elif roll < 0.9 or not whole:
        options = [*([grown] if grown else []), *inner, *whole]
    else:
        options = [*whole, *([grown] if grown else [])]
    for first_line, last_line in options:
        region = src.line_start(first_line), src.line_end(last_line)
        if within is not None and (region[0] < within[0] or region[1] > within[1]):
            continue
        if fits(src, first_line, last_line) and region[0] <= start and region[1] >= end:
            check_edges(src, first_line, last_line)
            return region
    raise Unusable("no region")


def check_edges(src: Source, first: int, last: int) -> None:
    """Raise Unusable if a statement shares the first or the last line with code outside, or an `elif` begins the
    region."""
    if src.lines[first - 1].lstrip().startswith(("elif ", "else:", "except", "finally:", "case ")):
        raise Unusable("starts inside a statement")
    if src.lines[last - 1].rstrip().endswith((";", "\\")):
        raise Unusable("shared line")
