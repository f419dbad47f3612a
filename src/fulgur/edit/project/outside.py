"""Find names defined by packages that a file imports from outside the project: the standard library and the project's
environment. Their sources are searched as text; none of their code is run."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from fulgur.edit.project.modules import Module, Project
from fulgur.edit.refactor.source import dotted

_EMPTY = frozenset({"ABC", "Generic", "Protocol", "object"})  # they have no members that a class could override
MOST_FILES = 400  # of one package; a larger one is assumed to define every name


def defined_outside(project: Project, module: Module, name: str) -> bool:
    """Whether an object from a package that this file imports may have a member of this name."""
    word = re.escape(name)
    defining = re.compile(
        rf"^[ \t]+(?:async[ \t]+)?def {word}\b|^[ \t]+{word}[ \t]*[:=]|\bself\.{word}\b", re.MULTILINE
    )
    for package in _imported(project, module):
        for number, path in enumerate(_sources(project.workspace, package)):
            if number == MOST_FILES or defining.search(path.read_text("utf-8", errors="replace")):
                return True
    return False


def outer_base(project: Project, module: Module, node: ast.ClassDef) -> str | None:
    """A base of the class that is imported from outside the project; None when there is none."""
    outside = set()
    for statement in module.source.of(ast.Import):
        for alias in statement.names:
            if project.imported(module.path, 0, alias.name) is None:
                outside.add(alias.asname or alias.name.split(".")[0])
    for origin in module.source.of(ast.ImportFrom):
        if project.imported(module.path, origin.level, origin.module) is None:
            outside |= {alias.asname or alias.name for alias in origin.names}
    for base in node.bases:
        if (dotted(base.value if isinstance(base, ast.Subscript) else base) or "").rpartition(".")[2] in _EMPTY:
            continue
        names = [part.id for part in ast.walk(base) if isinstance(part, ast.Name)]
        if names and names[0] in outside:
            return ast.unparse(base)
    return None


def _imported(project: Project, module: Module) -> set[str]:
    """The top-level packages that the file imports from outside the project."""
    names = {alias.name for node in module.source.of(ast.Import) for alias in node.names}
    names |= {node.module for node in module.source.of(ast.ImportFrom) if node.module and not node.level}
    return {name.split(".")[0] for name in names if project.imported(module.path, 0, name) is None}


def _sources(workspace: Path, package: str) -> Iterator[Path]:
    places = [
        folder for name in (".venv", "venv", "env") for folder in workspace.glob(f"{name}/lib/python*/site-packages")
    ]
    for place in (Path(sysconfig.get_path("stdlib")), *places):
        if (file := place / f"{package}.py").is_file():
            yield file
        if (folder := place / package).is_dir():
            yield from (path for path in sorted(folder.rglob("*.py")) if path.is_file())
