"""Rename a method or attribute of a class, in the whole project, as far as the class of an object can be read off.

Followed exactly: subclasses in any file, `self`, `cls` and `super()` in them, `Class.member`, and objects whose class
is written beside them: parameters and variables annotated with it, variables assigned from a call of it. Where nothing
else in the project has a member of this name, nor what it imports, `.member` of any object is taken for it too.
Otherwise it is listed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from fulgur.edit.project.modules import Module, Project, Reach
from fulgur.edit.project.outside import defined_outside, outer_base
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed, Place
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.rename import attribute_edit, check_name, member_classes, member_edits, members
from fulgur.edit.refactor.source import Edit, apply_edits, parse
from fulgur.edit.refactor.verify import METHODS


class _Family:
    """A class and its subclasses: definitions by file, and the expressions of a file that mean one of them."""

    def __init__(self, project: Project, path: Path, classes: list[ast.ClassDef]) -> None:
        self.definitions: dict[Path, list[ast.ClassDef]] = {path: list(classes)}
        self._references: list[References] = []
        waiting = [(path, node.name) for node in classes]
        while waiting:
            references = References(project, *waiting.pop())
            self._references.append(references)
            for module in references.modules:
                meant = {id(node) for node in references.nodes(module)}
                known = self.definitions.setdefault(module.path, [])
                for node in module.source.of(ast.ClassDef):
                    if node not in known and any(id(base) in meant for base in node.bases):
                        known.append(node)
                        waiting.append((module.path, node.name))

    def meaning(self, module: Module) -> set[int]:
        """The ids of the expressions in this module that mean a class of the family."""
        return {id(node) for references in self._references for node in references.nodes(module)}


def rename_member_everywhere(
    root: Path, path: Path, owner: str | None, old: str, new: str, at: tuple[int, int] | None
) -> Changed:
    """RefactorError when the new name is taken in one of the classes, or when several classes could be meant."""
    check_name(new)
    project, path = Project(root), path.resolve()
    home = project.module(path)
    if home is None or not home.usable:
        raise RefactorError(f"{path.name} cannot be read as Python")
    family = _Family(project, path, member_classes(home.source, old, owner, at))
    for file, classes in family.definitions.items():
        for node in classes:
            if new in members(node):
                raise RefactorError(f"{new} already exists in {node.name}")
            module = project.module(file)
            base = outer_base(project, module, node) if module is not None and old in members(node) else None
            if module is not None and base is not None and defined_outside(project, module, old):
                raise RefactorError(f"{node.name}.{old} may override the one of {base}, which is not of this project")
    result = Changed()
    alone = only_one(project, old, family.definitions)
    for module in project.mentioning(old):
        edits = member_edits(module.source, family.definitions.get(module.path, []), old, new)
        edits |= _on_objects(module, family.meaning(module), old, new)
        if alone:
            edits |= {attribute_edit(module.source, node, new) for node in on_any_object(project, module, old)}
        if edits:
            after = apply_edits(module.text, edits)
            parse(after)
            result.files[module.path] = (module.text, after)
        taken = {edit.end for edit in edits}
        result.unsure += [
            Place(module.path, node.lineno, "attribute", module.source.lines[node.lineno - 1].strip())
            for node in module.source.of(ast.Attribute)
            if node.attr == old and module.source.end(node) not in taken
        ]
    result.unsure.sort()
    return result


def only_one(project: Project, name: str, definitions: Mapping[Path, list[ast.ClassDef]]) -> bool:
    """Whether no other class of the project has a member of this name, no built-in one, and none that is imported where
    the name is used on an object."""
    if name in METHODS or (name.startswith("__") and name.endswith("__")):
        return False
    for module in project.mentioning(name):
        mine = definitions.get(module.path, [])
        if any(name in members(node) for node in module.source.of(ast.ClassDef) if node not in mine):
            return False
        if any(node.attr == name for node in module.source.of(ast.Attribute)) and defined_outside(
            project, module, name
        ):
            return False
    return True


def on_any_object(project: Project, module: Module, name: str) -> list[ast.Attribute]:
    """`x.name`, unless x is a module."""
    reach = Reach(project, module)
    found = [node for node in module.source.of(ast.Attribute) if node.attr == name]
    imported = {use.name for use in module.names.uses if use.kind == "import"}
    return [
        node
        for node in found
        if reach.file(node.value, module.scope_of(node)) is None
        and not (isinstance(node.value, ast.Name) and node.value.id in imported)
    ]


def _on_objects(module: Module, classes: set[int], old: str, new: str) -> set[Edit]:
    """`Class.old`, and `x.old` where the file says that x is an object of the class."""
    typed = _typed(module, classes)
    edits = set()
    for node in module.source.of(ast.Attribute):
        if node.attr != old:
            continue
        value = node.value
        made = isinstance(value, ast.Call) and id(value.func) in classes  # Class().old
        known = isinstance(value, ast.Name) and (_binder(module, value), value.id) in typed
        if id(value) in classes or made or known:
            edits.add(attribute_edit(module.source, node, new))
    return edits


def _typed(module: Module, classes: set[int]) -> set[tuple[object, str]]:
    """Variables, by scope and name, that are objects of the class wherever they are read."""
    good: set[tuple[object, str]] = set()
    stores: dict[tuple[object, str], int] = {}
    for name in module.source.of(ast.Name):
        if not isinstance(name.ctx, ast.Load):
            key = (_binder(module, name), name.id)
            stores[key] = stores.get(key, 0) + 1
    for function in module.source.functions():
        scope = module.names.scopes[function]
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        good |= {(scope, argument.arg) for argument in arguments if id(argument.annotation) in classes} - stores.keys()
    made = {id(call) for call in module.source.of(ast.Call) if id(call.func) in classes}
    targets = [(s.targets[0], id(s.value) in made) for s in module.source.of(ast.Assign)]
    targets += [(s.target, id(s.annotation) in classes) for s in module.source.of(ast.AnnAssign)]
    for target, meant in targets:
        if meant and isinstance(target, ast.Name) and stores[key := (_binder(module, target), target.id)] == 1:
            good.add(key)
    return good


def _binder(module: Module, name: ast.Name) -> object:
    return module.scope_of(name).resolve(name.id)
