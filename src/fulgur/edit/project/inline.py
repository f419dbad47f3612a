"""Replace every call of a function in the project by the value it returns, and remove the function.

Only where this is exact: a module-level function that is one `return`, whose arguments are still evaluated as often and
in the same order, and whose names mean the same at the call. Everything else is refused, naming the place.
"""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

from fulgur.edit.project.modules import Module, Project, all_statements
from fulgur.edit.project.references import References
from fulgur.edit.project.rename import Changed
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.imports import alias_removal
from fulgur.edit.refactor.local.functions import defaults
from fulgur.edit.refactor.source import Edit, Source, Unusable, apply_edits, names_in, parse

_ATOMS = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call, ast.List, ast.Dict, ast.Set, ast.ListComp)
_LATER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.BoolOp)


def inline_everywhere(workspace: Path, path: Path, name: str) -> Changed:
    """Inline a function; RefactorError names the place where a call cannot be replaced exactly."""
    project, path = Project(workspace), path.resolve()
    home = project.module(path)
    if home is None or not home.usable:
        raise RefactorError(f"{path.name} cannot be read as Python")
    body = _Body(home, name)
    references = References(project, path, name)
    result, count = Changed(), 0
    for module in references.modules:
        calls, edits = _calls(references, module, body), []
        outer = [call for call in calls if not any(call is not other and _within(call, other) for other in calls)]
        for call in outer:
            edits.append(Edit(*module.source.span(call), body.at(module, call, calls)))
        count += len(calls)
        if module.path == path:
            edits.append(body.removal())
        edits += _imports(references, module)
        if edits:
            after = apply_edits(module.text, edits)
            parse(after)
            result.files[module.path] = (module.text, after)
    if not count:
        raise RefactorError(f"nothing calls {name}", hint="Delete it instead.")
    return result


def _calls(references: References, module: Module, body: _Body) -> list[ast.Call]:
    calls, values = references.calls(module)
    shown = module.path.name
    if values:
        raise RefactorError(f"{body.name} is used as a value, without a call, in {shown} line {values[0]}")
    if any(body.name in (module.exports() or ()) for _ in all_statements(module.source)):
        raise RefactorError(f"{shown} exports {body.name} in __all__")
    texts = [node.value for node in module.source.of(ast.Constant) if isinstance(node.value, str)]
    if any(re.fullmatch(rf"(?:[\w.]+\.)?{re.escape(body.name)}", text) for text in texts):
        raise RefactorError(f"{shown} names {body.name} in a string")
    if not calls and any(alias.name == body.name for _, alias in references.imports(module)):
        raise RefactorError(f"{shown} imports {body.name} without calling it, and may re-export it")
    return calls


def _within(inner: ast.AST, outer: ast.AST) -> bool:
    return any(node is inner for node in ast.walk(outer))


def _imports(references: References, module: Module) -> list[Edit]:
    """Edits that remove the imports of the function, which are no longer needed."""
    found: dict[int, Edit] = {}
    for node, alias in references.imports(module):
        if alias.name != references.name:
            continue
        if not module.source.alone_on_lines(node) or len(module.source.block_of(node)) == 1:
            raise RefactorError(f"the import in {module.path.name} line {node.lineno} cannot be removed")
        edit = alias_removal(module.source, node, {alias.asname or alias.name})
        if edit is not None:
            found[id(node)] = edit
    return list(found.values())


