"""What the most used rules (`usual.py`) make of the words that their patterns found: a call, or None."""

from __future__ import annotations

import ast
import builtins
import keyword
import re

from fulgur.edit.plain.place import Place, Rule, assigned, code, defaults_of, filled, payload, unquoted, without_texts
from fulgur.edit.plain.replacing import instead
from fulgur.edit.refactor.source import FUNCTIONS
from fulgur.edit.refactor.verify import identifiers, words
from fulgur.text.edit_format import Call


def rename(match: re.Match[str], place: Place) -> Call | None:
    old, new = match[1], match[2]
    last = old.rpartition(".")[2]
    if last not in words(place.file) or not new.isidentifier() or last == new or keyword.iskeyword(last):
        return None
    if place.tree is not None and place.has(last) and last not in identifiers(place.file):
        return None  # a word of a comment or a text
    if hasattr(builtins, last) and "." not in old and not re.search(rf"\b{last}\b *[,:=)]|def {last}\b", place.region):
        return None  # another exception or function, not another name for it
    return Call("rename", (old, new))


def visibility(match: re.Match[str], place: Place) -> Call | None:
    old = match[1]
    new = old.lstrip("_") if match[2].lower() == "public" else f"_{old}"
    known = old in words(place.file) and (match[2].lower() == "public") == old.startswith("_")
    known = known and not (old in place.parameters() and f"self.{old}" in place.region)
    return Call("rename", (old, new)) if known and new else None


def _names(value: str) -> set[str]:
    """The names that an expression needs, without those that it gives a value itself."""
    nodes = list(ast.walk(ast.parse(value, mode="eval")))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes if isinstance(node, ast.Name)} - own


def set_value(match: re.Match[str], place: Place) -> Call | None:
    name, value = match[1], code(match[2])
    if value is None or name.removeprefix("self.") not in assigned(place):
        return None
    if _names(value) - {*words(place.file), *dir(builtins)}:
        return None  # "x = y is enough" is code too
    if value.isidentifier() and value not in {*words(place.file), *dir(builtins)}:
        return None  # another name, not a value
    if name in place.parameters() and name not in words(value):
        return None  # its default
    if filled(name, place.region):
        return None  # what fills it would have to go
    return Call("set_value", (name, value))


def version(match: re.Match[str], place: Place) -> Call | None:
    found = re.search(r"^(__version__|VERSION|version)\s*=\s*([\"'])", place.region, re.MULTILINE)
    return Call("set_value", (found[1], f"{found[2]}{unquoted(match[1])}{found[2]}")) if found else None


def switched(match: re.Match[str], place: Place) -> Call | None:
    on = match["how"].lower() in ("on", "enable", "true")
    name, value = match["name"], str(on)
    if re.search(rf"^{re.escape(name)}\s*(?::[^=\n]+)?=\s*{not on}\b", place.region, re.MULTILINE):
        return Call("set_value", (name, value))
    return Call("change_default", (name, value)) if name in defaults_of(place) else None


def default(match: re.Match[str], place: Place) -> Call | None:
    name, value = match[1], code(match[2])
    if value is None or set(re.findall(r"[A-Za-z_]\w*", without_texts(value))) - {*words(place.file), *dir(builtins)}:
        return None
    return Call("change_default", (name, value)) if name in defaults_of(place) else None


def docstring(match: re.Match[str], place: Place) -> Call | None:
    """A text in quotes, after a colon, or a sentence; "a docstring to load" is for a model."""
    text = match[2].strip()
    if not (match[1] or text[:1] in "\"'`" or re.fullmatch(r"[A-Z].*\.", text, re.DOTALL)):
        return None
    words_of = payload(text)
    return Call("add_docstring", (words_of,)) if words_of and len(words_of.split()) > 1 else None


def add_to(match: re.Match[str], place: Place) -> Call | None:
    value, name = match[1], match[2]
    if not re.search(rf"^\s*(?:self\.)?{re.escape(name)}\b[^=\n]*=\s*[\[{{(]", place.region, re.MULTILINE):
        return None
    pair = re.fullmatch(r"([\"'][^\"']+[\"']|\w+): ?(.+)", value)
    if pair and code(pair[1]) and code(pair[2]):
        return Call("add_entry", (name, pair[1], pair[2]))
    return Call("add_item", (name, value)) if code(value) else None


def new_parameter(match: re.Match[str], place: Place) -> Call | None:
    text = match[1].strip("`")
    try:
        ast.parse(f"def f(*, {text}): pass")
    except SyntaxError:
        return None
    return Call("new_parameter", (text,)) if place.function is not None else None


def remove_parameter(match: re.Match[str], place: Place) -> Call | None:
    name = next(filter(None, match.groups()))
    known = place.function is not None and name in place.parameters()
    return Call("remove_parameter", (place.function.name, name)) if known and place.function else None


