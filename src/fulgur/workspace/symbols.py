"""An index of definitions (functions, classes, methods and constants), built with tree-sitter.

The index of a workspace is kept in Fulgur's home and refreshed by file time and size, so that questions are answered
immediately. Files in languages without a grammar are found by their text instead (see `ask`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fulgur.errors import FulgurError
from fulgur.workspace import beneath
from fulgur.workspace.grammars import language_for
from fulgur.workspace.ignore import walk

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Query

_LARGEST = 1 << 20
_MOST_BROKEN = 5000
# Parsers that support JSX take quadratic time in the number of these.
_NO_CODE = re.compile(rb"(?>(?:<[^<>]{0,20}+){400})")
_HOLDERS = ("class", "struct", "trait", "interface")
_VERSION = 1

# In each pattern the capture named after the kind spans the definition, and @name is its name.
_JAVASCRIPT = """
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(method_definition name: (property_identifier) @name) @method
(program (lexical_declaration (variable_declarator name: (identifier) @name) @constant))
(program (export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @constant)))
"""
_QUERIES = {
    "python": """
(function_definition name: (identifier) @name) @function
(class_definition name: (identifier) @name) @class
(module (expression_statement (assignment left: (identifier) @name) @constant))
""",
    "javascript": _JAVASCRIPT + "(class_declaration name: (identifier) @name) @class",
    "typescript": _JAVASCRIPT
    + """
(class_declaration name: (type_identifier) @name) @class
(abstract_class_declaration name: (type_identifier) @name) @class
(interface_declaration name: (type_identifier) @name) @interface
(type_alias_declaration name: (type_identifier) @name) @type
(enum_declaration name: (identifier) @name) @enum
""",
    "go": """
(function_declaration name: (identifier) @name) @function
(method_declaration name: (field_identifier) @name) @method
(type_spec name: (type_identifier) @name) @type
(source_file (const_declaration (const_spec name: (identifier) @name) @constant))
(source_file (var_declaration (var_spec name: (identifier) @name) @constant))
""",
    "rust": """
(function_item name: (identifier) @name) @function
(struct_item name: (type_identifier) @name) @struct
(enum_item name: (type_identifier) @name) @enum
(trait_item name: (type_identifier) @name) @trait
(type_item name: (type_identifier) @name) @type
(mod_item name: (identifier) @name) @module
(const_item name: (identifier) @name) @constant
(static_item name: (identifier) @name) @constant
(macro_definition name: (identifier) @name) @macro
""",
    "c": """
(function_definition declarator: (function_declarator declarator: (identifier) @name)) @function
(function_definition
  declarator: (pointer_declarator declarator: (function_declarator declarator: (identifier) @name))) @function
(struct_specifier name: (type_identifier) @name body: (_)) @struct
(enum_specifier name: (type_identifier) @name body: (_)) @enum
(type_definition declarator: (type_identifier) @name) @type
(preproc_def name: (identifier) @name) @macro
(preproc_function_def name: (identifier) @name) @macro
""",
    "java": """
