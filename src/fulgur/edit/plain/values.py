"""Values, texts, types and what is taken away, in the words that people use for them."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.plain.example import makes
from fulgur.edit.plain.guards import condition
from fulgur.edit.plain.names import bound
from fulgur.edit.plain.rules import (
    Place,
    Rule,
    annotation,
    code,
    decorate,
    defaults_of,
    filled,
    imports,
    payload,
    unquoted,
)
from fulgur.edit.refactor.local.exact import places_of
from fulgur.edit.refactor.local.functions import defaults, parameters
from fulgur.edit.refactor.source import FUNCTIONS, Function
from fulgur.edit.refactor.verify import METHODS, words
from fulgur.text.edit_format import Call

VALUE = r"(?P<value>.+)"
NAME = r"[`'\"]?(?P<name>[A-Za-z_]\w*)[`'\"]?"
ARG = r"(?:parameter|param|argument|arg|kwarg|option|flag)"
DROP = r"(?:remove|rm|drop|delete|del|get rid of|kill|strip|take out|lose|eliminate|no|no need for|skip)"
QUOTED = r"`[^`]+`|\"[^\"]*\"|'[^']*'|-?\d+(?:\.\d+)?"


def _value(text: str, place: Place) -> str | None:
    """A value as it is written in code, all of whose names are known; English is not one."""
    found = code(text)
    if found is None or re.fullmatch(r"[a-z_]+", found):
        return None
    names = {node.id for node in ast.walk(ast.parse(found)) if isinstance(node, ast.Name)}
    return found if names <= {*words(place.file), *dir(builtins)} else None


def parameter_default(match: re.Match[str], place: Place) -> Call | None:
    """Another default, or the first one for a parameter that has none."""
    name, value = match["name"], _value(match["value"], place)
    function = _taking(name, place)
    if value is None or function is None or name in words(value):
        return None
    old = match.groupdict().get("old")
    known = defaults(function).get(name)
    if old is not None and (
        known is None or code(old) is None or ast.unparse(known) != ast.unparse(ast.parse(old, mode="eval").body)
    ):
        return None
    if known is None and re.match(r"(?i)bump|increase|decrease|raise|lower|reduce|update", match[0]):
        return None  # there is nothing yet that could go up or down
    where = (f"@{function.name}",) if place.function is None else ()
    if where and any(word.lower() == name.lower() != word for word in bound(place)):
        return None  # or the constant
    return Call("change_default" if known is not None else "add_default", (*where, name, value))


def _taking(name: str, place: Place) -> Function | None:
    """The function of the region that has this parameter; in a class the only one."""
    tree = place.tree
    functions = (
        [place.function] if place.function else [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS)] if tree else []
    )
    found = [function for function in functions if name in [arg.arg for arg in parameters(function)]]
    return found[0] if len(found) == 1 else None


def value_or_default(match: re.Match[str], place: Place) -> Call | None:
    """`NAME to VALUE`: the default of a parameter, or a plain assignment in the region."""
    if (found := parameter_default(match, place)) is not None:
        return found
    name, value = match["name"], _value(match["value"], place)
    pattern = rf"^\s*(?:self\.)?{re.escape(name)}(?: ?:[^=\n]+)?\s*=[^=]"
    if filled(name, place.region):
        return None
    if value is None or name in place.parameters() or len(re.findall(pattern, place.region, re.MULTILINE)) != 1:
        return None
    old = match.groupdict().get("old")
    if old is not None and not re.search(
        pattern[:-4] + rf"\s*{re.escape(old)}\s*(?:#.*)?$", place.region, re.MULTILINE
    ):
        return None
    return Call("set_value", (name, value))


def optional(match: re.Match[str], place: Place) -> Call | None:
    """`make NAME optional`: None when it is left out."""
    name = match["name"]
    required = name in place.parameters() and name not in defaults_of(place)
    return Call("add_default", (name, "None")) if required else None


def keyword_only(match: re.Match[str], place: Place) -> Call | None:
    chosen = tuple(part for part in re.split(r"\s*(?:,|\band\b|&)\s*", match["names"].replace("`", "")) if part)
    if place.function is None or not set(chosen) <= set(place.parameters()):
        return None
    owner = place.function.name
    return Call("keyword_only", (owner, *chosen))


def quoted_swap(match: re.Match[str], place: Place) -> Call | None:
    """Two values, each written out; the old one stands in the region once."""
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


def message(match: re.Match[str], place: Place) -> Call | None:
    text = payload(match["value"]) if match["value"][:1] in "\"'`" else None
    return Call("set_message", (text,)) if text else None


def other_method(match: re.Match[str], place: Place) -> Call | None:
    """`casefold instead of lower`: methods that every Python has, one use."""
    new, old = match["new"].strip(".()"), match["old"].strip(".()")
    known = new in METHODS and old in METHODS
    return Call("replace_text", (f".{old}(", f".{new}(")) if known and place.region.count(f".{old}(") == 1 else None


def other_methods(match: re.Match[str], place: Place) -> Call | None:
    """`casefold instead of lower().upper()`: a run of methods that every Python has."""
    new, old = match["new"].strip(".()"), match["old"].lstrip(".")
    known = {new, *re.findall(r"\w+", old)} <= METHODS
    return Call("replace_text", (f".{old}", f".{new}()")) if known and place.region.count(f".{old}") == 1 else None


def without_call(match: re.Match[str], place: Place) -> Call | None:
    """`drop .lower()` and `drop list()`: a method at the end of a value, or a function around it."""
    name, around = match["name"], match.groupdict().get("around")
    dotted = len(places_of(place.region, f".{name}()"))
    wrapped = len(re.findall(rf"(?<![\w.]){re.escape(name)}\(", place.region))
    if (
        dotted == 1
        and not around
        and not re.search(rf"^\s*[\w.]+\.{re.escape(name)}\(\)\s*$", place.region, re.MULTILINE)
    ):
        return Call("replace_text", (f".{name}()", ""))
    if dotted or not wrapped or name == getattr(place.symbol, "name", ""):
        return None
    if around:
        return Call(
            "unwrap_call", (name, around.strip("`").removesuffix("()") if not code(around) else around.strip("`"))
        )
    return Call("unwrap_call", (name,)) if wrapped == 1 else None


def without_argument(match: re.Match[str], place: Place) -> Call | None:
    """`open without 'r'`: a later argument, to the letter, of the only call that has it."""
    text = match["argument"].strip("`")
    found = [f", {one}" for one in (text, text.replace("'", '"'), text.replace('"', "'"))]
    found = [one for one in dict.fromkeys(found) if len(places_of(place.region, one)) == 1]
    called = re.search(rf"\b{re.escape(match['called'])}\(", place.region)
    return Call("replace_text", (found[0], "")) if len(found) == 1 and called and code(text) else None


def without_statement(match: re.Match[str], place: Place) -> Call | None:
    """`delete the line X`: a statement to the letter."""
    text = match["code"].strip().strip("`")
    if not re.search(r"[=(.]|^(?:import|pass|return|raise|global|del)\b", text):
        return None
    try:
        parsed = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    bare = (
        len(parsed) == 1 and isinstance(parsed[0], ast.Expr) and isinstance(parsed[0].value, (ast.Name, ast.Constant))
    )
    return Call("delete_statement", (text,)) if len(parsed) == 1 and not bare and place.has(text) else None


def unused(match: re.Match[str], place: Place) -> Call | None:
    """`NAME is unused, remove it`: a parameter, or an import."""
    name = match["name"]
    if name in place.parameters() and place.function is not None:
        return Call("remove_parameter", (place.function.name, name))
    imported = re.search(rf"^(?:import|from)\b.*\b{re.escape(name)}\b", place.file, re.MULTILINE)
    return Call("remove_import", (name,)) if imported and place.function is None else None


def without_variable(match: re.Match[str], place: Place) -> Call | None:
    """`no tmp`: a variable that is set in the region once."""
    name = match["name"]
    set_once = len(re.findall(rf"^\s*{re.escape(name)} = ", place.region, re.MULTILINE)) == 1
    if not set_once or name in place.parameters():
        return None
    if re.search(rf"^\s*{re.escape(name)} = .*\n\s*return {re.escape(name)}\s*$", place.region, re.MULTILINE):
        return Call("return_directly", (name,))
    return Call("inline", (name,))


def returned(match: re.Match[str], place: Place) -> Call | None:
    """`return EXPRESSION`, in a function with one return: the value that it returns instead."""
    new = code(match["value"])
    if new is None or place.function is None or (re.fullmatch(r"[a-z]+", new) and new not in bound(place)):
        return None
    found = [node for node in ast.walk(place.function) if isinstance(node, ast.Return)]
    if len(found) != 1 or found[0].value is None or not re.search(r"[^\w.]", new):
        return None
    old = ast.unparse(found[0].value)
    if isinstance(found[0].value, ast.Name):
        assigned = re.search(
            rf"^\s*{re.escape(old)} = (.+)\n\s*return {re.escape(old)}\s*$", place.region, re.MULTILINE
        )
        if not assigned:
            return None
        same = code(assigned[1]) is not None and ast.dump(ast.parse(assigned[1])) == ast.dump(ast.parse(new))
        return Call("return_directly", (old,)) if same else None
    names = {n.id for n in ast.walk(ast.parse(new)) if isinstance(n, ast.Name)}
    alike = names & {n.id for n in ast.walk(found[0].value) if isinstance(n, ast.Name)}
    return Call("change_return", (new, old)) if alike and place.has(f"return {old}") and new != old else None


def ternary_return(match: re.Match[str], place: Place) -> Call | None:
    """`return A if TEST else B`, where an if returns these."""
    wanted = code(match["value"])
    if wanted is None or not isinstance(ast.parse(wanted, mode="eval").body, ast.IfExp):
        return None
    return Call("use_ternary") if makes(place, "use_ternary", f"return {wanted}") else None


def constant(match: re.Match[str], place: Place) -> Call | None:
    """A literal, or a local variable that is one, as a constant of the module."""
    value, name = match["value"].strip("`"), match["name"]
    if re.search(r"\bclass const", match[0], re.IGNORECASE):
        return None  # of the class, and not of the module
    last = value.split()[-1] if value.split() else ""
    for text in (value, last):
        try:
            ast.literal_eval(text)
        except (ValueError, SyntaxError):
            continue
        if text == value or re.fullmatch(
            r"(?:the |magic |number |value |string |literal |[a-z]+ )+", value[: -len(text)]
        ):
            return Call("extract_constant", (text, name)) if place.has(text) else None
    plain = re.sub(r"^(?:the|local|variable|dict|list|table|mapping|this) ", "", value)
    set_once = re.findall(rf"^\s+{re.escape(plain)} = ", place.region, re.MULTILINE) if plain.isidentifier() else []
    return Call("extract_constant", (plain, name)) if len(set_once) == 1 else None


def typed(match: re.Match[str], place: Place) -> Call | None:
    """`a: int, b is str, returns bool`: every part must be one that the function has."""
    if place.function is None:
        return None
    given, result = [], ""
    for part in re.split(
        r",\s*(?:and )?(?![^\[(]*[\])])|\s+(?=->)|\s+and\s+(?=->|returns?\b|it returns\b|[A-Za-z_]\w*(?: is|:))",
        match["hints"],
    ):
        text = part.strip().strip("`")
        if found := re.fullmatch(r"(?:-> ?|returns?:? (?:an? )?(?:type )?(?:is |as )?|it returns (?:an? )?)(.+)", text):
            result = annotation(found[1]) or ""
            if not result:
                return None
        elif found := re.fullmatch(r"(\w+)(?:: ?| is (?:an? )?| as (?:an? )?)(.+)", text):
            if found[1] not in place.parameters() or annotation(found[2]) is None:
                return None
            given.append(f"{found[1]}: {found[2]}")
        else:
            return None
    if not given:
        return Call("annotate_return", (result,)) if result else None
    return Call("add_type_hints", (f"{', '.join(given)}{f' -> {result}' if result else ''}",))


def result_type(match: re.Match[str], place: Place) -> Call | None:
    kind = annotation(match["hints"])
    return Call("annotate_return", (kind,)) if kind and place.function is not None else None


def same_type(match: re.Match[str], place: Place) -> Call | None:
    """`hint dt as datetime and the return too`"""
    kind = annotation(match["kind"])
    known = match["name"] in place.parameters() and place.function is not None
    return Call("add_type_hints", (f"{match['name']}: {kind} -> {kind}",)) if kind and known else None


def parameter_type(match: re.Match[str], place: Place) -> Call | None:
    kind = annotation(match["kind"])
    return Call("annotate", (match["name"], kind)) if kind and match["name"] in place.parameters() else None


def pass_keyword(match: re.Match[str], place: Place) -> Call | None:
    """`open with encoding="utf-8"`"""
    value, called = match["value"].strip("`"), match.groupdict().get("called") or "open"
    known = {*bound(place), *place.parameters(), "True", "False", "None"}
    if re.fullmatch(r"[A-Za-z][\w-]*", value) and value not in known:
        value = f'"{value}"'
    if (
        " = " not in match[0]
        and "=" not in match[0]
        and match["name"] not in ("encoding", "errors", "newline", "timeout")
    ):
        return None  # "a generator expression in join" is no argument
    calls = re.findall(rf"(?<!\w){re.escape(called)}\(", place.region)
    return Call("add_keyword", (called, match["name"], value)) if code(value) and len(calls) == 1 else None


def parameter_with(match: re.Match[str], place: Place) -> Call | None:
    """`add a timeout argument defaulting to None`"""
    value = _value(match["value"], place)
    known = place.function is not None and value is not None and match["name"] not in place.parameters()
    return Call("new_parameter", (f"{match['name']}={value}",)) if known else None


def base(match: re.Match[str], place: Place) -> Call | None:
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


def logged(match: re.Match[str], place: Place) -> Call | None:
    """The file's logger instead of print."""
    found = match.groupdict()
    if "print(" not in place.region:
        return None
    name, level = found["logger"] or found.get("logger2") or "", found["level"] or found.get("level2")
    return Call(
        "log_prints", (name if name != "log" or "log." in place.file else "logger", *((level,) if level else ()))
    )


