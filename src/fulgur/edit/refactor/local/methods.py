"""Generate __repr__, __eq__, __hash__ and __slots__ from a class's attributes."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.exact import the_class
from fulgur.edit.refactor.local.piece import Edits, Piece
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Function, dotted

# Code that does not work with slots, or may set attributes that are not visible here.
_DYNAMIC = re.compile(r"\b(?:__dict__|vars\(|setattr\(|cached_property|weakref|__getattr\w*__|__setattr__|pickle)")
_CACHES = frozenset({"lru_cache", "cache", "cachedmethod"})


def constructor(owner: ast.ClassDef) -> Function | None:
    return next((f for f in owner.body if isinstance(f, FUNCTIONS) and f.name == "__init__"), None)


def attributes(owner: ast.ClassDef) -> list[str]:
    """The attributes that every object has: those that the constructor sets unconditionally, in its order; for a
    dataclass, its fields."""
    made = constructor(owner)
    if made is None:
        heads = [ast.unparse(decorator) for decorator in owner.decorator_list]
        if not any(re.search(r"\bdataclass\b|\battrs?\b|\bdefine\b|\bfrozen\b", head) for head in heads):
            return []
        fields = [s for s in owner.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
        return [ast.unparse(s.target) for s in fields if not re.search("ClassVar|InitVar", ast.unparse(s.annotation))]
    found: list[str] = []
    for statement in made.body:
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            break  # the constructor may return here
        found += _sets(statement)
    return list(dict.fromkeys(found))


def _sets(statement: ast.stmt) -> list[str]:
    """The attributes of self that an assignment sets."""
    if isinstance(statement, ast.Assign):
        targets = [one for t in statement.targets for one in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        targets = []
    names = [dotted(target) or "" for target in targets]
    return [name.removeprefix("self.") for name in names if re.fullmatch(r"self\.\w+", name)]


def compared(owner: ast.ClassDef) -> set[str]:
    """The attributes of self that the class's own __eq__ reads."""
    equal = next((f for f in owner.body if isinstance(f, FUNCTIONS) and f.name == "__eq__"), None)
    nodes = [n for n in ast.walk(equal) if isinstance(n, ast.Attribute)] if equal is not None else []
    return {n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == "self"}


def add_method(src: Piece, args: tuple[str, ...]) -> Edits:
    """`add_method CLASS __repr__|__eq__|__hash__|__slots__ ATTRIBUTE…`"""
    owner, name, names = the_class(src, args[0]), args[1], args[2:]
    defined = {getattr(s, "name", "") for s in owner.body}
    defined |= {dotted(t) or "" for s in owner.body if isinstance(s, ast.Assign) for t in s.targets}
    if name in defined:
        raise RefactorError(f"{owner.name} already has {name}")
    known = attributes(owner)
    if missing := [one for one in names if one not in known]:
        raise RefactorError(f"{owner.name} does not always set {missing[0]} in its constructor")
    if not names:
        raise RefactorError(f"no attributes of {owner.name} were named")
    first, last = owner.body[0], owner.body[-1]
    margin, unit = src.indent(first), src.unit
    if margin.strip() or not src.alone_on_lines(last):
        raise RefactorError(f"the body of {owner.name} is not on its own lines")
    if name == "__slots__":
        return _slots(src, owner, names)
    if name not in _BODIES:
        raise RefactorError(f"{name} cannot be generated from attributes")
    if name == "__eq__" and (cached := _cached(owner)):
        raise RefactorError(f"{owner.name}.{cached} is cached by its object, which would become unhashable")
    if name == "__hash__":
        _check_hash(owner, names)
    typed = _is_typed(owner)
    text = "".join(f"{margin}{line.replace('    ', unit)}\n" for line in _BODIES[name](owner.name, names, typed))
    at = src.whole_lines(last)[1]
    lead = "" if src.text[:at].endswith("\n") else "\n"
    return [Edit(at, at, f"{lead}\n{text}")]


def _cached(owner: ast.ClassDef) -> str:
    """The name of a method with a cache keyed by self, which needs the hash that __eq__ removes; empty if none."""
    for function in (statement for statement in owner.body if isinstance(statement, FUNCTIONS)):
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if (dotted(called) or "").rpartition(".")[2] in _CACHES:
                return function.name
    return ""


