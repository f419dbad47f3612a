"""Rename a name that a file defines, with every use of it in the file."""

from __future__ import annotations

import ast
import keyword
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.scopes import Names, Scope, Use
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Source, apply_edits

INNER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def rename(src: Source, old: str, new: str, at: tuple[int, int] | None = None) -> str:
    """Rename a module-level name, a local name of the function at `at`, or a member of a class."""
    check_name(new)
    names = Names(src)
    owner, _, member = old.rpartition(".")
    if owner:
        return rename_member(src, owner, member, new, at)
    if at is not None:
        local = local_binder(names, src, old, at)
        if local is not None:
            return rename_binding(src, names, local, old, new)
    if old in names.module.bound:
        return rename_binding(src, names, names.module, old, new)
    return rename_member(src, None, old, new, at)


def check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise RefactorError(f"{name!r} is not a name")


def local_binder(names: Names, src: Source, name: str, at: tuple[int, int]) -> Scope | None:
    """The scope inside the span `at` that binds the name, if exactly one does: a function, lambda or comprehension."""
    found = []
    for node, scope in names.scopes.items():
        if isinstance(node, (*FUNCTIONS, *INNER)) and name in scope.bound - scope.globals - scope.nonlocals:
            start, end = src.whole_lines(node) if isinstance(node, FUNCTIONS) else src.span(node)
            if start < at[1] and end > at[0]:
                found.append(scope)
    return found[0] if len(found) == 1 and name not in names.module.bound else None


def rename_binding(src: Source, names: Names, binder: Scope, old: str, new: str) -> str:
    uses = names.of(old, binder)
    check_free(names, binder, uses, old, new)
    edits = [use_edit(use, old, new) for use in uses]
    if binder is names.module:
        edits += exported(src, old, new)
    return apply_edits(src.text, set(edits))


def use_edit(use: Use, old: str, new: str) -> Edit:
    if use.start < 0:
        raise RefactorError(
            f"{old} on line {use.line} cannot be renamed safely", hint="Rename that place by hand first."
        )
    if use.kind == "from":
        return Edit(use.start, use.start + len(old), f"{old} as {new}")
    if use.kind == "import":
        raise RefactorError(
            f"{old} is an imported module (line {use.line})", hint="Import it under another name instead."
        )
    return Edit(use.start, use.start + len(old), new)


def check_free(names: Names, binder: Scope, uses: list[Use], old: str, new: str) -> None:
    """Refuse a new name that already has a meaning where the old one is bound or used."""
    taken = new in binder.bound or any(use.scope.resolve(new) is not None for use in uses)
    captured = any(
        use.name == new and use.scope.resolve(new) is None and within(use.scope, binder) for use in names.uses
    )
    if taken or captured:
        raise RefactorError(f"{new} is already used here", hint=f"Choose another name for {old}.")


def within(scope: Scope, outer: Scope) -> bool:
    current: Scope | None = scope
    while current is not None:
        if current is outer:
            return True
        current = current.parent
    return False


def exported(src: Source, old: str, new: str) -> list[Edit]:
    """Edits of the name in `__all__`."""
    edits = []
    for statement in src.tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Constant) and node.value == old:
                quote = src.text[src.start(node)]
                edits.append(Edit(*src.span(node), f"{quote}{new}{quote}"))
    return edits


