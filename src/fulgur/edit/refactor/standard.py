"""Add and report imports of standard-library names that a rewrite uses and the file does not import yet."""

from __future__ import annotations

import ast
import builtins
import re
import sys

from fulgur.edit.checks.names import bindings, new_problems
from fulgur.edit.refactor import RefactorError, apply_call
from fulgur.text.edit_format import Call

# Only unambiguous names.
_FROM = {
    "typing": "Any Optional Union Literal TypeVar Protocol NamedTuple cast",
    "collections.abc": "Callable Iterable Iterator Sequence Mapping MutableMapping Generator Awaitable AsyncIterator",
    "collections": "defaultdict OrderedDict deque",
    "contextlib": "contextmanager suppress",
    "dataclasses": "dataclass",
    "enum": "Enum IntEnum",
    "functools": "lru_cache cached_property wraps",
    "pathlib": "Path",
}
_MODULES = "asyncio contextlib dataclasses functools itertools json logging math os re sys time typing"
IMPORTS = {name: f"from {module} import {name}" for module, names in _FROM.items() for name in names.split()}
IMPORTS |= {module: f"import {module}" for module in _MODULES.split()}


def unbound_annotations(before: str, after: str) -> set[str]:
    """New names in annotations that the file never binds; where annotations are not evaluated, only this finds them."""
    try:
        old, new = (_annotated(ast.parse(text)) for text in (before, after))
        return new - old - bindings(after) - set(dir(builtins)) if new - old else set()
    except (SyntaxError, ValueError, RecursionError):
        return set()


def _annotated(tree: ast.Module) -> set[str]:
    kinds = [
        kind
        for node in ast.walk(tree)
        for kind in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(kind, ast.expr)
    ]
    return {node.id for kind in kinds for node in ast.walk(kind) if isinstance(node, ast.Name)}


def with_imports(before: str, after: str, instruction: str = "") -> tuple[str, list[str]]:
    """The new text of a file with the imports it lacks, and the lines that were added.

    A standard-library module counts as known if the instruction names a member of it ("also catch binascii.Error")."""
    dotted = set(re.findall(r"\b([a-z_]\w*)\.\w", instruction)) & sys.stdlib_module_names
    known = IMPORTS | {module: f"import {module}" for module in dotted}
    missing = {problem.name for problem in new_problems(before, after)} | unbound_annotations(before, after)
    lines = [known[name] for name in sorted(missing) if name in known]
    text = after
    for line in lines:
        try:
            text = apply_call(text, Call("add_import", tuple(line.split())), (0, 0))
        except RefactorError:  # no place for an import: left to the check of names
            return after, []
    return text, lines