def looked_up(match: re.Match[str], place: Place) -> Call | None:
    """`conf.get(key)`, where the region looks this key of it up; `conf.get`, where it looks one up."""
    if (given := match.groupdict().get("given")) and not makes(place, "use_dict_get", f"{match['map']}.get{given}"):
        return None
    return Call("use_dict_get") if re.search(rf"\bin {re.escape(match['map'])}\b", place.region) else None


def membership(match: re.Match[str], place: Place) -> Call | None:
    """`x in (1, 2)`, in whatever brackets, where the region compares x with these one by one."""
    text = code(match["test"])
    node = ast.parse(text, mode="eval").body if text else None
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return None
    listed = node.comparators[0]
    if isinstance(listed, (ast.List, ast.Set)):
        node.comparators[0] = ast.Tuple(listed.elts, ast.Load())
    return Call("use_in") if makes(place, "use_in", ast.unparse(node)) else None


def other_test(match: re.Match[str], place: Place) -> Call | None:
    """`if NEW instead of OLD`: the test of an if or while, which stands there once; `len(x)` as people shorten it."""
    new, old = code(match["new"]), match["old"].strip("`").removeprefix("if ")
    if new is None:
        return None
    if re.match(r"(?:the )?len\b|(?:comparing |checking |testing )(?:the )?len", old):
        tests = re.findall(r"\blen\(([\w.]+)\) *(?:[=!]=|>|<) *[01]|\bif (?:not )?len\(([\w.]+)\)", place.region)
        names = ["".join(found) for found in tests]
        return Call("use_truthiness") if names == [new.removeprefix("not ")] else None
    if code(old) is None or len(places_of(place.region, f"if {old}")) != 1:
        return None
    return Call("replace_text", (f"if {old}", f"if {new}"))


