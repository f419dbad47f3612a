"""Exact refactorings of one Python file: every byte that need not change stays. The model asks for them by a call.

rename OLD NEW · rename_parameter FUNCTION OLD NEW · add_parameter FUNCTION NAME[=DEFAULT] [VALUE]
remove_parameter FUNCTION NAME · use_keywords FUNCTION · extract_constant VALUE NAME
add_import import x · remove_import NAME · remove_unused_imports · sort_imports
These see the whole file. `local` has those that work inside one region.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from fulgur.edit.refactor import imports, parameters
from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local import LOCAL, apply_local
from fulgur.edit.refactor.rename import rename
from fulgur.edit.refactor.source import Source, Unusable, parse
from fulgur.text.edit_format import Call, in_words

Span = tuple[int, int] | None

# name -> (least arguments, most arguments, what does it)
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
    "extract_constant": (2, 2, lambda src, a, at: imports.extract_constant(src, a[0], a[1], at)),
    "add_import": (2, 12, lambda src, a, at: imports.add_import(src, a)),
    "remove_import": (1, 1, lambda src, a, at: imports.remove_import(src, a[0])),
    "remove_unused_imports": (0, 0, lambda src, a, at: imports.remove_unused_imports(src)),
    "sort_imports": (0, 0, lambda src, a, at: imports.sort_imports(src)),
}


def renamed(src: Source, old: str, new: str, at: Span) -> str:
    """A rename; a parameter of the function at `at` is renamed with the calls that name it."""
    owners = [
        function
        for function in src.functions()
        if at is not None and src.whole_lines(function)[0] < at[1] and src.whole_lines(function)[1] > at[0]
        and old in {arg.arg for arg in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]}
    ]  # fmt: skip
    if len(owners) == 1:
        return parameters.rename_parameter(src, owners[0].name, old, new, at)
    return rename(src, old, new, at)


def apply_call(text: str, call: Call, at: Span = None) -> str:
    """The file's text after the refactoring; `at` is the span the user meant, where a name has several meanings.

    Raises RefactorError when it cannot be done exactly. The text must have plain line feeds.
    """
    if call.name in LOCAL:
        call = _with_logger(text, call)
        start, end = at or (0, len(text))
        result = text[:start] + apply_local(text[start:end], call, text[end:]) + text[end:]
        try:
            parse(result)
        except Unusable as error:
            raise RefactorError(f"{in_words(call)!r} cannot be done: {error}") from None
        return result
    if call.name not in CALLS:
        raise RefactorError(f"the model asks for something that does not exist: {in_words(call)!r}")
    least, most, apply = CALLS[call.name]
    if not least <= len(call.args) <= most:
        raise RefactorError(f"{in_words(call)!r} has the wrong number of arguments")
    try:
        result = apply(Source(text), call.args, at)
        parse(result)
    except Unusable as error:
        raise RefactorError(f"{in_words(call)!r} cannot be done: {error}") from None
    return result


def _with_logger(text: str, call: Call) -> Call:
    """The file's own logger in place of the usual name for one, if it has exactly one."""
    own = re.findall(r"^(\w+)(?:: [\w.]+)? = (?:\w+\.)*get_?logger\(", text, re.MULTILINE | re.IGNORECASE)
    usual = {"logger", "log", "logging", "LOGGER", "LOG"} - set(re.findall(r"\w+", text))
    if len(own) != 1:
        return call
    return replace(call, args=tuple(own[0] if argument in usual else argument for argument in call.args))


__all__ = ["CALLS", "LOCAL", "RefactorError", "apply_call", "apply_local"]
