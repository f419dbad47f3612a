"""Apply the consequences of an edit of one file to the rest of the project."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

from fulgur.edit.project.coroutine import make_async_everywhere
from fulgur.edit.project.inline import inline_everywhere
from fulgur.edit.project.members import rename_member_everywhere
from fulgur.edit.project.modules import Project
from fulgur.edit.project.move import move_everywhere
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed, rename_everywhere
from fulgur.edit.project.signature import SIGNATURE_CALLS, change_signature
from fulgur.edit.refactor import RefactorError, rename_means
from fulgur.edit.refactor.rename import members
from fulgur.edit.refactor.scopes import Names
from fulgur.edit.refactor.source import Source, Unusable
from fulgur.text.edit_format import Call

_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg", ".fulgur", ".hg")


def project_root(path: Path) -> Path:
    """The folder whose files may import this one: the nearest parent with a project marker, else the folder that
    contains the outermost package."""
    folder = path.resolve().parent
    for above in (folder, *folder.parents):
        if any((above / mark).exists() for mark in _MARKS) and above != Path.home():
            return above
    while (folder / "__init__.py").exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def followed(
    root: Path,
    path: Path,
    before: str,
    after: str,
    call: Call,
    at: tuple[int, int],
    texts: Mapping[Path, str] | None = None,
) -> Changed | None:
    """The changes in all files that a refactoring of this one requires; None when it stays within the file.

    `texts`: files that an earlier step changed and that are not written yet."""
    if call.name == "make_static":
        _refuse_unbound(root, before, at)
        return None
    if call.name == "add_decorator" and call.args[-1] == "property":
        _refuse_called(root, before, at)
        return None
    if call.name in SIGNATURE_CALLS:
        return change_signature(root, path, call, at, texts)
    if texts and call.name in ("make_async", "inline_function", "move_symbol"):
        raise RefactorError("request these edits separately")
    if call.name == "make_async":
        return make_async_everywhere(root, path, call.args[0].lstrip("@") if call.args else None, at)
    if call.name == "inline_function":
        return inline_everywhere(root, path, call.args[0])
    if call.name == "move_symbol":
        return move_everywhere(root, path, *call.args)
    if call.name != "rename" or len(call.args) != 2:
        return None
    old, new = call.args
    source = Source(before)
    owner, function = rename_means(source, old, at)
    if texts and (owner is not None or old in module_names(before) or old.rpartition(".")[0]):
        raise RefactorError("request these edits separately")
    if owner is not None and function is not None:
        return _rename_both(root, path, owner, old, new)
    if owner is not None:
        return rename_member_everywhere(root, path, owner.name, old, new, at)
    if function is not None:
        call = Call("rename_parameter", (function.name, old, new))
        return change_signature(root, path, call, source.whole_lines(function), texts)
    if old in module_names(before) - module_names(after):
        return rename_everywhere(root, path, old, new)
    cls, _, member = old.rpartition(".")
    gone = class_members(before) - class_members(after)
    if any(name == member for _, name in gone):  # not a local variable of the same name
        if texts:
            raise RefactorError("request these edits separately")
        return rename_member_everywhere(root, path, cls or None, member, new, at)
    return None


def _rename_both(root: Path, path: Path, owner: ast.ClassDef, old: str, new: str) -> Changed:
    """Rename an attribute of a class together with the parameter of its constructor."""
    result = rename_member_everywhere(root, path, owner.name, old, new, None)
    texts = {file: after for file, (_, after) in result.files.items()}
    call = Call("rename_parameter", (f"{owner.name}.__init__", old, new))
    for file, (before, after) in change_signature(root, path, call, None, texts).files.items():
        result.files[file] = (result.files[file][0] if file in result.files else before, after)
    return result


def _refuse_called(root: Path, before: str, at: tuple[int, int]) -> None:
    """Refuse to make a method a property while code still calls it."""
    head = re.search(r"\bdef (\w+)", before[at[0] : at[1]])
    project = Project(root)
    for module in project.mentioning(head[1]) if head else ():
        for node in module.source.all(ast.Call):
            if head and isinstance(node.func, ast.Attribute) and node.func.attr == head[1]:
                shown = module.path.relative_to(project.workspace)
                raise RefactorError(f"{shown}:{node.lineno} calls {head[1]}(), and would call the property's value")


def _refuse_unbound(root: Path, before: str, at: tuple[int, int]) -> None:
    """Refuse to make a method static while code passes it an object explicitly: `Class.method(thing)`."""
    head = re.search(r"\bdef (\w+)", before[at[0] : at[1]])
    project = Project(root)
    for module in project.mentioning(head[1]) if head else ():
        for node in module.source.all(ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if head and node.attr == head[1] and owner[:1].isupper():
                shown = module.path.relative_to(project.workspace)
                raise RefactorError(
                    f"{shown}:{node.lineno} uses {head[1]} through the class, and may pass it an object"
                )


def orphans(root: Path, path: Path, before: str, after: str) -> list[str]:
    """Messages on uses in other files of names that this edit removes."""
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
                found += [f"{shown}:{line} uses {name} from this file" for line in sorted(lines)]
    return found


def module_names(text: str) -> set[str]:
    """The names that a module binds at its top level; none for text that is not Python."""
    try:
        return set(Names(Source(text)).module.bound)
    except Unusable:
        return set()


def class_members(text: str) -> set[tuple[str, str]]:
    """(class, name) of everything that the classes of a module define or set on self."""
    try:
        return {(node.name, name) for node in Source(text).of(ast.ClassDef) for name in members(node)}
    except Unusable:
        return set()
