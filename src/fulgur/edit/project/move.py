"""Move a function, class or constant of a module to another module, with the imports on both sides.

The moved code brings its imports along, and imports the names that it needs from the old module. Importers import it
from the new place. The old module re-imports the name where it still uses it, exports it (`__all__`, a package's
`__init__`), or where other code reaches it in a way that is not rewritten. Refused: an import cycle, a name that means
something else in the new module, and code that depends on its own location.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fulgur.edit.project.cycles import cycle
from fulgur.edit.project.modules import Module, Project
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed, Occurrence
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.imports import Import, add_import, alias_removal, top_imports
from fulgur.edit.refactor.source import Edit, Source, apply_edits, parse

_PLACED = frozenset({"__file__", "__package__", "__path__", "__spec__"})  # these refer to the module that contains them


def move_everywhere(workspace: Path, path: Path, name: str, target: str) -> Changed:
    """Move `name` of the file `path` to `target`: a file or a module, which is created when it does not exist."""
    project, path = Project(workspace), path.resolve()
    home = project.module(path)
    if home is None or not home.usable:
        raise RefactorError(f"{path.name} cannot be read as Python")
    return _Move(project, home, name, target_path(project, path, target)).run()


def target_path(project: Project, path: Path, target: str) -> Path:
    """The file that `pkg/io.py`, `io.py`, `io` or `pkg.io` refers to, as seen from a file of the project."""
    stem = target.removesuffix(".py")
    if "/" in stem or target.endswith(".py"):
        found = [folder / f"{stem}.py" for folder in (project.workspace, *project.roots, path.parent)]
    else:
        if known := project.imported(path, 0, stem) or project.imported(path, 1, stem):
            return known
        parts = stem.split(".")
        found = [folder.joinpath(*parts).with_suffix(".py") for folder in (*project.roots, path.parent)]
    here = path.parent / f"{Path(stem).name}.py" if "/" not in stem and "." not in stem else None
    place = next((one.resolve() for one in found if one.exists()), None) or (here or found[0]).resolve()
    if not place.is_relative_to(project.workspace) or not place.parent.is_dir():
        raise RefactorError(f"there is no folder for {target} in this project")
    if place.suffix != ".py" or not place.stem.isidentifier():
        raise RefactorError(f"{target} cannot be the name of a module")
    return place


@dataclass
class _Needs:
    """What the moved code needs from its old module."""

    imports: list[Import]  # whole statements of the old module, cut to what is needed
    own: list[str]  # names that the old module defines


class _Move:
    def __init__(self, project: Project, home: Module, name: str, target: Path) -> None:
        self.project, self.home, self.name = project, home, name
        if target == home.path:
            raise RefactorError(f"{name} is already in {target.name}")
        self.statement = self._definition()
        self.there = target if target.exists() else None
        there = project.module(target) if self.there else Module(target, "")
        if there is None or not there.usable:
            raise RefactorError(f"{target.name} cannot be read as Python")
        self.target = there
        self.references = References(project, home.path, name)

    def run(self) -> Changed:
        needs = self._needs()
        result = Changed()
        stays = self._rewrite_importers(result)
        keeps = stays or self._used_at_home()
        if keeps and needs.own:
            listed = ", ".join(needs.own[:3])
            raise RefactorError(
                f"{self.name} needs {listed} of {self.home.path.name}, which would need {self.name} from there in turn",
                hint=f"Move {listed} first, or both.",
            )
        after_home = self._without(keeps, needs)
        after_target = self._with(needs)
        result.files[self.home.path] = (self.home.text, after_home)
        result.files[self.target_path] = (self.target.text, after_target)
        texts = {path: after for path, (_, after) in result.files.items()}
        if ring := cycle(self.project, texts):
            names = " → ".join(one.name for one in ring)
            raise RefactorError(f"this would create an import cycle: {names}")
        result.unsure.sort()
        return result

    @property
    def target_path(self) -> Path:
        return self.target.path

    def _definition(self) -> ast.stmt:
        source = self.home.source
        found = [use for use in self.home.names.of(self.name, self.home.names.module) if use.kind == "definition"]
        stores = [n for n in source.of(ast.Name) if n.id == self.name and isinstance(n.ctx, ast.Store)]
        stores = [node for node in stores if self.home.scope_of(node).resolve(self.name) is self.home.names.module]
        statements = [
            statement
            for statement in source.tree.body
            if getattr(statement, "name", None) == self.name
            or any(source.statement(node) is statement for node in stores)
        ]
        if len(found) + len(stores) != 1 or len(statements) != 1:
            raise RefactorError(
                f"{self.home.path.name} does not define {self.name} exactly once at its top level",
                hint="Functions, classes and constants of a module can be moved.",
            )
        statement = statements[0]
        if isinstance(statement, ast.Assign) and len(statement.targets) != 1:
            raise RefactorError(f"{self.name} is assigned together with other names")
        if not source.alone_on_lines(statement):
            raise RefactorError(f"{self.name} shares its line with other code")
        return statement

    def _span(self) -> tuple[int, int]:
        """The statement with the comment right above it."""
        source = self.home.source
        line = source.first_line(self.statement)
        while line > 1 and source.lines[line - 2].startswith("#") and not source.lines[line - 2].startswith("#!"):
            line -= 1
        return source.line_start(line), source.line_end(self.statement.end_lineno or 0)

    def _inner(self) -> list[ast.AST]:
        return list(ast.walk(self.statement))

    def _needs(self) -> _Needs:
        source, names = self.home.source, self.home.names
        start, end = self._span()
        used = {use.name for use in names.uses if start <= self._at(use.start, use.line) < end
                and use.scope.resolve(use.name) is names.module} - {self.name}  # fmt: skip
        loose = {use.name for use in names.uses if start <= self._at(use.start, use.line) < end
                 and use.scope.resolve(use.name) is None}  # fmt: skip
        if placed := sorted(loose & _PLACED):
            raise RefactorError(
                f"{self.name} uses {placed[0]}, which would mean another file in {self.target_path.name}"
            )
        if any(isinstance(node, ast.Global) for node in self._inner()):
            raise RefactorError(f"{self.name} sets a global of {self.home.path.name}")
        if any(alias.name == "*" for s in top_imports(source) for alias in s.names) and loose - _builtins():
            missing = sorted(loose - _builtins())[0]
            raise RefactorError(f"{missing} may come from a star import")
        used |= self._quoted() & names.module.bound - {self.name}
        imports, rest = [], set(used)
        for statement in top_imports(source):
            wanted = [a for a in statement.names if (a.asname or a.name).split(".")[0] in used]
            if wanted and module_name(statement) != "__future__":
                rest -= {(alias.asname or alias.name).split(".")[0] for alias in wanted}
                imports.append(_cut(statement, wanted))
        own = sorted(rest)
        for word in own:
            if not self._plainly_bound(word):
                raise RefactorError(
                    f"{self.name} needs {word}, which {self.home.path.name} defines only under a condition"
                )
        return _Needs(imports, own)

    def _at(self, start: int, line: int) -> int:
        return start if start >= 0 else self.home.source.line_start(line)

    def _quoted(self) -> set[str]:
        """Words in annotations that are written as strings."""
        found: set[str] = set()
        for node in self._inner():
            annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
            if annotation is not None:
                texts = [n.value for n in ast.walk(annotation) if isinstance(n, ast.Constant)]
                found |= {word for text in texts if isinstance(text, str) for word in re.findall(r"[^\W\d]\w*", text)}
        return found

    def _plainly_bound(self, word: str) -> bool:
        for statement in self.home.source.tree.body:
            if getattr(statement, "name", None) == word:
                return True
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and any(
                isinstance(node, ast.Name) and node.id == word for target in targets for node in ast.walk(target)
            ):
                return True
        return False

    def _used_at_home(self) -> bool:
        start, end = self._span()
        uses = self.home.names.of(self.name, self.home.names.module)
        exports = self.home.exports()
        kept = self.home.path.name == "__init__.py" or (exports is not None and self.name in exports)
        return kept or any(not start <= self._at(use.start, use.line) < end for use in uses)

    def _rewrite_importers(self, result: Changed) -> bool:
        """Make importers import the name from its new place; returns whether the old module has to keep it."""
        keeps = bool(self.references.stars)
        for module in self.references.modules:
            if module.path in (self.home.path, self.target_path):
                continue
            edits: list[Edit] = []
            for node, alias in self.references.imports(module):
                if alias.name == self.name and self._origin(module, node) == self.home.path:
                    edits += self._reimported(module, node, alias)
            if edits:
                after = apply_edits(module.text, edits)
                parse(after)
                result.files[module.path] = (module.text, after)
            reach = self.references.reach(module)
            for use in self.references.attributes(module):
                if reach.file(use.value, module.scope_of(use)) == self.home.path:
                    keeps = True
                    text = module.source.lines[use.lineno - 1].strip()
                    result.unsure.append(Occurrence(module.path, use.lineno, "attribute", text))
            keeps = self._by_string(module, result) or keeps
        return keeps

    def _by_string(self, module: Module, result: Changed) -> bool:
        """List `"package.module.name"` in strings; returns whether there are any. A mock may mean either module."""
        found = False
        dotted = {f"{one}.{self.name}" for one in self.project.dotted_names(self.home.path)}
        for node in module.source.of(ast.Constant):
            if isinstance(node.value, str) and node.value.replace(":", ".") in dotted:
                found = True
                text = module.source.lines[node.lineno - 1].strip()
                result.unsure.append(Occurrence(module.path, node.lineno, "text", text))
        return found

    def _origin(self, module: Module, node: ast.ImportFrom) -> Path | None:
        return self.project.imported(module.path, node.level, node.module)

    def _reimported(self, module: Module, node: ast.ImportFrom, alias: ast.alias) -> Iterator[Edit]:
        source = module.source
        named = f"{self.name} as {alias.asname}" if alias.asname else self.name
        line = f"from {self._name_for(module.path, relative=node.level > 0)} import {named}"
        if len(node.names) == 1:
            yield Edit(*source.span(node), line)
            return
        removal = alias_removal(source, node, {alias.asname or alias.name})
        if removal is None or not source.alone_on_lines(node):
            raise RefactorError(f"the import on line {node.lineno} of {module.path.name} cannot be split")
        end = source.line_end(node.end_lineno or 0)
        glue = "" if source.text[end - 1 : end] == "\n" else "\n"
        yield removal
        yield Edit(end, end, f"{glue}{source.indent(node)}{line}\n")

    def _name_for(self, importer: Path, *, relative: bool, of: Path | None = None) -> str:
        """The name of a module in an import in the file `importer`."""
        wanted = of or self.target_path
        inner = wanted.parent if wanted.name == "__init__.py" else wanted.with_suffix("")
        if relative:
            folder, dots = importer.parent, "."
            while not inner.is_relative_to(folder) and (folder / "__init__.py").exists():
                folder, dots = folder.parent, dots + "."
            if inner.is_relative_to(folder):
                return dots + ".".join(inner.relative_to(folder).parts)
        roots = [root for root in self.project.roots if inner.is_relative_to(root)]
        if not roots:
            raise RefactorError(f"{wanted.name} is in no folder that modules are imported from")
        deepest = max(roots, key=lambda root: len(root.parts))
        return ".".join(inner.relative_to(deepest).parts)

    def _style(self, module: Module) -> bool:
        """Whether a module uses relative imports for its own project; a new module follows the old one."""
        froms = [s for s in top_imports(module.source) if isinstance(s, ast.ImportFrom) and s.module != "__future__"]
        inside = [s for s in froms if s.level or self._origin(module, s) is not None]
        if not inside:
            return module is not self.home and module.text == "" and self._style(self.home)
        return any(s.level for s in inside)

    def _without(self, keeps: bool, needs: _Needs) -> str:
        """The old module without the code and without imports that are no longer used."""
        source = self.home.source
        start, end = self._span()
        while source.text[end : end + 1] == "\n":
            end += 1
        edits = [Edit(start, end, "")]
        if source.text[end:].strip() == "":
            edits = [Edit(len(source.text[:start].rstrip("\n")) + bool(start), len(source.text), "")]
        outside = {
            use.name
            for use in self.home.names.uses
            if use.kind not in ("import", "from") and not start <= self._at(use.start, use.line) < end
        }
        exports = self.home.exports() or set()
        unused = {
            (alias.asname or alias.name).split(".")[0] for statement in needs.imports for alias in statement.names
        } - outside - exports  # fmt: skip
        unused = {word for word in unused if self.home.path.name != "__init__.py" and not self._taken(word)}
        for statement in top_imports(source):
            if (
                module_name(statement) != "__future__"
                and (edit := alias_removal(source, statement, unused)) is not None
            ):
                edits.append(edit)
        text = apply_edits(source.text, edits)
        if keeps:
            line = f"from {self._name_for(self.home.path, relative=self._relative_to_target())} import {self.name}"
            text = add_import(Source(text), tuple(line.split()))
        return _settled(text)

    def _relative_to_target(self) -> bool:
        return self._style(self.home) or (self.home.path.name == "__init__.py" and not self.project.roots)

    def _taken(self, word: str) -> bool:
        """Whether another file imports or reads this name from the old module."""
        references = References(self.project, self.home.path, word)
        for module in references.modules:
            if module.path != self.home.path:
                if any(alias.name in (word, "*") for _, alias in references.imports(module)):
                    return True
                if references.attributes(module):
                    return True
        return False

    def _with(self, needs: _Needs) -> str:
        """The new module with the code and the imports that it needs."""
        module, start_end = self.target, self._span()
        text = module.text
        future = [s for s in top_imports(self.home.source) if module_name(s) == "__future__"]
        if not self.there and future:
            text = self.home.source.segment(future[0]) + "\n"
        bound = set(module.names.module.bound)
        mine = [s for s in top_imports(module.source) if isinstance(s, ast.ImportFrom)]
        taken = [s for s in mine if self._origin(module, s) == self.home.path]
        edits = [e for s in taken if (e := alias_removal(module.source, s, {self.name})) is not None]
        if edits:
            bound.discard(self.name)
            text = apply_edits(text, edits)
        if self.name in bound:
            raise RefactorError(f"{self.target_path.name} already has a {self.name}")
        lines = [line for statement in needs.imports for line in self._import_lines(statement)]
        relative = self._style(module)
        for word in needs.own:
            lines.append(
                (word, f"from {self._name_for(self.target_path, relative=relative, of=self.home.path)} import {word}")
            )
        for word, line in lines:
            if word in bound:
                if not self._same_import(module, word, line):
                    raise RefactorError(f"{word} means something else in {self.target_path.name}")
                continue
            text = add_import(Source(text), tuple(line.split()))
        code = self.home.source.text[slice(*start_end)].rstrip("\n") + "\n"
        return _settled(_placed(text, code, early=bool(edits), constant=not hasattr(self.statement, "name")))

    def _import_lines(self, statement: Import) -> Iterator[tuple[str, str]]:
        for alias in statement.names:
            named = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
            word = (alias.asname or alias.name).split(".")[0]
            if isinstance(statement, ast.Import):
                yield word, f"import {named}"
                continue
            module = module_name(statement)
            if statement.level:
                origin = self.project.imported(self.home.path, statement.level, statement.module)
                if origin is None:
                    raise RefactorError(f"the import of {module} cannot be resolved")
                if self._lives_there(origin, alias):
                    continue
                module = self._name_for(self.target_path, relative=True, of=origin)
            elif self._lives_there(self.project.imported(self.home.path, 0, statement.module), alias):
                continue
            yield word, f"from {module} import {named}"

    def _lives_there(self, origin: Path | None, alias: ast.alias) -> bool:
        """Whether an import of the moved code refers to the module that it moves to."""
        if origin == self.target_path and alias.asname not in (None, alias.name):
            raise RefactorError(f"{alias.asname} is called {alias.name} in {self.target_path.name}")
        return origin == self.target_path

    def _same_import(self, module: Module, word: str, line: str) -> bool:
        """Whether the module imports the same thing under this name."""
        wanted = parse(line).body[0]
        for statement in top_imports(module.source):
            for alias in statement.names:
                if (alias.asname or alias.name).split(".")[0] == word and type(statement) is type(wanted):
                    assert isinstance(wanted, (ast.Import, ast.ImportFrom))
                    same = ast.dump(alias) == ast.dump(wanted.names[0])
                    return same and self._meant(module.path, statement) == self._meant(module.path, wanted)
        return False

    def _meant(self, importer: Path, statement: Import) -> object:
        if isinstance(statement, ast.Import):
            return statement.names[0].name
        return self.project.imported(importer, statement.level, statement.module) or module_name(statement)


def module_name(statement: Import) -> str:
    return (
        statement.names[0].name
        if isinstance(statement, ast.Import)
        else "." * statement.level + (statement.module or "")
    )


def _cut(statement: Import, aliases: list[ast.alias]) -> Import:
    if isinstance(statement, ast.Import):
        return ast.Import(names=aliases)
    return ast.ImportFrom(module=statement.module, names=aliases, level=statement.level)


def _builtins() -> set[str]:
    import builtins

    return {*dir(builtins), "__name__", "__doc__", "__file__"}


def _placed(text: str, code: str, *, early: bool, constant: bool) -> str:
    """The text with the code inserted: below the imports if it is a constant or needed at import time (`early`), else
    above the main block, or at the end."""
    if not text.strip():
        return code
    source = Source(text)
    imports = top_imports(source)
    gap = "\n" if constant else "\n\n"
    if early or constant:
        head = source.whole_lines(imports[-1])[1] if imports else 0
        if not imports and (doc := source.docstring(source.tree)) is not None:
            head = source.line_end(doc.end_lineno or 0)
        rest = text[head:].lstrip("\n")
        return (
            f"{text[:head].rstrip(chr(10))}\n{gap}{code}{gap if rest else ''}{rest}" if head else f"{code}{gap}{rest}"
        )
    main = next((s for s in source.tree.body if isinstance(s, ast.If) and "__name__" in ast.dump(s.test)), None)
    at = source.line_start(main.lineno) if main is not None else len(text)
    rest = text[at:]
    return f"{text[:at].rstrip(chr(10))}\n{gap}{code}{gap + rest if rest.strip() else ''}"


def _settled(text: str) -> str:
    """The text without leading empty lines."""
    return text.lstrip("\n") if text.strip() else text
