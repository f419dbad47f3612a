"""Exceptions and messages: asserts turned into exceptions, handlers that only pass, values in messages, log levels."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece, expression, flat, negated, only
from fulgur.edit.refactor.source import Edit, dotted, names_in

_LEVELS = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical"})


def assert_to_raise(src: Piece, args: tuple[str, ...]) -> Edits:
    """`assert_to_raise EXCEPTION [CONDITION]`: turns the only assert, or that of this condition, into an if + raise."""
    kind, wanted = args[0], expression(args[1]) if len(args) > 1 else None
    expression(kind)
    found = [node for node in src.of(ast.Assert) if wanted is None or ast.dump(node.test) == wanted]
    node = only(found, "assert")
    if not src.alone_on_lines(node):
        raise RefactorError("the assert shares its line with other code")
    test = negated(src, node.test)
    if node.msg is not None:
        message = flat(src, node.msg)
    else:
        wrong = f"expected {src.segment(node.test)}" if test.startswith("not ") else f"{test} is not allowed"
        message = repr(wrong) if '"' in wrong or "\n" in wrong else f'"{wrong}"'
    indent = src.indent(node)
    return [Edit(*src.span(node), f"if {test}:\n{indent}{src.unit}raise {kind}({message})")]


def _passing(src: Piece, kind: str) -> list[ast.ExceptHandler]:
    return [
        handler
        for handler in src.of(ast.ExceptHandler)
        if len(handler.body) == 1 and isinstance(handler.body[0], ast.Pass)
        and (not kind or (handler.type is not None and kind in names_in(handler.type)))
    ]  # fmt: skip


def instead_of_pass(src: Piece, args: tuple[str, ...]) -> Edits:
    """`instead_of_pass raise | continue | return [VALUE] | log LOGGER LEVEL TEXT`, in the only handler that passes."""
    action, more = args[0], args[1:]
    handler = only(_passing(src, ""), "except that only passes")
    does = action
    if action == "return" and more:
        expression(" ".join(more))
        does = f"return {' '.join(more)}"
    elif action == "continue" and not _in_loop(src, handler):
        raise RefactorError("there is no loop around it")
    elif action == "log" and len(more) == 3:
        does = f'{more[0]}.{more[1]}("{more[2]}")'
    elif action not in ("raise", "return", "continue"):
        raise RefactorError("it is unclear what to do instead of pass")
    return [Edit(*src.span(handler.body[0]), does)]


def _in_loop(src: Piece, node: ast.AST) -> bool:
    return any(isinstance(above, (ast.For, ast.While, ast.AsyncFor)) for above in src.ancestors(node))


def message_with(src: Piece, args: tuple[str, ...]) -> Edits:
    """`message_with NAME`: appends the value of a variable to the only error message."""
    name = args[0]
    expression(name)
    texts = [
        node.exc.args[0]
        for node in src.of(ast.Raise)
        if isinstance(node.exc, ast.Call) and node.exc.args
        and (isinstance(node.exc.args[0], ast.JoinedStr) or _is_text(node.exc.args[0]))
    ]  # fmt: skip
    text = only(texts, "error message")
    shown = src.segment(text)
    match = re.fullmatch(r"(f?)(['\"])((?:(?!\2)[^\\\n])*)\2", shown)
    if match is None:
        raise RefactorError("the message is not a simple string")
    prefix, quote, inner = match[1], match[2], match[3]
    if re.search(rf"{{{re.escape(name)}\b", inner) and prefix:
        raise RefactorError(f"the message already contains {name}")
    if quote in name:
        raise RefactorError(f"{name} contains {quote}, which would end the message")
    if not prefix:
        inner = inner.replace("{", "{{").replace("}", "}}")
    end = inner[len(inner.rstrip(".!")) :]
    return [Edit(*src.span(text), f"f{quote}{inner[: len(inner) - len(end)].rstrip(' :')}: {{{name}}}{end}{quote}")]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def log_level(src: Piece, args: tuple[str, ...]) -> Edits:
    """`log_level NEW [OLD]`: changes the level of the only log call, or of the only one at level OLD."""
    new, old = args[0], args[1] if len(args) > 1 else ""
    found = []
    for call in src.of(ast.Call):
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in _LEVELS:
            continue
        if re.search(r"(?i)log|warnings", dotted(function.value) or "") and (not old or function.attr == old):
            found.append(function)
    function = only(found, f"line that is logged{f' as {old}' if old else ''}")
    if new not in _LEVELS:
        raise RefactorError(f"{new} is not a log level")
    end = src.end(function)
    return [] if function.attr == new else [Edit(end - len(function.attr), end, new)]