def other_exception(match: re.Match[str], place: Place) -> Call | None:
    """`change OLD to NEW`, of exceptions that the region raises or catches once."""
    old, new = match["old"], match["new"]
    if len(re.findall(rf"\braise {re.escape(old)}\b", place.region)) == 1:
        return Call("change_exception", (old, new))
    handlers = len(re.findall(rf"^\s*except\b.*\b{re.escape(old)}\b", place.region, re.MULTILINE))
    return (
        Call("replace_text", (f"except {old}", f"except {new}"))
        if handlers == 1 and place.has(f"except {old}")
        else None
    )


def raises(match: re.Match[str], place: Place) -> Call | None:
    """`should raise KIND`, where one exception is raised."""
    found = re.findall(r"^\s*raise ([A-Za-z_][\w.]*)", place.region, re.MULTILINE)
    return Call("change_exception", (found[0], match["kind"])) if len(found) == 1 else None


def asserted(match: re.Match[str], place: Place) -> Call | None:
    test = condition(match["test"], place)
    return Call("add_assert", (test,)) if test and place.function is not None else None


def decorated(match: re.Match[str], place: Place) -> Call | None:
    return decorate(re.fullmatch(r"(.+)", match["with"].lstrip("@")), place)  # type: ignore[arg-type]


def caught(call: str) -> Rule:
    def rule(match: re.Match[str], place: Place) -> Call | None:
        kind = match["kind"]
        if call == "uncatch" and not re.search(rf"^\s*except \(.*\b{re.escape(kind)}\b", place.region, re.MULTILINE):
            return None  # it is all that is caught
        return Call(call, (kind,)) if kind.rpartition(".")[2][:1].isupper() and "except" in place.region else None

    return rule


