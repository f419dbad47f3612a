"""Rules for a function's arguments and results, as users word them."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.names import bound
from fulgur.edit.plain.phrases import DROP, NAME
from fulgur.edit.plain.place import Place, Rule, always, annotation, code
from fulgur.edit.plain.shapes import kind_of
from fulgur.edit.refactor.local.functions import or_none
from fulgur.edit.refactor.source import FUNCTIONS
from fulgur.edit.refactor.verify import words
from fulgur.text.edit_format import Call

_MARKS = r"todo|fixme|xxx|hack|noqa|pragma|nosec|type: ?ignore|pylint|fmt: ?\w+|mypy"
_MADE = {"strip": "strip", "lowercase": "lower", "lower": "lower", "uppercase": "upper", "upper": "upper",
         "casefold": "casefold", "lower-case": "lower", "upper-case": "upper", "trim": "strip"}  # fmt: skip


def mark(match: re.Match[str], place: Place) -> Call | None:
    """`drop the TODO`, `remove the noqa`: comments that contain the word."""
    word = match["word"].lower()
    found = [text for text in re.findall(r"#.*", place.region) if word in text.lower()]
    return Call("remove_comment", ("all" if match["many"] else "one", *re.findall(r"\w+", word))) if found else None


def two_comments(match: re.Match[str], place: Place) -> Call | None:
    return Call("remove_comments") if len(re.findall(r"(?<!['\"])#", place.region)) == 2 else None


def comment_at(match: re.Match[str], place: Place) -> Call | None:
    """`remove the comment after isoformat`: the comment of the only line that contains both."""
    at = match["code"].strip("`")
    lines = [line for line in place.region.split("\n") if re.search(rf"\b{re.escape(at)}\b.*#", line)]
    said = re.findall(r"\w+", lines[0][lines[0].index("#") :]) if len(lines) == 1 else []
    return Call("remove_comment", ("one", *said)) if said else None


def docstring_typo(match: re.Match[str], place: Place) -> Call | None:
    """Two quoted texts, the first of which occurs in the region once."""
    old, new = match["old"][1:-1], match["new"][1:-1]
    return Call("replace_text", (old, new)) if old and old != new and place.region.count(old) == 1 else None


def said_wrong(match: re.Match[str], place: Place) -> Call | None:
    old, new = match["old"].strip("\"'`"), match["new"].strip("\"'`")
    return Call("replace_text", (old, new)) if old and old != new and place.region.count(old) == 1 else None


def used_decorator(match: re.Match[str], place: Place) -> Call | None:
    """`remove the lru_cache`, if it is used once, as a decorator."""
    name = match["name"]
    heads = re.findall(rf"^\s*@[\w.]*\b{re.escape(name)}\b", place.region, re.MULTILINE)
    rest = re.sub(rf"^\s*@.*\b{re.escape(name)}\b.*$", "", place.region, flags=re.MULTILINE)
    return Call("remove_decorator", (name,)) if len(heads) == 1 and name not in words(rest) else None


def constant_return(match: re.Match[str], place: Place) -> Call | None:
    function, new = place.function, match["value"]
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return) and n.value] if function is not None else []
    old = ast.unparse(returns[0].value) if len(returns) == 1 and returns[0].value else ""
    return Call("change_return", (new, old)) if old and old != new and place.has(f"return {old}") else None


def underscored(match: re.Match[str], place: Place) -> Call | None:
    name = match["name"]
    known = name in place.parameters() and not name.startswith("_")
    return Call("rename", (name, f"_{name}")) if known else None


def inner_function(match: re.Match[str], place: Place) -> Call | None:
    outer = place.function
    inner = [n.name for n in ast.walk(outer) if isinstance(n, FUNCTIONS) and n is not outer] if outer else []
    free = match["new"] not in words(place.file)
    return Call("rename", (inner[0], match["new"])) if len(inner) == 1 and free else None


def variable_type(match: re.Match[str], place: Place) -> Call | None:
    kind, name = annotation(match["kind"]), match["name"]
    known = name in bound(place) and name not in place.parameters()
    return Call("annotate_variable", (name, kind)) if kind and known else None


def either_type(match: re.Match[str], place: Place) -> Call | None:
    """`s is str or bytes`, in the style of this file."""
    kinds = [kind_of(word) for word in re.split(r",? or |, ", match["kinds"])]
    if None in kinds or match["name"] not in place.parameters() or len(kinds) < 2:
        return None
    plain = [str(kind) for kind in kinds if kind not in ("None",)]
    modern = "Optional" not in or_none("x", place.file)
    both = " | ".join(plain) if modern else f"Union[{', '.join(plain)}]"
    return Call("annotate", (match["name"], both))


def made_first(match: re.Match[str], place: Place) -> Call | None:
    name, method = match["name"], _MADE[match["how"].lower()]
    return Call("first_call", (name, method)) if name in place.parameters() else None


def wrapped_return(match: re.Match[str], place: Place) -> Call | None:
    name = match["call"].strip("`()")
    known = name in ("bool", "list", "tuple", "set", "str", "int", "float", "sorted", "frozenset", "dict", "bytes")
    return Call("wrap_return", (name,)) if place.function is not None and (known or name in words(place.file)) else None


def returned_kind(match: re.Match[str], place: Place) -> Call | None:
    """`return a list`, if one value is returned and it is not visibly a list already."""
    kind, function = kind_of(match["kind"]), place.function
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return) and n.value] if function is not None else []
    if kind not in ("list", "tuple", "set", "str", "bool", "int", "float", "frozenset") or len(returns) != 1:
        return None
    declared = function.returns if function is not None else None
    if declared is not None and kind not in ast.unparse(declared).lower():
        return None  # the return annotation would be wrong then
    value = returns[0].value
    shown = {"list": (ast.List, ast.ListComp), "tuple": (ast.Tuple,), "set": (ast.Set, ast.SetComp)}
    same = isinstance(value, shown.get(kind, ())) or ast.unparse(value or ast.Constant(0)).startswith(f"{kind}(")
    return None if same or isinstance(value, (ast.List, ast.Tuple, ast.Set)) else Call("wrap_return", (kind,))


def without_try(match: re.Match[str], place: Place) -> Call | None:
    kind = match.groupdict().get("kind")
    tries = re.findall(r"^\s*try:", place.region, re.MULTILINE)
    handlers = re.findall(r"^\s*except\b(.*):", place.region, re.MULTILINE)
    if len(tries) != 1 or len(handlers) != 1 or (kind and not re.fullmatch(rf"\s*{kind}(?: as \w+)?", handlers[0])):
        return None
    return Call("remove_try", (kind,) if kind else ())


def swapped(match: re.Match[str], place: Place) -> Call | None:
    calls = re.findall(rf"(?<!\w){re.escape(match['called'])}\(", place.region)
    return Call("swap_arguments", (match["called"],)) if calls else None


def other_expression(match: re.Match[str], place: Place) -> Call | None:
    """`use random.uniform(a, b)`, for a function that is one return of an expression with the same names."""
    new, function = code(match["value"]), place.function
    if new is None or function is None or not isinstance(ast.parse(new, mode="eval").body, ast.Call):
        return None
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        return None
    old, call = body[0].value, ast.parse(new, mode="eval").body
    assert isinstance(call, ast.Call)
    given = {ast.unparse(n) for one in call.args for n in ast.walk(one) if isinstance(n, (ast.Name, ast.Attribute))}
    had = {ast.unparse(n) for n in ast.walk(old) if isinstance(n, (ast.Name, ast.Attribute))}
    return Call("only_return", (new,)) if given and given <= had and ast.unparse(old) != ast.unparse(call) else None


_TEXT = r"\"[^\"]+\"|'[^']+'|`[^`]+`"
RULES: list[tuple[str, Rule]] = [
    (rf"({DROP}) [the|that|this|all|those] (?P<word>{_MARKS})(?P<many>s)?", mark),
    (rf"({DROP}) (both|the two|the) comments", two_comments),
    (rf"({DROP}) [the|that|this] comment (after|behind|next to|beside|on|at) [the] (?P<code>`?[\w.]+`?)( line)?",
     comment_at),
    (rf"[fix] [the|a] (typo|spelling)?( (in|of) (the )?((class|function|method|module) "
     rf")?(docstring|doc|comment|message|text|string))?[:,]? "
     rf"(?P<old>{_TEXT}) ?"
     rf"(should (be|read|say)|->|=>|→|to|not|must be) ?(?P<new>{_TEXT})", docstring_typo),
    (r"[the] (docstring|doc|comment|message|text|it) (says|has|reads|said) (?P<old>\S+),? (but|and|it) (it )?should "
     r"(be|say|read) (?P<new>\S+)", said_wrong),
    (rf"({DROP}) [the] (?P<name>[a-z_][\w.]*)", used_decorator),
    (r"(always|just|simply) return (?P<value>None|True|False|NotImplemented|self|-?\d+)", constant_return),
    (rf"(prefix|start) {NAME} with (an? )?(underscore|_)|(?P<n2>(?!))", underscored),
    (rf"(unused|[the] unused) (arg|argument|parameter|param) {NAME},? (prefix it with|add|needs) (an? )?(leading "
     rf")?(underscore|_)",
     underscored),
    (rf"[the] (arg|argument|parameter|param|variable|var)? ?{NAME} (is unused|isn'?t used|is not used),? (prefix "
     rf"it with|add) "
     r"(an? )?(leading )?(underscore|_)", underscored),
    (r"(rename|call|name) [the] (inner|nested|local|wrapped) (function|func|def|closure)( \w+)? (to |as )?"
     r"(?P<new>[A-Za-z_]\w*)", inner_function),
    (rf"(annotate|type|hint|type[- ]hint) [the] (variable |local )?{NAME} (as|with|to be|:) (?P<kind>.+)",
     variable_type),
    (rf"(add |with )?(type )?(hints?|types?|annotations?)?[:,]? ?[the] {NAME} (is|can be|may be|as|:) [an?|either] "
     r"(?P<kinds>`?\w+`?((, |,? or )(an? )?`?\w+`?)+)", either_type),
    (rf"(?P<how>{'|'.join(_MADE)}) [the] {NAME}( first| at the (start|beginning|top)| before .*)?", made_first),
    (r"(wrap|put|pass) [the] (return(ed)? (value|result)?|result) ?(in|into|to|with|through) [a] (?P<call>`?\w+\(\)`?)",
     wrapped_return),
    (r"(should |must |always )?return [an?] (?P<kind>\w+)( (instead|instead of an? \w+( \w+)?|not an? \w+( \w+)?))?",
     returned_kind),
    (r"(don'?t|do not|stop|no need to|never) (catch|catching|handle|handling|swallow) (?P<kind>[A-Z]\w*)"
     r"( (here|at all|any ?more))?", without_try),
    (rf"({DROP}) [the|that|this] try([/ -]?(except|catch))?( block| statement)?|let (it|the (error|exception)) "
     r"(raise|propagate|bubble up|through)", without_try),
    (r"(swap|flip|reverse|switch) [the] (order of [the] )?(two )?(args?|arguments|params?|parameters) "
     r"(of|in|to|for) [the] "
     r"`?(?P<called>[\w.]+)`?(\(\))?( call)?", swapped),
    (rf"({DROP}) (the )?(unneeded|unnecessary|redundant|extra|useless|superfluous) (parens|parenthes[ei]s|brackets)",
     always("remove_parentheses")),
    (r"(just |simply )?use `?(?P<value>[\w.]+\(.*\))`?( here)?", other_expression),
]  # fmt: skip
