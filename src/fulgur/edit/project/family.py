"""A class with its subclasses, and the expressions in a project that mean one of them or an object of one.

Recognised exactly: `self`, `cls` and `super()` in the classes, `Class.member`, and objects whose class follows from the
project's code (`kinds.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from fulgur.edit.project.kinds import Kinds
from fulgur.edit.project.modules import Module, Project, Reach
from fulgur.edit.project.outside import defined_outside
from fulgur.edit.project.references import References
from fulgur.edit.refactor.rename import is_own, members
from fulgur.edit.refactor.source import FUNCTIONS, Function
from fulgur.edit.refactor.verify import METHODS


class Family:
    """Definitions by file, and the expressions of a file that mean one of the classes."""

    def __init__(self, project: Project, path: Path, classes: list[ast.ClassDef]) -> None:
        self.project, self.kinds = project, Kinds(project)
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
        """`Class.name`, and `x.name` where x is known to be an object of the class."""
        classes = self.meaning(module)
        found = [node for node in module.source.all(ast.Attribute) if node.attr == name]
        return [node for node in found if id(node.value) in classes or self._is_one(module, node.value)]

    def _is_one(self, module: Module, value: ast.expr) -> bool:
        kind = self.kinds.of(module, value)
        if kind is None or kind.path is None or kind.what not in ("object", "class"):
            return False
        return kind.node in self.definitions.get(kind.path, [])

    def is_another(self, module: Module, value: ast.expr, name: str) -> bool:
        """Whether an object is known to be of an unrelated class that may have its own member of this name."""
        kind = self.kinds.of(module, value)
        if kind is None or self._is_one(module, value):
            return False
        if kind.what == "other":
            return True
        return kind.what == "object" and isinstance(kind.node, ast.ClassDef) and name in members(kind.node)


def only_one(project: Project, name: str, definitions: Mapping[Path, list[ast.ClassDef]]) -> bool:
    """Whether no other class has a member of this name: not in the project, not a built-in one, and not an imported
    one in a file that uses the name on an object."""
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


def family_of_member(project: Project, path: Path, owner: ast.ClassDef, name: str) -> Family:
    """The classes that may have the same member: a base in the project that defines it, with all its subclasses."""
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
                if name in members(node):
                    wider = Family(project, module.path, [node])
                    family = wider if owner in wider.definitions.get(path, []) else family
    return family


def last_name(node: ast.expr) -> str:
    """The name of a class or function without its module; empty for anything else."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
