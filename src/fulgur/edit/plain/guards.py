"""Conditions as users word them ("size is negative", "other is not a Version"), and the guards they ask for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fulgur.edit.plain.place import N, Place, Rule, code, defaults_of
from fulgur.edit.refactor.local.functions import parameters
from fulgur.edit.refactor.source import FUNCTIONS
from fulgur.text.edit_format import Call


def bail(match: re.Match[str], place: Place) -> Call | None:
    found = re.fullmatch(r"(?P<value>)(?P<condition>.+)", match["condition"])
    return return_guard()(found, place) if found is not None else None


_STATES = {
    "none": "{} is None", "null": "{} is None", "missing": "{} is None", "not given": "{} is None",
    "not set": "{} is None", "not none": "{} is not None", "given": "{} is not None", "set": "{} is not None",
    "empty": "not {}", "blank": "not {}", "falsy": "not {}", "not empty": "{}", "non-empty": "{}", "nonempty": "{}",
    "negative": "{} < 0", "zero": "{} == 0", "positive": "{} > 0", "not positive": "{} <= 0",
    "not negative": "{} >= 0", "non-negative": "{} >= 0", "nonnegative": "{} >= 0", "true": "{}", "false": "not {}",
    "0": "{} == 0", "less than zero": "{} < 0", "greater than zero": "{} > 0", "truthy": "{}",
}  # fmt: skip
_OPPOSITE = {"{}": "not {}", "not {}": "{}", "{} is None": "{} is not None", "{} is not None": "{} is None",
             "{} < 0": "{} >= 0", "{} >= 0": "{} < 0", "{} > 0": "{} <= 0", "{} <= 0": "{} > 0",
             "{} == 0": "{} != 0"}  # fmt: skip
_SIGNS = {"less than": "<", "smaller than": "<", "below": "<", "under": "<", "greater than": ">", "more than": ">",
          "larger than": ">", "bigger than": ">", "above": ">", "over": ">", "at least": ">=",
          "at most": "<="}  # fmt: skip
_SINGLE_TYPES = {"string": "str", "integer": "int", "number": "(int, float)", "boolean": "bool", "dictionary": "dict"}
IS = r"(?:is|was|'s|being)"
ISNT = r"(?:is not|isn'?t|is ?n[o']t|not)"


def condition(text: str, place: Place, *, holds: bool = True) -> str | None:
    """The test that these words describe, for parameters only; `holds` False: its opposite."""
    text = text.strip().strip("`")
    a_type = r"(?:an? )?(?:instance of )?(?:an? )?([A-Za-z_][\w.]*)(?: instance)?"
    match = re.fullmatch(rf"{N}(?:'s)? {ISNT} {a_type}", text)
    if match and _type(match[2]) and match[2].lower() not in _STATES:
        return _of(match[1], f"{'not ' if holds else ''}isinstance({{}}, {_type(match[2])})", place)
    match = re.fullmatch(rf"{N} {IS} (?=an? ){a_type}", text)
    if match and _type(match[2]):
        return _of(match[1], f"{'' if holds else 'not '}isinstance({{}}, {_type(match[2])})", place)
    if match := re.fullmatch(rf"{N} (?:{IS} )?({'|'.join(_SIGNS)}) (-?\w+)", text, re.IGNORECASE):
        return _of(match[1], f"{{}} {_SIGNS[match[2].lower()]} {match[3]}", place) if holds else None
    words = re.sub(rf"\b{ISNT}\b", "is not", text, count=1)
    if match := re.fullmatch(
        rf"{N} (?:is )?({'|'.join(sorted(_STATES, key=len, reverse=True))})", words, re.IGNORECASE
    ):
        state = _STATES[match[2].lower()]
        return _of(match[1], state if holds else _OPPOSITE[state], place)
    if match := re.fullmatch(
        rf"(?:there is|there's|theres|there are|got|given) no {N}|no {N}(?: (?:is|are|was|were) (?:given|passed|set))?",
        text,
        re.IGNORECASE,
    ):
        return _of(match[1] or match[2], "not {}" if holds else "{}", place)
    found = code(text)
    if found is None or not re.search(r"[<>=]|\bnot\b|\bin\b|\(|\bis\b", found):
        return None
    return found if holds else f"not ({found})" if re.search(r"\b(?:and|or|not)\b", found) else _negated(found)


def _negated(text: str) -> str:
    node = ast.parse(text, mode="eval").body
    opposite = {ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">",
                ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}  # fmt: skip
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sign = opposite[type(node.ops[0])]
        return f"{ast.unparse(node.left)} {sign} {ast.unparse(node.comparators[0])}"
    return f"not {text}"


def _type(word: str) -> str | None:
    word = _SINGLE_TYPES.get(word, word)
    builtin = word in ("str", "int", "float", "bool", "bytes", "list", "dict", "set", "tuple", "(int, float)")
    return word if builtin or word.lstrip("_")[:1].isupper() else None


def _of(name: str, test: str, place: Place) -> str | None:
    star = place.function.args.vararg if place.function is not None else None
    known = name in place.parameters() or (star is not None and star.arg == name and test in ("{}", "not {}"))
    return test.format(name) if known else None


def _for_optional(test: str, place: Place) -> str:
    """The test, preceded by `is not None` for parameters that may be None: `None < 0` is an error."""
    values = defaults_of(place)
    optional = [n for n, value in values.items() if isinstance(value, ast.Constant) and value.value is None]
    for argument in parameters(place.function) if place.function is not None else []:
        kind = ast.unparse(argument.annotation) if argument.annotation is not None else ""
        if re.search(r"\b(?:Optional|None)\b", kind) and argument.arg not in optional:
            optional.append(argument.arg)
    used = [name for name in optional if re.search(rf"\b{name}\b", test) and re.search(r"[<>]", test)]
    tests = [f"{name} is not None" for name in sorted(used, key=test.index) if "None" not in test]
    return " and ".join([*tests, test])


def raising(kind: str, test: str, place: Place) -> Call | None:
    """The guard that raises; for None and empty values the refactoring words the message."""
    if not (kind.split("(")[0].rpartition(".")[2][:1].isupper() and code(kind)):
        return None
    if match := re.fullmatch(r"(\w+) is None", test):
        return Call("guard_none", (match[1], "raise", kind)) if "(" not in kind else Call("raise_if", (test, kind))
    if match := re.fullmatch(r"not (\w+)", test):
        return Call("raise_if_empty", (match[1], kind)) if "(" not in kind else Call("raise_if", (test, kind))
    return Call("raise_if", (_for_optional(test, place), kind))


def own_returns(function: ast.AST) -> Iterator[ast.Return]:
    """The returns of a function, without those of nested functions."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield from own_returns(node)


