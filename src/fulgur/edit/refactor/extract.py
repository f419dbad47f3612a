"""Extract statements of a function into a new function: exactly, or not at all.

Variables of the function that the statements read become parameters; those that they set and the rest reads are
returned. Refused: statements that may leave before their end, variables that may have no value yet, and closures that
would see a different variable than before.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.rename import check_name, members
from fulgur.edit.refactor.scopes import Names, Scope
from fulgur.edit.refactor.source import FUNCTIONS, Edit, Function, Source, apply_edits

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_NESTED = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
_LOOK_AROUND = frozenset({"locals", "vars", "exec", "eval", "super", "__class__"})


def extract_function(src: Source, name: str, at: tuple[int, int] | None) -> str:
    """The file with the statements at `at` moved into a new function `name`, and a call of it in their place."""
    check_name(name)
    if at is None:
        raise RefactorError("no lines were named")
    statements = _statements(src, at)
    function = src.function_of(statements[0])
    if function is None:
        raise RefactorError("the lines are not inside a function", hint="Name lines of a function: FILE:FIRST-LAST.")
    return _Extract(src, function, statements, name).run()


def _statements(src: Source, at: tuple[int, int]) -> list[ast.stmt]:
    """The statements of one block that these lines contain, whole."""
    start, end = at
    while start < end and src.text[start] in " \t\n":
        start += 1
    while end > start and src.text[end - 1] in " \t\n":
        end -= 1
    first = [s for s in ast.walk(src.tree) if isinstance(s, ast.stmt) and src.start(s) == start]
    for statement in first:
        block = src.block_of(statement)
        chosen = [s for s in block if start <= src.start(s) and src.end(s) <= end]
        after = src.text[src.end(chosen[-1]) : end] if chosen else "?"
        comments = all(not line.strip() or line.strip().startswith("#") for line in after.split("\n"))
        if chosen and comments and all(src.alone_on_lines(s) for s in chosen):
            return chosen
    raise RefactorError("the lines are not whole statements of one block")


class _Extract:
    def __init__(self, src: Source, function: Function, statements: list[ast.stmt], name: str) -> None:
        self.src, self.function, self.statements, self.name = src, function, statements, name
        self.names = Names(src)
        self.inside = {id(node) for statement in statements for node in ast.walk(statement)}
        self.start = src.line_start(src.first_line(statements[0]))
        self.end = src.line_end(statements[-1].end_lineno or 0)

    def run(self) -> str:
        self._refuse_what_cannot_move()
        stored, read = self._stored(), self._read()
        leaves = _leaves(self.statements)
        returns = self._returns()
        if returns and not leaves:
            raise RefactorError(
                "some of these lines return and others continue", hint="Choose lines that end with a return."
            )
        outputs = [] if leaves else self._outputs(stored)
        inputs = self._inputs(read, stored, outputs)
        owner = self._method_of(inputs)
        return self._written(owner, inputs, outputs, returned=leaves and bool(returns))

    def _refuse_what_cannot_move(self) -> None:
        for statement in self.statements:
            for node in ast.walk(statement):
                if isinstance(node, (ast.Yield, ast.YieldFrom)) and self._mine(node):
                    raise RefactorError(f"line {node.lineno} yields, so it cannot move to another function")
                if isinstance(node, (ast.Global, ast.Nonlocal, ast.Delete)):
                    raise RefactorError(f"line {node.lineno} uses `global`, `nonlocal` or `del`")
                if isinstance(node, ast.Name) and node.id in _LOOK_AROUND:
                    raise RefactorError(f"{node.id} on line {node.lineno} depends on the enclosing function")
                if isinstance(node, (ast.Break, ast.Continue)) and not self._loop_inside(node):
                    raise RefactorError(
                        f"the break or continue on line {node.lineno} is for a loop outside these lines"
                    )
        if any(isinstance(n, ast.NamedExpr) for s in self.statements for n in ast.walk(s)):
            raise RefactorError("these lines contain an assignment expression (`:=`)")
        declared = [n for n in ast.walk(self.function) if isinstance(n, (ast.Global, ast.Nonlocal))]
        words = {word for node in declared for word in node.names}
        nodes = [n for s in self.statements for n in ast.walk(s) if isinstance(n, ast.Name)]
        if taken := words & {node.id for node in nodes if not isinstance(node.ctx, ast.Load)}:
            raise RefactorError(f"{min(taken)} is not local to this function")

    def _mine(self, node: ast.AST) -> bool:
        return self.src.function_of(node) is self.function

    def _loop_inside(self, node: ast.AST) -> bool:
        for ancestor in self.src.ancestors(node):
            if isinstance(ancestor, _LOOPS):
                return id(ancestor) in self.inside
        return False

    def _returns(self) -> list[ast.Return]:
        nodes = [n for s in self.statements for n in ast.walk(s) if isinstance(n, ast.Return)]
        return [node for node in nodes if self._mine(node)]

    @property
    def _scope(self) -> Scope:
        return self.names.scopes[self.function]

    def _local(self, word: str, scope: Scope) -> bool:
        """Whether a name refers to a variable of this function or of an enclosing one."""
        binder = scope.resolve(word)
        return binder is not None and binder.parent is not None and self._encloses(binder)

    def _encloses(self, binder: Scope) -> bool:
        scope: Scope | None = self._scope
        while scope is not None:
            if scope is binder:
                return not scope.is_class
            scope = scope.parent
        return False

    def _stored(self) -> set[str]:
        """Variables of the function that these lines set."""
        found: set[str] = set()
        for use in self.names.uses:
            bound = use.kind in ("definition", "import", "from", "handler")
            if bound and self._within(use.start, use.line) and use.scope.resolve(use.name) is self._scope:
                found.add(use.name)
        for statement in self.statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and self._own(node):
                    found.add(node.id)
                if isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
                    found.add(node.name)
        return found

    def _own(self, node: ast.Name) -> bool:
        scope = self._scope_of(node)
        return scope.resolve(node.id) is self._scope

    def _scope_of(self, node: ast.AST) -> Scope:
        for ancestor in self.src.ancestors(node):
            if ancestor in self.names.scopes:
                return self.names.scopes[ancestor]
        return self.names.module

    def _within(self, start: int, line: int) -> bool:
        at = start if start >= 0 else self.src.line_start(line)
        return self.start <= at < self.end

    def _read(self) -> list[str]:
        """Variables of the function that these lines mention, in order of first use."""
        found: dict[str, None] = {}
        for use in sorted(self.names.uses, key=lambda use: use.start if use.start >= 0 else 1 << 40):
            if self._within(use.start, use.line) and self._local(use.name, use.scope):
                found.setdefault(use.name)
        return list(found)

    def _outputs(self, stored: set[str]) -> list[str]:
        """The variables that these lines set and that later lines, or the next iteration, use."""
        loop = self._around()
        found: dict[str, int] = {}
        for use in self.names.uses:
            if use.name not in stored or use.scope.resolve(use.name) is not self._scope:
                continue
            if self._within(use.start, use.line) or use.kind == "parameter":
                continue
            at = use.start if use.start >= 0 else self.src.line_start(use.line)
            if use.scope is not self._scope and not isinstance(
                use.scope.node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
            ):
                raise RefactorError(f"an inner function uses {use.name}, which these lines set")
            later = at >= self.end
            again = loop is not None and self.src.start(loop) <= at < self.src.end(loop)
            if later or again:
                found.setdefault(use.name, at)
        return sorted(found, key=lambda word: self._first(word))

    def _first(self, word: str) -> int:
        places = [use.start for use in self.names.uses if use.name == word and self._within(use.start, use.line)]
        return min(places, default=0)

    def _around(self) -> ast.AST | None:
        """The outermost loop of the function around these lines."""
        found = None
        for ancestor in self.src.ancestors(self.statements[0]):
            if ancestor is self.function:
                break
            if isinstance(ancestor, _LOOPS):
                found = ancestor
        return found

    def _inputs(self, read: list[str], stored: set[str], outputs: Sequence[str]) -> list[str]:
        before = self._before()
        known, strictly = _set_for_sure(self.statements), _set_for_sure(self.statements, swallowed=True)
        inputs = []
        for word in read:
            kept = word in outputs and (word not in known or (word in before and word not in strictly))
            if word in stored and not kept and not self._reads_first(self.statements, word):
                continue
            if word not in before:
                when = "after" if kept else "before"
                raise RefactorError(f"{word} may have no value {when} these lines")
            if word in stored and self._captured(word):
                raise RefactorError(f"an inner function uses {word}, which these lines set")
            inputs.append(word)
        for word in outputs:
            if word not in known and word not in inputs:
                raise RefactorError(f"{word} may have no value after these lines")
        for word in inputs:
            if self._captured_inside(word) and self._set_elsewhere(word):
                raise RefactorError(f"an inner function in these lines uses {word}, which changes outside them")
        return inputs

    def _reads_first(self, statements: Sequence[ast.stmt], word: str) -> bool:
        """Whether some path through these statements reads a variable before setting it."""
        for statement in statements:
            if self._may_read(statement, word):
                return True
            if word in _set_for_sure([statement]):
                return False
        return False

    def _may_read(self, statement: ast.stmt, word: str) -> bool:
        def reads(*parts: ast.AST | None) -> bool:
            nodes = [n for part in parts if part is not None for n in ast.walk(part)]
            return any(isinstance(n, ast.Name) and n.id == word and isinstance(n.ctx, ast.Load) and self._mentions(n)
                       for n in nodes)  # fmt: skip

        if isinstance(statement, ast.If):
            return reads(statement.test) or any(
                self._reads_first(side, word) for side in (statement.body, statement.orelse)
            )
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            inside = word not in _targets(statement.target) and self._reads_first(statement.body, word)
            return reads(statement.iter) or inside or self._reads_first(statement.orelse, word)
        if isinstance(statement, ast.While):
            return reads(statement.test) or any(
                self._reads_first(side, word) for side in (statement.body, statement.orelse)
            )
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            bound = {w for i in statement.items if i.optional_vars is not None for w in _targets(i.optional_vars)}
            heads = [item.context_expr for item in statement.items]
            return reads(*heads) or (word not in bound and self._reads_first(statement.body, word))
        if isinstance(statement, ast.Try):
            sides = [statement.body, statement.finalbody]
            sides += [handler.body for handler in statement.handlers if handler.name != word]
            after = word not in _set_for_sure(statement.body) and self._reads_first(statement.orelse, word)
            kinds = [handler.type for handler in statement.handlers]
            return reads(*kinds) or after or any(self._reads_first(side, word) for side in sides)
        changed = isinstance(statement, ast.AugAssign) and word in _targets(statement.target)
        return changed or reads(statement)

    def _mentions(self, node: ast.Name) -> bool:
        return self._local(node.id, self._scope_of(node)) if node in self.src.parents else True

    def _before(self) -> set[str]:
        """Variables that certainly have a value when these lines begin."""
        args = self.function.args
        found = {a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg] if a}
        node: ast.AST = self.statements[0]
        while node is not self.function:
            parent = self.src.parents[node]
            if isinstance(node, ast.stmt):
                block = self.src.block_of(node)
                found |= _set_for_sure(block[: block.index(node)])
                if isinstance(parent, (ast.For, ast.AsyncFor)) and block is parent.body:
                    found |= _targets(parent.target)
                if isinstance(parent, (ast.With, ast.AsyncWith)):
                    found |= {w for item in parent.items if item.optional_vars for w in _targets(item.optional_vars)}
            if isinstance(parent, ast.ExceptHandler) and parent.name:
                found.add(parent.name)
            node = parent
        outer = self._scope.parent
        while outer is not None and outer.parent is not None:
            found |= outer.bound if not outer.is_class else set()
            outer = outer.parent
        return found

    def _captured(self, word: str) -> bool:
        """Whether an inner function outside of these lines uses the variable."""
        return any(
            use.name == word and use.scope is not self._scope and use.scope.resolve(word) is self._scope
            and isinstance(use.scope.node, _NESTED) and not self._within(use.start, use.line)
            for use in self.names.uses
        )  # fmt: skip

    def _captured_inside(self, word: str) -> bool:
        return any(
            use.name == word and isinstance(use.scope.node, _NESTED) and use.scope is not self._scope
            and self._within(use.start, use.line)
            for use in self.names.uses
        )  # fmt: skip

    def _set_elsewhere(self, word: str) -> bool:
        nodes = [n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n.id == word]
        return any(not isinstance(n.ctx, ast.Load) for n in nodes)

    def _method_of(self, inputs: list[str]) -> ast.ClassDef | None:
        """The class that gets the new function as a method if the lines use self; else None."""
        owner = self.src.class_of(self.function)
        args = [*self.function.args.posonlyargs, *self.function.args.args]
        plain = not any(ast.unparse(d) in ("staticmethod", "classmethod") for d in self.function.decorator_list)
        if owner is None or not args or not plain or args[0].arg not in inputs or args[0].arg in self._stored():
            if any(isinstance(n, ast.Attribute) and n.attr.startswith("__") and not n.attr.endswith("__")
                   for s in self.statements for n in ast.walk(s)):  # fmt: skip
                raise RefactorError("these lines use a private name of the class")
            return None
        inputs.remove(args[0].arg)
        return owner

    def _written(self, owner: ast.ClassDef | None, inputs: list[str], outputs: list[str], *, returned: bool) -> str:
        src, unit = self.src, self.src.unit
        own = [*self.function.args.posonlyargs, *self.function.args.args][0].arg if owner is not None else ""
        if owner is not None and self.name in members(owner):
            raise RefactorError(f"{owner.name} already has a {self.name}")
        taken = hasattr(builtins, self.name) or any(use.name == self.name for use in self.names.uses)
        if owner is None and taken:
            raise RefactorError(f"{self.name} is already a name in this file")
        margin = src.indent(self.function) if owner is not None else ""
        waits = any(
            isinstance(n, (ast.Await, ast.AsyncFor, ast.AsyncWith)) and self._mine(n)
            for s in self.statements for n in ast.walk(s)
        )  # fmt: skip
        given = ", ".join([own] * bool(own) + [self._annotated(word) for word in inputs])
        body = self._body(margin + unit)
        if outputs:
            body += f"{margin}{unit}return {', '.join(outputs)}\n"
        head = f"{margin}{'async ' if waits else ''}def {self.name}({given}):\n"
        call = f"{'await ' if waits else ''}{f'{own}.' if own else ''}{self.name}({', '.join(inputs)})"
        left = "return " if returned else f"{', '.join(outputs)} = " if outputs else ""
        indent = src.indent(self.statements[0])
        final = "" if self.end == len(src.text) and not src.text.endswith("\n") else "\n"
        edits = [Edit(self.start, self.end, f"{indent}{left}{call}{final}")]
        if owner is not None:
            place = src.line_end(self.function.end_lineno or 0)
            glue = "" if src.text[place - 1 : place] == "\n" else "\n"
            if self.end == place:  # the lines end the function
                edits = [Edit(self.start, self.end, f"{indent}{left}{call}\n\n{head}{body.rstrip(chr(10))}{final}")]
            else:
                edits.append(Edit(place, place, f"{glue}\n{head}{body.rstrip(chr(10))}\n"))
        else:
            top: ast.AST = self.function
            while src.parents[top] is not src.tree:
                top = src.parents[top]
            place = src.line_start(src.first_line(top))
            edits.append(Edit(place, place, f"{head}{body}\n\n"))
        return apply_edits(src.text, edits)

    def _annotated(self, word: str) -> str:
        """A parameter with the annotation it has in the outer function, if it is never reassigned there."""
        args = self.function.args
        for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]:
            if arg.arg == word and arg.annotation is not None and not self._set_elsewhere(word):
                return f"{word}: {self.src.segment(arg.annotation)}"
        return word

    def _body(self, margin: str) -> str:
        """The lines, reindented."""
        old = self.src.indent(self.statements[0])
        text = self.src.text[self.start : self.end]
        if not text.endswith("\n"):
            text += "\n"
        if old == margin:
            return text
        inner = [
            node
            for s in self.statements
            for node in ast.walk(s)
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno
        ]
        if inner:
            raise RefactorError(f"the string on line {inner[0].lineno} spans several lines and would change")
        lines = []
        for line in text.split("\n"):
            if line.strip() and not line.startswith(old):
                raise RefactorError("the lines are indented inconsistently")
            lines.append(margin + line[len(old) :] if line.strip() else line)
        return "\n".join(lines)


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether control never continues after these statements."""
    last = statements[-1]
    if isinstance(last, (ast.Return, ast.Raise)):
        return True
    return isinstance(last, ast.If) and bool(last.orelse) and _leaves(last.body) and _leaves(last.orelse)


def _targets(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _set_for_sure(statements: Sequence[ast.stmt], *, swallowed: bool = False) -> set[str]:
    """Variables that certainly have a value when these statements have run to their end.

    `swallowed`: even if a context manager swallows an exception, as `suppress` does."""
    found: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.Assign):
            found |= {word for target in statement.targets for word in _targets(target)}
        elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
            found |= _targets(statement.target) if statement.value is not None else set()
        elif isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            found.add(statement.name)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                found |= _targets(item.optional_vars) if item.optional_vars else set()
            found |= set() if swallowed else _set_for_sure(statement.body)
        elif isinstance(statement, ast.If):
            sides = [side for side in (statement.body, statement.orelse) if not (side and _leaves(side))]
            known = [_set_for_sure(side) for side in sides]
            found |= set.intersection(*known) if known else set()
        elif isinstance(statement, ast.Try):
            handled = [_set_for_sure(h.body) for h in statement.handlers if not _leaves(h.body)]
            body = _set_for_sure([*statement.body, *statement.orelse])
            found |= (set.intersection(body, *handled) if handled else body) | _set_for_sure(statement.finalbody)
    return found
