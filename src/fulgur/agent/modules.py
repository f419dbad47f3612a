"""What Python modules define, read from their source without running them: names, parameters, attributes of classes.

Where the source cannot say (star imports, `__getattr__`, unknown bases, compiled modules) a thing is `open` and nothing
is claimed about it: a guard that cries wolf is worse than none.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Part of the standard library, but importing them does something.
_NOT_IMPORTED = {"antigravity", "this", "idlelib", "turtledemo", "turtle", "tkinter", "lib2to3", "test", "__main__"}


@dataclass(frozen=True)
class Signature:
    """What a call may pass."""

    names: tuple[str, ...]
    """Parameters that may be given by keyword."""
    most: int | None
    """How many positional arguments fit; None: any number."""
    any_keyword: bool


@dataclass
class Class:
    """Attributes of a class and its instances."""

    attributes: set[str] = field(default_factory=set)
    bases: list[str] = field(default_factory=list)
    call: Signature | None = None
    open: bool = False


Thing = Signature | Class | None


@dataclass
class Module:
    """Top-level names; `open` when more may exist than can be seen."""

    names: dict[str, Thing] = field(default_factory=dict)
    open: bool = False
    package: Path | None = None


class Modules:
    """Finds modules of the workspace, the standard library and the project's environment."""

    def __init__(self, workspace: Path) -> None:
        self._roots = [workspace / "src", workspace, *sorted(workspace.glob(".venv/lib/python*/site-packages"))]
        self._roots += [Path(entry) for entry in sys.path if entry.endswith("site-packages")]
        self._known: dict[str, Module | None] = {}

    def find(self, name: str) -> Module | None:
        """The module, or None when it is nowhere."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> Module | None:
        parts = name.split(".")
        for root in self._roots:
            base = root.joinpath(*parts)
            if base.with_suffix(".py").is_file():
                return read_module(base.with_suffix(".py").read_text(encoding="utf-8", errors="replace"))
            if (base / "__init__.py").is_file():
                module = read_module((base / "__init__.py").read_text(encoding="utf-8", errors="replace"))
                module.package = base
                return module
            if base.is_dir() or any(base.parent.glob(f"{parts[-1]}.*.so")) or any(base.parent.glob(f"{parts[-1]}.pyi")):
                return Module(open=True, package=base if base.is_dir() else None)
        if parts[0] in sys.stdlib_module_names and parts[0] not in _NOT_IMPORTED:
            return _from_library(name)
        return None


def _from_library(name: str) -> Module | None:
    try:
        loaded = importlib.import_module(name)
    except ImportError:
        return None
    module = Module(package=Path(name) if hasattr(loaded, "__path__") else None)
    for attribute in dir(loaded):
        value = getattr(loaded, attribute, None)
        module.names[attribute] = _signature_of(value) if inspect.isroutine(value) else None
    return module


def _signature_of(value: object) -> Signature | None:
    try:
        parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return None
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    return Signature(
        tuple(p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)),
        None if any(p.kind is kinds.VAR_POSITIONAL for p in parameters) else len(positional),
        any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )


def read_module(source: str) -> Module:
    """The definitions in a source text; open when it does not parse."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return Module(open=True)
    module = Module()
    for node in ast.walk(tree):
        # Also names bound inside `if` and `try` at the top; a name bound in a function too many does no harm.
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            module.open = True
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module.names.setdefault((alias.asname or alias.name).split(".")[0], None)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            module.names.setdefault(node.id, None)
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            module.names[statement.name] = None if statement.decorator_list else signature(statement.args)
            module.open |= statement.name == "__getattr__"
        elif isinstance(statement, ast.ClassDef):
            module.names[statement.name] = read_class(statement)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            module.names.setdefault(node.name, None)
    return module


def signature(arguments: ast.arguments, *, bound: bool = False) -> Signature:
    """What a call of a function (or, `bound`, of a method) may pass."""
    positional = [*arguments.posonlyargs, *arguments.args][1 if bound else 0 :]
    by_name = [arg.arg for arg in arguments.args if arg in positional] + [arg.arg for arg in arguments.kwonlyargs]
    return Signature(tuple(by_name), None if arguments.vararg else len(positional), arguments.kwarg is not None)


def read_class(node: ast.ClassDef) -> Class:
    """Methods, class attributes, and what methods assign to `self`."""
    found = Class(open=bool(node.keywords))
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id != "object":
            found.bases.append(base.id)
        elif not isinstance(base, ast.Name):
            found.open = True
    if node.decorator_list:
        found.open = True
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.attributes.add(statement.name)
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__" and not statement.decorator_list:
            found.call = signature(statement.args, bound=True)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _is_self(inner.value):
            found.attributes.add(inner.attr)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            found.attributes.add(inner.id)
    if found.attributes & {"__getattr__", "__getattribute__", "__slots__", "__new__"}:
        found.open = True
    return found


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
