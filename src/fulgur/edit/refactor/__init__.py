"""Exact refactorings of one Python file: every byte that need not change stays. The model requests them by a call.

rename OLD NEW · rename_parameter FUNCTION OLD NEW · add_parameter FUNCTION NAME[=DEFAULT] [VALUE]
remove_parameter FUNCTION NAME · use_keywords FUNCTION · keyword_only FUNCTION NAME… · extract_constant VALUE NAME
extract_function NAME · delete_symbol NAME
add_import import x · remove_import NAME · remove_unused_imports · sort_imports · split_imports · import_to_top [NAME]
These work on the whole file; `move_symbol NAME MODULE`, `make_async` and `inline_function NAME` work on the project
(`edit/project`), those in `local` inside one region.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import replace

from fulgur.edit.refactor import imports, parameters
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.extract import extract_function
from fulgur.edit.refactor.import_to_top import import_to_top
from fulgur.edit.refactor.local import LOCAL, apply_local
from fulgur.edit.refactor.local.exact import delete_symbol
from fulgur.edit.refactor.meaning import describe
from fulgur.edit.refactor.rename import members, rename, rename_member
from fulgur.edit.refactor.source import FUNCTIONS, Function, Source, Unusable, parse
from fulgur.text.edit_format import Call

Span = tuple[int, int] | None
# Refactorings that need the rest of the project (`edit/project`).
OVER_PROJECT = frozenset({"move_symbol", "make_async", "inline_function"})
# Refactorings that apply everywhere: when the target is a whole file, all of it is meant.
EVERYWHERE = frozenset({
    "optional_union", "modern_super", "is_none", "not_in", "drop_u", "use_fstring", "raw_strings", "quotes",
    "drop_keys", "while_true", "split_imports", "sort_imports", "remove_unused_imports", "remove_dead_code",
    "remove_pass", "use_isinstance", "use_truthiness", "remove_prints", "log_prints",
})  # fmt: skip

# name -> (least arguments, most arguments, implementation)
CALLS: dict[str, tuple[int, int, Callable[[Source, tuple[str, ...], Span], str]]] = {
    "rename": (2, 2, lambda src, a, at: renamed(src, a[0], a[1], at)),
    "rename_parameter": (3, 3, lambda src, a, at: parameters.rename_parameter(src, a[0], a[1], a[2], at)),
    "add_parameter": (
        2,
        3,
        lambda src, a, at: parameters.add_parameter(src, a[0], a[1], a[2] if len(a) == 3 else None, at),
    ),
    "remove_parameter": (2, 2, lambda src, a, at: parameters.remove_parameter(src, a[0], a[1], at)),
    "use_keywords": (1, 1, lambda src, a, at: parameters.use_keywords(src, a[0], at)),
    "keyword_only": (2, 9, lambda src, a, at: parameters.keyword_only(src, a[0], a[1:], at)),
    "extract_constant": (2, 2, lambda src, a, at: imports.extract_constant(src, a[0], a[1], at)),
    "add_import": (2, 12, lambda src, a, at: imports.add_import(src, a)),
    "delete_symbol": (1, 1, lambda src, a, at: delete_symbol(src, a[0], at)),
    "remove_import": (1, 1, lambda src, a, at: imports.remove_import(src, a[0])),
    "remove_unused_imports": (0, 0, lambda src, a, at: imports.remove_unused_imports(src)),
    "extract_function": (1, 1, lambda src, a, at: extract_function(src, a[0], at)),
    "sort_imports": (0, 0, lambda src, a, at: imports.sort_imports(src)),
    "split_imports": (0, 0, lambda src, a, at: imports.split_imports(src)),
    "import_to_top": (0, 1, lambda src, a, at: import_to_top(src, a[0] if a else None, at)),
}


def renamed(src: Source, old: str, new: str, at: Span) -> str:
    """Rename a name; a parameter of the function at `at` is renamed together with the calls that name it."""
    owner, function = rename_means(src, old, at)
    if owner is not None:
        text = rename_member(src, owner.name, old, new, at)
        if function is None:
            return text
        return parameters.rename_parameter(Source(text), f"{owner.name}.__init__", old, new, None)
    if function is not None:
        return parameters.rename_parameter(src, function.name, old, new, src.whole_lines(function))
    return rename(src, old, new, at)


def rename_means(src: Source, name: str, at: Span) -> tuple[ast.ClassDef | None, Function | None]:
    """The class whose attribute a name means, and the function whose parameter it means; neither for other names.

    In a target that is a class, the name means its attribute, even if methods have variables of that name. If the
    constructor has a parameter of that name, it is meant too.
    """
    function = parameter_owner(src, name, at)
    covered = [c for c in src.of(ast.ClassDef) if at is not None and _covers(at, src.whole_lines(c))]
    having = [c for c in covered if name in members(c)]
    for owner in having:
        made = next((f for f in owner.body if isinstance(f, FUNCTIONS) and f.name == "__init__"), None)
        taken = made is not None and name in {arg.arg for arg in ast.walk(made.args) if isinstance(arg, ast.arg)}
        named = at is not None and src.whole_lines(owner)[0] == at[0] and len(having) == 1
        if (named and taken) or (taken and function is made):
            return owner, made
        if named:
            return owner, None
    return None, function


def _covers(at: tuple[int, int], lines: tuple[int, int]) -> bool:
    return at[0] <= lines[0] and lines[1] <= at[1]


def parameter_owner(src: Source, name: str, at: Span) -> Function | None:
    """The only function at `at` that has a parameter of this name."""
    owners = [
        function
        for function in src.functions()
        if at is not None and src.whole_lines(function)[0] < at[1] and src.whole_lines(function)[1] > at[0]
        and name in {arg.arg for arg in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]}
    ]  # fmt: skip
    return owners[0] if len(owners) == 1 else None


def apply_call(text: str, call: Call, at: Span = None) -> str:
    """The file's text after the refactoring; `at` is the span the user meant, for names with several meanings.

    Raises RefactorError when it cannot be done exactly. The text must have plain line feeds.
    """
    try:
        return _applied(text, call, at)
    except RefactorError:
        _readable(text)
        raise


def _readable(text: str) -> None:
    """Raise if the file does not parse: this is then the reason to report, whatever else was found."""
    try:
        parse(text)
    except Unusable as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise RefactorError(f"Python {version}, which Fulgur runs on, cannot parse the file: {error}") from None


def _applied(text: str, call: Call, at: Span) -> str:
    if call.name in LOCAL:
        call = _with_logger(text, call)
        start, end = at or (0, len(text))
        result = text[:start] + apply_local(text[start:end], call, text[end:], text[:start]) + text[end:]
        try:
            parse(result)
        except Unusable:
            raise RefactorError(f"the result of “{describe(call)}” would not be valid Python") from None
        return result
    if call.name not in CALLS:
        raise RefactorError("the model asks for a refactoring that does not exist")
    least, most, apply = CALLS[call.name]
    if not least <= len(call.args) <= most:
        raise RefactorError(f"“{describe(call)}” has the wrong number of arguments")
    try:
        result = apply(Source(text), call.args, at)
        parse(result)
    except Unusable as error:
        raise RefactorError(f"“{describe(call)}” cannot be done: {error}") from None
    return result


def _with_logger(text: str, call: Call) -> Call:
    """The call with the file's own logger in place of a usual logger name, if the file has exactly one."""
    own = re.findall(r"^(\w+)(?:: [\w.]+)? = (?:\w+\.)*get_?logger\(", text, re.MULTILINE | re.IGNORECASE)
    usual = {"logger", "log", "logging", "LOGGER", "LOG"} - set(re.findall(r"\w+", text))
    if len(own) != 1:
        return call
    return replace(call, args=tuple(own[0] if argument in usual else argument for argument in call.args))


__all__ = [
    "CALLS",
    "EVERYWHERE",
    "LOCAL",
    "OVER_PROJECT",
    "RefactorError",
    "apply_call",
    "apply_local",
    "rename_means",
]
