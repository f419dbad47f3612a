"""Fields that a generated constructor takes by name: dataclasses, attrs, named tuples, pydantic models."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fulgur.edit.project.family import Family, last_name
from fulgur.edit.project.modules import Module
from fulgur.edit.refactor.source import FUNCTIONS, Edit

_DECORATORS = frozenset({"dataclass", "attrs", "attributes", "s", "define", "frozen", "mutable"})
_BASES = frozenset({"NamedTuple", "BaseModel", "BaseSettings", "Struct", "SQLModel"})
_COPIES = frozenset({"replace", "evolve", "assoc", "_replace", "__replace__"})


def has_field(node: ast.ClassDef, name: str) -> bool:
    """Whether the class has a field of this name that its constructor takes as a parameter."""
    fields: list[ast.expr] = [s.target for s in node.body if isinstance(s, ast.AnnAssign)]
    fields += [t for s in node.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(s.value, ast.Call)]
    return is_record(node) and any(isinstance(field, ast.Name) and field.id == name for field in fields)


def is_record(node: ast.ClassDef) -> bool:
    """Whether the fields of a class are the parameters of its constructor."""
    if any(isinstance(s, FUNCTIONS) and s.name == "__init__" for s in node.body):
        return False
    heads = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(last_name(head) in _DECORATORS for head in heads) or any(last_name(b) in _BASES for b in node.bases)


def has_keys(node: ast.ClassDef) -> bool:
    """Whether the class is a TypedDict, whose fields are used as strings."""
    return any(last_name(base) == "TypedDict" for base in node.bases)


def keyword_edits(module: Module, family: Family, old: str, new: str, *, alone: bool) -> set[Edit]:
    """Edits where the field is passed by name: `Class(old=…)`, `cls(old=…)`, `replace(x, old=…)`.

    `alone`: no other class has the field, so `replace` of any object means it."""
    source, classes = module.source, family.meaning(module)
    mine = family.definitions.get(module.path, [])
    edits = set()
    for call in source.all(ast.Call):
        words = [word for word in call.keywords if word.arg == old]
        if not words:
            continue
        around = next((a for a in source.ancestors(call) if isinstance(a, ast.ClassDef)), None)
        called = last_name(call.func)
        inside = around in mine and (called in ("cls", "__class__") or _is_type_of_self(call.func))
        partial = called == "partial" and bool(call.args) and id(call.args[0]) in classes
        if id(call.func) in classes or inside or partial or (alone and called in _COPIES):
            edits |= {Edit(source.start(word), source.start(word) + len(old), new) for word in words}
    return edits


def _is_type_of_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node) == "type(self)"


def pattern_edits(module: Module, family: Family, old: str, new: str) -> Iterator[Edit]:
    """Edits in `case Class(old=…)`, which reads the attribute for any kind of class."""
    source, classes = module.source, family.meaning(module)
    for node in source.of(ast.MatchClass):
        if id(node.cls) not in classes:
            continue
        for name, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            found = re.search(rf"\b{re.escape(old)}\s*=\s*$", source.text[source.end(node.cls) : source.start(pattern)])
            if name == old and found:
                start = source.end(node.cls) + found.start()
                yield Edit(start, start + len(old), new)
