"""Add, remove and sort the imports at the top of a file, and extract constants below them."""

from __future__ import annotations

import ast
import re
import sys

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.rename import check_name
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Source, apply_edits

Import = ast.Import | ast.ImportFrom


def top_imports(src: Source) -> list[Import]:
    return [s for s in src.tree.body if isinstance(s, (ast.Import, ast.ImportFrom)) and src.alone_on_lines(s)]


def module_of(statement: Import) -> str:
    if isinstance(statement, ast.Import):
        return statement.names[0].name
    return "." * statement.level + (statement.module or "")


def sort_key(statement: Import) -> tuple[bool, str]:
    return isinstance(statement, ast.ImportFrom), module_of(statement).lower()


def group(statement: Import) -> int:
    """0 __future__, 1 standard library, 2 other packages, 3 relative."""
    module = module_of(statement)
    if module == "__future__":
        return 0
    if module.startswith("."):
        return 3
    return 1 if module.split(".")[0] in sys.stdlib_module_names else 2


def after_docstring(src: Source) -> int:
    """The offset for the first import: after the docstring, or after comments at the top."""
    doc = src.docstring(src.tree)
    if doc is not None:
        return src.line_end(doc.end_lineno or 0)
    line = 1
    while line < len(src.lines) and src.lines[line - 1].startswith("#"):
        line += 1
    return src.line_start(line)


def add_import(src: Source, words: tuple[str, ...]) -> str:
    """Add one import line at its sorted position; RefactorError when the file has it already."""
    line = " ".join(words)
    try:
        parsed = ast.parse(line).body
    except SyntaxError:
        parsed = []
    if len(parsed) != 1 or not isinstance(parsed[0], (ast.Import, ast.ImportFrom)):
        raise RefactorError(f"{line!r} is not an import")
    statement = parsed[0]
    imports = top_imports(src)
    for other in imports:
        same = type(other) is type(statement) and module_of(other) == module_of(statement)
        if same and {ast.dump(a) for a in statement.names} <= {ast.dump(a) for a in other.names}:
            raise RefactorError(f"{line!r} is already there (line {other.lineno})")
    mine = [other for other in imports if group(other) == group(statement)]
    before = [other for other in mine if sort_key(other) <= sort_key(statement)]
    if before:
        at = src.whole_lines(before[-1])[1]
        text = line + "\n"
    elif mine:
        at, text = src.whole_lines(mine[0])[0], line + "\n"
    elif earlier := [other for other in imports if group(other) < group(statement)]:
        at, text = src.whole_lines(earlier[-1])[1], f"\n{line}\n"
    elif imports:
        at, text = src.whole_lines(imports[0])[0], f"{line}\n\n"
    else:
        at = after_docstring(src)
        text = f"\n{line}\n" if at and src.docstring(src.tree) else f"{line}\n"
        text += "" if src.text[at:].startswith("\n") or not src.text[at:] else "\n"
    return apply_edits(src.text, [Edit(at, at, text)])


def alias_removal(src: Source, statement: Import, unwanted: set[str]) -> Edit | None:
    """Remove names from an import, or the whole line when none remains; None when nothing changes."""
    keep = [a for a in statement.names if (a.asname or a.name).split(".")[0] not in unwanted]
    if len(keep) == len(statement.names):
        return None
    if not keep:
        return Edit(*src.whole_lines(statement), "")
    if not src.one_line(statement):
        return _without_lines(src, statement, [alias for alias in statement.names if alias not in keep])
    if src.has_comment(statement):
        raise RefactorError(f"the import on line {statement.lineno} has a comment", hint="Remove the name by hand.")
    head = src.text[src.start(statement) : src.start(statement.names[0])]
    close = ")" if head.rstrip().endswith("(") else ""
    return Edit(*src.span(statement), head + ", ".join(src.segment(alias) for alias in keep) + close)


def _without_lines(src: Source, statement: Import, unwanted: list[ast.alias]) -> Edit:
    """Remove names from an import that spans several lines; each must be alone on its line."""
    first, last = src.whole_lines(statement)
    lines = src.text[first:last].splitlines(keepends=True)
    for alias in unwanted:
        if src.lines[alias.lineno - 1].strip().rstrip(",") != src.segment(alias):
            raise RefactorError(f"line {alias.lineno} contains more than {alias.name}", hint="Remove the name by hand.")
        lines[alias.lineno - statement.lineno] = ""
    return Edit(first, last, "".join(lines))


def remove_import(src: Source, name: str) -> str:
    """Remove the import that binds a name."""
    for statement in top_imports(src):
        edit = alias_removal(src, statement, {name})
        if edit is not None:
            used = [node.lineno for node in src.all(ast.Name) if node.id == name]
            if used:
                raise RefactorError(f"{name} is used on line {min(used)}", hint="Change that place first.")
            return apply_edits(src.text, [edit])
    raise RefactorError(f"{name} is not imported at the top of this file")


def remove_unused_imports(src: Source) -> str:
    """Remove imports whose names appear nowhere else in the file: not in code, strings or `__all__`."""
    imports = top_imports(src)
    spans = [src.span(statement) for statement in imports]
    rest = apply_edits(src.text, [Edit(start, end, "") for start, end in spans])
    edits = []
    for statement in imports:
        line = src.text[slice(*src.whole_lines(statement))]
        if group(statement) == 0 or "noqa" in line or any(a.name == "*" for a in statement.names):
            continue
        bound = {(a.asname or a.name).split(".")[0] for a in statement.names}
        unused = {name for name in bound if not re.search(rf"\b{re.escape(name)}\b", rest)}
        if unused and (edit := alias_removal(src, statement, unused)):
            edits.append(edit)
    if not edits:
        raise RefactorError("every import is used")
    return apply_edits(src.text, edits)