def member_classes(src: Source, name: str, owner: str | None, at: tuple[int, int] | None) -> list[ast.ClassDef]:
    """The class that defines the member, with its subclasses in the file."""
    classes = [node for node in ast.walk(src.tree) if isinstance(node, ast.ClassDef)]
    having = [node for node in classes if name in members(node) and (owner is None or node.name == owner)]
    if len(having) > 1 and at is not None:
        inside = [n for n in having if src.whole_lines(n)[0] < at[1] and src.whole_lines(n)[1] > at[0]]
        having = inside or having
    if not having and owner and all(node.name != owner for node in classes):
        raise RefactorError(f"{owner}.{name} is not defined in this file, so it cannot be renamed here")
    if not having and not owner and re.search(rf"\b{re.escape(name)}\b", src.text):
        raise RefactorError(
            f"{name} is not defined here, or is defined in several places", hint="Name the function it is in."
        )
    if not having:
        raise RefactorError(f"there is no {owner + '.' if owner else ''}{name} in this file")
    family = {node.name for node in having} | {c.name for node in having for c in with_subclasses(src, node)}
    roots = [node for node in having if not any(isinstance(b, ast.Name) and b.id in family for b in node.bases)]
    if len(roots) > 1:
        listed = ", ".join(node.name for node in roots)
        raise RefactorError(f"several classes have {name}: {listed}", hint="Say which one, as Class.name.")
    return [node for node in classes if node.name in family]


def with_subclasses(src: Source, owner: ast.ClassDef) -> list[ast.ClassDef]:
    """A class and its subclasses in the file."""
    classes = src.of(ast.ClassDef)
    family = {owner.name}
    while True:
        more = {c.name for c in classes if any(isinstance(b, ast.Name) and b.id in family for b in c.bases)} - family
        if not more:
            return [node for node in classes if node is owner or node.name in family - {owner.name}]
        family |= more


def members(node: ast.ClassDef) -> set[str]:
    """Names defined in the body of a class or set on self in its methods."""
    found: set[str] = set()
    for statement in node.body:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            found.add(statement.name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and is_own(inner):
            found.add(inner.attr)
    return found


def is_own(node: ast.Attribute) -> bool:
    """self.x, cls.x or super().x"""
    value = node.value
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def rename_member(src: Source, owner: str | None, old: str, new: str, at: tuple[int, int] | None) -> str:
    """Rename a method or attribute: its definitions, and its uses on self, cls, super() and the class's name."""
    family = member_classes(src, old, owner, at)
    names = {node.name for node in family}
    if any(new in members(node) for node in family):
        raise RefactorError(f"{new} already exists in {', '.join(sorted(names))}")
    edits = member_edits(src, Names(src), family, old, new)
    for attribute in ast.walk(src.tree):
        if not isinstance(attribute, ast.Attribute) or attribute.attr != old:
            continue
        if isinstance(attribute.value, ast.Name) and attribute.value.id in names:
            edits.add(attribute_edit(src, attribute, new))
    return apply_edits(src.text, edits)


def member_edits(src: Source, names: Names, classes: list[ast.ClassDef], old: str, new: str) -> set[Edit]:
    """Edits of a member's definitions in these classes, of its uses in their bodies (`@old.setter`, `__next__ = old`),
    and of its uses on self, cls and super()."""
    edits: set[Edit] = set()
    for node in classes:
        edits |= {use_edit(use, old, new) for use in names.of(old, names.scopes[node])}
        for statement in node.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if any(isinstance(t, ast.Name) and t.id in ("__slots__", "__match_args__") for t in targets):
                    edits |= slot_edits(src, statement, old, new)
        edits |= {
            attribute_edit(src, a, new)
            for a in ast.walk(node)
            if isinstance(a, ast.Attribute) and a.attr == old and is_own(a)
        }
    return edits


def slot_edits(src: Source, statement: ast.AST, old: str, new: str) -> set[Edit]:
    """Edits of the member's name where a class lists its attributes as strings."""
    found = [node for node in ast.walk(statement) if isinstance(node, ast.Constant) and node.value == old]
    texts = {node: src.segment(node) for node in found}
    return {Edit(*src.span(node), f"{text[0]}{new}{text[-1]}") for node, text in texts.items() if text[1:-1] == old}


def attribute_edit(src: Source, node: ast.Attribute, new: str) -> Edit:
    end = src.end(node)
    if src.text[end - len(node.attr) : end] != node.attr:
        raise RefactorError(f"{node.attr} on line {node.lineno} cannot be renamed safely", hint="It is in an f-string.")
    return Edit(end - len(node.attr), end, new)
