"""Rename a method or attribute of a class in the whole project, as far as the class of each object is known.

Renamed exactly: uses on what `family` knows to be objects of the class, fields that are passed by name, and patterns.
Where nothing else in the project or its imports has a member of this name, `.member` of any object is renamed too.
Otherwise such uses are listed, and so are texts that name the member.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

from fulgur.edit.project.family import Family, family_of_member, last_name, on_any_object, only_one
from fulgur.edit.project.modules import Module, Project
from fulgur.edit.project.outside import defined_outside, outer_base
from fulgur.edit.project.records import has_field, has_keys, keyword_edits, pattern_edits
from fulgur.edit.project.rename import BY_NAME, Changed, Occurrence, in_text_files
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.rename import attribute_edit, check_name, member_classes, member_edits, members
from fulgur.edit.refactor.source import Edit, apply_edits, parse


def rename_member_everywhere(
    root: Path, path: Path, owner: str | None, old: str, new: str, at: tuple[int, int] | None
) -> Changed:
    """Rename a member; RefactorError when one of the classes has the new name, or when several could be meant."""
    check_name(new)
    project, path = Project(root), path.resolve()
    home = project.module(path)
    if home is None or not home.usable:
        raise RefactorError(f"{path.name} cannot be read as Python")
    classes = member_classes(home.source, old, owner, at)
    family = family_of_member(project, path, next((c for c in classes if old in members(c)), classes[0]), old)
    for module, node in family.classes():
        _may_be_renamed(project, module, node, old, new)
    result = Changed()
    alone = only_one(project, old, family.definitions)
    field = any(has_field(node, old) for _, node in family.classes())
    listed = re.compile(rf"(?:(?<=[.`]){re.escape(old)}(?!\w)|(?<!\w){re.escape(old)}(?=\())")
    for module in project.mentioning(old):
        edits = _edits(module, family, old, new, field=field, alone=alone)
        if edits:
            after = apply_edits(module.text, edits)
            parse(after)
            result.files[module.path] = (module.text, after)
        result.unsure += _left(module, family, old, {edit.start for edit in edits}, listed, field=field)
    _must_be_followed(project, result, old)
    result.unsure = sorted({*result.unsure, *in_text_files(project, old, listed)})
    return result


def _must_be_followed(project: Project, result: Changed, old: str) -> None:
    """Refuse to rename a definition when none of its uses could be renamed although some may mean it.

    Tests often construct their objects explicitly, so a use renamed in a test does not count for other code.
    """
    uses = re.compile(rf"\.{re.escape(old)}\b")
    left = [place for place in result.unsure if place.kind == "attribute"]
    left = [place for place in left if not _is_test(project, place.path)] or left
    renamed = sum(
        len(uses.findall(before)) - len(uses.findall(after))
        for path, (before, after) in result.files.items()
        if not _is_test(project, path) or _is_test(project, left[0].path if left else path)
    )
    if left and not renamed:
        first = f"{left[0].path.name}:{left[0].line}"
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise RefactorError(f"{first}{more} may use this {old} or that of another class; it is unclear which")


def _is_test(project: Project, path: Path) -> bool:
    return any(part.startswith("test") for part in path.relative_to(project.workspace).parts)


def _may_be_renamed(project: Project, module: Module, node: ast.ClassDef, old: str, new: str) -> None:
    if new in members(node):
        raise RefactorError(f"{new} already exists in {node.name}")
    if has_keys(node) and old in members(node):
        raise RefactorError(f"{node.name} is a TypedDict: its keys are strings, which a rename does not follow")
    for known in map(last_name, node.bases) if old in members(node) else ():
        if hasattr(getattr(builtins, known, None), old):
            raise RefactorError(f"{node.name}.{old} overrides {known}.{old}")
    base = outer_base(project, module, node) if old in members(node) else None
    if base is not None and defined_outside(project, module, old):
        raise RefactorError(f"{node.name}.{old} may override {base}.{old}, which is outside this project")


def _edits(module: Module, family: Family, old: str, new: str, *, field: bool, alone: bool) -> set[Edit]:
    edits = member_edits(module.source, module.names, family.definitions.get(module.path, []), old, new)
    meant = family.on_objects(module, old)
    meant += on_any_object(family.project, module, old) if alone else []
    edits |= {attribute_edit(module.source, node, new) for node in meant}
    edits |= set(pattern_edits(module, family, old, new))
    edits |= set(_dotted(module, family, old, new))
    return edits | (keyword_edits(module, family, old, new, alone=alone) if field else set())


def _dotted(module: Module, family: Family, old: str, new: str) -> Iterator[Edit]:
    """Edits in strings such as `"package.module.Class.member"`, which mocks use."""
    source = module.source
    texts = [n for n in source.of(ast.Constant) if isinstance(n.value, str) and n.value.endswith(f".{old}")]
    for node in texts:
        for owner, references in family.references:
            homes = {name for home in references.homes for name in family.project.dotted_names(home)}
            start, end = source.span(node)
            if node.value in {f"{home}.{owner.name}.{old}" for home in homes}:
                at = source.text.rindex(old, start, end)
                yield Edit(at, at + len(old), new)
                break


def _left(
    module: Module, family: Family, old: str, taken: set[int], listed: re.Pattern[str], *, field: bool
) -> Iterator[Occurrence]:
    """Uses on objects of unknown classes, and texts that name the member."""
    source = module.source

    def place(at: int, kind: str) -> Occurrence:
        line = source.line_of(at)
        return Occurrence(module.path, line, kind, source.lines[line - 1].strip())

    found = [node for node in source.all(ast.Attribute) if node.attr == old]
    attributes = {source.end(node) - len(old) for node in found}
    others = {source.end(node) - len(old) for node in found if family.is_another(module, node.value, old)}
    yield from (place(at, "attribute") for at in sorted(attributes - taken - others))
    for node in source.of(ast.Constant):
        if node.value == old and source.start(node) + 1 not in taken:
            call = source.parents.get(node)
            if field or (isinstance(call, ast.Call) and last_name(call.func) in BY_NAME):
                yield place(source.start(node), "text")
    if field:
        splats = [call for call in source.all(ast.Call) if any(word.arg is None for word in call.keywords)]
        yield from (place(source.start(call), "value") for call in splats if last_name(call.func)[:1].isupper())
    code = attributes | {use.start for use in module.names.uses} | taken
    for match in listed.finditer(module.text):
        if match.start() not in code:
            yield place(match.start(), "text")
