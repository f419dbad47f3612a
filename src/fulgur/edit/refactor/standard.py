"""Names of the standard library that a rewrite uses and the file does not import yet: the import is added, and said."""

from __future__ import annotations

from fulgur.edit.checks.names import new_problems
from fulgur.edit.refactor import RefactorError, apply_call
from fulgur.text.edit_format import Call

# Only names that mean one thing to everybody.
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


def with_imports(before: str, after: str) -> tuple[str, list[str]]:
    """The new text of a file with the imports it lacks, and these lines."""
    lines = [IMPORTS[p.name] for p in sorted(new_problems(before, after), key=lambda p: p.name) if p.name in IMPORTS]
    text = after
    for line in lines:
        try:
            text = apply_call(text, Call("add_import", tuple(line.split())), (0, 0))
        except RefactorError:  # no place for an import: left to whoever checks names
            return after, []
    return text, lines
