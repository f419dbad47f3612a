"""Make a function async together with everything that calls it, so that no caller mistakes a coroutine for a result.

An async caller awaits. Any other caller becomes async itself, and so do its callers; tests, and calls below
`if __name__ == "__main__"`, use `asyncio.run`. Where a caller cannot be async (a lambda, a property, a method that
Python calls, a function used as a value), the places are listed and nothing is changed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from fulgur.edit.project.family import last_name, on_any_object, only_one
from fulgur.edit.project.import_time import skipped_at_import
from fulgur.edit.project.modules import Module, Project
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.imports import add_import
from fulgur.edit.refactor.local.piece import only
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Function, Source, apply_edits, parse
from fulgur.workspace.ignore import walk

_HARMLESS = frozenset({"staticmethod", "classmethod"})
_ENTRY_FILES = ("pyproject.toml", "setup.cfg", "setup.py")


@dataclass(frozen=True)
class _Use:
    """One call of a function that becomes async."""

    module: Module
    call: ast.Call


def make_async_everywhere(workspace: Path, path: Path, name: str | None, at: tuple[int, int] | None) -> Changed:
    """Make the function `name` (or the one at `at`) async; RefactorError lists the places that prevent it."""
    project = Project(workspace)
    home = project.module(path.resolve())
    if home is None or not home.usable:
        raise RefactorError(f"{path.name} cannot be read as Python")
    return _Spread(project).run(home, function_at(home.source, name, at))


def function_at(source: Source, name: str | None, at: tuple[int, int] | None) -> Function:
    """The function of this name, or the only outermost one in a span."""
    start, end = at or (0, len(source.text))
    inside = [
        function
        for function in source.functions()
        if start <= source.whole_lines(function)[0] and source.whole_lines(function)[1] <= end
    ]
    if name is not None:
        owner, _, last = name.rpartition(".")
        found = [function for function in inside if function.name == last]
        found = [f for f in found if not owner or getattr(source.class_of(f), "name", "") == owner]
        return only(found, f"function {name}")
    return only([f for f in inside if source.function_of(f) not in inside], "function")


class _Spread:
    def __init__(self, project: Project) -> None:
        self.project = project
        self.edits: dict[Path, set[Edit]] = {}
        self.runs: set[Path] = set()  # files that use asyncio.run
        self.made: list[Function] = []
        self.stuck: list[str] = []

    def run(self, home: Module, function: Function) -> Changed:
        if isinstance(function, ast.AsyncFunctionDef):
            raise RefactorError(f"{function.name} is already async")
        waiting: list[tuple[Module, Function]] = [(home, function)]
        awaited: dict[int, _Use] = {}
        while waiting:
            module, current = waiting.pop()
            if any(current is done for done in self.made):
                continue
            self.made.append(current)
            if problem := self._cannot_be(module, current):
                self._stick(module, current, problem)
                continue
            at = module.source.start(current)
            self._edit(module, Edit(at, at, "async "))
            for use in self._calls(module, current):
                if id(use.call) not in awaited:
                    awaited[id(use.call)] = use
                    if (caller := self._wait(use)) is not None:
                        waiting.append((use.module, caller))
        if self.stuck:
            places = "; ".join(self.stuck[:5]) + (f"; and {len(self.stuck) - 5} more" if len(self.stuck) > 5 else "")
            raise RefactorError(
                f"{function.name} cannot become async because of these: {places}", hint="Change them first."
            )
        return self._result()

    def _result(self) -> Changed:
        result = Changed()
        for path, edits in self.edits.items():
            module = self.project.module(path)
            assert module is not None
            after = apply_edits(module.text, edits)
            if path in self.runs and not re.search(r"^import asyncio\b", after, re.MULTILINE):
                after = add_import(Source(after), ("import", "asyncio"))
            parse(after)
            result.files[path] = (module.text, after)
        return result

    def _edit(self, module: Module, *edits: Edit) -> None:
        self.edits.setdefault(module.path, set()).update(edits)

    def _stick(self, module: Module, node: ast.AST, problem: str) -> None:
        line = getattr(node, "lineno", 1)
        self.stuck.append(f"{module.path.relative_to(self.project.workspace)}:{line} {problem}")

    def _cannot_be(self, module: Module, function: Function) -> str:
        """Why this function cannot become async; empty when it can."""
        name, source = function.name, module.source
        if name.startswith("__") and name.endswith("__"):
            return f"{name} is called by Python itself"
        decorators = [ast.unparse(d) for d in function.decorator_list]
        if other := [d for d in decorators if d not in _HARMLESS]:
            return f"{name} is decorated with @{other[0]}"
        own = [node for node in ast.walk(function) if isinstance(node, (ast.Yield, ast.YieldFrom))]
        if any(source.function_of(node) is function for node in own):
            return f"{name} is a generator"
        if source.function_of(function) is not None:
            return f"{name} is defined inside another function"
        owner = source.class_of(function)
        if owner is None and source.parents.get(function) is not source.tree:
            return f"{name} is defined under a condition"
        if owner is not None and not only_one(self.project, name, {module.path: [owner]}):
            return f"other classes, here or imported, have a {name} too"
        if entry := self._entry_point(module, name):
            return f"{name} is started by {entry}"
        return ""

    def _entry_point(self, module: Module, name: str) -> str:
        """The name of the settings file that declares this function as an entry point; empty when none does."""
        wanted = re.compile("|".join(rf"\b{re.escape(d)}:{re.escape(name)}\b" for d in self._dotted(module)) or r"(?!)")
        for entry in walk(self.project.workspace, limit=20_000):
            if entry.name in _ENTRY_FILES and wanted.search(Path(entry.path).read_text("utf-8", errors="replace")):
                return entry.name
        return ""

    def _dotted(self, module: Module) -> list[str]:
        return sorted(self.project.dotted_names(module.path))

    def _calls(self, module: Module, function: Function) -> list[_Use]:
        """Every call of the function; any other use is recorded as an obstacle."""
        name, found = function.name, []
        if module.source.class_of(function) is None:
            references = References(self.project, module.path, name)
            for other in references.modules:
                for line in references.rivals(other) if other.path != module.path else ():
                    self._stick(other, ast.Pass(lineno=line), f"{name} is defined here too")
                calls, values = references.calls(other)
                found += [_Use(other, call) for call in calls]
                for line in values:
                    self._stick(other, ast.Pass(lineno=line), f"{name} is used as a value, without a call")
                self._named_in_strings(other, {f"{dotted}.{name}" for dotted in self._dotted(module)})
                if other.path in references.homes or references.nodes(other):
                    self._in_formatted(other, name)
            return found
        for other in self.project.mentioning(name):
            called = {id(call.func): call for call in other.source.all(ast.Call)}
            for node in on_any_object(self.project, other, name):
                if id(node) in called:
                    found.append(_Use(other, called[id(node)]))
                else:
                    self._stick(other, node, f"{name} is used as a value, without a call")
            self._in_formatted(other, name)
        return found

    def _in_formatted(self, module: Module, name: str) -> None:
        """Record uses inside f-strings whose parts have no known position as obstacles."""
        for text in module.source.hidden:
            if any(name in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in ast.walk(text)):
                self._stick(module, text, f"{name} is used inside an f-string")

    def _named_in_strings(self, module: Module, names: set[str]) -> None:
        for node in module.source.of(ast.Constant):
            if isinstance(node.value, str) and node.value.replace(":", ".") in names:
                self._stick(module, node, f"the string “{node.value}” names it")

    def _wait(self, use: _Use) -> Function | None:
        """Await a call, or run it with asyncio; returns the caller if that has to become async for it."""
        module, call = use.module, use.call
        source = module.source
        if isinstance(source.parents.get(call), ast.Await):
            return None
        caller: ast.AST | None = None
        for ancestor in source.ancestors(call):
            if isinstance(ancestor, (ast.Lambda, ast.GeneratorExp)):
                self._stick(module, call, f"{last_name(call.func)} is called in a lambda or a generator")
                return None
            if isinstance(ancestor, FUNCTIONS):
                if any(call in ast.walk(part) for part in (*ancestor.decorator_list, ancestor.args)):
                    continue  # decorators and defaults run outside the function
                caller = ancestor
                break
            if isinstance(ancestor, ast.ClassDef):
                break
        if isinstance(caller, ast.AsyncFunctionDef):
            self._await(module, call)
            return None
        if caller is None and skipped_at_import(source, call):
            self._run(module, call)
            return None
        if caller is None:
            self._stick(module, call, f"{last_name(call.func)} is called while the module is imported")
            return None
        assert isinstance(caller, ast.FunctionDef)
        if _is_test(module, caller):
            self._run(module, call)
            return None
        self._await(module, call)
        return caller

    def _await(self, module: Module, call: ast.Call) -> None:
        start, end = module.source.span(call)
        parent = module.source.parents.get(call)
        bare = isinstance(
            parent,
            (ast.Expr, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.keyword, ast.List, ast.Tuple, ast.Set),
        )
        argument = isinstance(parent, ast.Call) and parent.func is not call
        if bare or argument:
            self._edit(module, Edit(start, start, "await "))
        else:
            self._edit(module, Edit(start, start, "(await "), Edit(end, end, ")"))

    def _run(self, module: Module, call: ast.Call) -> None:
        start, end = module.source.span(call)
        self.runs.add(module.path)
        self._edit(module, Edit(start, start, "asyncio.run("), Edit(end, end, ")"))


def _is_test(module: Module, function: Function) -> bool:
    """Whether a function is a test: it is called outside any event loop."""
    named = re.fullmatch(r"test_.*|.*_test|tests?|conftest", module.path.stem) is not None
    return named and function.name.startswith("test")
