"""The Python files of a workspace as modules: which file an import means, and which names refer to modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from fulgur.edit.refactor.scopes import Names, Scope
from fulgur.edit.refactor.source import Source, Unusable, dotted
from fulgur.errors import FulgurError
from fulgur.workspace.ignore import walk
from fulgur.workspace.textfile import TextFile

MOST_BYTES = 2 << 20  # a larger file is data


class Module:
    """One file, parsed on first use."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    @cached_property
    def source(self) -> Source:
        return Source(self.text, str(self.path))

    @cached_property
    def names(self) -> Names:
        return Names(self.source)

    @cached_property
    def usable(self) -> bool:
        try:
            self.source  # noqa: B018 - parsed here, kept by the property
        except Unusable:
            return False
        return True

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope that contains a node."""
        for ancestor in self.source.ancestors(node):
            if ancestor in self.names.scopes:
                return self.names.scopes[ancestor]
        return self.names.module

    def exports(self) -> set[str] | None:
        """The names in `__all__`; None when the module has none."""
        found: set[str] | None = None
        for statement in all_statements(self.source):
            texts = {n.value for n in ast.walk(statement) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            found = (found or set()) | texts
        return found


class Project:
    """The modules of a workspace. Imports that lead outside it resolve to None.

    `texts` are the contents that files will have after a change that is not written yet.
    """

    def __init__(self, workspace: Path, texts: Mapping[Path, str] | None = None) -> None:
        self.workspace = workspace.resolve()
        self.paths = [Path(entry.path) for entry in walk(self.workspace) if entry.name.endswith((".py", ".pyi"))]
        self._known = set(self.paths)
        self._modules: dict[Path, Module | None] = {path: Module(path, text) for path, text in (texts or {}).items()}
        tops = {self._top(path) for path in self.paths if path.name == "__init__.py"}
        usual = [self.workspace, self.workspace / "src", self.workspace / "lib"]
        self.roots = list(dict.fromkeys([*sorted(tops, key=str), *(root for root in usual if root.is_dir())]))

    def module(self, path: Path) -> Module | None:
        """The module of a file; None for one that cannot be read as text."""
        if path not in self._modules:
            self._modules[path] = self._read(path)
        return self._modules[path]

    def mentioning(self, *words: str) -> Iterator[Module]:
        """The modules that parse and whose text contains one of these words."""
        for path in self.paths:
            module = self.module(path)
            if module is not None and any(word in module.text for word in words) and module.usable:
                yield module

    def imported(self, importer: Path, level: int, name: str | None) -> Path | None:
        """The file that `from <level dots><name> import …` in `importer` refers to; a package is its `__init__.py`."""
        if level:
            folder = importer.parent
            for _ in range(level - 1):
                folder = folder.parent
            return self._beneath(folder, name.split(".") if name else [])
        if not name:
            return None
        for root in (*self.roots, importer.parent):
            if (found := self._beneath(root, name.split("."))) is not None:
                return found
        return None

    def submodule(self, package: Path, name: str) -> Path | None:
        """The module `name` of a package given by its `__init__.py`."""
        return self._beneath(package.parent, [name]) if package.name == "__init__.py" else None

    def dotted_names(self, path: Path) -> set[str]:
        """The names by which a file is imported."""
        inner = path.parent if path.name == "__init__.py" else path.with_suffix("")
        return {".".join(inner.relative_to(root).parts) for root in self.roots if inner.is_relative_to(root)} - {""}

    def _beneath(self, folder: Path, parts: list[str]) -> Path | None:
        place = folder.joinpath(*parts)
        candidates = [place / "__init__.py", place / "__init__.pyi"]
        if parts:
            candidates += [place.with_suffix(".py"), place.with_suffix(".pyi")]
        return next((path for path in candidates if path in self._known), None)

    def _top(self, path: Path) -> Path:
        folder = path.parent
        while folder / "__init__.py" in self._known and folder != self.workspace:
            folder = folder.parent
        return folder

    @staticmethod
    def _read(path: Path) -> Module | None:
        try:
            if path.stat().st_size > MOST_BYTES:
                return None
            return Module(path, TextFile.decode(path.read_bytes(), str(path)).plain)
        except (OSError, FulgurError):
            return None


def all_statements(source: Source) -> list[ast.stmt]:
    """The statements of a module that set or extend `__all__`."""
    found: list[ast.stmt] = []
    for statement in ast.walk(source.tree):
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
            targets = [statement.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(statement, ast.stmt)
            found.append(statement)
    return found


class Reach:
    """Resolves expressions of one module that refer to modules: `package.module` → its file."""

    def __init__(self, project: Project, module: Module) -> None:
        self._project = project
        self._module = module
        self._bound: dict[tuple[Scope, str], set[Path]] = {}  # a name bound to a module
        self._chains: dict[tuple[Scope, str], set[Path]] = {}  # `a.b` after `import a.b`
        for node in ast.walk(module.source.tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)

    def file(self, node: ast.AST, scope: Scope) -> Path | None:
        """The module an expression names; None for anything else."""
        chain = dotted(node)
        if chain is None:
            return None
        first, *rest = chain.split(".")
        binder = scope.resolve(first)
        if binder is None:
            return None
        for length in range(len(rest), -1, -1):  # the longest imported chain wins
            known = self._chains.get((binder, ".".join([first, *rest[:length]])), set())
            if not length:
                known = known | self._bound.get((binder, first), set())
            if len(known) == 1:
                path: Path | None = next(iter(known))
                for part in rest[length:]:
                    path = self._project.submodule(path, part) if path is not None else None
                return path
        return None

    def _import(self, node: ast.Import) -> None:
        scope = self._module.scope_of(node)
        for alias in node.names:
            parts = alias.name.split(".")
            if alias.asname:
                path = self._project.imported(self._module.path, 0, alias.name)
                self._add(self._bound, scope, alias.asname, path)
                continue
            for length in range(1, len(parts) + 1):
                name = ".".join(parts[:length])
                self._add(self._chains, scope, name, self._project.imported(self._module.path, 0, name))

    def _import_from(self, node: ast.ImportFrom) -> None:
        scope = self._module.scope_of(node)
        package = self._project.imported(self._module.path, node.level, node.module)
        if package is not None:
            for alias in node.names:
                path = self._project.submodule(package, alias.name)
                self._add(self._bound, scope, alias.asname or alias.name, path)

    def _add(self, where: dict[tuple[Scope, str], set[Path]], scope: Scope, name: str, path: Path | None) -> None:
        if path is not None:
            binder = scope.module() if name.split(".")[0] in scope.globals else scope
            where.setdefault((binder, name), set()).add(path)
