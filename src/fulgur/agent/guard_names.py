"""A guard: names, attributes and parameters that an edit of Python code introduces must exist."""

from __future__ import annotations

import ast
import builtins
import difflib
import json
import shutil
import subprocess
import symtable
import sys
from collections.abc import Collection
from pathlib import Path

from fulgur.agent.modules import Class, Module, Modules, Signature, Thing, read_module

# Given by every class and instance.
_OBJECT = set(dir(object)) | {"__dict__", "__doc__", "__module__", "__annotations__", "__weakref__", "__name__"}


def undefined_names(source: str, path: Path, lines: Collection[int]) -> list[str]:
    """Names used on these lines that are bound nowhere: by ruff where there is one, else from the symbol table."""
    program = shutil.which("ruff") or shutil.which("ruff", path=str(Path(sys.executable).parent))
    if program is None:
        return _undefined_by_symbols(source, lines)
    command = [program, "check", "--select", "F821,F822,F823", "--output-format", "json", "--no-cache", "--quiet"]
    try:
        done = subprocess.run(
            [*command, "--stdin-filename", str(path), "-"],
            input=source.encode(),
            capture_output=True,
            timeout=10,
            check=False,
            cwd=path.parent,
        )
        found = json.loads(done.stdout or b"[]")
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return _undefined_by_symbols(source, lines)
    return [f"line {f['location']['row']}: {f['message']}" for f in found if f["location"]["row"] in lines]


def _undefined_by_symbols(source: str, lines: Collection[int]) -> list[str]:
    tree = ast.parse(source)
    if any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(tree)):
        return []
    table = symtable.symtable(source, "<edit>", "exec")
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    bound |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_namespace()}
    missing: set[str] = set()
    waiting = [table]
    while waiting:
        scope = waiting.pop()
        waiting += scope.get_children()
        for symbol in scope.get_symbols():
            if symbol.is_declared_global():
                bound.add(symbol.get_name())
            if symbol.is_referenced() and (symbol.is_global() or (scope is table and not symbol.is_assigned())):
                missing.add(symbol.get_name())
    missing -= bound | set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__class__"}
    return [
        f"line {node.lineno}: Undefined name `{node.id}`"
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in missing and node.lineno in lines
    ]


def unknown_members(source: str, lines: Collection[int], modules: Modules) -> list[str]:
    """Imports, module attributes, `self` attributes and call arguments on these lines that do not exist."""
    return _Check(source, lines, modules).problems


class _Check(ast.NodeVisitor):
    def __init__(self, source: str, lines: Collection[int], modules: Modules) -> None:
        self.problems: list[str] = []
        self._lines = lines
        self._modules = modules
        self._own = read_module(source)
        self._imported: dict[str, Module | None] = {}
        self._things: dict[str, Thing] = dict(self._own.names)
        self._guarded = 0
        self._classes: list[Class] = []
        tree = ast.parse(source)
        self._rebound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self._rebound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = self._modules.find(alias.name)
            if module is None and not self._guarded:
                self._say(node, f"there is no module named {alias.name}")
            if alias.asname or "." not in alias.name:
                self._imported[alias.asname or alias.name] = module

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or not node.module:
            return  # relative: the package it belongs to is not known for sure
        module = self._modules.find(node.module)
        if module is None:
            if not self._guarded:
                self._say(node, f"there is no module named {node.module}")
            return
        for alias in node.names:
            below = self._modules.find(f"{node.module}.{alias.name}") if module.package is not None else None
            if alias.name in module.names:
                self._things[alias.asname or alias.name] = module.names[alias.name]
            elif below is not None:
                self._imported[alias.asname or alias.name] = below
            elif not module.open and alias.name != "*" and not self._guarded:
                self._say(node, f"{node.module} has no name {alias.name}{_near(alias.name, module.names)}")

    def visit_Try(self, node: ast.Try) -> None:
        self._guarded += 1
        for statement in node.body:
            self.visit(statement)
        self._guarded -= 1
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        thing = self._own.names.get(node.name)
        self._classes.append(thing if isinstance(thing, Class) else Class(open=True))
        self.generic_visit(node)
        self._classes.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
            name = node.value.id
            if name == "self" and self._classes:
                known = self._attributes(self._classes[-1])
                if known is not None and node.attr not in known:
                    self._say(node, f"self has no attribute {node.attr}{_near(node.attr, known)}")
            elif name not in self._rebound:
                module = self._imported.get(name)
                if module is not None and not self._has(module, node.attr):
                    self._say(node, f"{name} has no attribute {node.attr}{_near(node.attr, module.names)}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self._called(node.func)
        if called is not None:
            name, taken = called
            for keyword in node.keywords:
                if keyword.arg is not None and not taken.any_keyword and keyword.arg not in taken.names:
                    self._say(keyword, f"{name}() has no parameter {keyword.arg}{_near(keyword.arg, taken.names)}")
            plain = not any(isinstance(argument, ast.Starred) for argument in node.args)
            if plain and taken.most is not None and len(node.args) > taken.most:
                self._say(node, f"{name}() takes {taken.most} positional arguments, {len(node.args)} are given")
        self.generic_visit(node)

    def _called(self, function: ast.expr) -> tuple[str, Signature] | None:
        thing: Thing = None
        name = ""
        if isinstance(function, ast.Name) and function.id not in self._rebound:
            name, thing = function.id, self._things.get(function.id)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            module = self._imported.get(function.value.id)
            if module is not None and function.value.id not in self._rebound:
                name, thing = f"{function.value.id}.{function.attr}", module.names.get(function.attr)
        if isinstance(thing, Class):
            thing = None if thing.open or thing.bases else thing.call
        return (name, thing) if isinstance(thing, Signature) else None

    def _attributes(self, of: Class, depth: int = 0) -> set[str] | None:
        """All attributes of a class and its bases; None when not all can be known."""
        if of.open or depth > 8:
            return None
        known = set(of.attributes) | _OBJECT
        for base in of.bases:
            thing = self._things.get(base)
            above = self._attributes(thing, depth + 1) if isinstance(thing, Class) else None
            if above is None:
                return None
            known |= above
        return known

    @staticmethod
    def _has(module: Module, name: str) -> bool:
        if module.open or name in module.names or name in _OBJECT or name.startswith("__"):
            return True
        return module.package is not None  # a submodule may have been imported elsewhere

    def _say(self, node: ast.AST, text: str) -> None:
        line = getattr(node, "lineno", 0)
        if line in self._lines:
            self.problems.append(f"line {line}: {text}")


def _near(name: str, among: Collection[str]) -> str:
    close = difflib.get_close_matches(name, list(among), n=1)
    return f" (nearest: {close[0]})" if close else ""