def sort_imports(src: Source) -> str:
    """Sort each run of one-line imports: `import` before `from`, then by module."""
    runs: list[list[Import]] = [[]]
    for statement in top_imports(src):
        last = runs[-1][-1] if runs[-1] else None
        if last is not None and ((last.end_lineno or 0) + 1 != statement.lineno or not src.one_line(statement)):
            runs.append([])
        if src.one_line(statement):
            runs[-1].append(statement)
    edits = []
    for run in runs:
        ordered = sorted(run, key=sort_key)
        if ordered != run:
            lines = [src.text[slice(*src.whole_lines(s))] for s in ordered]
            joined = "\n".join(line.rstrip("\n") for line in lines)
            end = src.whole_lines(run[-1])[1]
            final = "\n" if src.text[end - 1] == "\n" else ""
            edits.append(Edit(src.whole_lines(run[0])[0], end, joined + final))
    if not edits:
        raise RefactorError("the imports are already sorted")
    return apply_edits(src.text, edits)


def split_imports(src: Source) -> str:
    """Split `import a, b` into one line per module."""
    edits = []
    for node in src.of(ast.Import):
        if len(node.names) > 1 and src.alone_on_lines(node) and not src.has_comment(node):
            lead, (start, end) = src.indent(node), src.span(node)
            names = [f"{name.name} as {name.asname}" if name.asname else name.name for name in node.names]
            edits.append(Edit(start, end, f"\n{lead}".join(f"import {name}" for name in names)))
    if not edits:
        raise RefactorError("there is no line that imports several modules, or it has a comment")
    return apply_edits(src.text, edits)


def extract_constant(src: Source, value: str, name: str, at: tuple[int, int] | None) -> str:
    """Name a literal: a constant below the imports, used wherever the literal appears in the span (or the file)."""
    check_name(name)
    if re.search(rf"\b{re.escape(name)}\b", src.text):
        raise RefactorError(f"{name} is already used in this file")
    if value.isidentifier():
        return _variable_to_constant(src, value, name, at)
    try:
        ast.literal_eval(value)
        wanted = ast.parse(value.strip(), mode="eval").body
    except (ValueError, SyntaxError):
        raise RefactorError(f"{value} is not a literal") from None
    start, end = at or (0, len(src.text))
    edits = []
    for node in src.of(type(wanted)):
        statement = src.parents.get(node)
        same = ast.dump(node) == ast.dump(wanted)
        if same and start <= src.start(node) < end and not isinstance(statement, ast.Expr):
            edits.append(Edit(*src.span(node), name))
    if not edits:
        raise RefactorError(f"{value} was not found here")
    return apply_edits(src.text, [*edits, _below_imports(src, f"{name} = {value}")])


def _below_imports(src: Source, statement: str) -> Edit:
    imports = top_imports(src)
    head = src.whole_lines(imports[-1])[1] if imports else after_docstring(src)
    return Edit(head, head, f"\n{statement}\n" if imports or src.docstring(src.tree) else f"{statement}\n\n")


def _variable_to_constant(src: Source, old: str, name: str, at: tuple[int, int] | None) -> str:
    """Turn a local variable that is set once, to a literal that is never mutated, into a constant below the imports."""
    start, end = at or (0, len(src.text))
    found = [
        node
        for node in src.of(ast.Assign)
        if start <= src.start(node) < end and len(node.targets) == 1 and src.segment(node.targets[0]) == old
    ]
    function = src.function_of(found[0]) if len(found) == 1 else None
    if function is None:
        raise RefactorError(f"there is no variable {old} that is set once here")
    statement = found[0]
    try:
        value = ast.literal_eval(statement.value)
    except ValueError:
        raise RefactorError(f"the value of {old} is not a literal") from None
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == old]
    reading = [node for node in uses if isinstance(node.ctx, ast.Load)]
    inner = any(function is not f and old in {n.id for n in ast.walk(f) if isinstance(n, ast.Name)}
                for f in ast.walk(function) if isinstance(f, FUNCTIONS))  # fmt: skip
    shared = isinstance(value, (list, dict, set)) and not all(_only_read(src, node) for node in reading)
    if len(uses) != len(reading) + 1 or inner or shared or not src.alone_on_lines(statement):
        raise RefactorError(f"{old} may change, so it cannot be a constant")
    margin = src.text[src.line_start(statement.lineno) : src.start(statement)]
    value_text = src.text[src.end(statement.targets[0]) : src.end(statement)].lstrip().removeprefix("=").lstrip()
    text = value_text.replace(f"\n{margin}", "\n")
    edits = [Edit(*src.whole_lines(statement), ""), *(Edit(*src.span(node), name) for node in reading)]
    return apply_edits(src.text, [*edits, _below_imports(src, f"{name} = {text}")])


def _only_read(src: Source, node: ast.AST) -> bool:
    """Whether this use of a list or dictionary cannot mutate it: a lookup, a test or an iteration."""
    parent = src.parents.get(node)
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Load) and parent.value is node
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("get", "items", "keys", "values", "index", "count")
    return isinstance(parent, (ast.Compare, ast.For, ast.comprehension))