def guard(*, holds: bool = True) -> Rule:
    """`raise KIND if CONDITION`, or `unless` with `holds` False."""

    def rule(match: re.Match[str], place: Place) -> Call | None:
        if place.function is None or (test := condition(match["condition"], place, holds=holds)) is None:
            return None
        return raising(match["kind"].strip("`"), test, place)

    return rule


_VALUES = {"an empty string": '""', "empty string": '""', "an empty list": "[]", "empty list": "[]",
           "an empty dict": "{}", "empty dict": "{}", "an empty tuple": "()", "empty tuple": "()"}  # fmt: skip


def return_guard(*, holds: bool = True) -> Rule:
    """`return VALUE if CONDITION`, early or with a value."""

    def rule(match: re.Match[str], place: Place) -> Call | None:
        if place.function is None or (test := condition(match["condition"], place, holds=holds)) is None:
            return None
        said = re.sub(r"\s*\b(?:early|immediately|right away)\b", "", match["value"]).strip().strip("`")
        if said.lower() in ("", "nothing"):
            values = [node.value for node in own_returns(place.function) if node.value is not None]
            # If other returns have values, a bare return is meant only for None.
            bare = said or test.endswith(" is None") or not [v for v in values if ast.unparse(v) != "None"]
            return Call("return_if", (test,)) if bare else None
        value = _VALUES.get(said.lower()) or code(said)
        if value is None or place.has(f"return {value} if "):
            return None
        if none := re.fullmatch(r"(\w+) is None", test):
            return Call("guard_none", (none[1], "return", value))
        return Call("return_if", (test, value))

    return rule


