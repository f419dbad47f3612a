"""Infer what kind of object an expression is, as far as the project's own code says so.

Sources: constructors, annotations, return values, `self`, elements of lists, attributes of known classes. A variable
has a kind when all its values have the same kind. None means unknown; nothing is guessed from names, defaults or uses,
and nothing is run.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fulgur.edit.project.modules import Module, Project, Reach
from fulgur.edit.refactor.rename import is_own
from fulgur.edit.refactor.scopes import COMPREHENSIONS, Scope
from fulgur.edit.refactor.source import FUNCTIONS, Function, Unusable, parse

_DEEPEST = 12  # most steps from an expression to a class
_ITEMS = frozenset(
    {"list", "List", "set", "Set", "frozenset", "FrozenSet", "deque", "Deque", "Sequence", "MutableSequence"}
    | {"Iterable", "Iterator", "Collection", "Generator", "Container", "UserList"}
)
_SAME = frozenset({"Optional", "Annotated", "ClassVar", "Final", "Required", "NotRequired", "ReadOnly"})


@dataclass(frozen=True)
class Kind:
    """`what`: object or class (`node` is a class of the project), list (with elements of kind `of`), function, module,
    or other (an object of a class from outside the project)."""

    what: str
    path: Path | None = None
    node: ast.AST | None = None
    of: Kind | None = None


OTHER = Kind("other")
Binding = tuple[str, ast.AST]


class Kinds:
    """The kinds of expressions in all files of a project."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._bindings: dict[Path, dict[tuple[Scope, str], list[Binding]]] = {}
        self._reaches: dict[Path, Reach] = {}
        self._known: dict[int, Kind | None] = {}
        self._under_way: set[int] = set()

    def of(self, module: Module, node: ast.expr) -> Kind | None:
        """The kind of the value of an expression."""
        key = id(node)
        if key in self._known:
            return self._known[key]
        if key in self._under_way or len(self._under_way) >= _DEEPEST:
            return None
        self._under_way.add(key)
        try:
            found = self._of(module, node)
        finally:
            self._under_way.discard(key)
        if not self._under_way:  # a nested result may be cut short by recursion, so it is not cached
            self._known[key] = found
        return found

    def _of(self, module: Module, node: ast.expr) -> Kind | None:
        if isinstance(node, ast.Name):
            return self._named(module, node.id, module.scope_of(node))
        if isinstance(node, ast.Attribute):
            return self._attribute(module, node)
        if isinstance(node, ast.Call):
            return self._called(self.of(module, node.func))
        if isinstance(node, ast.Subscript):
            whole = self.of(module, node.value)
            return whole if isinstance(node.slice, ast.Slice) else self._element(whole)
        if isinstance(node, ast.Constant):
            return OTHER if node.value is not None else None
        if isinstance(node, ast.IfExp | ast.BoolOp):
            parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
            return _same(self.of(module, part) for part in parts)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return _listed(_same(self.of(module, part) for part in node.elts))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return _listed(self.of(module, node.elt))
        if isinstance(node, ast.JoinedStr | ast.Compare):
            return OTHER
        return None

    # names

    def _named(self, module: Module, name: str, scope: Scope) -> Kind | None:
        binder = scope.resolve(name)
        if binder is None:
            return None
        found = self._bound(module).get((binder, name), [])
        return _same(self._value(module, kind, node) for kind, node in found)

    def _value(self, module: Module, kind: str, node: ast.AST) -> Kind | None:
        """The kind of the value that a binding gives its name."""
        if kind == "class":
            return Kind("class", module.path, node)
        if kind == "def":
            return Kind("function", module.path, node)
        if kind == "argument" and isinstance(node, ast.arg):
            return self._argument(module, node)
        if kind == "import" and isinstance(node, ast.alias):
            return self._imported(module, node)
        if kind == "annotation" and isinstance(node, ast.expr):
            return self._annotated(module, node, node)
        if kind == "value" and isinstance(node, ast.expr):
            return self.of(module, node)
        if kind == "element" and isinstance(node, ast.expr):
            return self._element(self.of(module, node))
        if kind == "entered" and isinstance(node, ast.expr):
            return self._entered(self.of(module, node))
        return None

    def _argument(self, module: Module, node: ast.arg) -> Kind | None:
        function = module.source.parents.get(module.source.parents[node])
        if node.annotation is not None:
            return self._annotated(module, node.annotation, node)
        owner = module.source.parents.get(function) if function is not None else None
        if not isinstance(function, FUNCTIONS) or not isinstance(owner, ast.ClassDef):
            return None
        plain = [*function.args.posonlyargs, *function.args.args]
        if not plain or plain[0] is not node or _decorated(function, "staticmethod"):
            return None
        of_class = _decorated(function, "classmethod") or function.name == "__new__"
        return Kind("class" if of_class else "object", module.path, owner)

    def _imported(self, module: Module, alias: ast.alias) -> Kind | None:
        node = module.source.parents[alias]
        if isinstance(node, ast.Import):
            path = self._project.imported(module.path, 0, alias.name)
            return Kind("module", path) if path is not None and (alias.asname or "." not in alias.name) else None
        assert isinstance(node, ast.ImportFrom)
        package = self._project.imported(module.path, node.level, node.module)
        if package is None:
            return OTHER if alias.name[:1].isupper() else None
        return self._member_of_module(package, alias.name)

    def _member_of_module(self, path: Path, name: str) -> Kind | None:
        module = self._project.module(path)
        if module is not None and module.usable and name in module.names.module.bound:
            return self._named(module, name, module.names.module)
        inner = self._project.submodule(path, name)
        return Kind("module", inner) if inner is not None else None

    def _bound(self, module: Module) -> dict[tuple[Scope, str], list[Binding]]:
        if module.path not in self._bindings:
            found: dict[tuple[Scope, str], list[Binding]] = {}
            for name, at, kind, node in _all_bindings(module):
                binder = module.scope_of(at).resolve(name)
                if binder is not None:
                    found.setdefault((binder, name), []).append((kind, node))
            self._bindings[module.path] = found
        return self._bindings[module.path]

    # what objects have

    def _attribute(self, module: Module, node: ast.Attribute) -> Kind | None:
        if module.path not in self._reaches:
            self._reaches[module.path] = Reach(self._project, module)
        path = self._reaches[module.path].file(node.value, module.scope_of(node))
        if path is not None:
            return self._member_of_module(path, node.attr)
        return self._member(self.of(module, node.value), node.attr)

    def _member(self, kind: Kind | None, name: str) -> Kind | None:
        if kind is None or kind.path is None:
            return None
        if kind.what == "module":
            return self._member_of_module(kind.path, name)
        if kind.what not in ("object", "class"):
            return None
        for module, owner in self._classes(kind):
            found = list(_members(owner, name))
            if found:
                return _same(self._held(module, one, of_object=kind.what == "object") for one in found)
        return None

    def _held(self, module: Module, node: ast.AST, *, of_object: bool) -> Kind | None:
        """The kind of value that a statement of a class gives the attribute."""
        if isinstance(node, FUNCTIONS):
            reads = of_object and (_decorated(node, "property") or _decorated(node, "cached_property"))
            method = Kind("function", module.path, node)
            return self._called(method) if reads else method
        if isinstance(node, ast.AnnAssign):
            return self._annotated(module, node.annotation, node)
        if isinstance(node, ast.Assign):
            return self.of(module, node.value)
        return None

    def _classes(self, kind: Kind) -> Iterator[tuple[Module, ast.ClassDef]]:
        """A class and its bases in the project, nearest first."""
        waiting, seen = [kind], set()
        while waiting:
            one = waiting.pop(0)
            module = self._project.module(one.path) if one.path is not None else None
            if module is None or not isinstance(one.node, ast.ClassDef) or one.node in seen:
                continue
            seen.add(one.node)
            yield module, one.node
            bases = [
                self.of(module, base.value if isinstance(base, ast.Subscript) else base) for base in one.node.bases
            ]
            waiting += [base for base in bases if base is not None and base.what == "class"]

    def _called(self, kind: Kind | None) -> Kind | None:
        if kind is None or kind.path is None:
            return None
        if kind.what == "class":
            return Kind("object", kind.path, kind.node)
        module = self._project.module(kind.path)
        function = kind.node
        if kind.what != "function" or module is None or not isinstance(function, ast.FunctionDef):
            return None
        plain = {"property", "cached_property", "staticmethod", "classmethod", "abstractmethod", "override"}
        if any(_last(decorator) not in plain for decorator in function.decorator_list):
            return None
        if function.returns is not None:
            return self._annotated(module, function.returns, function)
        inside = list(_own_nodes(function))
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside):
            return None
        values = [node.value for node in inside if isinstance(node, ast.Return)]
        return _same(self.of(module, value) if value is not None else None for value in values)

    def _element(self, kind: Kind | None) -> Kind | None:
        if kind is None or kind.what == "list":
            return kind.of if kind is not None else None
        if kind.what != "object":
            return None
        for module, owner in self._classes(kind):
            for base in owner.bases:
                if isinstance(base, ast.Subscript) and _last(base.value) in _ITEMS:
                    return self._annotated(module, base.slice, owner)
        return None

    def _entered(self, kind: Kind | None) -> Kind | None:
        """The kind of `name` in `with X as name`: what `__enter__` returns."""
        return self._called(self._member(kind, "__enter__"))

    # annotations

    def _annotated(self, module: Module, node: ast.expr, at: ast.AST) -> Kind | None:
        """The kind of object that an annotation describes."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self._quoted(module, node.value, at)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._either(module, [node.left, node.right], at)
        if isinstance(node, ast.Subscript):
            head, inner = _last(node.value), node.slice
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if head in _ITEMS or (head in ("tuple", "Tuple") and len(parts) == 2 and _is_dots(parts[1])):
                return _listed(self._annotated(module, parts[0], at))
            if head in _SAME:
                return self._annotated(module, parts[0], at)
            if head == "Union":
                return self._either(module, parts, at)
            return None
        if isinstance(node, ast.Name) and node.id in ("Self", "Any", "object"):
            owner = next((a for a in module.source.ancestors(at) if isinstance(a, ast.ClassDef)), None)
            return Kind("object", module.path, owner) if node.id == "Self" and owner is not None else None
        if isinstance(node, ast.Name) and hasattr(builtins, node.id) and module.scope_of(at).resolve(node.id) is None:
            return OTHER
        named = self._at(module, node, at)
        if named is not None and named.what == "class":
            return Kind("object", named.path, named.node)
        return OTHER if named == OTHER or self._from_outside(module, node) else None

    def _from_outside(self, module: Module, node: ast.expr) -> bool:
        """Whether an annotation such as `datetime.datetime` names a module imported from outside the project."""
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if first is node or not isinstance(first, ast.Name):
            return False
        imported = {
            alias.asname or alias.name.split(".")[0]: alias.name
            for statement in module.source.of(ast.Import)
            for alias in statement.names
        }
        return first.id in imported and self._project.imported(module.path, 0, imported[first.id]) is None

    def _at(self, module: Module, node: ast.expr, at: ast.AST) -> Kind | None:
        """The kind of an expression that may not be part of the tree, resolved in the scope of `at`."""
        if isinstance(node, ast.Name):
            return self._named(module, node.id, module.scope_of(at))
        if isinstance(node, ast.Attribute):
            if node in module.source.parents:
                return self._attribute(module, node)
            return self._member(self._at(module, node.value, at), node.attr)
        return None

    def _quoted(self, module: Module, text: str, at: ast.AST) -> Kind | None:
        try:
            body = parse(text.strip()).body
        except Unusable:
            return None
        only = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
        return self._annotated(module, only, at) if only is not None else None

    def _either(self, module: Module, parts: list[ast.expr], at: ast.AST) -> Kind | None:
        said = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is None)]
        return _same(self._annotated(module, part, at) for part in said)


def _same(kinds: Iterable[Kind | None]) -> Kind | None:
    """The kind that all of them have; None if they differ."""
    found = list(kinds)
    return found[0] if found and all(kind == found[0] for kind in found) else None


def _listed(kind: Kind | None) -> Kind | None:
    return Kind("list", of=kind) if kind is not None else None


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _decorated(function: Function, name: str) -> bool:
    return any(_last(decorator) == name for decorator in function.decorator_list)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those inside nested functions and classes."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def _members(owner: ast.ClassDef, name: str) -> Iterator[ast.AST]:
    """The statements that give a class or its objects this attribute; an annotation overrides the others."""
    found: list[ast.AST] = [n for n in owner.body if isinstance(n, FUNCTIONS) and n.name == name]
    for node in ast.walk(owner):
        targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for target in targets:
            direct = isinstance(target, ast.Name) and target.id == name and node in owner.body
            if direct or (isinstance(target, ast.Attribute) and target.attr == name and is_own(target)):
                found.append(node)
    said = [node for node in found if isinstance(node, ast.AnnAssign)]
    getters = [node for node in found if isinstance(node, FUNCTIONS) and _decorated(node, "property")]
    yield from said[:1] or getters or found


def _all_bindings(module: Module) -> Iterator[tuple[str, ast.AST, str, ast.AST]]:
    """Every binding of a name: (name, where, kind of binding, node that determines its value)."""
    source = module.source
    told: set[ast.AST] = set()  # targets whose value is known
    for node in ast.walk(source.tree):
        pairs: list[tuple[ast.AST | None, str, ast.AST]] = []
        if isinstance(node, FUNCTIONS):
            yield node.name, node, "def", node
        elif isinstance(node, ast.ClassDef):
            yield node.name, node, "class", node
        elif isinstance(node, ast.arg):
            yield node.arg, node, "argument", node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield (alias.asname or alias.name).split(".")[0], node, "import", alias
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, node, "unknown", node
        elif isinstance(node, ast.Assign):
            pairs = [(target, "value", node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(node.target, "annotation", node.annotation)]
        elif isinstance(node, ast.NamedExpr):
            pairs = [(node.target, "value", node.value)]
        elif isinstance(node, ast.For):
            pairs = [(node.target, "element", node.iter)]
        elif isinstance(node, COMPREHENSIONS):
            pairs = [(generator.target, "element", generator.iter) for generator in node.generators]
        elif isinstance(node, ast.With):
            pairs = [(item.optional_vars, "entered", item.context_expr) for item in node.items]
        for target, kind, value in pairs:
            if isinstance(target, ast.Name):
                told.add(target)
                yield target.id, target, kind, value
    for name in source.all(ast.Name):
        if not isinstance(name.ctx, ast.Load) and name not in told:
            yield name.id, name, "unknown", name
