"""Remove comments that contain certain words, remove commented-out code, and add comments."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from dataclasses import dataclass

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, definition, only
from fulgur.edit.refactor.source import Edit, Unusable


@dataclass(frozen=True)
class Comment:
    """Consecutive comments on their own lines, or one trailing comment."""

    start: int
    end: int
    lines: tuple[str, ...]
    first: int  # the number of its first line


def comments(src: Piece) -> list[Comment]:
    """All comments, in source order."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(src.text).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        raise Unusable("the code cannot be tokenized") from None
    found: list[Comment] = []
    for token in tokens:
        line, column = token.start
        if token.type != tokenize.COMMENT:
            continue
        start = src.line_start(line) + column
        if src.text[src.line_start(line) : start].strip():
            bare = len(src.text[:start].rstrip(" \t"))
            found.append(Comment(bare, src.line_start(line) + token.end[1], (token.string,), line))
            continue
        whole = Comment(src.line_start(line), src.line_end(line), (token.string,), line)
        last = found[-1] if found else None
        if last is not None and last.end == whole.start and src.text[: last.end].endswith("\n"):
            found[-1] = Comment(last.start, whole.end, (*last.lines, token.string), last.first)
        else:
            found.append(whole)
    return found


def remove_comment(src: Piece, args: tuple[str, ...]) -> Edits:
    """`remove_comment one|all WORD…`: comments with these words; `one` refuses if several have them."""
    wanted = [word.lower() for word in args[1:]]
    having = [c for c in comments(src) if all(word in " ".join(c.lines).lower() for word in wanted)]
    if args[0] == "one":
        having = [only(having, f"comment with “{' '.join(args[1:])}”")]
    if not having:
        raise RefactorError(f"there is no comment with “{' '.join(args[1:])}” here")
    return [Edit(comment.start, comment.end, "") for comment in having]


def remove_dead_code(src: Piece, args: tuple[str, ...]) -> Edits:
    """Remove commented-out code: comments on their own lines that parse as statements."""
    edits = []
    for comment in comments(src):
        if not src.text[: comment.end].endswith("\n"):
            continue
        for first, last in _code_in(comment.lines):
            line = comment.first + first
            edits.append(Edit(src.line_start(line), src.line_end(line + last - first - 1), ""))
    return edits


def _code_in(lines: tuple[str, ...]) -> list[tuple[int, int]]:
    """Spans of lines that are code; from each line the longest span is taken."""
    found, first = [], 0
    while first < len(lines):
        last = next((end for end in range(len(lines), first, -1) if _is_code(lines[first:end])), first)
        if last > first:
            found.append((first, last))
        first = max(last, first + 1)
    return found


def _is_code(lines: tuple[str, ...]) -> bool:
    """Whether lines are statements with an effect; prose that happens to parse ("note") has none."""
    text = textwrap.dedent("\n".join(line[1:] for line in lines))
    try:
        parsed = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    quiet = (ast.Name, ast.Constant, ast.Attribute, ast.Tuple, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp)
    return bool(parsed) and not any(
        (isinstance(statement, ast.Expr) and isinstance(statement.value, quiet)) or isinstance(statement, ast.AnnAssign)
        for statement in parsed
    )


def add_comment(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_comment TEXT [CODE]`: above the only line that begins with CODE, or at the start of the function."""
    text = re.sub(r"^#\s*", "", args[0]).strip()
    if "\n" in text or not text:
        raise RefactorError("a comment must be one non-empty line")
    if len(args) > 1:
        begins = [n for n, line in enumerate(src.lines, 1) if line.strip().startswith(args[1])]
        line = only(begins, f"line that begins with {args[1]}")
    else:
        function, _ = definition(src, ())
        line = src.first_line(src.body_start(function))
    margin = re.match(r"\s*", src.lines[line - 1])
    at = src.line_start(line)
    return [Edit(at, at, f"{margin[0] if margin else ''}# {text}\n")]
