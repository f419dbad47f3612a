"""Change the parameters of a module's function together with its calls in the whole project.

The file that defines it is changed by `refactor.parameters`; here come the calls in the others. A function that is
handed on without being called (`map(f, …)`, a callback) may be called anywhere: such places are listed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from fulgur.edit.project.members import on_any_object, only_one
from fulgur.edit.project.modules import Module, Project
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed, Place
from fulgur.edit.refactor import RefactorError, apply_call
from fulgur.edit.refactor.local.functions import defaults
from fulgur.edit.refactor.parameters import (
    add_at_calls,
    bound_offset,
    find_function,
    keywords_at_calls,
    named_at_calls,
    parameter_spans,
    passed_by_position,
    remove_at_calls,
    rename_at_calls,
)
from fulgur.edit.refactor.source import Edit, Function, Source, Unusable, apply_edits, parse
from fulgur.text.edit_format import Call

SIGNATURE_CALLS = frozenset({"add_parameter", "remove_parameter", "rename_parameter", "use_keywords", "keyword_only"})
# Whoever is handed the function passes what has no default by position, and would fail.
_BREAKS_CALLBACKS = frozenset({"remove_parameter", "keyword_only"})


def change_signature(workspace: Path, path: Path, call: Call, at: tuple[int, int] | None = None) -> Changed:
    """Apply one of SIGNATURE_CALLS to a function of `path` and to every call of it in the workspace."""
    project = Project(workspace)
    path = path.resolve()
    module = project.module(path)
    if module is None or not module.usable:
        raise RefactorError(f"{path.name} cannot be read as Python")
    function = find_function(module.source, call.args[0], at)
    result = Changed()
    try:
        result.files[path] = (module.text, apply_call(module.text, call, at))
    except RefactorError:
        if call.name != "use_keywords":
            raise  # all its calls may stand in other files
    owner = module.source.parents.get(function)
    if isinstance(owner, ast.ClassDef) and function.name != "__init__":
        _change_calls_of_method(project, module, owner, function, call, result)
        return result
    if owner is not module.source.tree and not isinstance(owner, ast.ClassDef):
        return result  # a function inside a function
    if isinstance(owner, ast.ClassDef):
        _change_calls_of_class(module, owner, function, call, result)
    references = References(project, path, owner.name if isinstance(owner, ast.ClassDef) else function.name)
    for other in references.modules:
        if other.path != path and (lines := references.rivals(other)):
            raise RefactorError(
                f"{other.path.name} line {lines[0]} defines {function.name} once more", hint="Change that one first."
            )
        calls, values = references.calls(other)
        if other.path != path and (edits := _edits(call, module.source, function, other.source, calls)):
            after = _applied(other, edits)
            result.files[other.path] = (other.text, after)
        required = set(call.args[1:]) - set(defaults(function))
        if owner is module.source.tree and values and call.name in _BREAKS_CALLBACKS and required:
            where = f"{other.path.name} line {values[0]}"
            raise RefactorError(f"{function.name} is handed on in {where}, and may be called with these parameters")
        if owner is module.source.tree:
            result.unsure += [Place(other.path, line, "value", other.source.lines[line - 1].strip()) for line in values]
    if not result.files:
        raise RefactorError(f"no call of {function.name} passes arguments by position")
    return result


def _change_calls_of_class(
    module: Module, owner: ast.ClassDef, function: Function, call: Call, result: Changed
) -> None:
    """`Class(…)` in the file itself, whose head is changed already."""
    before, after = result.files[module.path]
    source = Source(after)
    calls = [node for node in source.of(ast.Call) if isinstance(node.func, ast.Name) and node.func.id == owner.name]
    if edits := _edits(call, module.source, function, source, calls):
        result.files[module.path] = (before, apply_edits(after, edits))


def _change_calls_of_method(
    project: Project, module: Module, owner: ast.ClassDef, function: Function, call: Call, result: Changed
) -> None:
    """`x.method(…)` in other files, where only this class has a method of the name; otherwise such calls are listed."""
    if not only_one(project, function.name, {module.path: [owner]}):
        result.unsure = uses_by_attribute(project, module.path, function.name)
        return
    for other in project.mentioning(function.name):
        if other.path != module.path:
            meant = {id(node) for node in on_any_object(project, other, function.name)}
            calls = [node for node in other.source.of(ast.Call) if id(node.func) in meant]
            if edits := _edits(call, module.source, function, other.source, calls):
                result.files[other.path] = (other.text, _applied(other, edits))


def _edits(call: Call, home: Source, function: Function, source: Source, calls: list[ast.Call]) -> list[Edit]:
    if call.name == "add_parameter":
        word = re.split(r"[:=]", call.args[1])[0].strip()
        return add_at_calls(source, calls, word, call.args[2]) if len(call.args) == 3 else []
    if call.name == "remove_parameter":
        words = [word for word, _ in parameter_spans(home, function)]
        return remove_at_calls(source, calls, call.args[1], words.index(call.args[1]) - bound_offset(home, function))
    if call.name == "keyword_only":
        return named_at_calls(source, calls, passed_by_position(home, function), call.args[1:])
    if call.name == "rename_parameter":
        return rename_at_calls(source, calls, call.args[1], call.args[2])
    return keywords_at_calls(source, calls, passed_by_position(home, function))


def _applied(module: Module, edits: list[Edit]) -> str:
    try:
        after = apply_edits(module.text, edits)
        parse(after)
    except Unusable as error:
        raise RefactorError(f"the calls in {module.path.name} cannot be changed: {error}") from None
    return after


def uses_by_attribute(project: Project, path: Path, name: str) -> list[Place]:
    """Uses of a member in other files: which class the object has is not known."""
    places = []
    for module in project.mentioning(name):
        if module.path == path:
            continue
        lines = {node.lineno for node in module.source.of(ast.Attribute) if node.attr == name}
        places += [Place(module.path, line, "attribute", module.source.lines[line - 1].strip()) for line in lines]
    return sorted(places)
