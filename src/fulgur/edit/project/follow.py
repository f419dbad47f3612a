"""What an edit of one file means for the rest of the project."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from fulgur.edit.project.coroutine import make_async_everywhere
from fulgur.edit.project.inline import inline_everywhere
from fulgur.edit.project.members import rename_member_everywhere
from fulgur.edit.project.modules import Project
from fulgur.edit.project.move import move_everywhere
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed, rename_everywhere
from fulgur.edit.project.signature import SIGNATURE_CALLS, change_signature
from fulgur.edit.refactor import RefactorError, parameter_owner
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
    if call.name == "add_decorator" and call.args[-1] == "property":
        _refuse_called(root, before, at)
        return None
    if call.name in SIGNATURE_CALLS:
        return change_signature(root, path, call, at)
    if call.name == "make_async":
        return make_async_everywhere(root, path, call.args[0].lstrip("@") if call.args else None, at)
    if call.name == "inline_function":
        return inline_everywhere(root, path, call.args[0])
    if call.name == "move_symbol":
        return move_everywhere(root, path, *call.args)
    if call.name != "rename" or len(call.args) != 2:
        return None
    old, new = call.args
    function = parameter_owner(Source(before), old, at)
    if function is not None:
        return change_signature(root, path, Call("rename_parameter", (function.name, old, new)), at)
    if old in module_names(before) - module_names(after):
        return rename_everywhere(root, path, old, new)
    owner, _, member = old.rpartition(".")
    if member in class_names(before) - class_names(after):  # and not a local of the same name
        return rename_member_everywhere(root, path, owner or None, member, new, at)
    return None


def _refuse_called(root: Path, before: str, at: tuple[int, int]) -> None:
    """A method that becomes a property must not be called any more."""
    head = re.search(r"\bdef (\w+)", before[at[0] : at[1]])
    project = Project(root)
    for module in project.mentioning(head[1]) if head else ():
        for node in module.source.of(ast.Call):
            if head and isinstance(node.func, ast.Attribute) and node.func.attr == head[1]:
                shown = module.path.relative_to(project.workspace)
                raise RefactorError(f"{shown}:{node.lineno} calls {head[1]}, and would call its value")


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
