"""Rename a module-level name in every file of the project that imports it.

A name is followed from its definition through `from … import`, re-exports, star imports, `module.name`, `__all__`,
quoted annotations and dotted paths in strings (`"package.module.name"`, as in mocks and settings). These are exact.
Uses that cannot be proven to mean it (an attribute of an unknown object, prose, other files) are listed, not changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fulgur.edit.project.modules import Module, Project, all_statements
from fulgur.edit.project.references import References
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.rename import attribute_edit, check_free, check_name, use_edit
from fulgur.edit.refactor.source import Edit, apply_edits, parse
from fulgur.workspace.ignore import walk

# Calls with an argument that names an attribute; mostly the second argument names one of the first.
BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr", "delitem", "object", "attrgetter", "methodcaller"})
_TEXT_FILES = (".md", ".rst", ".txt", ".toml", ".cfg", ".ini", ".yml", ".yaml", ".json")


@dataclass(frozen=True, order=True)
class Occurrence:
    """A line that may refer to the name. `kind`: attribute, text, file (not Python) or value (used, but not called)."""

    path: Path
    line: int
    kind: str
    text: str


@dataclass
class Changed:
    """The files that change, as (before, after), and the places that were left alone."""

    files: dict[Path, tuple[str, str]] = field(default_factory=dict)
    unsure: list[Occurrence] = field(default_factory=list)


def rename_everywhere(workspace: Path, path: Path, old: str, new: str) -> Changed:
    """Rename the module-level `old` of the file `path`; RefactorError when the new name clashes."""
    check_name(new)
    project = Project(workspace)
    path = path.resolve()
    defining = project.module(path)
    if defining is None or not defining.usable:
        raise RefactorError(f"{path.name} cannot be read as Python")
    if old not in defining.names.module.bound:
        raise RefactorError(
            f"{path.name} does not define {old}", hint="Only module-level names are renamed in other files."
        )
    return _Rename(References(project, path, old), new).run()


class _Rename:
    def __init__(self, references: References, new: str) -> None:
        self.references, self.project = references, references.project
        self.old, self.new = references.name, new
        self.homes = references.homes
        self.word = re.compile(rf"(?<!\w){re.escape(self.old)}(?!\w)")

    def run(self) -> Changed:
        dotted = {name: home for home in self.homes for name in self.project.dotted_names(home)}
        result = Changed()
        for module in self.references.modules:
            attributes = self.references.attributes(module)
            edits = {attribute_edit(module.source, node, self.new) for node in attributes}
            edits |= {*self._bindings(module), *self._strings(module, dotted)}
            if edits:
                after = apply_edits(module.text, edits)
                parse(after)
                result.files[module.path] = (module.text, after)
            result.unsure += self._left(module, {edit.start for edit in edits})
        result.unsure += in_text_files(self.project, self.old, self.word)
        return result

    def _bindings(self, module: Module) -> Iterator[Edit]:
        """Edits of definitions, imports, and uses of what these bind."""
        names, imported = module.names, set()
        for _, alias in self.references.imports(module):
            if alias.name == self.old:
                start = module.source.start(alias)
                imported.add(start)
                yield Edit(start, start + len(self.old), self.new)
        for binder in self.references.binders(module):
            uses = names.of(self.old, binder)
            check_free(names, binder, uses, self.old, self.new)
            yield from (use_edit(use, self.old, self.new) for use in uses if use.start not in imported)
        yield from (use_edit(use, self.old, self.new) for use in self.references.unbound(module))

    def _strings(self, module: Module, dotted: dict[str, Path]) -> Iterator[Edit]:
        """Edits in strings: `__all__`, quoted annotations, dotted paths, and names passed to getattr and the like."""
        source, reach = module.source, self.references.reach(module)
        exact: set[ast.AST] = set()  # the whole text is the name
        worded: set[ast.AST] = set()  # the text is code that contains the name
        if module.path in self.homes:
            exact |= {n for statement in all_statements(source) for n in ast.walk(statement)}
            worded |= set(_annotation_strings(source.tree))
        for call in source.of(ast.Call):
            named = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if named not in BY_NAME or len(call.args) < 2:
                continue
            if reach.file(call.args[0], module.scope_of(call)) in self.homes:
                exact.add(call.args[1])
        for node in source.of(ast.Constant):
            if not isinstance(node.value, str) or self.old not in node.value:
                continue
            start, end = source.span(node)
            text = source.text[start:end]
            if (node in exact and node.value == self.old) or node in worded:
                yield from (
                    Edit(start + m.start(), start + m.end(), self.new)
                    for m in self.word.finditer(text)
                    if text[m.start() - 1] != "."
                )
            elif (at := self._dotted_at(node.value, dotted)) is not None and text.count(node.value) == 1:
                begin = start + text.index(node.value) + at
                yield Edit(begin, begin + len(self.old), self.new)

    def _dotted_at(self, text: str, dotted: dict[str, Path]) -> int | None:
        """The offset of the name in `package.module.name` or `package.module:name`; None for other texts."""
        if not re.fullmatch(r"[\w.]+(:[\w.]+)?", text):
            return None
        for match in self.word.finditer(text):
            if match.start() and text[: match.start() - 1] in dotted:
                return match.start()
        return None

    def _left(self, module: Module, taken: set[int]) -> Iterator[Occurrence]:
        """Occurrences of the name that were not renamed and do not clearly mean something else."""
        source = module.source
        bound = {use.start for use in module.names.uses if use.name == self.old}
        attributes = {source.end(n) - len(n.attr) for n in source.all(ast.Attribute) if n.attr == self.old}
        arguments = {source.start(n) for n in source.all(ast.keyword) if n.arg == self.old}
        for match in self.word.finditer(module.text):
            at = match.start()
            if at in taken or at in bound or at in arguments:
                continue
            line = source.line_of(at)
            text = source.lines[line - 1].strip()
            kind = "attribute" if at in attributes else "text"
            yield Occurrence(module.path, line, kind, text)


def in_text_files(project: Project, word: str, pattern: re.Pattern[str]) -> Iterator[Occurrence]:
    """Lines that contain the word in other files of the project, such as documents and settings."""
    for entry in walk(project.workspace, limit=20_000):
        if not entry.name.endswith(_TEXT_FILES) or entry.stat(follow_symlinks=False).st_size > 512 << 10:
            continue
        text = Path(entry.path).read_text(encoding="utf-8", errors="replace")
        if word in text:
            for number, line in enumerate(text.splitlines(), 1):
                if pattern.search(line):
                    yield Occurrence(Path(entry.path), number, "file", line.strip())


def _annotation_strings(tree: ast.AST) -> Iterator[ast.AST]:
    """String constants that are read as annotations."""
    places: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            places.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            places.append(node.returns)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == "cast" and node.args:
                places.append(node.args[0])
            elif called == "TypeVar":
                places += [keyword.value for keyword in node.keywords if keyword.arg == "bound"]
            elif called == "NewType" and len(node.args) > 1:
                places.append(node.args[1])
    for place in places:
        for node in ast.walk(place):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node
