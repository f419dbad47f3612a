"""Decide whether an object that jedi inferred has a member, or that this cannot be known.

`None` means unknown, and then nothing is reported: classes with `__getattr__`, unknown bases or unusual metaclasses,
modules that create their names at run time. Stubs may be older or newer than the library, so the running interpreter
is consulted too for the standard library, and the source next to the stub for other packages.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from typing import Any

from jedi.inference.base_value import ValueSet
from jedi.inference.gradual.conversion import convert_values

# Modules of the standard library whose import has side effects.
_NOT_IMPORTED = {"antigravity", "this", "idlelib", "turtledemo", "turtle", "tkinter", "lib2to3", "test", "__main__"}
_FILLS_ITSELF = re.compile(
    r"\bglobals\(\)|sys\.modules\[|^def __getattr__|\bexec\(|\bvars\(\)|lazy_loader|\b__path__\s*=|_getframe",
    re.MULTILINE,
)
_CLASS_FILLS_ITSELF = re.compile(r"\bsetattr\(|__dict__|\bvars\(|\blocals\(\)|\bexec\(|\b__getattr(ibute)?__\b")
_PLAIN_METACLASSES = {"ABCMeta", "EnumMeta", "EnumType", "type"}
_PLAIN_DECORATORS = {
    "dataclass", "final", "total_ordering", "runtime_checkable", "unique", "staticmethod", "classmethod", "property",
    "abstractmethod", "override", "overload", "cached_property", "lru_cache", "cache", "contextmanager",
    "asynccontextmanager", "coroutine", "type_check_only", "disjoint_base", "deprecated",
}  # fmt: skip
_PLAIN_DECORATORS_OF_FUNCTIONS = {"staticmethod", "classmethod", "abstractmethod", "override", "overload", "final"}


def decorators(node: Any) -> set[str]:
    """The last parts of the dotted names of a class's or function's decorators."""
    found = set()
    for decorator in node.get_decorators():
        code = decorator.children[1].get_code().strip().split("(")[0]
        found.add(code.rpartition(".")[2])
    return found


def is_none(value: Any) -> bool:
    """Whether the value is `None`."""
    try:
        return bool(value.name.string_name in ("None", "NoneType"))
    except AttributeError:
        return False


def has_member(value: Any, name: str) -> bool | None:
    """Whether the object has the attribute; None when it cannot be known."""
    if value.is_module():
        return _module_has(value, name)
    cls = value if value.is_class() else value.py__class__() if _judged(value) else None
    if cls is None or not cls.is_class() or not closed(cls):
        return None
    if _listed(value, name) or _listed(cls, name):
        return True
    for other in convert_values(ValueSet([cls]), only_stubs=False, prefer_stubs=False, ignore_compiled=False):
        if other is not cls and (_listed(other, name) or (other.is_class() and not closed(other))):
            return True
    for each in cls.py__mro__():
        live = running(each)
        if live is not None and hasattr(live, name):
            return True
        if live not in (None, object) and name.startswith("_"):
            return None  # stubs leave out private names
    return False


def _judged(value: Any) -> bool:
    """Whether the value is an instance or a literal; decorators and others may set any attribute on a function."""
    kind = type(value).__name__
    return bool(value.is_instance()) or kind in {
        "SequenceLiteralValue", "DictLiteralValue", "ExactValue", "ListComprehension", "SetComprehension",
        "DictComprehension", "FakeList", "FakeTuple", "FakeDict", "CompiledValue", "Generator",
        "GeneratorComprehension",
    }  # fmt: skip


def _listed(value: Any, name: str) -> bool:
    return any(filter.get(name) for filter in value.get_filters())


def members(value: Any) -> set[str]:
    """The names of all members, to suggest the nearest."""
    return {name.string_name for filter in value.get_filters() for name in filter.values()}


def _module_has(module: Any, name: str) -> bool | None:
    if name.startswith("__"):
        return None
    if _listed(module, name):
        return True
    top = (module.py__name__() or "").split(".")[0]
    live = running(module)
    if live is not None:
        return hasattr(live, name)
    if top in sys.stdlib_module_names:
        return None
    converted = convert_values(ValueSet([module]), ignore_compiled=False)
    sources = [each for each in converted if not each.get_root_context().is_stub()]
    if module.get_root_context().is_stub() and not sources:
        return None  # a stub for a library that is not installed
    for each in {module, *sources}:
        if each is not module and _listed(each, name):
            return True
        if each.is_compiled():
            continue
        node = each.tree_node
        if node is None or _FILLS_ITSELF.search(node.get_code()) or _listed(each, "__getattr__"):
            return None
        stars = [i for i in node.iter_imports() if getattr(i, "is_star_import", lambda: False)()]
        if len(stars) > len(each.star_imports()):
            return None
    return False


def closed(cls: Any) -> bool:
    """Whether every source of members of the class and its instances is known."""
    for each in cls.py__mro__():
        if each.is_compiled() or each.py__name__() in ("object", "Generic", "Protocol"):
            continue
        live = running(each)
        node = getattr(each, "tree_node", None)
        in_stub = each.get_root_context().is_stub()
        if in_stub and node is not None and re.search(r"def __getattr(ibute)?__\b", node.get_code()):
            return False
        if inspect.isclass(live):
            if any("__getattr__" in vars(kind) for kind in live.__mro__):
                return False
            continue
        if node is None or node.type != "classdef":
            return False
        if decorators(node) - _PLAIN_DECORATORS:
            return False
        names = {meta.name.string_name for meta in each.get_metaclasses()}
        if names - _PLAIN_METACLASSES or ("metaclass" in _bases_text(node) and not names):
            return False
        for base in each.py__bases__():
            inferred = base.infer()
            if not inferred or not all(hasattr(value, "py__mro__") for value in inferred):
                return False
        if not in_stub and _CLASS_FILLS_ITSELF.search(node.get_code()):
            return False
    return True


def _bases_text(node: Any) -> str:
    arglist = node.get_super_arglist()
    return arglist.get_code() if arglist is not None else ""


def plain_function(value: Any) -> bool:
    """Whether a call reaches the function as written, not the result of an unknown decorator."""
    node = getattr(value, "tree_node", None)
    if node is None:
        return True
    if node.type == "funcdef":
        return not decorators(node) - _PLAIN_DECORATORS_OF_FUNCTIONS
    return node.type in ("classdef", "lambdef")


def running(value: Any) -> Any:
    """The same object in the running interpreter, for the standard library; None for anything else."""
    try:
        module = value.get_root_context().py__name__() or ""
        names = value.get_qualified_names()
    except AttributeError:
        return None
    top = module.split(".")[0]
    if names is None or top not in sys.stdlib_module_names or top in _NOT_IMPORTED:
        return None
    try:
        found = importlib.import_module(module)
        for name in names:
            found = inspect.getattr_static(found, name) if inspect.isclass(found) else getattr(found, name)
            found = getattr(found, "__func__", found)
    except Exception:
        return None
    return found
