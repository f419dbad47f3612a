"""Find the test files that cover a change: those that import a changed module, directly or through other modules.

Imports are matched as text, so files that do not parse count too. Importing `a.b` runs `a/__init__.py`, and every test
below a `conftest.py` runs that file. A module that a test names in a string (`"-m", "package"`, `patch("a.b.f")`)
counts as imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fulgur.edit.project.modules import Module, Project

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]+)|import[ \t]+([^\n#;]+))", re.MULTILINE
)
_QUOTED = re.compile(r"""["']([A-Za-z_][\w.]*)[\w.:]*["']""")
_PYTEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|tests?\.py")


def covering_tests(workspace: Path, changed: Sequence[str]) -> list[str]:
    """Test files, nearest to the change first: changed themselves, named after it, importing it, and so on."""
    workspace = workspace.resolve()
    start = {(workspace / name) for name in changed if name.endswith(".py")}
    if not start:
        return []
    graph = _Imports(Project(workspace))
    distance = graph.distances(start)
    stems = {path.stem for path in start}
    found = []
    for path in graph.tests:
        named = path.stem.removeprefix("test_").removesuffix("_test") in stems
        near = min(distance.get(path, len(distance) + 2), 1 if named and path not in start else len(distance) + 2)
        if path in distance or named:
            found.append((near, path.relative_to(workspace).as_posix()))
    return [name for _, name in sorted(found)]


class _Imports:
    """The reverse import graph: `importers[module]` are the files that import it."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.importers: dict[Path, set[Path]] = {}
        self.tests: list[Path] = []
        conftests = {path.parent: path for path in project.paths if path.name == "conftest.py"}
        for path in project.paths:
            module = project.module(path)
            if module is None:
                continue
            is_test = _PYTEST_FILE.fullmatch(path.name) is not None
            if is_test:
                self.tests.append(path)
                for folder in path.parents:
                    if folder in conftests:
                        self._add(path, conftests[folder])
            for imported in self._imported(module, strings=is_test or path.name == "conftest.py"):
                self._add(path, imported)

    def distances(self, start: set[Path]) -> dict[Path, int]:
        """The number of imports between each file and the nearest of the `start` files."""
        found = dict.fromkeys(start, 0)
        edge, steps = start, 0
        while edge:
            steps += 1
            edge = {importer for path in edge for importer in self.importers.get(path, ())} - found.keys()
            found |= dict.fromkeys(edge, steps)
        return found

    def _add(self, importer: Path, imported: Path) -> None:
        if importer != imported:
            self.importers.setdefault(imported, set()).add(importer)

    def _imported(self, module: Module, *, strings: bool) -> Iterator[Path]:
        for dots, name, names, modules in _IMPORT.findall(module.text):
            if modules:
                for dotted in modules.split(","):
                    yield from self._chain(module.path, 0, dotted.split(" as ")[0].strip())
                continue
            yield from self._chain(module.path, len(dots), name)
            for each in re.findall(r"\w+", names):
                yield from self._chain(module.path, len(dots), f"{name}.{each}" if name else each)
        if strings:
            for dotted in set(_QUOTED.findall(module.text)):
                yield from self._chain(module.path, 0, dotted, program=True)

    def _chain(self, importer: Path, level: int, dotted: str, *, program: bool = False) -> Iterator[Path]:
        """The files that run when `dotted` is imported: each package on the path, and the module."""
        parts = dotted.split(".") if dotted else []
        for length in range(0 if level else 1, len(parts) + 1):
            path = self._project.imported(importer, level, ".".join(parts[:length]) or None)
            if path is None:
                return
            yield path
            if program and (main := self._project.submodule(path, "__main__")) is not None:
                yield main
