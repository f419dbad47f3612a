"""Find import cycles: modules that need each other before either of them is initialised."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fulgur.edit.project.import_time import at_import
from fulgur.edit.project.modules import Project
from fulgur.edit.refactor.source import Unusable, parse


def cycle(project: Project, texts: Mapping[Path, str]) -> list[Path]:
    """A cycle through an import that these new texts add; empty when there is none.

    Imports inside functions, for type checkers, or below `if __name__ == "__main__"` do not count: they do not run when
    the module is imported."""
    known: dict[Path, set[Path]] = {}

    def imported(path: Path) -> set[Path]:
        if path not in known:
            module = project.module(path) if path not in texts else None
            text = texts.get(path, module.text if module is not None else "")
            known[path] = imports_at_start(project, path, text, texts)
        return known[path]

    for path, text in texts.items():
        module = project.module(path)
        before = imports_at_start(project, path, module.text, texts) if module is not None else set()
        for fresh in sorted(imports_at_start(project, path, text, texts) - before):
            if way := _way(fresh, path, imported):
                return [path, *way]
    return []


def _way(start: Path, goal: Path, imported: Callable[[Path], set[Path]]) -> list[Path]:
    """A shortest path of files from `start` to `goal` along imports; empty when there is none."""
    came: dict[Path, Path | None] = {start: None}
    waiting = [start]
    while waiting:
        here = waiting.pop(0)
        if here == goal:
            way: list[Path] = []
            step: Path | None = here
            while step is not None:
                way.insert(0, step)
                step = came[step]
            return way
        for there in sorted(imported(here)):
            if there not in came:
                came[there] = here
                waiting.append(there)
    return []


def imports_at_start(project: Project, path: Path, text: str, extra: Iterable[Path] = ()) -> set[Path]:
    """The project's files that a module imports at import time. `extra` are files that do not exist yet."""
    try:
        tree = parse(text)
    except Unusable:
        return set()
    found: set[Path] = set()
    fresh = {one.with_suffix(""): one for one in extra}
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If):
            runs = at_import(node.test)
            stack += [*(node.body if runs is not False else ()), *(node.orelse if runs is not True else ())]
            continue
        if isinstance(node, ast.Import):
            names = [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [(node.level, f"{base}.{alias.name}" if base else alias.name) for alias in node.names]
        else:
            stack += ast.iter_child_nodes(node)
            continue
        for level, name in names:
            places = [_place(project, path, level, name, fresh)]
            if places == [None] and isinstance(node, ast.ImportFrom):  # a name in the module, not a submodule
                places = [_place(project, path, level, node.module or "", fresh)]
            found |= {place for place in places if place is not None and place != path}
    return found


def _place(project: Project, path: Path, level: int, name: str, fresh: Mapping[Path, Path]) -> Path | None:
    return project.imported(path, level, name or None) or _made(project, path, level, name, fresh)


def _made(project: Project, path: Path, level: int, name: str, fresh: Mapping[Path, Path]) -> Path | None:
    folders = [path.parents[level - 1]] if level else [*project.roots, path.parent]
    for folder in folders:
        if name and (place := folder.joinpath(*name.split("."))) in fresh:
            return fresh[place]
    return None
