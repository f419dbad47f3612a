"""Rules that replace one text or expression by another: `replace X with Y`, `X -> Y`, `X instead of Y`."""

from __future__ import annotations

import ast
import builtins
import difflib
import re

from fulgur.edit.plain.place import Place, code, unquoted, without_texts
from fulgur.edit.refactor.local.exact import places_of
from fulgur.edit.refactor.source import Unusable, parse_region
from fulgur.edit.refactor.verify import METHODS, identifiers, words
from fulgur.text.edit_format import Call

_FIELD = r"%(?:\([^)]*\))?[-+0 #]*[\d.]*[srdifxXeg]"


def fits(place: Place, old: str, new: str) -> bool:
    """Whether a replacement keeps its meaning as one expression: `a or b` for `f` in `f(x)` does not, nor does one for
    `Optional[a]` in `typing.Optional[a]`."""
    at, after = places_of(place.region, old), place.region
    if len(re.findall(_FIELD, old)) != len(re.findall(_FIELD, new)) and not re.search(r"[\"'] *%", old):
        return False  # a format string with more or fewer fields
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
        return True  # not two expressions: the caller that applies it checks the result
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
    """Whether two unquoted texts are of one kind: code for code, words for words, or similar texts."""
    bare = re.sub(rf" (?:in|inside|of) (?:the |this |its )?(?:\w+ )?(?:{_TEXTS}|function|method|class|file)$", "", new)
    english = not in_code and re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+)+", bare)  # `and` and `in` are words of both
    if not _parses(old) or (not english and (_parses(new) or _parses(bare))):
        return True
    return difflib.SequenceMatcher(None, old.lower(), bare.lower(), autojunk=False).ratio() > 0.6


def _parses(text: str) -> bool:
    """Whether a text parses as code, also as the head or another fragment of a statement."""
    for around in ("{}", "{}: pass", "def f({}): pass", "[{}]", "x {} y", "x = {}"):
        try:
            ast.parse(around.format(text))
        except (SyntaxError, ValueError, RecursionError):
            continue
        return True
    return False


def substitute(match: re.Match[str], place: Place) -> Call | None:
    """`replace OLD with NEW`, literally; OLD must occur in the region."""
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
        return None  # NEW describes a style, not a text
    if (arrow or in_code) and not quoted and not _alike(old, new, in_code):
        return None  # "Slowly -> Quickly twice": it is unclear where the new text ends
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
    """`NEW instead of OLD`: two pieces of code of one kind whose names are all known."""
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
        return None  # "this or that" may be English
    once = len(places_of(place.region, old)) == 1
    return Call("replace_text", (old, new)) if once and fits(place, old, new) else None


def instead_in_call(match: re.Match[str], place: Place) -> Call | None:
    """`NEW instead of OLD in the getattr`: in the only call of that name that contains OLD exactly once."""
    new, old, called = match["new"].strip("`"), match["old"].strip("`"), match["called"]
    if code(new) is None or code(old) is None or place.tree is None:
        return None
    if set(re.findall(r"[A-Za-z_]\w*", without_texts(new))) - set(words(place.file)) - set(dir(builtins)):
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
    while place.region.count(place.region[start:end]) > 1:  # widen until the text is unique
        start, end = max(start - 1, 0), min(end + 1, len(place.region))
    return Call(
        "replace_text", (place.region[start:end], place.region[start:at] + new + place.region[at + len(old) : end])
    )


def quoted_swap(match: re.Match[str], place: Place) -> Call | None:
    """Replace one literal value by another; the old one must occur in the region once."""
    old, new = match["old"].strip("`"), match["new"].strip("`")
    if old.isidentifier() or new.isidentifier():
        return None
    for one, two in (
        (old, new),
        (old.replace("'", '"'), new.replace("'", '"')),
        (old.replace('"', "'"), new.replace('"', "'")),
    ):
        if one != two and len(places_of(place.region, one)) == 1:
            return Call("replace_text", (one, two))
    inner, other = unquoted(old), unquoted(new)
    if inner != old and other != new and len(inner) > 2 and len(places_of(place.region, inner)) == 1:
        return Call("replace_text", (inner, other))  # a part of a string
    return None


def other_method(match: re.Match[str], place: Place) -> Call | None:
    """`casefold instead of lower`: methods of builtin types, used once."""
    new, old = match["new"].strip(".()"), match["old"].strip(".()")
    known = new in METHODS and old in METHODS
    return Call("replace_text", (f".{old}(", f".{new}(")) if known and place.region.count(f".{old}(") == 1 else None


def other_methods(match: re.Match[str], place: Place) -> Call | None:
    """`casefold instead of lower().upper()`: a chain of methods of builtin types."""
    new, old = match["new"].strip(".()"), match["old"].lstrip(".")
    known = {new, *re.findall(r"\w+", old)} <= METHODS
    return Call("replace_text", (f".{old}", f".{new}()")) if known and place.region.count(f".{old}") == 1 else None
