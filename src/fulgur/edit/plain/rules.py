"""What each rule of `plain.py` makes of the words that its pattern found: a call, or None when it does not fit here."""

from __future__ import annotations

import ast
import builtins
import difflib
import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass

from fulgur.edit.refactor.local.exact import places_of
from fulgur.edit.refactor.local.functions import defaults, parameters
from fulgur.edit.refactor.source import FUNCTIONS, Function, Unusable, parse_region
from fulgur.edit.refactor.verify import identifiers, words
from fulgur.text.edit_format import Call


@dataclass(frozen=True)
class Place:
    """The region an instruction is about, and the whole file."""

    region: str
    file: str

    @property
    def tree(self) -> ast.Module | None:
        try:
            return parse_region(self.region)
        except (Unusable, RecursionError):
            return None

    @property
    def function(self) -> Function | None:
        """The only outermost function of the region."""
        tree = self.tree
        body = tree.body if tree is not None else []
        if self.region[:1] in (" ", "\t") and body:
            body = body[0].body  # type: ignore[attr-defined]
        found = [node for node in body if isinstance(node, FUNCTIONS)]
        return found[0] if len(found) == len(body) == 1 else None

    @property
    def symbol(self) -> ast.AST | None:
        """The only function or class of the region."""
        tree = self.tree
        found = [n for n in ast.walk(tree) if isinstance(n, (*FUNCTIONS, ast.ClassDef))] if tree is not None else []
        return found[0] if found else None

    def parameters(self) -> list[str]:
        return [arg.arg for arg in parameters(self.function)] if self.function else []

    def has(self, text: str) -> bool:
        return bool(places_of(self.region, text))


Rule = Callable[[re.Match[str], Place], Call | None]
Q = r"[`'\"]?"
N = rf"{Q}([A-Za-z_]\w*){Q}"  # a name, in quotes or not


