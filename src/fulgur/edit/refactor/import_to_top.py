"""Move imports inside functions to the top of the file."""

from __future__ import annotations

import ast
import sys

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.imports import add_import, module_of, top_imports
from fulgur.edit.refactor.source import Edit, Source, apply_edits

Import = ast.Import | ast.ImportFrom


def import_to_top(src: Source, name: str | None, at: tuple[int, int] | None) -> str:
    """Move the imports inside functions of the span; with `name`, only those that mention it.

    A module that a function imports late may import this file in turn; only modules that cannot are moved.
    """
    start, end = at or (0, len(src.text))
    imports: list[Import] = [*src.of(ast.Import), *src.of(ast.ImportFrom)]
    inside = [
        statement
        for statement in imports
        if start <= src.start(statement) < end and src.function_of(statement) is not None
        and (name is None or name in _named(statement))
    ]  # fmt: skip
    if not inside:
        raise RefactorError(f"there is no import {f'of {name} ' if name else ''}inside a function here")
    if len({ast.unparse(statement) for statement in inside}) > 1 and name is not None:
        raise RefactorError(f"{name} is imported in more than one way here")
    edits = []
    for statement in inside:
        _may_move(src, statement)
        last = src.whole_lines(statement)[1]
        # Empty lines after the import go with it.
        while src.text[last : last + 1] == "\n":
            last += 1
        edits.append(Edit(src.whole_lines(statement)[0], last, ""))
    text = apply_edits(src.text, edits)
    for line in dict.fromkeys(ast.unparse(statement) for statement in inside):
        if line not in {ast.unparse(top) for top in top_imports(src)}:
            text = add_import(Source(text), tuple(line.split()))
    return text


def _named(statement: Import) -> set[str]:
    names = {alias.asname or alias.name for alias in statement.names} | {alias.name for alias in statement.names}
    return {*names, module_of(statement)}


def _may_move(src: Source, statement: Import) -> None:
    bound = {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    module = module_of(statement)
    known = {module_of(top).split(".")[0] for top in top_imports(src)}
    if module.startswith(".") or module.split(".")[0] not in {*sys.stdlib_module_names, *known}:
        raise RefactorError(f"{module} may import this file: at the top that could be an import cycle")
    if len(src.block_of(statement)) == 1 or not src.alone_on_lines(statement) or src.has_comment(statement):
        raise RefactorError(
            f"the import on line {statement.lineno} is alone in its block, shares its line or has a comment"
        )
    if any(isinstance(above, (ast.Try, ast.If)) for above in src.ancestors(statement)):
        raise RefactorError(f"the import on line {statement.lineno} is conditional")
    for top in src.tree.body:
        taken = {node.id for node in ast.walk(top) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        named = getattr(top, "name", "")
        if (isinstance(top, (ast.Assign, ast.AnnAssign, ast.For)) and taken & bound) or named in bound:
            raise RefactorError(f"{sorted(bound)[0]} means something else at the top of this file")
