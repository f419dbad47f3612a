"""What an edit of one file means for the rest of the project."""

from __future__ import annotations

import ast
from pathlib import Path

from fulgur.edit.project.members import rename_member_everywhere
from fulgur.edit.project.modules import Project
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed, rename_everywhere
from fulgur.edit.project.signature import SIGNATURE_CALLS, change_signature
from fulgur.edit.refactor.rename import members
from fulgur.edit.refactor.scopes import Names
from fulgur.edit.refactor.source import Source, Unusable
from fulgur.text.edit_format import Call

_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg", ".fulgur", ".hg")


def project_root(path: Path) -> Path:
    """The folder whose files may import this one: the nearest above with a sign of a project, else the one that holds
    the outermost package."""
    folder = path.resolve().parent
    for above in (folder, *folder.parents):
        if any((above / mark).exists() for mark in _MARKS) and above != Path.home():
            return above
    while (folder / "__init__.py").exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def followed(root: Path, path: Path, before: str, after: str, call: Call, at: tuple[int, int]) -> Changed | None:
    """The change of all files that a refactoring of this one asks for; None when it stays within the file."""
    if call.name in SIGNATURE_CALLS:
        return change_signature(root, path, call, at)
    if call.name != "rename" or len(call.args) != 2:
        return None
    old, new = call.args
    if old in module_names(before) - module_names(after):
        return rename_everywhere(root, path, old, new)
    owner, _, member = old.rpartition(".")
    if member in class_names(before) - class_names(after):  # and not a local of the same name
        return rename_member_everywhere(root, path, owner or None, member, new, at)
    return None


def orphans(root: Path, path: Path, before: str, after: str) -> list[str]:
    """Imports in other files of names that this edit takes away, in words."""
    gone = module_names(before) - module_names(after)
    if not gone:
        return []
    project, found = Project(root), []
    for name in sorted(gone):
        references = References(project, path.resolve(), name)
        for module in references.modules:
            if module.path != path.resolve():
                lines = {alias.lineno for _, alias in references.imports(module) if alias.name == name}
                lines |= {node.lineno for node in references.attributes(module)}
                shown = module.path.relative_to(project.workspace)
                found += [f"{shown}:{line} takes {name} from this file" for line in sorted(lines)]
    return found


def module_names(text: str) -> set[str]:
    """What a module binds at its top; nothing for text that is not Python."""
    try:
        return set(Names(Source(text)).module.bound)
    except Unusable:
        return set()


def class_names(text: str) -> set[str]:
    """What the classes of a module define or set on self."""
    try:
        return {name for node in Source(text).of(ast.ClassDef) for name in members(node)}
    except Unusable:
        return set()