def must(match: re.Match[str], place: Place) -> Call | None:
    """`size must be positive, raise ValueError`"""
    if place.function is None:
        return None
    forbidden = re.search(r"not|n'?t", match["be"], re.IGNORECASE) is not None
    if sign := re.fullmatch(rf"(<=?|>=?|[=!]=|{'|'.join(_SIGNS)}) ?(-?[\d.]+|[A-Za-z_]\w*)", match["state"]):
        said = f"{match['name']} {_SIGNS.get(sign[1].lower(), sign[1])} {sign[2]}"
        names = set(re.findall(r"[A-Za-z_]\w*", said))
        test = (said if forbidden else _negated(said)) if names <= set(place.parameters()) else None
        return raising(match["kind"].strip("`"), test, place) if test is not None else None
    test = condition(f"{match['name']} is {match['state']}", place, holds=forbidden)
    return raising(match["kind"].strip("`"), test, place) if test is not None else None


def for_kind(match: re.Match[str], place: Place) -> Call | None:
    """`return 0 for None`: for the only parameter, or the one that a guard already tests for None."""
    own = [name for name in place.parameters() if name not in ("self", "cls")]
    state, _, said = match["condition"].partition(" ")
    if said.lower() in ("string", "strings", "list", "lists", "dict", "dicts", "values", "value", "input", "inputs"):
        return None  # a kind of value, not the parameter that happens to have this name
    named = [name for name in own if said and said.lower() in (name.lower(), f"{name.lower()}s")]
    tested = [name for name in own if re.search(rf"\bif {name} is None:", place.region) and not said]
    one = named or (tested if len(tested) == 1 else own)
    if len(one) != 1 or (said and not named):
        return None
    found = re.fullmatch(r"(?P<value>.*)\n(?P<condition>.*)", f"{match['value']}\n{one[0]} is {state}")
    return return_guard()(found, place) if found is not None else None


KIND = r"(?P<kind>`?[A-Za-z_][\w.]*(?:\([^()]*\))?`?)"
_BE = r"(?P<be>must not|should not|shouldn'?t|cannot|can'?t|may not|must|should|has to|needs to)"
ADD = r"((add|put|insert) [an?|the] (guard|check|guard clause|early return|early exit) ?[that|to|which|:|,|-] )?"
RULES: list[tuple[str, Rule]] = [
    (rf"{ADD}(raise|throw) [an?] {KIND} (if|when|for|in case) (?P<condition>.+)", guard()),
    (rf"{ADD}(raise|throw) [an?] {KIND} unless (?P<condition>.+)", guard(holds=False)),
    (rf"{ADD}(if|when) (?P<condition>.+?),? [then] (raise|throw) [an?] {KIND}", guard()),
    (
        rf"(check|validate|ensure|make sure|verify|require|enforce) [that] (?P<condition>.+?)(,| and| or| -)? "
        rf"[otherwise|else|if not|or] (raise|throw) [an?] {KIND} [otherwise|if not|else]",
        guard(holds=False),
    ),
    (
        rf"(?P<name>\w+) {_BE} be (?P<state>.+?)[,;:]? [otherwise|else|or] (raise|throw) [an?] {KIND} "
        r"[otherwise|if not|then]",
        must,
    ),
    (rf"(?P<name>\w+) {_BE} be (?P<state>.+?)[,;:]? (otherwise|else|or) [an?] {KIND}", must),
    (rf"(?P<name>\w+) {_BE} be (?P<state>.+?)[,;:] [an?] {KIND} (otherwise|if not|else)", must),
    (rf"{ADD}return(?P<value>( [^,]+?)?) (if|when|in case) (?P<condition>.+)", return_guard()),
    (rf"{ADD}return(?P<value> [^,]+?) for (?P<condition>none|null|empty \w+|negative \w+|zero)", for_kind),
    (rf"{ADD}return(?P<value>( [^,]+?)?) unless (?P<condition>.+)", return_guard(holds=False)),
    (rf"{ADD}(if|when) (?P<condition>.+?),? [then|just] return(?P<value>( [^,]+?)?)", return_guard()),
    (r"(bail|bail out|exit|stop|leave|get out)( early)? (if|when) (?P<condition>.+)", bail),
]
