"""Rules for removals: comments, decorators, elements, variables, calls, arguments, parentheses, types."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.names import bound
from fulgur.edit.plain.phrases import DROP, NAME
from fulgur.edit.plain.place import Place, Rule, always, code, unquoted
from fulgur.edit.refactor.local.exact import places_of
from fulgur.edit.refactor.source import FUNCTIONS
from fulgur.text.edit_format import Call


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
    """`open without 'r'`: removes an argument other than the first, given literally, from the only call that has it."""
    text = match["argument"].strip("`")
    found = [f", {one}" for one in (text, text.replace("'", '"'), text.replace('"', "'"))]
    found = [one for one in dict.fromkeys(found) if len(places_of(place.region, one)) == 1]
    called = re.search(rf"\b{re.escape(match['called'])}\(", place.region)
    return Call("replace_text", (found[0], "")) if len(found) == 1 and called and code(text) else None


def without_statement(match: re.Match[str], place: Place) -> Call | None:
    """`delete the line X`: a statement that is given literally."""
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
    """`no tmp`: a variable that the region sets once."""
    name = match["name"]
    set_once = len(re.findall(rf"^\s*{re.escape(name)} = ", place.region, re.MULTILINE)) == 1
    if not set_once or name in place.parameters():
        return None
    if re.search(rf"^\s*{re.escape(name)} = .*\n\s*return {re.escape(name)}\s*$", place.region, re.MULTILINE):
        return Call("return_directly", (name,))
    return Call("inline", (name,))


_COMMON = "the a an this that of in on for about with and to is it its at old long silly useless obsolete stale"


def comment_about(match: re.Match[str], place: Place) -> Call | None:
    """`remove the pylint comment`, `the comment about ordering`: comments that contain these words."""
    said = match.groupdict().get("word") or match.groupdict().get("words") or ""
    wanted = [word for word in re.findall(r"[\w:-]+", unquoted(said)) if word.lower() not in _COMMON.split()]
    in_comments = " ".join(re.findall(r"#.*", place.region)).lower()
    if not wanted or not all(word.lower() in in_comments for word in wanted):
        return None
    return Call("remove_comment", ("all" if match["many"] else "one", *wanted))


def longest_comment(match: re.Match[str], place: Place) -> Call | None:
    """`remove the long comment`, if exactly one comment has several lines."""
    runs = re.findall(r"(?:^[ \t]*#[^\n]*\n){2,}", place.region, re.MULTILINE)
    words = re.findall(r"\w+", runs[0]) if len(runs) == 1 else []
    return Call("remove_comment", ("one", *words[:8])) if words else None


def decorator(match: re.Match[str], place: Place) -> Call | None:
    name = match["name"].lstrip("@")
    return Call("remove_decorator", (name,)) if re.search(rf"@[\w.]*{re.escape(name)}\b", place.region) else None


def item(match: re.Match[str], place: Place) -> Call | None:
    """`remove 'a' from NAMES`: an element given literally, or a text without its quotes."""
    name, said = match["name"], match["value"].strip()
    forms = [said.strip("`"), *(f"{mark}{unquoted(said)}{mark}" for mark in "\"'")]
    known = [element for element in _elements(name, place) for form in forms if code(form) and _same(form, element)]
    return Call("remove_item", (name, ast.unparse(known[0]))) if len({ast.dump(one) for one in known}) == 1 else None


def _elements(name: str, place: Place) -> list[ast.expr]:
    """The elements, or the keys, of the literal that the region assigns to this name."""
    found: list[ast.expr] = []
    for node in ast.walk(place.tree) if place.tree is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if name in [ast.unparse(one).removeprefix("self.") for one in targets if isinstance(one, ast.expr)]:
            value = getattr(node, "value", None)
            found += [one for one in getattr(value, "elts", getattr(value, "keys", [])) if one is not None]
    return found


def _same(form: str, element: ast.expr) -> bool:
    return ast.dump(ast.parse(form, mode="eval").body) == ast.dump(element)


def variable(match: re.Match[str], place: Place) -> Call | None:
    """`unused variable x`: one that the region sets and does not read."""
    name = match["name"]
    if place.tree is None or name in place.parameters() or name not in bound(place):
        return None
    uses = [n for n in ast.walk(place.tree) if isinstance(n, ast.Name) and n.id == name]
    return Call("remove_variable", (name,)) if not any(isinstance(n.ctx, ast.Load) for n in uses) else None


def member(match: re.Match[str], place: Place) -> Call | None:
    """`delete the method x`, in a target that is a class or a file."""
    name = match["name"]
    found = [n for n in ast.walk(place.tree) if getattr(n, "name", "") == name] if place.tree is not None else []
    kinds = (*FUNCTIONS, ast.ClassDef)
    return Call("delete_symbol", (name,)) if len(found) == 1 and isinstance(found[0], kinds) else None


def empty_docstring(match: re.Match[str], place: Place) -> Call | None:
    node = place.symbol
    text = ast.get_docstring(node, clean=True) if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else None
    return Call("remove_docstring") if text is not None and not text.strip() else None


def return_type(match: re.Match[str], place: Place) -> Call | None:
    return Call("remove_return_type") if place.function is not None and place.function.returns is not None else None


def keyword(match: re.Match[str], place: Place) -> Call | None:
    """`don't pass encoding to open`: the argument of this name in the only such call that has it."""
    name, called = match["name"], match["called"]
    found = re.findall(rf"(?<!\w){re.escape(called)}\([^()\n]*(, {re.escape(name)}=[^,()\n]+)[,)]", place.region)
    return Call("replace_text", (found[0], "")) if len(found) == 1 and place.region.count(found[0]) == 1 else None


RULES: list[tuple[str, Rule]] = [
    (rf"({DROP}) [the|all|any|that|this] (commented[- ]out (code|lines?|stuff)|dead code in comments)|"
     r"no commented[- ]out code|commented[- ]out code", always("remove_dead_code")),
    (rf"({DROP}) [the|that|this|all|those] (?P<word>`?[\w:#-]+`?( [\w:#-]+){{0,4}}?) comment(?P<many>s)?",
     comment_about),
    (rf"({DROP}) [the|that|this] comment(?P<many>(?!))? ?:? ?(?P<words>\"[^\"]+\"|'[^']+')", comment_about),
    (rf"({DROP}) [the|that|this|all|those] comment(?P<many>s)? (about|on|saying|that says|with|mentioning) "
     r"(?P<words>.+)", comment_about),
    (rf"({DROP}) [the|that|this] (long|big|huge|multi-?line|block) comment( (in|inside|above|before) [the] \w+)?",
     longest_comment),
    (rf"({DROP}) [the] (?P<name>@[\w.]+|`@?[\w.]+`)( decorator)?", decorator),
    (rf"({DROP}) [the] (?P<name>[\w.]+) decorator|(un-?decorate|not|no longer) [a] (?P<other>\w+) decorator",
     lambda match, place: decorator(match, place) if match["name"] else None),
    (rf"({DROP}|exclude|take) [the] (?P<value>`.+?`|\"[^\"]*\"|'[^']*'|[\w.]+)( (key|entry|item|element|value|member))?"
     rf" (from|out of|in) [the] {NAME}( (list|dict|tuple|set|mapping|map|dictionary))?", item),
    (rf"{NAME} (should not|shouldn'?t|must not|need not|doesn'?t need to) (contain|include|have) (?P<value>.+)", item),
    (rf"({DROP})? ?[the] unused ([local] variable|var|local|assignment [to|of]) {NAME}|"
     r"(?P<n2>(?!))", variable),
    (rf"[the] (variable|var|local) {NAME} (is|isn'?t|is not) (never )?(unused|used|read)([,;]? (so |please "
     rf")?({DROP}) it)?"
     r"", variable),
    (rf"{NAME} (is|isn'?t|is not) (never )?(unused|used|read) [here|anywhere|any ?more]([,;] ?[so] ({DROP}) it)?",
     variable),
    (rf"({DROP}) {NAME}(,? [it'?s|its] (unused|never used|not used))", variable),
    (rf"({DROP}) [the] (method|function|class) {NAME}|({DROP}) [the] (?P<n3>(?!))", member),
    (rf"({DROP}) [the] {NAME} (method|function|class)", member),
    (rf"({DROP}) [the|these|those] (redundant |useless |unnecessary |extra |superfluous |needless )*"
     r"(parens|parenthes[ei]s|brackets)( (around|in|after|from|of|on) [the] (return(ed)? )?"
     r"(tuple|value|return|condition|if|while|test|expression|statement|conditional|argument|ternary|call))?",
     always("remove_parentheses")),
    (r"[the] (parens|parenthes[ei]s) (around|in|after|on) [the] (return(ed)? )?(tuple|value|return|condition|if|while|"
     r"test|expression) (are|aren'?t|are not) (useless|needed|redundant|unnecessary|superfluous|necessary)",
     always("remove_parentheses")),
    (rf"({DROP}) [the|that|this] (empty|blank) docstring", empty_docstring),
    (rf"({DROP}) [the] return (type|annotation|hint|type hint|type annotation)", return_type),
    (rf"(don'?t pass|do not pass|stop passing|({DROP})) [the] {NAME}( (argument|arg|kwarg|keyword|parameter|param))? "
     r"(to|from|in) [the] `?(?P<called>[\w.]+)`?(\(\))?( call)?", keyword),
]  # fmt: skip
