"""Check for JavaScript and TypeScript: a name imported from a file of the project is exported there.

Only relative imports are checked. Files whose exports cannot be determined (`module.exports`, `export *` from a
package) are skipped.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.edit.checks.members.problem import Problem
from fulgur.workspace.grammars import parser_for

if TYPE_CHECKING:
    from tree_sitter import Node

_KINDS = ("js", "jsx", "mjs", "cjs", "ts", "mts", "tsx")
_TRIED = ("ts", "tsx", "d.ts", "mts", "js", "jsx", "mjs", "cjs")
_DECLARATIONS = (
    "function_declaration", "generator_function_declaration", "class_declaration", "abstract_class_declaration",
    "interface_declaration", "type_alias_declaration", "enum_declaration", "internal_module", "module",
    "function_signature",
)  # fmt: skip
_DEEPEST = 5


def unknown_imports(source: str, path: Path, lines: Collection[int]) -> list[Problem]:
    """Imports on these lines from files that do not exist, or of names that those files do not export."""
    root = _parsed(path.suffix[1:], source)
    if root is None:
        return []
    problems: list[Problem] = []
    for node in root.children:
        if node.type != "import_statement":
            continue
        origin = node.child_by_field_name("source")
        if origin is None or not (where := _string(origin)).startswith("."):
            continue
        row = origin.start_point[0] + 1
        target = _file_of(path.parent, where)
        if target is None:
            if row in lines and not re.search(r"\.\w+$", where.removesuffix(".js")):
                problems.append(Problem(row, where, f"there is no file {where}"))
            continue
        exported = _exports(target)
        if exported is None:
            continue
        for name, line in _imported(node):
            if line in lines and name not in exported:
                close = difflib.get_close_matches(name, sorted(exported), n=1)
                near = f" (nearest: {close[0]})" if close else ""
                problems.append(Problem(line, name, f"{where} does not export {name}{near}"))
    return problems


def _parsed(suffix: str, source: str) -> Node | None:
    parser = parser_for(suffix) if suffix in _KINDS else None
    return parser.parse(source.encode()).root_node if parser is not None else None


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _string(node: Node) -> str:
    return _text(node).strip("'\"`")


def _imported(statement: Node) -> Iterator[tuple[str, int]]:
    waiting = list(statement.children)
    while waiting:
        node = waiting.pop()
        if node.type == "import_specifier" and (name := node.child_by_field_name("name")) is not None:
            yield _text(name).strip("'\""), name.start_point[0] + 1
        elif node.type == "import_clause":
            waiting += node.children
            yield from (("default", c.start_point[0] + 1) for c in node.children if c.type == "identifier")
        elif node.type == "named_imports":
            waiting += node.children


def _file_of(folder: Path, where: str) -> Path | None:
    base = folder / where
    # TypeScript imports name the compiled file: `./a.js` is `./a.ts` in the sources.
    stem = base.with_suffix("") if base.suffix in (".js", ".mjs", ".jsx", ".cjs") else base
    tried = [base, *(Path(f"{stem}.{end}") for end in _TRIED), *(base / f"index.{end}" for end in _TRIED)]
    return next((path for path in tried if path.is_file()), None)


def _exports(path: Path, depth: int = 0) -> set[str] | None:
    """The names a file exports; None when not all can be known."""
    if path.suffix[1:] not in _KINDS or depth > _DEEPEST:
        return None
    source = path.read_text(encoding="utf-8", errors="replace")
    root = _parsed(path.suffix[1:], source)
    if root is None or root.has_error or re.search(r"\bmodule\.exports\b|\bexports\.\w|\bexport\s*=", source):
        return None
    found: set[str] = set()
    for node in root.children:
        if node.type != "export_statement":
            continue
        words = {child.type for child in node.children}
        if "default" in words:
            found.add("default")
        if "*" in words or "namespace_export" in words:
            star = next((c for c in node.children if c.type == "namespace_export"), None)
            if star is not None:
                found.add(_text(star).rpartition(" ")[2])
                continue
            origin = node.child_by_field_name("source")
            target = _file_of(path.parent, _string(origin)) if origin and _string(origin).startswith(".") else None
            below = _exports(target, depth + 1) if target is not None else None
            if below is None:
                return None
            found |= below - {"default"}
            continue
        for child in node.children:
            found |= _declared(child)
    return found


def _declared(node: Node) -> set[str]:
    if node.type == "export_clause":
        named = [c for c in node.children if c.type == "export_specifier"]
        pairs = [(c.child_by_field_name("alias") or c.child_by_field_name("name")) for c in named]
        return {_text(name).strip("'\"") for name in pairs if name is not None}
    if node.type in ("lexical_declaration", "variable_declaration"):
        targets = [c.child_by_field_name("name") for c in node.children if c.type == "variable_declarator"]
        return {name for target in targets if target is not None for name in _bound(target)}
    if node.type == "ambient_declaration":
        return {name for child in node.children for name in _declared(child)}
    if node.type in _DECLARATIONS and (name := node.child_by_field_name("name")) is not None:
        return {_text(name)}
    return set()


def _bound(pattern: Node) -> Iterator[str]:
    """The names of `{a, b: c, ...d}`."""
    if pattern.type in ("identifier", "shorthand_property_identifier_pattern"):
        yield _text(pattern)
        return
    for child in pattern.children:
        if child.type not in ("property_identifier",):
            yield from _bound(child)
