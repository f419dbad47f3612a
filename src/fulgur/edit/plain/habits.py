"""Rules for short requests of linters and reviewers: one isinstance, no `as e`, one import a line, `while True`."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.exchanges import misspelt_there
from fulgur.edit.plain.names import bound
from fulgur.edit.plain.phrases import ARG, DROP, NAME
from fulgur.edit.plain.place import Place, Rule, always, annotation, code, defaults_of
from fulgur.edit.plain.replacing import fits
from fulgur.edit.plain.shapes import gives_nothing, kind_of, static
from fulgur.edit.plain.style import HOW
from fulgur.edit.refactor.local.exact import places_of
from fulgur.edit.refactor.source import dotted
from fulgur.text.edit_format import Call


def exception_name(match: re.Match[str], place: Place) -> Call | None:
    name = match["name"]
    return Call("drop_exception_name", (name,)) if re.search(rf"\bexcept\b.* as {name}:", place.region) else None


def keyword_value(match: re.Match[str], place: Place) -> Call | None:
    """`bump stacklevel to 3`: a constant that exactly one call of the region passes by this name, if nothing else has
    the name."""
    name, value = match["name"], code(match["value"])
    if value is None or place.tree is None or name in {*bound(place), *place.parameters()}:
        return None
    if value.isidentifier() and value not in ("True", "False", "None"):
        return None
    calls = [
        node
        for node in ast.walk(place.tree)
        if isinstance(node, ast.Call) and any(given.arg == name for given in node.keywords)
    ]
    if len(calls) != 1 or (called := dotted(calls[0].func)) is None:
        return None
    old = next(given.value for given in calls[0].keywords if given.arg == name)
    keys = re.search(rf"[\"']{re.escape(name)}[\"']", place.region)  # an entry of a dictionary, or of a table
    return Call("set_keyword", (called, name, value)) if isinstance(old, ast.Constant) and not keys else None


def local_as_parameter(match: re.Match[str], place: Place) -> Call | None:
    """`make dirname a parameter, default '.'`, for a local that is set to this value."""
    name, said = match["name"], match.groupdict().get("value")
    if place.function is None or name in place.parameters() or name not in bound(place):
        return None
    values = [
        node.value
        for node in place.function.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]
    if len(values) != 1:
        return None
    if said and (
        (given := code(said)) is None or ast.unparse(ast.parse(given, mode="eval").body) != ast.unparse(values[0])
    ):
        return None
    return Call("variable_to_parameter", (name,))


_HINT = re.compile(r"(?P<name>\w+)(?::| is| as| ->|=)? ?(?:an? )?(?P<kind>[\w.\[\]| ]+?)")
_RESULT = re.compile(
    r"(?:and )?(?:it )?(?:returns?|returning|->|result is|return type is) ?(?:an? )?(?P<kind>[\w.\[\]| ]+)"
)


def hints(match: re.Match[str], place: Place) -> Call | None:
    """`type hints: index is int, value str, returns nothing`"""
    result, given = "", []
    for part in re.split(r", ?(?:and )?| and ", match["hints"].strip()):
        if not part.strip():
            continue
        if found := _RESULT.fullmatch(part.strip()):
            result = "None" if found["kind"] in ("nothing", "None", "none") else _kind(found["kind"])
            if not result:
                return None
            continue
        one = _HINT.fullmatch(part.strip())
        if one is None or one["name"] not in place.parameters() or not (kind := _kind(one["kind"])):
            return None
        given.append(f"{one['name']}: {kind}")
    if not given or place.function is None or (result == "None" and not gives_nothing(place.function)):
        return None
    return Call("add_type_hints", (", ".join(given) + (f" -> {result}" if result else ""),))


def _kind(said: str) -> str:
    said = said.strip()
    return annotation(said) or kind_of(said) or ""


def parentheses(match: re.Match[str], place: Place) -> Call | None:
    """`the parens around is_header`, if this code is in parentheses once, and not as the argument of a call."""
    text = match["code"].strip("`")
    found = re.findall(rf"((?:\b(?:if|while|return|elif|in|not|and|or)|=) *)(\({re.escape(text)}\))", place.region)
    if len(found) != 1 or place.region.count("".join(found[0])) != 1:
        return None
    lead = found[0][0] if found[0][0][-1] in " =" else f"{found[0][0]} "
    return Call("replace_text", ("".join(found[0]), f"{lead}{text}"))


def replaced_expression(match: re.Match[str], place: Place) -> Call | None:
    """`` `out or ''` is redundant, just out ``: one expression for another that occurs once."""
    old, new = code(match["old"]), code(match["new"])
    names = set(re.findall(r"[A-Za-z_]\w*", new or ""))
    if not old or not new or old == new or names - set(re.findall(r"\w+", old)):
        return None
    once = len(places_of(place.region, old)) == place.region.count(old) == 1
    return Call("replace_text", (old, new)) if once and fits(place, old, new) else None


def iterated(match: re.Match[str], place: Place) -> Call | None:
    """`iterate over f directly, no readlines`, for a file whose lines the region reads."""
    said = match.groupdict().get("file")
    if said and said.lower() not in ("file", "handle", "it") and not place.has(f"{said}.readlines()"):
        return None
    return Call("iterate_file")


def one_import_a_line(match: re.Match[str], place: Place) -> Call | None:
    """Split every line that imports several modules; if modules are named, there must be only that line."""
    said = match.groupdict().get("names")
    lines = re.findall(r"^\s*import ([\w., ]+,[\w., ]+?)\s*$", place.file, re.MULTILINE)
    if said and [re.split(r"\s*,\s*", line) for line in lines] != [re.split(r"\s*,\s*", said.strip())]:
        return None
    return Call("split_imports")


def flattened(match: re.Match[str], place: Place) -> Call | None:
    return Call("flatten_elif") if len(re.findall(r"^\s*elif\b", place.region, re.MULTILINE)) == 1 else None


def wanted_default(match: re.Match[str], place: Place) -> Call | None:
    """`timeout 30 by default`"""
    name, value = match["name"], code(match["value"])
    plain = value is not None and not re.fullmatch(r"[a-z]+", value)
    return Call("change_default", (name, value)) if plain and value and name in defaults_of(place) else None


_TYPE_HINTS = r"(add |with )?[the] (type ?hints?|hints?|annotations?|types?)"
RULES: list[tuple[str, Rule]] = [
    (rf"({HOW} )?[an?|just|only] (single|one) isinstance(\(\))?( (call|check))?( with [an?] tuple)?( instead of "
     r"(two|both|several|the or))?|(merge|combine|join|collapse) [the] (two |both )?isinstance(\(\))?( (calls?|"
     r"checks?))?( (in)?to one)?", always("merge_isinstance")),
    (rf"({HOW} )?[an?] (ternary|conditional expression|conditional|if/?else|if[- ]expression),? "
     r"(instead of|rather than|not) [the] `?and ?(/|…|\.\.\.|-| )? ?or`?( (trick|hack|idiom|chain))?|"
     r"no and/or( (trick|hack|idiom))?",
     always("and_or")),
    (rf"({HOW} )?[an?|the] (ternary|conditional expression) (for|to set) [the] (?P<name>\w+)",
     lambda match, place: Call("and_or")
     if re.search(rf"^\s*{match['name']} = .+ and .+ or ", place.region, re.MULTILINE) else None),
    (r"(use )?`?while True`?( (instead of|rather than|not) `?while 1`?)?|`?while 1`? ?(->|=>|→|to|should be) ?"
     r"`?while True`?", lambda match, place: Call("while_true") if "while 1" in place.region else None),
    (rf"({DROP}) [the|an|that] (unused )?[\"'`]?as (?P<name>\w+)[\"'`]?( (binding|part|clause))?( (in|from|of) [the] "
     r"except)?", exception_name),
    (r"(iterate|loop|go)( over)? [the] (?P<file>\w+) (directly|itself)[,;]? "
     r"(no|without|not|drop|instead of|rather than) [the] \.?readlines(\(\))?|"
     r"(drop|remove|no|no need for|get rid of|skip) [the] \.?readlines(\(\))?( call)?", iterated),
    (r"(split|separate|break up|unfold) [up] [the] (`?import (?P<names>[\w, ]+)`?( line)?|imports?( line)?)( (in)?to "
     r"(separate|several|single|own) lines?)?|(one|1|single) import (per|a|each) line|(each|every) import on (its|an) "
     r"own line", one_import_a_line),
    (rf"(make|turn|convert|change) {NAME} (in)?(to )?[an?|the] (new |optional |function )?({ARG})"
     r"(,? ?(with )?(a )?(\()?default(s|ing)?( value)?( to| of| is|:|=)? ?(?P<value>[^()]+?)\)?)?", local_as_parameter),
    (rf"{NAME} should be [an?] (new |optional |function )?({ARG})( instead of (hard-?coded|a local( variable)?))?",
     local_as_parameter),
    (rf"(bump|raise|increase|lower|reduce|set|change|decrease|update) [the] {NAME} to (?P<value>\S+)", keyword_value),
    (rf"{_TYPE_HINTS}:? (?P<hints>\w+ ?[:= ].+)", hints),
    (r"annotate:? (?P<hints>\w+ (is|as) .+)", hints),
    (r"(fix|correct) [the|a] (typo|spelling|misspelling)(?P<where> in| of)?:? [\"'`]?(?P<word>[A-Za-z]{5,})[\"'`]?"
     r"( (in|of) [the] (doc-?string|comment|message|error|text|error message))?", misspelt_there),
    (rf"({DROP}) [the|those|these] (parens|parenthes[ei]s|brackets) around (?P<code>`?[\w.]+`?)", parentheses),
    (r"`(?P<old>[^`]+)` is (redundant|unnecessary|overkill|useless|pointless|needless|silly|too much|superfluous)"
     r"( (in|inside|within) [the] \w+)?[,;:.-]+ ?(so |just |please |simply |use )*`?(?P<new>[^`,;]+?)`?( is enough)?",
     replaced_expression),
    (r"(use )?[a] (plain )?if,? (instead of|not|rather than) [an|the] elif after [the|a] (raise|return|continue|break)|"
     r"no elif after [the|a] (raise|return|continue|break)", flattened),
    (r"(make|turn) (it |this |that )?[an?|into a?] static|static ?method( please)?|should be static", static),
    (r"isinstance(\(\))? (check|checks|instead|test)|(use )?isinstance(\(\))?,? (not|instead of|rather than) [the] "
     r"`?type(\(\w*\))? ?(==|is|comparison|checks?)?`?", always("use_isinstance")),
    (rf"{NAME}:? (?P<value>\S+) by default", wanted_default),
]  # fmt: skip
