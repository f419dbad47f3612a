"""A class with its subclasses, and what in the files of a project is one of them or an object of one.

Read off exactly: `self`, `cls` and `super()` in the classes, `Class.member`, and objects whose class is written beside
them: parameters and variables annotated with it, variables assigned from a call of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from fulgur.edit.project.modules import Module, Project, Reach
from fulgur.edit.project.outside import defined_outside
from fulgur.edit.project.references import References
from fulgur.edit.refactor.rename import is_own, members
from fulgur.edit.refactor.source import FUNCTIONS, Function
from fulgur.edit.refactor.verify import METHODS


class Family:
    """Definitions by file, and the expressions of a file that mean one of the classes."""

    def __init__(self, project: Project, path: Path, classes: list[ast.ClassDef]) -> None:
        self.project = project
        self.definitions: dict[Path, list[ast.ClassDef]] = {path: list(classes)}
        self.references: list[tuple[ast.ClassDef, References]] = []
        waiting = [(path, node) for node in classes]
        while waiting:
            home, one = waiting.pop()
            references = References(project, home, one.name)
            self.references.append((one, references))
            for module in references.modules:
                meant = {id(node) for node in references.nodes(module)}
                known = self.definitions.setdefault(module.path, [])
                for node in module.source.of(ast.ClassDef):
                    if node not in known and any(id(base) in meant for base in node.bases):
                        known.append(node)
                        waiting.append((module.path, node))

    def meaning(self, module: Module) -> set[int]:
        """The ids of the expressions in this module that mean a class of the family."""
        return {id(node) for _, references in self.references for node in references.nodes(module)}

    def classes(self) -> Iterator[tuple[Module, ast.ClassDef]]:
        for path, classes in self.definitions.items():
            module = self.project.module(path)
            if module is not None:
                yield from ((module, node) for node in classes)

    def methods(self, name: str) -> Iterator[tuple[Module, ast.ClassDef, Function]]:
        """Every definition of a method in the family."""
        for module, owner in self.classes():
            yield from ((module, owner, n) for n in owner.body if isinstance(n, FUNCTIONS) and n.name == name)

    def own(self, module: Module, name: str) -> list[ast.Attribute]:
        """`self.name`, `cls.name` and `super().name` inside the classes."""
        found = []
        for node in module.source.all(ast.Attribute):
            if node.attr == name and is_own(node):
                around = [a for a in module.source.ancestors(node) if isinstance(a, ast.ClassDef)]
                if around and around[0] in self.definitions.get(module.path, []):
                    found.append(node)
        return found

    def on_objects(self, module: Module, name: str) -> list[ast.Attribute]:
        """`Class.name`, and `x.name` where the file says that x is an object of the class."""
        classes = self.meaning(module)
        typed = _typed(module, classes)
        found = []
        for node in module.source.all(ast.Attribute):
            if node.attr != name:
                continue
            value = node.value
            made = isinstance(value, ast.Call) and id(value.func) in classes  # Class().name
            known = isinstance(value, ast.Name) and (_binder(module, value), value.id) in typed
            if id(value) in classes or made or known:
                found.append(node)
        return found


def only_one(project: Project, name: str, definitions: Mapping[Path, list[ast.ClassDef]]) -> bool:
    """Whether no other class of the project has a member of this name, no built-in one, and none that is imported where
    the name is used on an object."""
    if name in METHODS or (name.startswith("__") and name.endswith("__")):
        return False
    for module in project.mentioning(name):
        mine = definitions.get(module.path, [])
        if any(name in members(node) for node in module.source.of(ast.ClassDef) if node not in mine):
            return False
        if any(node.attr == name for node in module.source.all(ast.Attribute)) and defined_outside(
            project, module, name
        ):
            return False
    return True


def on_any_object(project: Project, module: Module, name: str) -> list[ast.Attribute]:
    """`x.name`, unless x is a module."""
    reach = Reach(project, module)
    found = [node for node in module.source.all(ast.Attribute) if node.attr == name]
    imported = {use.name for use in module.names.uses if use.kind == "import"}
    return [
        node
        for node in found
        if reach.file(node.value, module.scope_of(node)) is None
        and not (isinstance(node.value, ast.Name) and node.value.id in imported)
    ]


def family_of_method(project: Project, path: Path, owner: ast.ClassDef, name: str) -> Family:
    """The classes around one that may have the same method: from the topmost base of the project that defines it."""
    family = Family(project, path, [owner])
    above = {last_name(base) for base in owner.bases} - {""}
    tried = {owner.name}
    while above - tried:
        wanted = (above - tried).pop()
        tried.add(wanted)
        for module in project.mentioning(f"class {wanted}"):
            for node in module.source.of(ast.ClassDef):
                if node.name != wanted or node is owner:
                    continue
                above |= {last_name(base) for base in node.bases} - {""}
                if any(isinstance(n, FUNCTIONS) and n.name == name for n in node.body):
                    wider = Family(project, module.path, [node])
                    family = wider if owner in wider.definitions.get(path, []) else family
    return family


def last_name(node: ast.expr) -> str:
    """The name of a class or function without its module; empty for anything else."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _typed(module: Module, classes: set[int]) -> set[tuple[object, str]]:
    """Variables, by scope and name, that are objects of the class wherever they are read."""
    good: set[tuple[object, str]] = set()
    stores: dict[tuple[object, str], int] = {}
    for name in module.source.all(ast.Name):
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
