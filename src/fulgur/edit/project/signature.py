"""Change the parameters of a module's function together with its calls in the whole project.

`refactor.parameters` changes the file that defines it; this module changes the calls in all other files. A function
used as a value (`map(f, …)`, a callback) may be called anywhere: such places are listed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from fulgur.edit.project.family import Family, family_of_member, last_name, on_any_object, only_one
from fulgur.edit.project.modules import Module, Project
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed, Occurrence
from fulgur.edit.refactor import RefactorError, apply_call
from fulgur.edit.refactor.local.functions import defaults, parameters
from fulgur.edit.refactor.parameters import (
    add_at_calls,
    find_function,
    head_edits,
    keywords_at_calls,
    named_at_calls,
    parameter_name,
    passed_at,
    passed_by_position,
    remove_at_calls,
    rename_at_calls,
)
from fulgur.edit.refactor.rename import is_own
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Function, Source, Unusable, apply_edits, parse
from fulgur.text.edit_format import Call

SIGNATURE_CALLS = frozenset({"add_parameter", "remove_parameter", "rename_parameter", "use_keywords", "keyword_only"})
# A callback's caller passes required arguments by position, and would fail after these changes.
_BREAKS_CALLBACKS = frozenset({"remove_parameter", "keyword_only"})


def change_signature(
    workspace: Path, path: Path, call: Call, at: tuple[int, int] | None = None, texts: Mapping[Path, str] | None = None
) -> Changed:
    """Apply one of SIGNATURE_CALLS to a function of `path` and to every call of it in the workspace.

    `texts`: files that an earlier step changed, but that are not written yet."""
    project = Project(workspace, texts)
    path = path.resolve()
    module = project.module(path)
    if module is None or not module.usable:
        raise RefactorError(f"{path.name} cannot be read as Python")
    function = find_function(module.source, call.args[0], at)
    owner = module.source.parents.get(function)
    if isinstance(owner, ast.ClassDef):
        change = _change_constructor if function.name == "__init__" else _change_method
        return change(project, module, owner, function, call)
    result = Changed()
    try:
        result.files[path] = (module.text, apply_call(module.text, call, at))
    except RefactorError:
        if call.name != "use_keywords":
            raise  # its calls may all be in other files
    if owner is not module.source.tree:
        return result  # a function inside a function
    references = References(project, path, function.name)
    required = set(call.args[1:]) - set(defaults(function))
    for other in references.modules:
        _no_rivals(references, other, path)
        calls, values = references.calls(other)
        if other.path != path and (edits := _edits(call, module.source, function, other.source, calls)):
            result.files[other.path] = (other.text, _applied(other, edits))
        if values and call.name in _BREAKS_CALLBACKS and required:
            where = f"{other.path.name} line {values[0]}"
            raise RefactorError(
                f"{function.name} is used as a value in {where}, and may be called with these parameters"
            )
        if call.name != "add_parameter" or len(call.args) == 3:
            lines = [line for line in values if call.name != "rename_parameter" or line not in _decorators(other)]
            result.unsure += [
                Occurrence(other.path, line, "value", other.source.lines[line - 1].strip()) for line in lines
            ]
    if not result.files:
        raise RefactorError(f"no call of {function.name} passes arguments by position")
    return result


def _decorators(module: Module) -> set[int]:
    """The lines of decorators: a decorator gets its argument by position."""
    nodes = [*module.source.functions(), *module.source.of(ast.ClassDef)]
    return {decorator.lineno for node in nodes for decorator in node.decorator_list}


def _change_constructor(
    project: Project, module: Module, owner: ast.ClassDef, function: Function, call: Call
) -> Changed:
    """Change a constructor and its calls in every file: `Class(…)`, also for subclasses that inherit the constructor,
    and `super().__init__(…)`."""
    family, result = Family(project, module.path, [owner]), Changed()
    heirs = _heirs(family, owner)
    edits: dict[Path, set[Edit]] = {module.path: set(head_edits(module.source, function, call))}
    for other in project.mentioning(*{node.name for node in heirs}, "__init__"):
        meant: set[int] = set()
        for node, references in family.references:
            if node in heirs:
                _no_rivals(references, other, module.path)
                meant |= {id(found) for found in references.nodes(other)}
        explicit = {id(n) for n in other.source.all(ast.Attribute) if n.attr == "__init__" and id(n.value) in meant}
        inherited = {id(n) for n in family.own(other, "__init__") if _heir_of(other, n, heirs)}
        calls = [node for node in other.source.all(ast.Call) if id(node.func) in meant | explicit | inherited]
        if any(id(node.func) in explicit for node in calls) and call.name not in ("rename_parameter", "add_parameter"):
            raise RefactorError(f"{other.path.name} calls {owner.name}.__init__ directly")
        edits.setdefault(other.path, set()).update(_edits(call, module.source, function, other.source, calls))
    return _finished(project, edits, result, owner.name)


def _heirs(family: Family, owner: ast.ClassDef) -> list[ast.ClassDef]:
    """The class and its subclasses that inherit its constructor."""
    heirs = [owner]
    for _, node in family.classes():
        own = any(isinstance(s, FUNCTIONS) and s.name == "__init__" for s in node.body)
        if not own and node not in heirs and _named_base(node, heirs):
            heirs.append(node)
    return heirs


def _named_base(node: ast.ClassDef, classes: list[ast.ClassDef]) -> bool:
    """Whether one of the bases of a class has the name of one of these classes."""
    return bool({last_name(base) for base in node.bases} & {cls.name for cls in classes})


def _heir_of(module: Module, node: ast.AST, heirs: list[ast.ClassDef]) -> bool:
    """Whether `super().__init__` or `self.__init__` in a class refers to the constructor of these classes."""
    around = next((a for a in module.source.ancestors(node) if isinstance(a, ast.ClassDef)), None)
    return around is not None and (around in heirs[1:] or _named_base(around, heirs))


def _no_rivals(references: References, other: Module, home: Path) -> None:
    if other.path != home and (lines := references.rivals(other)):
        raise RefactorError(
            f"{other.path.name} line {lines[0]} defines {references.name} again", hint="Change that one first."
        )


def _finished(project: Project, edits: dict[Path, set[Edit]], result: Changed, name: str) -> Changed:
    for path, changes in edits.items():
        known = project.module(path)
        if changes and known is not None:
            result.files[path] = (known.text, _applied(known, changes))
    if not result.files:
        raise RefactorError(f"no call of {name} passes arguments by position")
    result.unsure.sort()
    return result


def _change_method(project: Project, module: Module, owner: ast.ClassDef, function: Function, call: Call) -> Changed:
    """Change a method, its overrides in related classes, and its calls on objects in every file.

    A call counts if its object is known to be of the class, or if no other class has a method of this name. Calls on
    other objects are listed if the change could affect them.
    """
    name, result = function.name, Changed()
    family = family_of_member(project, module.path, owner, name)
    alone = only_one(project, name, family.definitions)
    edits: dict[Path, set[Edit]] = {module.path: set(head_edits(module.source, function, call))}
    for other, cls, version in family.methods(name):
        if version is function:
            continue
        if call.name == "rename_parameter":
            if call.args[1] in {arg.arg for arg in parameters(version)}:
                edits.setdefault(other.path, set()).update(head_edits(other.source, version, call))
        elif call.name == "add_parameter":
            result.unsure.append(_place(other, version))
        else:
            raise RefactorError(f"{cls.name} in {other.path.name} has its own {name}", hint="Change them one by one.")
    for other in project.mentioning(name):
        meant, others = _uses_of_method(project, family, other, name, alone=alone)
        calls = [node for node in other.source.all(ast.Call) if id(node.func) in meant]
        edits.setdefault(other.path, set()).update(_edits(call, module.source, function, other.source, calls))
        handed = set(others) | (meant - {id(node.func) for node in calls})
        result.unsure += [
            _place(other, node)
            for node in other.source.all(ast.Call)
            if id(node.func) in others and _matters(call, module.source, function, node)
        ]
        called = {id(node.func) for node in other.source.all(ast.Call)}
        if call.name in _BREAKS_CALLBACKS:
            values = [n for n in other.source.all(ast.Attribute) if id(n) in handed - called]
            result.unsure += [_place(other, node) for node in values]
    return _finished(project, edits, result, name)


def _uses_of_method(
    project: Project, family: Family, module: Module, name: str, *, alone: bool
) -> tuple[set[int], set[int]]:
    """The ids of the `x.name` that refer to the method, and of those that may."""
    sure = [*family.own(module, name), *family.on_objects(module, name)]
    sure += on_any_object(project, module, name) if alone else []
    meant = {id(node) for node in sure}
    rest = [n for n in module.source.all(ast.Attribute) if n.attr == name and id(n) not in meant and not is_own(n)]
    return meant, {id(node) for node in rest}


def _place(module: Module, node: ast.AST) -> Occurrence:
    line: int = node.lineno  # type: ignore[attr-defined]
    return Occurrence(module.path, line, "attribute", module.source.lines[line - 1].strip())


def _matters(call: Call, home: Source, function: Function, node: ast.Call) -> bool:
    """Whether a call would have to change if it refers to the function."""
    if any(isinstance(arg, ast.Starred) for arg in node.args) or any(word.arg is None for word in node.keywords):
        return call.name != "add_parameter"
    named = {word.arg for word in node.keywords}
    if call.name == "add_parameter":
        return len(call.args) == 3
    if call.name == "rename_parameter":
        return call.args[1] in named
    if call.name == "remove_parameter":
        return call.args[1] in named or len(node.args) > passed_at(home, function, call.args[1])
    if call.name == "keyword_only":
        words = passed_by_position(home, function)
        return any(word in call.args[1:] for word in words[: len(node.args)])
    return bool(node.args)


def _edits(call: Call, home: Source, function: Function, source: Source, calls: list[ast.Call]) -> list[Edit]:
    if call.name == "add_parameter":
        word, value = parameter_name(call.args[1]), call.args[2:]
        return add_at_calls(source, calls, word, value[0]) if value else []
    if call.name == "remove_parameter":
        return remove_at_calls(source, calls, call.args[1], passed_at(home, function, call.args[1]))
    if call.name == "keyword_only":
        return named_at_calls(source, calls, passed_by_position(home, function), call.args[1:])
    if call.name == "rename_parameter":
        return rename_at_calls(source, calls, call.args[1], call.args[2])
    return keywords_at_calls(source, calls, passed_by_position(home, function))


def _applied(module: Module, edits: Iterable[Edit]) -> str:
    try:
        after = apply_edits(module.text, edits)
        parse(after)
    except Unusable as error:
        raise RefactorError(f"the calls in {module.path.name} cannot be changed: {error}") from None
    return after
