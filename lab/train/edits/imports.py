"""Operations on imports. Inside the import block they are rewrites; from anywhere else in the file they are calls."""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator

from fulgur.edit.refactor.source import Edit, Source
from fulgur.text.edit_format import Call
from lab.train.edits.example import Change, operation, shuffled
from lab.train.edits.values import WORDS

MODULES = WORDS["unused_modules"]
NAMES = [word.rsplit(".", 1) for word in WORDS["unused_names"]]
UNUSED = [f"import {module}" for module in MODULES] + [f"from {module} import {name}" for module, name in NAMES]

Import = ast.Import | ast.ImportFrom


def top_imports(src: Source) -> list[Import]:
    """The one-line imports at the top of the file, in order."""
    found = [s for s in src.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    return [s for s in found if src.one_line(s) and src.alone_on_lines(s)]


def bound(statement: Import) -> list[str]:
    return [(alias.asname or alias.name).split(".")[0] for alias in statement.names]


def imported_line(text: str) -> str:
    """The name that an import line binds."""
    return re.split(r"[ .]", text)[-1]


@operation("inverse", limit=4)
def add_import(src: Source, rng: random.Random) -> Iterator[Change]:
    used = {node.id: node for node in src.of(ast.Name) if isinstance(node.ctx, ast.Load)}
    for statement in shuffled(top_imports(src), rng):
        module = statement.module if isinstance(statement, ast.ImportFrom) else statement.names[0].name
        if len(statement.names) != 1 or statement.names[0].asname or not module or src.trailing_comment(statement):
            continue
        if (isinstance(statement, ast.ImportFrom) and statement.level) or module == "__future__":
            continue
        name, line = statement.names[0].name, src.segment(statement)
        use = used.get(name)
        if use is None or name == "*" or "." in name:
            continue
        slots = {"name": name, "line": line}
        variant = "import"
        if isinstance(statement, ast.ImportFrom):
            slots["module"] = module
            variant = "from"
        removal = Edit(*src.whole_lines(statement), "")
        if rng.random() < 0.25:
            yield Change([removal], slots, inverse=True, variant=variant)
            continue
        function = src.function_of(use)
        cover = src.span(use)
        if function is None:
            continue
        if module.split(".")[0] in sys.stdlib_module_names and rng.random() < 0.4:
            slots.pop("module", None)
            slots.pop("line", None)
            variant = "missing"
        call = Call("add_import", tuple(line.split()))
        yield Change([removal], slots, inverse=True, variant=variant, call=call, cover=cover, noop=False)


@operation("inverse", limit=4)
def remove_import(src: Source, rng: random.Random) -> Iterator[Change]:
    imports = top_imports(src)
    if not imports:
        return
    names = {node.id for node in src.of(ast.Name)} | {name for statement in imports for name in bound(statement)}
    text = rng.choice(UNUSED)
    name = imported_line(text)
    if name in names or re.search(rf"\b{name}\b", src.text):
        return
    same = [s for s in imports if isinstance(s, ast.Import) == text.startswith("import")]
    statement = rng.choice(same or imports)
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return
    at = src.whole_lines(statement)[1]
    insertion = Edit(at, at, f"{text}\n")
    slots = {"name": name, "line": text}
    yield Change([insertion], slots, inverse=True)
    functions = [f for f in src.functions() if (f.end_lineno or 0) - f.lineno < 50]
    if functions:
        cover = src.whole_lines(rng.choice(functions))
        if rng.random() < 0.5:
            call = Call("remove_import", (name,))
            yield Change([insertion], slots, inverse=True, call=call, cover=cover, noop=False)
        else:
            call = Call("remove_unused_imports")
            yield Change([], {}, variant="unused", call=call, cover=cover, noop=False)


def import_key(src: Source, statement: Import) -> tuple[bool, str]:
    module = (
        statement.names[0].name
        if isinstance(statement, ast.Import)
        else "." * statement.level + (statement.module or "")
    )
    return isinstance(statement, ast.ImportFrom), module.lower()


@operation("inverse")
def sort_imports(src: Source, rng: random.Random) -> Iterator[Change]:
    runs: list[list[Import]] = [[]]
    for statement in top_imports(src):
        last = runs[-1][-1] if runs[-1] else None
        if last is not None and (last.end_lineno or 0) + 1 != statement.lineno:
            runs.append([])
        runs[-1].append(statement)
    groups = [run for run in runs if 3 <= len(run) <= 25]
    groups = [g for g in groups if len({import_key(src, s) for s in g}) == len(g)]
    sorted_groups = [g for g in groups if [import_key(src, s) for s in g] == sorted(import_key(src, s) for s in g)]
    if sorted_groups and len(sorted_groups) == len([run for run in runs if len(run) > 1]):
        group = rng.choice(sorted_groups)
        lines = [src.text[slice(*src.whole_lines(s))] for s in group]
        mixed = shuffled(lines, rng)
        if mixed != lines and all(line.endswith("\n") for line in lines):
            start, end = src.whole_lines(group[0])[0], src.whole_lines(group[-1])[1]
            yield Change([Edit(start, end, "".join(mixed))], inverse=True)
    functions = [f for f in src.functions() if (f.end_lineno or 0) - f.lineno < 50]
    if functions and rng.random() < 0.25:
        cover = src.whole_lines(rng.choice(functions))
        yield Change([], {}, call=Call("sort_imports"), cover=cover, noop=False)