class _Body:
    """The function to inline: its parameters and the expression that it returns."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.name, self.source = module, name, module.source
        found = [node for node in self.source.tree.body if getattr(node, "name", None) == name]
        if len(found) != 1 or not isinstance(found[0], ast.FunctionDef):
            raise RefactorError(f"{module.path.name} has no plain function {name} at its top level")
        self.function = found[0]
        args = self.function.args
        if args.vararg or args.kwarg:
            raise RefactorError(f"{name} takes any number of arguments (*)")
        if self.function.decorator_list:
            raise RefactorError(f"{name} has a decorator, which inlining would bypass")
        try:
            first = self.source.body_start(self.function)
        except Unusable:
            raise RefactorError(f"the body of {name} is not on its own lines") from None
        if first is not self.function.body[-1] or not isinstance(first, ast.Return) or first.value is None:
            raise RefactorError(f"{name} does more than return one value")
        self.value: ast.expr = first.value
        self.parameters = [arg.arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]]
        self.positional = len(args.posonlyargs) + len(args.args)
        self.uses = [n for n in ast.walk(self.value) if isinstance(n, ast.Name) and n.id in self.parameters]
        unlike = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
        if any(isinstance(node, unlike) for node in ast.walk(self.value)):
            raise RefactorError(f"what {name} returns cannot be moved elsewhere")
        if any(isinstance(node, ast.JoinedStr) for node in ast.walk(self.value)) and self.parameters:
            raise RefactorError(f"{name} puts its parameters into an f-string")
        if "#" in self.source.segment(self.value):
            raise RefactorError(f"there is a comment in what {name} returns")
        inner = {n.id for n in ast.walk(self.value) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        inner |= {n.arg for n in ast.walk(self.value) if isinstance(n, ast.arg)}
        self.inner = inner
        self.free = names_in(self.value) - set(self.parameters) - inner
        if name in self.free:
            raise RefactorError(f"{name} calls itself")

    def removal(self) -> Edit:
        start, end = self.source.whole_lines(self.function)
        while self.source.text[end : end + 1] == "\n":
            end += 1
        return Edit(start, end, "")

    def at(self, module: Module, call: ast.Call, calls: list[ast.Call]) -> str:
        """The expression for one call, parenthesised where necessary."""
        where = f"the call in {module.path.name} line {call.lineno}"
        self._same_names(module, call, where)
        given = self._arguments(call, where)
        self._same_order(given, where)
        texts = {name: _rendered(self, module, node, calls) for name, node in given.items()}
        source, start = self.source, self.source.start(self.value)
        edits = [
            Edit(source.start(use) - start, source.end(use) - start, _bracketed(texts[use.id], given[use.id]))
            for use in self.uses
        ]
        text = apply_edits(source.segment(self.value), edits)
        parent = module.source.parents.get(call)
        alone = isinstance(parent, (ast.Return, ast.Assign, ast.Expr, ast.keyword, ast.AnnAssign)) or (
            isinstance(parent, ast.Call) and call in parent.args
        )
        if "\n" in text or not (isinstance(self.value, _ATOMS) or (alone and not isinstance(self.value, ast.Tuple))):
            return f"({text})"
        return text

    def _arguments(self, call: ast.Call, where: str) -> dict[str, ast.expr]:
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
            raise RefactorError(f"{where} passes * or **")
        given: dict[str, ast.expr] = dict(zip(self.parameters[: self.positional], call.args, strict=False))
        given |= {str(keyword.arg): keyword.value for keyword in call.keywords}
        values = defaults(self.function)
        for name in self.parameters:
            if name not in given:
                if not isinstance(values.get(name), ast.Constant):
                    raise RefactorError(f"{where} omits {name}, whose default is not a constant")
                given[name] = values[name]
        if set(given) != set(self.parameters) or len(call.args) > self.positional:
            raise RefactorError(f"{where} does not match the parameters")
        return given

    def _same_order(self, given: dict[str, ast.expr], where: str) -> None:
        """Refuse unless arguments that may have effects are evaluated exactly once, in order and before any call."""
        busy = [name for name, node in given.items() if not isinstance(node, (ast.Name, ast.Constant))]
        clash = {n for node in given.values() for n in names_in(node)} & self.inner
        if clash:
            raise RefactorError(f"{where} passes {sorted(clash)[0]}, which means something else in {self.name}")
        order = []
        for name in busy:
            uses = [use for use in self.uses if use.id == name]
            if len(uses) != 1 or any(isinstance(a, _LATER) and _within(uses[0], a) for a in ast.walk(self.value)):
                raise RefactorError(f"{where} passes an expression for {name}, which is not used exactly once")
            at = self.source.start(uses[0])
            done = [n for n in ast.walk(self.value) if isinstance(n, ast.Call) and self.source.end(n) <= at]
            if done:
                raise RefactorError(
                    f"{where} passes an expression for {name} that would be evaluated later than before"
                )
            order.append(at)
        if order != sorted(order):
            raise RefactorError(f"{where} passes expressions that would be evaluated in another order")

    def _same_names(self, module: Module, call: ast.Call, where: str) -> None:
        """Refuse unless the free names of the expression mean the same at the call."""
        scope = module.scope_of(call)
        for name in sorted(self.free):
            bound = self.module.names.module.bound
            meaning = scope.resolve(name)
            if module.path == self.module.path:
                same = meaning is (module.names.module if name in bound else None)
            else:
                same = name not in bound and meaning is None and hasattr(builtins, name)
            if not same:
                raise RefactorError(f"{name} is another name at {where}, or undefined")


def _rendered(body: _Body, module: Module, node: ast.expr, calls: list[ast.Call]) -> str:
    """The text of an argument, with calls of the function inside it replaced too. Defaults come from the definition."""
    inside = [call for call in calls if _within(call, node)]
    source: Source = module.source if node in module.source.parents else body.source
    if not inside:
        return source.segment(node)
    outer = [call for call in inside if not any(call is not other and _within(call, other) for other in inside)]
    start = source.start(node)
    edits = [Edit(source.start(c) - start, source.end(c) - start, body.at(module, c, calls)) for c in outer]
    return apply_edits(source.segment(node), edits)


def _bracketed(text: str, node: ast.expr) -> str:
    plain = isinstance(node, _ATOMS) and re.fullmatch(r"[\w.]+|[\w.]*[\[({\"'].*[\])}\"']", text, re.DOTALL)
    negative = isinstance(node, ast.Constant) and text.startswith("-")
    return text if plain and not negative else f"({text})"