def _check_hash(owner: ast.ClassDef, names: tuple[str, ...]) -> None:
    """Refuse unless equal objects get equal hashes that never change."""
    equal = compared(owner)
    if not equal:
        raise RefactorError(f"{owner.name} has no __eq__ of its own, so every object equals only itself")
    if other := [name for name in names if name not in equal]:
        raise RefactorError(f"__eq__ of {owner.name} does not compare {other[0]}")
    made = constructor(owner)
    for statement in made.body if made is not None else ():
        for name in {*_sets(statement)} & {*names}:
            if isinstance(getattr(statement, "value", None), (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)):
                raise RefactorError(f"{name} is mutable and has no hash")


def _slots(src: Piece, owner: ast.ClassDef, names: tuple[str, ...]) -> Edits:
    """Add `__slots__`, if no other attribute is visibly set anywhere."""
    if [base for base in owner.bases if dotted(base) != "object"] or owner.keywords or owner.decorator_list:
        raise RefactorError(f"the bases or decorators of {owner.name} may set attributes too")
    around = f"{src.above}{src.text}{src.below}"
    if found := _DYNAMIC.search(around):
        raise RefactorError(f"`{found[0].rstrip('(')}` in this file may not work with slots")
    inside = [n for n in ast.walk(owner) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    others = sorted({n.attr for n in inside if dotted(n.value) == "self"} - {*names})
    others += sorted(set(re.findall(r"(?<!self)\.(\w+) *(?:: *[^=\n]+)?=(?!=)", around)) - {*names})
    if others:
        raise RefactorError(f"the attribute {others[0]} is set too")
    shadowed = {getattr(s, "name", "") for s in owner.body} | {
        ast.unparse(t)
        for s in owner.body
        if isinstance(s, (ast.Assign, ast.AnnAssign))
        for t in (s.targets if isinstance(s, ast.Assign) else [s.target])
    }
    if taken := sorted(shadowed & {*names}):
        raise RefactorError(f"{taken[0]} is defined in the class, so it cannot be a slot")
    documented, first = src.docstring(owner), owner.body[0]
    at = src.line_end(documented.end_lineno or 0) if documented else src.line_start(src.first_line(first))
    listed = ", ".join(f'"{one}"' for one in names) + ("," if len(names) == 1 else "")
    line = f"{src.indent(first)}__slots__ = ({listed})\n"
    return [Edit(at, at, f"\n{line}" if documented else f"{line}\n")]


def _is_typed(owner: ast.ClassDef) -> bool:
    """Whether all methods have return annotations, so that a new one needs one too."""
    methods = [f for f in owner.body if isinstance(f, FUNCTIONS)]
    others = [f for f in methods if f.name != "__init__"] or methods
    return bool(others) and all(f.returns is not None for f in others)


def _repr(owner: str, names: tuple[str, ...], typed: bool) -> list[str]:
    shown = ", ".join(f"{name.lstrip('_')}={{self.{name}!r}}" for name in names)
    head = f"def __repr__(self){' -> str' if typed else ''}:"
    return [head, f'    return f"{{type(self).__name__}}({shown})"']


def _eq(owner: str, names: tuple[str, ...], typed: bool) -> list[str]:
    one, two = (_tuple(side, names) for side in ("self", "other"))
    test = [f"    if not isinstance(other, {owner}):", "        return NotImplemented"]
    head = "def __eq__(self, other: object) -> bool:" if typed else "def __eq__(self, other):"
    return [head, *test, f"    return {one} == {two}"]


def _hash(owner: str, names: tuple[str, ...], typed: bool) -> list[str]:
    value = f"({_tuple('self', names)},)" if len(names) == 1 else _tuple("self", names)
    return [f"def __hash__(self){' -> int' if typed else ''}:", f"    return hash({value})"]


def _tuple(side: str, names: tuple[str, ...]) -> str:
    text = ", ".join(f"{side}.{name}" for name in names)
    return text if len(names) == 1 else f"({text})"


_BODIES = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash}