def unquoted(text: str) -> str:
    """A text without the quotes or backticks around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "`'\"" else text


def payload(text: str) -> str | None:
    """A text that is given to the letter, without its quotes; None where words go on behind them."""
    text = text.strip()
    if text.startswith('"""') and text.endswith('"""') and len(text) > 6:
        return text[3:-3]
    return unquoted(text) if text[:1] not in "`'\"" or unquoted(text) != text else None


def code(text: str) -> str | None:
    """An expression, None for anything else; backticks around it are not part of it."""
    text = text.strip().strip("`")
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return None
    return text


def annotation(text: str) -> str | None:
    """A type as it is written after a colon; a word in lower case must be one that types are called."""
    found = code(text)
    if found is None or not re.match(r"[A-Za-z_\"']", found):
        return None
    node = ast.parse(found, mode="eval").body
    kinds = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.Constant)
    english = re.fullmatch(r"[a-z]+", found) and found not in _TYPES.split()
    english = english or found in ("Optional", "Union")  # of what?
    return found if isinstance(node, kinds) and not english else None


_TYPES = "int str float bool bytes bytearray complex list dict set frozenset tuple object type"


def always(name: str, *args: str) -> Rule:
    """A rule whose pattern says everything."""
    return lambda match, place: Call(name, args)


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


_FIELD = r"%(?:\([^)]*\))?[-+0 #]*[\d.]*[srdifxXeg]"


def fits(place: Place, old: str, new: str) -> bool:
    """Whether an expression in place of another stays one: `a or b` for `f` in `f(x)` becomes something else, and so
    does `Optional[a]` in `typing.Optional[a]`."""
    at, after = places_of(place.region, old), place.region
    if len(re.findall(_FIELD, old)) != len(re.findall(_FIELD, new)) and not re.search(r"[\"'] *%", old):
        return False  # a text that values are put into, with more or fewer places for them
    begins = [re.match(r"[A-Za-z_]\w*", text) for text in (old, new)]
    other = begins[0] is not None and (begins[1] is None or begins[0][0] != begins[1][0])
    if other and not old.isidentifier() and any(place.region[start - 1 : start] == "." for start in at):
        return False
    try:
        before, one, two = place.tree, ast.parse(old, mode="eval").body, ast.parse(new, mode="eval").body
        for start in reversed(at):
            after = after[:start] + new + after[start + len(old) :]
        changed = parse_region(after)
    except (SyntaxError, ValueError, RecursionError, Unusable):
        return True  # not two expressions: whoever applies it looks at the result
    dump = ast.dump(one).replace("ctx=Store()", "ctx=Load()")

    class Put(ast.NodeTransformer):
        found = 0

        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr) and ast.dump(node) == dump:
                Put.found += 1
                return two
            return self.generic_visit(node)

    if before is None:
        return True
    wanted = Put().visit(before)
    for tree in (wanted, changed):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                node.value = ""  # texts may name it too
    return not Put.found or ast.dump(wanted) == ast.dump(changed)


_WAYS = (
    r"(?:an? )?(?:f-? ?strings?|format strings?|pathlib|(?:list |dict |set )?comp(?:rehension)?s?|gen(?:erator|exp)s?|"
    r"ternary|walrus|enumerate|zip|suppress|context manager|constant|logging|logger)"
)
_TEXTS = r"(?:docstrings?|docs?|comments?|messages?|error|texts?|strings?)"


def _alike(old: str, new: str, in_code: bool) -> bool:
    """Whether two texts without quotes are of one kind: code for code, a word for a word or for one much like it."""
    bare = re.sub(rf" (?:in|inside|of) (?:the |this |its )?(?:\w+ )?(?:{_TEXTS}|function|method|class|file)$", "", new)
    english = not in_code and re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+)+", bare)  # `and` and `in` are words of both
    if not _parses(old) or (not english and (_parses(new) or _parses(bare))):
        return True
    return difflib.SequenceMatcher(None, old.lower(), bare.lower(), autojunk=False).ratio() > 0.6


def _parses(text: str) -> bool:
    """Code, or the head of a statement."""
    for around in ("{}", "{}: pass", "def f({}): pass", "[{}]", "x {} y", "x = {}"):
        try:
            ast.parse(around.format(text))
        except (SyntaxError, ValueError, RecursionError):
            continue
        return True
    return False


def substitute(match: re.Match[str], place: Place) -> Call | None:
    """`replace OLD with NEW`, to the letter; OLD must stand in the region."""
    old, new = (unquoted(part) if part[:1] in "`'\"" else part for part in match.groups())
    if found := re.fullmatch(
        r"([^\s\"'`]+) (?:in|inside) (?:this|the) (?:function|method|class|file|module)", match[2]
    ):
        return Call("replace_text", (old, found[1])) if place.has(old) and old != found[1] else None
    arrow = re.search(r"[-=]>|→", match[0]) and not re.match(
        r"(?:fix |correct )?(?:the )?typo", match[0], re.IGNORECASE
    )
    in_code = old in identifiers(place.region)
    quoted = match[1][:1] in "`'\"" or match[2][:1] in "`'\""
    if not quoted and re.fullmatch(_WAYS, new, re.IGNORECASE):
        return None  # a way to write it, and not what it is to be
    if (arrow or in_code) and not quoted and not _alike(old, new, in_code):
        return None  # "Slowly -> Quickly twice": nobody knows where the new text ends
    if found := re.fullmatch(rf"(.+?) (?:in|of) (?:the |its )?(?:\w+ )?{_TEXTS}", match[2]):
        said = unquoted(found[1]) if found[1][:1] in "`'\"" else found[1]
        return Call("replace_text", (old, said)) if place.has(old) and not in_code and old != said else None
    exceptions = all(re.fullmatch(r"[A-Z]\w*(?:Error|Exception)", side) for side in (old, new))
    raised = re.findall(rf"\braise {re.escape(old)}\b", place.region) if exceptions else []
    if len(raised) == 1 and f"except {old}" not in place.region:
        return Call("change_exception", (old, new))
    for one, two in ((match[1], match[2]), (old, new)):
        if one and one != two and place.has(one) and fits(place, one, two):
            return Call("replace_text", (one, two))
    return None


def instead(match: re.Match[str], place: Place) -> Call | None:
    """`NEW instead of OLD`: two pieces of code of one kind, all of whose names are known."""
    new, old = match[1].strip("`"), match[2].strip("`")
    if new.lower() in ("it", "that", "this", "them", "one", "those", "these"):
        return None
    if (sides := [re.fullmatch(r"(?:[<>]=?|[=!]=|not in|in|is not|is) (.+)", side) for side in (new, old)]) and all(
        sides
    ):
        known = all(side is not None and code(side[1]) for side in sides) and len(places_of(place.region, old)) == 1
        return Call("replace_text", (old, new)) if known else None  # the right side of a comparison, with its sign
    if code(new) is None or code(old) is None or not place.has(old) or new == old:
        return None
    plain = re.fullmatch(r"\w+", old) is not None
    if plain != (re.fullmatch(r"\w+", new) is not None) and plain:
        return None  # a bare word may be English
    if set(re.findall(r"[A-Za-z_]\w*", new)) - set(words(place.file)) - set(dir(builtins)):
        return None
    if isinstance(ast.parse(new, mode="eval").body, ast.BoolOp) and " or " not in old and " and " not in old:
        return None  # this or that
    once = len(places_of(place.region, old)) == 1
    return Call("replace_text", (old, new)) if once and fits(place, old, new) else None


def instead_in_call(match: re.Match[str], place: Place) -> Call | None:
    """`NEW instead of OLD in the getattr`: in the only call of that name which has OLD, and has it once."""
    new, old, called = match["new"].strip("`"), match["old"].strip("`"), match["called"]
    if code(new) is None or code(old) is None or place.tree is None:
        return None
    if set(re.findall(r"[A-Za-z_]\w*", _no_texts(new))) - set(words(place.file)) - set(dir(builtins)):
        return None
    shift = "if 1:\n" if place.region[:1].isspace() else ""
    calls = [
        text
        for node in ast.walk(place.tree)
        if isinstance(node, ast.Call) and re.search(rf"(?:^|\.){re.escape(called)}$", ast.unparse(node.func))
        and (text := ast.get_source_segment(shift + place.region, node)) and len(places_of(text, old)) == 1
    ]  # fmt: skip
    if len(calls) != 1 or place.region.count(calls[0]) != 1:
        return None
    at = place.region.index(calls[0]) + places_of(calls[0], old)[0]
    start, end = at, at + len(old)
    while place.region.count(place.region[start:end]) > 1:  # as much around it as it takes to mean this place
        start, end = max(start - 1, 0), min(end + 1, len(place.region))
    return Call(
        "replace_text", (place.region[start:end], place.region[start:at] + new + place.region[at + len(old) : end])
    )


def filled(name: str, region: str) -> bool:
    """Whether a variable is only begun where it is set: a list or dictionary that is filled later."""
    name = re.escape(name)
    return bool(re.search(rf"\b{name}(?:\[[^\]\n]+\] *=[^=]|\.(?:append|extend|add|update|insert)\()", region))


def _assigned(place: Place) -> set[str]:
    """Names and attributes of self that the region assigns."""
    found: set[str] = set()
    for node in ast.walk(place.tree) if place.tree is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            found |= {ast.unparse(target).removeprefix("self.") for target in targets if isinstance(target, ast.expr)}
    return found


def _names(value: str) -> set[str]:
    """The names that an expression needs, without those that it gives a value itself."""
    nodes = list(ast.walk(ast.parse(value, mode="eval")))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes if isinstance(node, ast.Name)} - own


def set_value(match: re.Match[str], place: Place) -> Call | None:
    name, value = match[1], code(match[2])
    if value is None or name.removeprefix("self.") not in _assigned(place):
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


def defaults_of(place: Place) -> dict[str, ast.expr]:
    return defaults(place.function) if place.function else {}


def default(match: re.Match[str], place: Place) -> Call | None:
    name, value = match[1], code(match[2])
    if value is None or set(re.findall(r"[A-Za-z_]\w*", _no_texts(value))) - {*words(place.file), *dir(builtins)}:
        return None
    return Call("change_default", (name, value)) if name in defaults_of(place) else None


def _no_texts(text: str) -> str:
    return re.sub(r"\"[^\"]*\"|'[^']*'|\b\d\w*", "", text)


def returns(match: re.Match[str], place: Place) -> Call | None:
    kind = annotation(match[1])
    if kind == "type" and re.search(r"returns? type$", match[0]):
        return None  # "add the return type"
    return Call("annotate_return", (kind,)) if kind is not None and place.function is not None else None


def annotate(match: re.Match[str], place: Place) -> Call | None:
    name, kind = match[1], annotation(match[2])
    return Call("annotate", (name, kind)) if kind is not None and name in place.parameters() else None


def hint_with_default(match: re.Match[str], place: Place) -> Call | None:
    """`name: type = default` for a parameter that has this default."""
    value = defaults_of(place).get(match[1])
    if value is None or code(match[3]) is None or ast.dump(value) != ast.dump(ast.parse(match[3], mode="eval").body):
        return None
    return annotate(match, place)


def hints(match: re.Match[str], place: Place) -> Call | None:
    kind = annotation(match[2])
    given = [part.split(":") for part in match[1].split(",")]
    good = all(name.strip() in place.parameters() and annotation(text.strip()) for name, text in given)
    return Call("add_type_hints", (f"{match[1]} -> {kind}",)) if good and kind else None


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
    named = next(filter(None, match.groups()), "")
    node = place.symbol
    first = getattr(node, "name", "")
    return Call("delete_symbol", (first,)) if node is not None and named in ("", first) else None


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
    whole = place.symbol is not None and re.match(r"\s*(?:@|(?:async )?def |class )", place.region)
    return None if whole else Call("extract_function", (match[1],))


def move(match: re.Match[str], place: Place) -> Call | None:
    """`move NAME to MODULE`, for what the file defines at its top."""
    name, target = match["name"], match["target"]
    defined = rf"^(?:(?:async )?def|class) {name}\b|^{name}(?:: [^=\n]+)? = " if name else ""
    if not name:
        first = place.symbol
        name = getattr(first, "name", "") if not place.region[:1].isspace() else ""
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
