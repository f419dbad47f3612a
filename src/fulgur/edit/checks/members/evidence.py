"""Evidence beyond types that a name exists after all: it is assigned somewhere, named in a string, or declared.

Only reads files, and a bounded number of them.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fulgur.edit.checks.members.introduced import Attribute
from fulgur.edit.checks.members.watch import TookTooLong

_MOST_FILES = 3000
_MOST_BYTES = 400_000
_SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", ".tox", ".fulgur", "site-packages"}
_ENDINGS = (".py", ".pyi", ".so", ".pyd")
_DECLARATIONS = (
    "pyproject.toml", "setup.py", "setup.cfg", "requirements*.txt", "requirements/*.txt", "Pipfile", "environment.yml"
)  # fmt: skip


class Evidence:
    """The evidence in one project: its folder and its module search path."""

    def __init__(self, workspace: Path, paths: list[Path]) -> None:
        self._workspace = workspace
        self._paths = paths
        self.source = ""
        """The text under judgement."""
        self.deadline = float("inf")

    @property
    def imported_parts(self) -> set[str]:
        """Parts of the standard library that a plain import in the text provides, and that jedi does not resolve."""
        return {"os.path"} if re.search(r"^import (\w+, )*os\b", self.source, re.MULTILINE) else set()

    # ---- attributes

    def for_attribute(self, item: Attribute, values: list[Any]) -> bool:
        """Whether some code sets an attribute of this name, so that it may exist after all."""
        texts = [self.source, *(_text_of(value) for value in values)]
        if any(_assigned(item.name).search(text) for text in texts):
            return True
        if all(value.is_module() for value in values):
            return False
        # A mixin uses members of the class it is mixed into; some frameworks set attributes from outside.
        bound = _bound(item.name)
        own = any(_is_ours(value, self._workspace) for value in values)
        return own and any(bound.search(text) for text in self._project_texts())

    def _project_texts(self) -> Iterator[str]:
        yield self.source
        for path in self._files:
            if time.monotonic() > self.deadline:
                raise TookTooLong
            try:
                if path.stat().st_size <= _MOST_BYTES:
                    yield path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue

    @functools.cached_property
    def _files(self) -> list[Path]:
        found: list[Path] = []
        for folder, folders, names in os.walk(self._workspace):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            found += [Path(folder, name) for name in names if name.endswith((".py", ".pyi"))]
            if len(found) >= _MOST_FILES:
                break
        return found[:_MOST_FILES]

    # ---- modules

    def module_exists(self, name: str, level: int, path: Path) -> bool:
        """Whether a module is on the search path, belongs to Python itself, or is declared as a dependency."""
        if level:
            folder = path.parent
            for _ in range(level - 1):
                folder = folder.parent
            return _lies_in(folder, name.split(".")) if name else True
        parts = name.split(".")
        if parts[0] in sys.builtin_module_names or parts[0] in sys.stdlib_module_names:
            return len(parts) == 1 or _stdlib_has(name)
        if any(_lies_in(folder, parts) for folder in self._paths):
            return True
        if any(_lies_in(folder, parts[:1]) for folder in self._paths):
            # The package exists, the submodule does not; packages may create submodules at run time.
            return any(_makes_parts(folder / parts[0]) for folder in self._paths)
        return self._declared(parts[0]) or self._by_hook(parts[0])

    def top_modules(self) -> set[str]:
        """All top-level modules that could be imported, to suggest the nearest name."""
        found = set(sys.stdlib_module_names)
        for folder in self._paths:
            try:
                found |= {name.split(".")[0] for name in os.listdir(folder)}
            except OSError:
                continue
        return {name for name in found if name.isidentifier()}

    def _declared(self, name: str) -> bool:
        wanted = re.compile(rf"(?<![\w-]){re.escape(name).replace('_', '[-_]')}(?![\w-])", re.IGNORECASE)
        for pattern in _DECLARATIONS:
            for path in self._workspace.glob(pattern):
                if path.is_file() and wanted.search(path.read_text(encoding="utf-8", errors="replace")):
                    return True
        return False

    def _by_hook(self, name: str) -> bool:
        """Whether the import hook of an editable install, which lies next to the packages, names the module."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        for folder in self._paths:
            for path in [*folder.glob("__editable__*"), *folder.glob("_*editable*.py"), *folder.glob("*.pth")]:
                if path.is_file() and word.search(path.read_text(encoding="utf-8", errors="replace")):
                    return True
        return False


def _lies_in(folder: Path, parts: list[str]) -> bool:
    base = folder.joinpath(*parts)
    if base.is_dir() or any(base.with_name(base.name + ending).is_file() for ending in _ENDINGS):
        return True
    return any(base.parent.glob(f"{base.name}.*.so")) or any(base.parent.glob(f"{base.name}.*.pyd"))


def _makes_parts(package: Path) -> bool:
    start = package / "__init__.py"
    if not start.is_file():
        return False
    return bool(re.search(r"sys\.modules|__path__|MetaPathFinder|_lazy", start.read_text(errors="replace")))


def _stdlib_has(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return name in ("os.path", "xml.etree.cElementTree")


def _text_of(value: Any) -> str:
    """The text of the file that defines the object's class; empty for stubs and compiled code."""
    try:
        node = value.get_root_context().tree_node
        if value.get_root_context().is_stub():
            return ""
        return str(node.get_code()) if node is not None else ""
    except AttributeError:
        return ""


def _is_ours(value: Any, workspace: Path) -> bool:
    try:
        path = value.get_root_context().py__file__()
    except AttributeError:
        return True
    return path is None or Path(path).is_relative_to(workspace)


@functools.cache
def _assigned(name: str) -> re.Pattern[str]:
    """Matches `x.name = …` (of any kind), `setattr` and other uses of the name as a string."""
    word = re.escape(name)
    return re.compile(rf"\.{word}\s*(:[^=\n]+)?([-+*/|&^%@]|//|\*\*|<<|>>)?=(?!=)|\.{word}\s*,.*=|['\"]{word}['\"]")


@functools.cache
def _bound(name: str) -> re.Pattern[str]:
    """Matches a method, an assignment or an annotation that gives some class this name."""
    word = re.escape(name)
    ways = [rf"^\s+(async\s+def|def|class)\s+{word}\b", rf"^\s+{word}\s*(:|=(?!=))", rf"\.{word}\s*=(?!=)"]
    return re.compile("|".join([*ways, rf"['\"]{word}['\"]"]), re.MULTILINE)