def item(match: re.Match[str], place: Place) -> Call | None:
    value, name = code(match["value"]), match["name"]
    listed = re.search(
        rf"^\s*(?:self\.)?{re.escape(name)}\b[^=\n]*=\s*(?:frozenset\(|set\()?[\[{{(]", place.region, re.MULTILINE
    )
    return Call("add_item", (name, value)) if value and listed else None


def documented(match: re.Match[str], place: Place) -> Call | None:
    text = payload(match["text"])
    return Call("add_docstring", (text,)) if text and len(text.split()) > 1 and place.symbol is not None else None


def named(match: re.Match[str]) -> re.Match[str]:
    """The same match with the name in one place."""
    found = re.fullmatch(r"(?P<name>\w+)(?P<around>)", match["name"] or match["n2"])
    assert found is not None
    return found


def version(match: re.Match[str], place: Place) -> Call | None:
    found = re.search(r"^(__version__|VERSION|version)\s*=\s*([\"'])", place.region, re.MULTILINE)
    return Call("set_value", (found[1], f"{found[2]}{match['value'] or match['other']}{found[2]}")) if found else None


def switched(match: re.Match[str], place: Place) -> Call | None:
    on = match["how"].lower() in ("on", "enabled", "true")
    name = match["name"]
    if re.search(rf"^\s*(?:self\.)?{re.escape(name)}\s*(?::[^=\n]+)?=\s*{not on}\b", place.region, re.MULTILINE):
        return Call("set_value", (name, str(on)))
    known = defaults_of(place).get(name)
    return (
        Call("change_default", (name, str(on))) if isinstance(known, ast.Constant) and known.value is (not on) else None
    )


def imported(line: str, place: Place) -> Call | None:
    found = re.fullmatch(r"(.+)", line)
    return imports(found, place) if found is not None else None
