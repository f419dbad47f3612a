"""Rules for parameters: new ones, those that replace a literal of the body, and defaults in users' words."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.names import bound
from fulgur.edit.plain.phrases import ARG, NAME
from fulgur.edit.plain.place import Place, Rule, annotation, code, defaults_of
from fulgur.edit.plain.steps import Steps, same_value
from fulgur.text.edit_format import Call


def with_default(match: re.Match[str], place: Place) -> Call | None:
    """`an argument called timeout, default None`, `timeout: float = None`"""
    name, value, kind = match["name"], code(match["value"]), match.groupdict().get("kind")
    if value is None or place.function is None or name in place.parameters() or (kind and not annotation(kind)):
        return None
    if re.fullmatch(r"[a-z]+", value):
        return None
    return Call("new_parameter", (f"{name}: {kind} = {value}" if kind else f"{name}={value}",))


def handed_on(match: re.Match[str], place: Place) -> Call | None:
    """`pass limit to self.pages`: a name of the region, to a function of the file that takes it by that name."""
    name, called = match["name"], match["called"]
    last = called.rpartition(".")[2]
    heads = re.findall(rf"\bdef {re.escape(last)}\(([^)]*)\)", place.file)
    calls = re.findall(rf"(?<![\w.]){re.escape(called)}\(", place.region)
    known = name in {*bound(place), *place.parameters()}
    takes = len(heads) == 1 and re.search(rf"(?:^|, ?|\n\s*){re.escape(name)}\b", heads[0])
    return Call("add_keyword", (called, name, name)) if known and takes and len(calls) == 1 else None


def for_literal(match: re.Match[str], place: Place) -> Call | None:
    """`turn the hard-coded 10 into a parameter limit`, for a literal that occurs once in the body."""
    if place.function is None:
        return None
    said, default = match["literal"].strip(), match.groupdict().get("value")
    nodes = [node for statement in place.function.body for node in ast.walk(statement)]
    found = {ast.unparse(n) for n in nodes if isinstance(n, ast.Constant) and same_value(said, ast.unparse(n))}
    literal = next(iter(found)) if len(found) == 1 else ""
    if not literal or (default and not same_value(default, literal)) or match["name"] in place.parameters():
        return None
    double = literal.replace("'", '"')
    return Call("extract_parameter", (literal if place.has(literal) else double, match["name"]))


def text_default(match: re.Match[str], place: Place) -> Call | None:
    """`default encoding should be utf-8`: a text without its quotes, for a parameter that takes texts."""
    name, said = match["name"], match["value"].strip()
    default = defaults_of(place).get(name)
    if not isinstance(default, ast.Constant) or not re.fullmatch(r"[A-Za-z][\w./:+-]*", said):
        return None
    text = isinstance(default.value, str) or (default.value is None and re.search(r"[-/:]", said))
    plain = place.file.replace('"""', "")
    quote = "'" if plain.count("'") > plain.count('"') else '"'
    return Call("change_default", (name, f"{quote}{said}{quote}")) if text and said not in ("None", "True") else None


def plain_default(match: re.Match[str], place: Place) -> Call | None:
    value = code(match["value"])
    known = match["name"] in defaults_of(place) and value is not None and not re.fullmatch(r"[a-z]+", value)
    return Call("change_default", (match["name"], str(value))) if known else text_default(match, place)


def typed_default(match: re.Match[str], place: Place) -> Call | None:
    """`size: int = 0`, for a parameter that has another type or another default."""
    name, kind, value = match["name"], annotation(match["kind"]), code(match["value"])
    if kind is None or value is None or name not in defaults_of(place) or re.fullmatch(r"[a-z]+", value):
        return None
    parts = [(match[0], Call("annotate", (name, kind))), (match[0], Call("change_default", (name, value)))]
    argument = next((a for a in ast.walk(place.function or ast.Module([], [])) if getattr(a, "arg", "") == name), None)
    given = getattr(argument, "annotation", None)
    same = given is not None and ast.dump(given) == ast.dump(ast.parse(kind, mode="eval").body)
    now = ast.unparse(defaults_of(place)[name]) == ast.unparse(ast.parse(value, mode="eval").body)
    left = [part for part, done in zip(parts, (same, now), strict=True) if not done]
    return Steps("steps", (), tuple(left)) if len(left) == 2 else left[0][1] if left else None


def all_keyword_only(match: re.Match[str], place: Place) -> Call | None:
    """`make both args keyword-only`, if the function has that many parameters."""
    own = [name for name in place.parameters() if name not in ("self", "cls")]
    counted = {"both": 2, "all": len(own), "all the": len(own), "everything": len(own)}[match["how"].lower()]
    return Call("keyword_only", (place.function.name, *own)) if place.function and counted == len(own) > 0 else None


_INTO = r"(in)?to|as|a|be"
RULES: list[tuple[str, Rule]] = [
    (rf"(turn|make|convert|change|extract|pull|move|put) [the] (hard-? ?coded )?(?P<literal>\S+|[\"'].*[\"']) "
     rf"(out )?({_INTO})? "
     rf"?[an?] (new |optional )?{ARG}( called| named|:|,)? {NAME}", for_literal),
    (rf"(add|introduce|take) [an?|the] (new |optional )*({ARG} {NAME}|(?P<n2>(?!)))(,? (with )?default(s|ing)?( "
     rf"to| of| is)? "
     r"(?P<value>[^,]+))?,? (instead of|for|in place of|to replace|replacing) [the] (hard-? ?coded )?(?P<literal>\S+)",
     for_literal),
    (rf"(add|introduce|take) [an?|the] (new |optional )*{NAME} {ARG}(,? (with )?default(s|ing)?( to| of| is)? "
     r"(?P<value>[^,]+))?,? (instead of|for|in place of|to replace|replacing) [the] (hard-? ?coded )?(?P<literal>\S+)",
     for_literal),
    (rf"[the|change the|set the|make the] default (value )?(of |for )?({ARG} )?{NAME} (to|should be|is|=|must be) "
     r"(?P<value>\S+)", text_default),
    (rf"make [the] {NAME} (?P<value>\S+) by default", plain_default),
    (rf"{NAME}: ?(?P<kind>[\w.\[\]| ]+?) ?= ?(?P<value>\S+)(,? (instead of|not|rather than) Optional(\[.*\])?( = "
     rf"None)?)?",
     typed_default),
    (rf"[the] ({ARG} )?{NAME} (should|must) (default to|be) (?P<value>\S+)( by default)?", text_default),
    (rf"(make|force|require) (?P<how>both|all|all the|everything) ({ARG}s?|of them)?( to be)? ?key-?word[- "
     rf"]?only", all_keyword_only),
    (rf"(add|take|accept|introduce|new|have|support) [an?|the] (new |optional )*{ARG} (called |named )?{NAME}"
     r"(: ?(?P<kind>[\w.\[\]| ]+?))?(,? \(?(with )?(a )?default(s|ing)?( value)?( to| of| is|:)? ?| ?= "
     r"?)(?P<value>[^()\s]+)\)?",
     with_default),
    (rf"(add|take|accept|introduce|new|have|support) [an?|the] (new |optional )*{NAME} {ARG},? "
     r"\(?(with )?(a )?default(s|ing)?( value)?( to| of| is|:)? ?(?P<value>[^()\s]+)\)?(?P<kind>(?!))?", with_default),
    (rf"pass [the] {NAME} (on |along |through )?(in)?to [the] `?(?P<called>[\w.]+)`?(\(\))?( call)?", handed_on),
]  # fmt: skip
