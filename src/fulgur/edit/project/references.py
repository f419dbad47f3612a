"""Find the uses of a module-level name in the project, from its definition through every import of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fulgur.edit.project.modules import Module, Project, Reach
from fulgur.edit.refactor.scopes import Scope, Use


class References:
    """The uses of one name.

    `homes`: the files whose module-level `name` is this one: the defining file, and those that import it under its own
    name. `stars`: those of them that get it from a star import."""

    def __init__(self, project: Project, path: Path, name: str) -> None:
        self.project, self.name = project, name
        self.modules = list(project.mentioning(name, "import *"))
        self.homes = {path}
        self.stars: set[Path] = set()
        self._reaches: dict[Path, Reach] = {}
        while self._spread():
            pass

    def imports(self, module: Module) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
        """`from HOME import …` in this module, with each of its names."""
        for node in module.source.of(ast.ImportFrom):
            if self.project.imported(module.path, node.level, node.module) in self.homes:
                yield from ((node, alias) for alias in node.names)

    def binders(self, module: Module) -> list[Scope]:
        """The scopes of this module that bind the name itself."""
        found = [module.names.module] if module.path in self.homes - self.stars else []
        for node, alias in self.imports(module):
            if alias.name == self.name and alias.asname is None and module.scope_of(node) not in found:
                found.append(module.scope_of(node))
        return found

    def unbound(self, module: Module) -> list[Use]:
        """Uses of the name that can only come from a star import."""
        if module.path not in self.stars:
            return []
        return [use for use in module.names.uses if use.name == self.name and use.scope.resolve(self.name) is None]

    def attributes(self, module: Module) -> list[ast.Attribute]:
        """`module.name`"""
        reach = self.reach(module)
        found = [node for node in module.source.all(ast.Attribute) if node.attr == self.name]
        return [node for node in found if reach.file(node.value, module.scope_of(node)) in self.homes]

    def reach(self, module: Module) -> Reach:
        if module.path not in self._reaches:
            self._reaches[module.path] = Reach(self.project, module)
        return self._reaches[module.path]

    def nodes(self, module: Module) -> list[ast.expr]:
        """Every expression of this module that refers to the name: `name`, an alias of it, or `module.name`."""
        source, names = module.source, module.names
        starts = {use.start for binder in self.binders(module) for use in names.of(self.name, binder)}
        starts |= {use.start for use in self.unbound(module)}
        for node, alias in self.imports(module):
            if alias.name == self.name and alias.asname:
                starts |= {use.start for use in names.of(alias.asname, module.scope_of(node))}
        plain = [node for node in source.all(ast.Name) if source.start(node) in starts]
        return [*plain, *self.attributes(module)]

    def calls(self, module: Module) -> tuple[list[ast.Call], list[int]]:
        """The calls of the name in this module, and the lines on which it is used without being called."""
        nodes = self.nodes(module)
        meant = {id(node) for node in nodes}
        calls = [call for call in module.source.all(ast.Call) if id(call.func) in meant]
        called = {id(call.func) for call in calls}
        return calls, sorted({node.lineno for node in nodes if id(node) not in called})

    def rivals(self, module: Module) -> list[int]:
        """Lines of an importer that define the name again, as in `if …: from a import f` / `else: def f(): …`."""
        source = module.source
        known = {source.start(alias) for _, alias in self.imports(module)}
        stores = {source.start(node) for node in source.all(ast.Name) if isinstance(node.ctx, ast.Store)}
        return sorted(
            use.line
            for binder in self.binders(module)
            for use in module.names.of(self.name, binder)
            if use.start not in known and (use.kind in ("definition", "from") or use.start in stores)
        )

    def _spread(self) -> bool:
        """Add the modules that import the name from a known one; returns whether there were new ones."""
        before = len(self.homes)
        for module in self.modules:
            for node, alias in list(self.imports(module)):
                if module.scope_of(node) is not module.names.module:
                    continue
                if alias.name == self.name and alias.asname in (None, self.name):
                    self.homes.add(module.path)
                if alias.name == "*" and self.name not in module.names.module.bound and self._offered(module, node):
                    self.homes.add(module.path)
                    self.stars.add(module.path)
        return len(self.homes) > before

    def _offered(self, importer: Module, node: ast.ImportFrom) -> bool:
        """Whether a star import includes the name: by `__all__`, else if it has no leading underscore."""
        origin = self.project.imported(importer.path, node.level, node.module)
        module = self.project.module(origin) if origin is not None else None
        exports = module.exports() if module is not None else None
        return self.name in exports if exports is not None else not self.name.startswith("_")
