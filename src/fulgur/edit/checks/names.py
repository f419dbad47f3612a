"""A guard: names that an edit of Python code uses must be bound somewhere."""

from __future__ import annotations

import ast
import builtins
import json
import re
import symtable
from collections.abc import Collection
from pathlib import Path

from fulgur.edit.checks.members.problem import Problem
from fulgur.sandbox import start


def undefined_names(source: str, path: Path, lines: Collection[int]) -> list[Problem]:
    """Names used on these lines that are bound nowhere: by ruff where there is one, else from the symbol table."""
    program = start.program("ruff")
    if program is None:
        return _undefined_by_symbols(source, lines)
    command = [program, "check", "--select", "F821,F822,F823", "--output-format", "json", "--no-cache", "--quiet"]
    try:
        argv = [*command, "--stdin-filename", str(path), "-"]
        done = start.run(argv, path.parent, seconds=10, data=source.encode())
        found = json.loads(done.stdout or b"[]")
    except (OSError, ValueError, start.TimeoutExpired):
        return _undefined_by_symbols(source, lines)
    rows = [(int(f["location"]["row"]), str(f["message"])) for f in found]
    return [Problem(row, _quoted(message), message) for row, message in rows if row in lines]


def _quoted(message: str) -> str:
    match = re.search(r"`([^`]+)`", message)
    return match[1] if match else ""


def _undefined_by_symbols(source: str, lines: Collection[int]) -> list[Problem]:
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
        Problem(node.lineno, node.id, f"Undefined name `{node.id}`")
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in missing and node.lineno in lines
    ]
