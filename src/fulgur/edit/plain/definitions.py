"""Rules for whole functions, classes and imports: delete, move, inline, make async, derive, decorate, document."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.plain.place import Place, code, payload
from fulgur.edit.refactor.source import FUNCTIONS
from fulgur.edit.refactor.verify import words
from fulgur.text.edit_format import Call


def docstring(match: re.Match[str], place: Place) -> Call | None:
    """A quoted text, a text after a colon, or a sentence; "a docstring to load" needs a model."""
    text = match[2].strip()
    if not (match[1] or text[:1] in "\"'`" or re.fullmatch(r"[A-Z].*\.", text, re.DOTALL)):
        return None
    words_of = payload(text)
    return Call("add_docstring", (words_of,)) if words_of and len(words_of.split()) > 1 else None


def delete(match: re.Match[str], place: Place) -> Call | None:
    name = next(filter(None, match.groups()), "")
    node = place.symbol if name else place.named_symbol
    return Call("delete_symbol", (node.name,)) if node is not None and name in ("", node.name) else None


def delete_kind(match: re.Match[str], place: Place) -> Call | None:
    """`delete the function`: the only one of the region, or the named one."""
    node = place.symbol
    kinds = (ast.ClassDef,) if match["kind"].lower() == "class" else FUNCTIONS
    known = isinstance(node, kinds) and match["name"] in (None, node.name)
    return Call("delete_symbol", (node.name,)) if node is not None and known else None


def base(match: re.Match[str], place: Place) -> Call | None:
    new, old = match["new"] or "", match["old"] or ""
    node = place.symbol
    if not isinstance(node, ast.ClassDef) or (old and old not in [ast.unparse(found) for found in node.bases]):
        return None
    bases = [ast.unparse(found) for found in node.bases]
    if new and not old and bases not in ([], ["object"]) and not _narrower(new, bases):
        return None  # unclear: replace the base, or add to it?
    return Call("change_base", (node.name, new, *((old,) if old else ())))


def _narrower(new: str, bases: list[str]) -> bool:
    """Whether a builtin class is a subclass of the only base, and so replaces it."""
    one, two = getattr(builtins, new, None), getattr(builtins, bases[0], None) if len(bases) == 1 else None
    return isinstance(one, type) and isinstance(two, type) and issubclass(one, two)


def function_of_lines(match: re.Match[str], place: Place) -> Call | None:
    """Extract the named lines, unless they begin with a function or class."""
    return None if re.match(r"\s*(?:@|(?:async )?def |class )", place.region) else Call("extract_function", (match[1],))


def move(match: re.Match[str], place: Place) -> Call | None:
    """`move NAME to MODULE`, for a name that the file defines at module level."""
    name, target = match["name"], match["target"]
    defined = rf"^(?:(?:async )?def|class) {name}\b|^{name}(?:: [^=\n]+)? = " if name else ""
    if not name:
        first = place.symbol if place.part else None
        name = first.name if first is not None and not place.region[:1].isspace() else ""
    elif not re.search(defined, place.file, re.MULTILINE):
        return None
    return Call("move_symbol", (name, target)) if name else None


def make_async(match: re.Match[str], place: Place) -> Call | None:
    name = match["name"]
    if name is None or (place.function is not None and place.function.name == name):
        return Call("make_async") if place.function is not None else None
    return Call("make_async", (f"@{name}",)) if re.search(rf"\bdef {name}\b", place.region) else None


def inline(match: re.Match[str], place: Place) -> Call | None:
    """A variable of the region, or a function of the module."""
    name = match[1]
    if re.search(rf"^def {re.escape(name)}\(", place.file, re.MULTILINE):
        return Call("inline_function", (name,))
    return Call("inline", (name,)) if place.has(name) else None


def inline_this(match: re.Match[str], place: Place) -> Call | None:
    name = place.function.name if place.function is not None and not place.region[:1].isspace() else ""
    return Call("inline_function", (name,)) if name else None


def imports(match: re.Match[str], place: Place) -> Call | None:
    try:
        parsed = ast.parse(match[1]).body
    except SyntaxError:
        return None
    good = len(parsed) == 1 and isinstance(parsed[0], (ast.Import, ast.ImportFrom))
    if good and isinstance(parsed[0], ast.Import) and parsed[0].names[0].name in words(place.file):
        return None  # it may be meant as another name for an existing import
    return Call("add_import", tuple(match[1].split())) if good else None


def unimport(match: re.Match[str], place: Place) -> Call | None:
    return Call("remove_import", (match[1],)) if match[1] in words(place.file) else None


def decorate(match: re.Match[str], place: Place) -> Call | None:
    if match[1] == "property" and place.function and re.search(rf"\.{place.function.name}\(", place.file):
        return None  # its callers would call the value
    return Call("add_decorator", (match[1],)) if code(match[1]) and place.function is not None else None


def other_base(match: re.Match[str], place: Place) -> Call | None:
    node = place.symbol
    if not isinstance(node, ast.ClassDef):
        return None
    bases = [ast.unparse(one) for one in node.bases]
    new = match.groupdict().get("new")
    if new is None:
        return Call("change_base", (node.name, "", "object")) if bases == ["object"] else None
    if match["also"] or match["more"] or bases in ([], ["object"]):
        return Call("add_base", (node.name, new))
    return None


def decorated(match: re.Match[str], place: Place) -> Call | None:
    return decorate(re.fullmatch(r"(.+)", match["with"].lstrip("@")), place)  # type: ignore[arg-type]


def documented(match: re.Match[str], place: Place) -> Call | None:
    text = payload(match["text"])
    return Call("add_docstring", (text,)) if text and len(text.split()) > 1 and place.symbol is not None else None


def imported(line: str, place: Place) -> Call | None:
    found = re.fullmatch(r"(.+)", line)
    return imports(found, place) if found is not None else None