def delete(match: re.Match[str], place: Place) -> Call | None:
    name = next(filter(None, match.groups()), "")
    node = place.symbol if name else place.named_symbol
    return Call("delete_symbol", (node.name,)) if node is not None and name in ("", node.name) else None


def delete_kind(match: re.Match[str], place: Place) -> Call | None:
    """`delete the function`: the only one of the region, or the one that was named."""
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
        return None  # instead of that base, or beside it?
    return Call("change_base", (node.name, new, *((old,) if old else ())))


def _narrower(new: str, bases: list[str]) -> bool:
    """Whether a builtin class is a kind of the only base, which then gives way to it."""
    one, two = getattr(builtins, new, None), getattr(builtins, bases[0], None) if len(bases) == 1 else None
    return isinstance(one, type) and isinstance(two, type) and issubclass(one, two)


def constant(match: re.Match[str], place: Place) -> Call | None:
    value = match[1].strip("`")
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return None
    return Call("extract_constant", (value, match[2]))


def variable(match: re.Match[str], place: Place) -> Call | None:
    value = code(match[1])
    return Call("extract_variable", (match[2], value)) if value and place.has(value) else None


def function_of_lines(match: re.Match[str], place: Place) -> Call | None:
    """The lines that were named; a whole function or class is not meant."""
    return None if re.match(r"\s*(?:@|(?:async )?def |class )", place.region) else Call("extract_function", (match[1],))


def move(match: re.Match[str], place: Place) -> Call | None:
    """`move NAME to MODULE`, for what the file defines at its top."""
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
        return None  # another name for something that is imported already
    return Call("add_import", tuple(match[1].split())) if good else None


def unimport(match: re.Match[str], place: Place) -> Call | None:
    return Call("remove_import", (match[1],)) if match[1] in words(place.file) else None


def decorate(match: re.Match[str], place: Place) -> Call | None:
    if match[1] == "property" and place.function and re.search(rf"\.{place.function.name}\(", place.file):
        return None  # its callers would call the value
    return Call("add_decorator", (match[1],)) if code(match[1]) and place.function is not None else None


def named_exception(call: str) -> Rule:
    """A rule for one exception, by its name."""

    def rule(match: re.Match[str], place: Place) -> Call | None:
        return Call(call, (match[1],)) if match[1][:1].isupper() or "." in match[1] else None

    return rule


def swap_exception(match: re.Match[str], place: Place) -> Call | None:
    new, old = match[1], match[2]
    if re.fullmatch(r"[\w.]+", new) and re.fullmatch(r"[\w.]+", old):
        return Call("change_exception", (old, new)) if re.search(rf"raise {re.escape(old)}\b", place.region) else None
    return instead(match, place)


def swap_return(match: re.Match[str], place: Place) -> Call | None:
    new, old = code(match[1]), code(match[2])
    return Call("change_return", (new, old)) if new and old and place.has(f"return {old}") else None


def not_chained(match: re.Match[str], place: Place) -> Call | None:
    """`raise KIND from None`, where the region raises it in one place."""
    kind = match["kind"]
    handlers = place.region[max(place.region.find("except"), 0) :]
    known = kind is None or len(re.findall(rf"\braise {re.escape(kind)}\b", handlers)) == 1
    return Call("raise_from", ("None",)) if known else None


def bare_return(match: re.Match[str], place: Place) -> Call | None:
    return Call("replace_text", ("return None", "return")) if place.has("return None") else None


def is_true(match: re.Match[str], place: Place) -> Call | None:
    """`if X` for the one comparison of X with an empty value."""
    test, empty = code(match[1]), code(match[2])
    found = [old for old in (f"{test} != {empty}", f"{test} == {empty}") if test and place.has(old)]
    if len(found) != 1 or not re.search(rf"(?:if|while|and|or) {re.escape(found[0])}", place.region):
        return None
    return Call("replace_text", (found[0], f"not {test}" if "==" in found[0] else str(test)))


def catch_instead(match: re.Match[str], place: Place) -> Call | None:
    new, old = match[1], match[2]
    handlers = re.findall(r"^\s*except\b.*$", place.region, re.MULTILINE)
    named = [line for line in handlers if re.search(rf"\b{re.escape(old)}\b", line)]
    known = re.search(rf"\b{re.escape(new.split('.')[0])}\b", place.file) or hasattr(builtins, new)
    if len(named) != 1 or not known or not place.has(f"except {old}"):
        return None
    return Call("replace_text", (f"except {old}", f"except {new}"))


def flatten(match: re.Match[str], place: Place) -> Call | None:
    test = code(match[1])
    same = test is not None and code(match[2]) == test
    return Call("flatten_elif", (test,)) if same and test else None