(class_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(record_declaration name: (identifier) @name) @class
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
""",
}
_LANGUAGE = {
    "py": "python", "pyi": "python", "js": "javascript", "jsx": "javascript", "mjs": "javascript", "cjs": "javascript",
    "ts": "typescript", "mts": "typescript", "tsx": "typescript", "go": "go", "rs": "rust", "c": "c", "h": "c",
    "java": "java",
}  # fmt: skip


class Symbol(msgspec.Struct, frozen=True, array_like=True):
    """One definition; lines count from 1."""

    name: str
    kind: str
    line: int
    last: int
    owner: str = ""
    """The class (or other symbol) it lies in."""

    @property
    def qualified(self) -> str:
        """`Class.method`."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


class _Indexed(msgspec.Struct, array_like=True):
    stamp: tuple[int, int]
    symbols: list[Symbol]


class _Stored(msgspec.Struct):
    version: int
    files: dict[str, _Indexed]


@functools.cache
def _tools(suffix: str) -> tuple[Parser, Query] | None:
    language = language_for(suffix)
    if language is None:
        return None
    from tree_sitter import Parser, Query

    return Parser(language), Query(language, _QUERIES[_LANGUAGE[suffix]])


def symbols_in(source: bytes, suffix: str) -> list[Symbol]:
    """The definitions in a file, in order; empty when there is no grammar for it."""
    tools = _tools(suffix)
    if tools is None:
        return []
    from tree_sitter import QueryCursor

    if _NO_CODE.search(source):
        return []
    parser, query = tools
    root = parser.parse(source).root_node
    if _too_broken(root):
        return []
    found: list[tuple[int, int, str, Symbol]] = []
    for _, captures in QueryCursor(query).matches(root):
        name = captures["name"][0]
        kind, node = next((kind, nodes[0]) for kind, nodes in captures.items() if kind != "name")
        text = source[name.start_byte : name.end_byte].decode("utf-8", errors="replace")
        symbol = Symbol(text, kind, node.start_point[0] + 1, node.end_point[0] + 1)
        found.append((node.start_byte, node.end_byte, kind, symbol))
    found.sort(key=lambda item: (item[0], -item[1]))
    symbols: list[Symbol] = []
    around: list[tuple[int, Symbol]] = []
    for start, end, kind, symbol in found:
        while around and around[-1][0] <= start:
            around.pop()
        # In C only broken parses (C++ headers) nest definitions.
        if around and suffix not in ("c", "h"):
            owner = around[-1][1]
            kind = "method" if kind == "function" and owner.kind in _HOLDERS else kind
            symbol = msgspec.structs.replace(symbol, kind=kind, owner=owner.qualified)
        symbols.append(symbol)
        around.append((end, symbol))
    return symbols


def _too_broken(root: Node) -> bool:
    """Whether a parser gave up on a file: it then leaves one flat node, or a deep chain of broken ones.

    A query takes quadratic time in their number."""
    waiting, seen = [root], 0
    while waiting:
        node = waiting.pop()
        if node.has_error:
            seen += 1
            if max(node.child_count, seen) > _MOST_BROKEN:
                return True
            waiting += [child for child in node.children if child.has_error]
    return False


class SymbolIndex:
    """All definitions of a workspace."""

    def __init__(self, workspace: Path, home: Path) -> None:
        self.workspace = workspace
        digest = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]
        self._path = home / "index" / f"{digest}.msgpack"
        self.files: dict[str, list[Symbol]] = {}
        """Relative path → its symbols, for every file that is worth looking at (without a grammar: none)."""

    def refresh(self) -> None:
        """Read files that changed since the last refresh, and store the index if any did."""
        known = self._load()
        fresh: dict[str, _Indexed] = {}
        changed = False
        for entry in walk(self.workspace):
            name = os.path.relpath(entry.path, self.workspace)
            info = entry.stat(follow_symlinks=False)
            stamp = (info.st_mtime_ns, info.st_size)
            old = known.get(name)
            if old is not None and old.stamp == stamp:
                fresh[name] = old
                continue
            changed = True
            fresh[name] = _Indexed(stamp, self._read(Path(entry.path), info.st_size))
        self.files = {name: indexed.symbols for name, indexed in fresh.items()}
        if changed or len(fresh) != len(known):
            self._store(fresh)

    def named(self, name: str) -> list[tuple[str, Symbol]]:
        """The definitions with this name (`name` or `Class.name`), as (path, symbol)."""
        return [
            (path, symbol)
            for path, symbols in self.files.items()
            for symbol in symbols
            if name == symbol.name or (symbol.owner and name == symbol.qualified)
        ]

    def _read(self, path: Path, size: int) -> list[Symbol]:
        suffix = path.suffix.lstrip(".").lower()
        if suffix not in _LANGUAGE or size > _LARGEST:
            return []
        try:
            return symbols_in(beneath.read(self.workspace, path, _LARGEST), suffix)
        except (OSError, FulgurError):
            return []

    def _load(self) -> dict[str, _Indexed]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            stored = msgspec.msgpack.decode(self._path.read_bytes(), type=_Stored)
            if stored.version == _VERSION:
                return {beneath.unstored(name): indexed for name, indexed in stored.files.items()}
        return {}

    def _store(self, files: dict[str, _Indexed]) -> None:
        """Store the index; errors are ignored because it is only a cache."""
        named = {beneath.stored(name): indexed for name, indexed in files.items()}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(msgspec.msgpack.encode(_Stored(_VERSION, named)))
            os.replace(temporary, self._path)
