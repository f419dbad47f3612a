"""Rules for equivalent rewrites and small changes of a function's shape, as users word them."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.names import bound
from fulgur.edit.plain.phrases import ARG, NAME
from fulgur.edit.plain.place import Place, Rule, always, annotation, code
from fulgur.edit.plain.style import HOW
from fulgur.edit.refactor.local.functions import or_none
from fulgur.edit.refactor.source import FUNCTIONS
from fulgur.text.edit_format import Call

_KINDS = {"tuples": "tuple", "lists": "list", "dicts": "dict", "sets": "set", "strings": "str", "ints": "int",
          "integers": "int", "floats": "float", "bytes": "bytes", "strs": "str", "frozensets": "frozenset",
          "iterables": "Iterable", "paths": "Path", "bools": "bool", "string": "str", "integer": "int",
          "generators": "Generator", "mappings": "Mapping", "dictionaries": "dict"}  # fmt: skip
_TYPES = frozenset({"tuple", "list", "dict", "set", "str", "int", "float", "bytes", "bytearray", "frozenset", "bool"})


def kind_of(word: str) -> str | None:
    """The type that a word such as "tuples" means; class names unchanged; None for other words."""
    word = word.strip("`")
    found = _KINDS.get(word.lower(), word)
    return found if found in _TYPES or found[:1].isupper() else None


def accepted(match: re.Match[str], place: Place) -> Call | None:
    new, old = kind_of(match["new"]), match.groupdict().get("old") or ""
    known = kind_of(old) if old else ""
    if new is None or known is None or "isinstance(" not in place.region:
        return None
    if new not in _TYPES and not re.search(rf"\b{new}\b", place.file):
        return None
    return Call("accept_type", (new, *((known,) if known else ())))


def loop_or_test(match: re.Match[str], place: Place) -> Call | None:
    """`while x is enough`, `if x: suffices`, if exactly one such test compares x with an empty value."""
    word, new = match["head"].lower(), code(match["new"].rstrip(":"))
    bare = new.removeprefix("not ") if new else ""
    if not bare or not re.fullmatch(r"[\w.]+", bare):
        return None
    found = [
        ast.unparse(node.test)
        for node in ast.walk(place.tree or ast.Module([], []))
        if isinstance(node, ast.While if word == "while" else ast.If) and _compares(node.test, bare, new != bare)
    ]
    old = [text for text in {*found, *(text.replace("'", '"') for text in found)} if place.has(f"{word} {text}")]
    if len(found) != 1 or len(old) != 1 or new is None:
        return None
    return Call("replace_text", (f"{word} {old[0]}", f"{word} {new}"))


def _compares(test: ast.expr, name: str, empty: bool) -> bool:
    """Whether a test is `name != ""`, `len(name) > 0`, `name is not None` …; with `empty`, the opposite of these."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    left, right, sign = ast.unparse(test.left), test.comparators[0], type(test.ops[0])
    try:
        value = ast.literal_eval(right)
    except ValueError:
        return False
    if left == f"len({name})" and value in (0, 1):
        some = {(ast.NotEq, 0), (ast.Gt, 0), (ast.GtE, 1)}
        none = {(ast.Eq, 0), (ast.Lt, 1), (ast.LtE, 0)}
        return (sign, value) in (none if empty else some)
    plain = value in ("", [], (), {}, 0, False) or value is None
    return left == name and plain and sign in ((ast.Eq, ast.Is) if empty else (ast.NotEq, ast.IsNot))


def not_compared(match: re.Match[str], place: Place) -> Call | None:
    """`not x instead of comparing to []`: the only comparison of x with that value."""
    new, value = code(match["new"]), code(match["old"])
    bare = new.removeprefix("not ") if new else ""
    if new is None or value is None or not re.fullmatch(r"[\w.]+", bare):
        return None
    signs = ("==", "is") if new != bare else ("!=", "is not")
    found = [f"{bare} {sign} {value}" for sign in signs if place.has(f"{bare} {sign} {value}")]
    once = len(found) == 1 and place.region.count(found[0]) == 1
    return Call("replace_text", (found[0], new)) if once else None


def one_line(match: re.Match[str], place: Place) -> Call | None:
    """`make it a one-liner`, for a function with one if, which selects the value that is returned."""
    if place.tree is None or place.function is None:
        return None
    ifs = [node for node in ast.walk(place.tree) if isinstance(node, ast.If) and node.lineno > 1]
    body = [s for s in place.function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if len(ifs) == 1 and body and isinstance(body[0], ast.If):
        returns = [ast.unparse(n.value) for n in ast.walk(body[0]) if isinstance(n, ast.Return) and n.value]
        returns += [ast.unparse(n.value) for n in body[1:] if isinstance(n, ast.Return) and n.value]
        return Call("return_condition" if set(returns) == {"True", "False"} else "use_ternary")
    return None


def loop_variable(kind: str) -> Rule:
    """`call the lambda arg m`, `rename the loop variable to item`, if there is only one."""

    def rule(match: re.Match[str], place: Place) -> Call | None:
        found: list[str] = []
        for node in ast.walk(place.tree) if place.tree is not None else ():
            if kind == "lambda" and isinstance(node, ast.Lambda):
                found += [arg.arg for arg in node.args.args]
            elif kind == "loop" and isinstance(node, (ast.For, ast.comprehension)):
                found.append(node.target.id if isinstance(node.target, ast.Name) else "")
            elif kind == "exception" and isinstance(node, ast.ExceptHandler) and node.name:
                found.append(node.name)
        if kind == "parameter":
            found = [name for name in place.parameters() if name not in ("self", "cls")]
        new = match["new"]
        taken = new in bound(place) or len({*found}) != 1 or not found[0] or found[0] == new
        return None if taken else Call("rename", (found[0], new))

    return rule


def renamed_to(match: re.Match[str], place: Place) -> Call | None:
    """`the param should be called prefix, not suffix`"""
    old, new = match["old"], match["new"]
    return Call("rename", (old, new)) if old in {*bound(place), *place.parameters()} and new.isidentifier() else None


def already_a(match: re.Match[str], place: Place) -> Call | None:
    """`sorted already returns a list`: remove the redundant call around it."""
    kind, inner = kind_of(match["kind"]), match["name"]
    around = re.findall(rf"(?<![\w.]){kind}\({re.escape(inner)}\(", place.region) if kind else []
    return Call("unwrap_call", (kind, inner)) if kind and len(around) == 1 else None


def useless_call(match: re.Match[str], place: Place) -> Call | None:
    """`str() around int(x) is useless`"""
    name, inner = match["name"], match["around"].strip("`")
    once = len(re.findall(rf"(?<![\w.]){re.escape(name)}\({re.escape(inner)}\)", place.region)) == 1
    return Call("replace_text", (f"{name}({inner})", inner)) if once and code(inner) else None


def optional_result(match: re.Match[str], place: Place) -> Call | None:
    """`the return type is Optional`: the existing type, or None."""
    old = place.function.returns if place.function is not None else None
    if old is None or re.search(r"\b(?:None|Optional|Any)\b", ast.unparse(old)):
        return None
    return Call("annotate_return", (or_none(ast.unparse(old), place.file),))


def returns_nothing(match: re.Match[str], place: Place) -> Call | None:
    return Call("annotate_return", ("None",)) if place.function is not None and gives_nothing(place.function) else None


def gives_nothing(function: ast.AST) -> bool:
    inner = {id(n) for f in ast.walk(function) if isinstance(f, (*FUNCTIONS, ast.Lambda)) and f is not function
             for n in ast.walk(f)}  # fmt: skip
    own = [n for n in ast.walk(function) if id(n) not in inner]
    given = [n for n in own if isinstance(n, ast.Return) and n.value is not None and ast.unparse(n.value) != "None"]
    return not given and not any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in own)


def widened(match: re.Match[str], place: Place) -> Call | None:
    """`format may be a Callable too: str | Callable`"""
    kind = annotation(match["kind"])
    return Call("annotate", (match["name"], kind)) if kind and match["name"] in place.parameters() else None


def top_import(match: re.Match[str], place: Place) -> Call | None:
    name = match.groupdict().get("name")
    inside = re.findall(r"^\s+(?:import|from)\b.*$", place.region, re.MULTILINE)
    if not inside or (name and not any(re.search(rf"\b{re.escape(name)}\b", line) for line in inside)):
        return None
    return Call("import_to_top", (name,) if name else ())


def static(match: re.Match[str], place: Place) -> Call | None:
    own = place.parameters()[:1] if place.function is not None else []
    return Call("make_static") if own == ["self"] else None


def wrapped(match: re.Match[str], place: Place) -> Call | None:
    value, function = code(match["value"]), match["name"]
    return Call("wrap_value", (function, value)) if value and place.has(value) and value != function else None


def just_return(match: re.Match[str], place: Place) -> Call | None:
    """`return max(a, default=None)`, for a function that only selects what it returns."""
    value = code(match["value"])
    if value is None or place.function is None or re.fullmatch(r"[\w.]+", value):
        return None
    body = [s for s in place.function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return Call("only_return", (value,)) if body and isinstance(body[0], ast.If) else None


def commented(match: re.Match[str], place: Place) -> Call | None:
    text, where = match["text"].strip().strip("\"'`"), match.groupdict().get("where") or ""
    heads = {"loop": "for ", "return": "return", "try": "try:", "while": "while "}
    anchor = heads.get(where.strip("`"), where.strip("`"))
    if len(text.split()) < 2 or (anchor and not place.has(anchor.strip())):
        return None
    return Call("add_comment", (text, *((anchor,) if anchor else ())))


_FOR = r"(?: (?:for|in|on|to build|of) (?:the |this |that )?[\w.]+(?: [a-z]+)?)?"
RULES: list[tuple[str, Rule]] = [
    (rf"({HOW} )?[an?|the] yield from( (instead of|rather than) (the|a) (for )?loop)?", always("use_yield_from")),
    (rf"({HOW} )?[an?|the] (contextlib\.)?suppress(\(\))?( (instead of|rather than|for|over|not) "
     rf".*(try|except|pass).*)?",
     always("use_suppress")),
    (r"(use|make it|should be) [a|the] (?P<kind>tuple|set)( literal)? (instead of|rather than|not|over) [a|the] "
     r"(list|tuple)( (in|for) [the] (\w+ )?(condition|check|test|membership( test)?|if|while( loop)?|comparison))?",
     lambda match, place: Call("membership_in", (match["kind"].lower(),))
     if re.search(r"\bin [\[(]", place.region) else None),
    (r"(join|merge|combine|concat(enate)?) [the] (two |both |split |adjacent |implicit(ly concatenated)? )*"
     r"(string|str)( (parts|pieces|literals|halves|concatenation))?s?( (in)?to one( string)?)?",
     always("join_strings")),
    (r"(use|make (it|them|these|this)|should be) [a] raw[- ]?strings?( (for|in) [the] (regex(es)?|patterns?|regexps?|"
     r"regular expressions?|re calls?))?", always("raw_strings")),
    (r"(regex(es)?|patterns?) should be raw[- ]?strings?|raw[- ]strings? for [the] (regex(es)?|patterns?)",
     always("raw_strings")),
    (r"(just |simply |directly )?(return|returning) [the] (condition|comparison|boolean|bool|expression)( "
     r"(itself|directly))?"
     r"( instead of (True(/| and | or |, )False|the if))?", always("return_condition")),
    (r"(simplify|shorten) [the|this|to a] (boolean|bool|true/false) return|no need for (the )?if,? ?[just] return the "
     r"(condition|comparison)( directly)?", always("return_condition")),
    (rf"({HOW} )?`?or`? (instead of|rather than) [a|the] (ternary|conditional|if/?else)( expression)?",
     always("use_or")),
    (r"(just |simply )?(assign|set) (?P<name>[\w.]+)( directly)?,? (no|without|instead of|not|don'?t use|rather than) "
     r"[the|using] setattr", always("direct_attribute")),
    (r"(no|drop|avoid|don'?t use|no need for|use [a] (plain|normal|direct) (attribute|assignment) instead "
     r"of|remove) [the] "
     r"(setattr|getattr)( with a constant)?", always("direct_attribute")),
    (r"(make|turn|convert|collapse|write|put|squeeze) ?(it|this|that)? ?(in)?(to|as|on)? [an?] (one|single)[- "
     r"]?lin(er|e)|"
     r"one[- ]?liner|(should|could|can) be [a] one[- ]?liner", one_line),
    (rf"(build|make|create|fill|compute|collect) {NAME} (with|by|using|in|as|through) [a|an] (list |dict |set )?comp"
     r"(rehension)?", lambda match, place: Call("use_comprehension") if place.has(match["name"]) else None),
    (r"(?P<head>while|if) (?P<new>(not )?[\w.]+:?) (is enough|suffices|would do|will do|is sufficient)", loop_or_test),
    (r"(just |simply )?(use |check )?`?(?P<head>while|if) (?P<new>(not )?[\w.]+:?)`?", loop_or_test),
    (r"(just |simply )?(use )?`?(?P<new>(not )?[\w.]+)`?,? (instead of|rather than|not) (comparing|compare|comparison|"
     r"checking|== ?|!= ?|is )?( ?(it )?(to|with|against|for))? ?`?(?P<old>\[\]|\(\)|\{\}|''|\"\"|0|None|False|True)`?",
     not_compared),
    # names
    (rf"(call|name|rename) [the] lambda('s)? ({ARG}|variable|var)?s? ?(to |as )?(?P<new>[A-Za-z_]\w*)",
     loop_variable("lambda")),
    (r"(call|name|rename) [the] loop (variable|var|index|counter)? ?(to |as )?(?P<new>[A-Za-z_]\w*)",
     loop_variable("loop")),
    (r"(call|name|rename) [the] (caught )?(exception|error)( (variable|var|name))? (to |as )?(?P<new>[A-Za-z_]\w*)",
     loop_variable("exception")),
    (rf"(call|name|rename) [the|its] (only )?({ARG}) (to |as )?(?P<new>[A-Za-z_]\w*)", loop_variable("parameter")),
    (rf"[the] ({ARG}|variable|var|attribute|function|method)? ?[should|must|ought to] (be )?(called|named|rename "
     rf"to|call it|"
     r"be) (?P<new>[A-Za-z_]\w*),? (not|instead of|rather than) (?P<old>[A-Za-z_]\w*)", renamed_to),
    (r"make (?P<old>\w+) [an?|the] (public |private )?(method|function|attribute|constant|variable) (called|named) "
     r"(?P<new>\w+)", renamed_to),
    # accepted types
    (r"(also |additionally )?(support|accept|allow|handle|take) (?P<new>`?\w+`?)( (as well as|besides|next to|in "
     r"addition "
     r"to) (?P<old>`?\w+`?)| too| as well| also)", accepted),
    (r"also (support|accept|allow|handle|take) (?P<new>`?\w+`?)", accepted),
    (r"(support|accept|allow|handle|take) (both )?(?P<old>`?\w+`?) and (?P<new>`?\w+`?)", accepted),
    (rf"[the] ({ARG} )?{NAME} (should|may|can|could|must) (be|accept|take|also be|also accept) [an?] [\w.]+( too| as "
     r"well)?: ?(?P<kind>.+)", widened),
    (r"[the] return (type|annotation|hint|value) (is|should be|can be|must be|needs to be|could be|may be) "
     r"(optional|none( too)?)|make [the] return (type |annotation |hint )?optional|[it|this] (can|may|might) "
     r"(also )?return None,? (so )?(fix|update|adjust|adapt) the (return )?(type|annotation|hint)( hint)?",
     optional_result),
    (r"(annotate|add|hint|type|missing|needs) (the |a )?return( (type|annotation|hint|type hint|value))?,? ?"
     r"(it |as |- |: )?(returns )?(nothing|none)", returns_nothing),
    # calls around a value
    (r"(?P<name>\w+)(\(\))? (already|always) (returns|gives|is|yields) [an?] (?P<kind>\w+)( (already|anyway))?",
     already_a),
    (r"(no|the) (need for )?(?P<kind>list|tuple|dict|set|str|sorted)(\(\))? (call )?around [the] (?P<name>\w+)(\(.*\))?"
     r"( is (useless|needless|redundant|unnecessary|superfluous|not needed))?", already_a),
    (r"[the] (?P<name>\w+)\(\) around `?(?P<around>[\w.]+(\([^()]*\))?)`? (is|isn'?t|is not) (useless|needed|redundant|"
     r"unnecessary|superfluous|necessary|needless)( (here|in the f-?string|anyway))?", useless_call),
    (r"(wrap|put|convert) [the] (?P<value>.+?) (in|into|with|inside) [a] (call (of|to) )?`?(?P<name>\w+)\(\)`?",
     wrapped),
    (r"(just |simply |should )*return `?(?P<value>.+?)`?", just_return),
    # places
    (r"(move|put|hoist|lift|pull) [the] (`?(?P<name>[\w.]+)`? )?(local |inner |nested |inline |late |function[- "
     r"]level )*"
     r"imports?( of \w+)? (to|at|up to|out to) ([the|module] )?(top|module|file|global)( level)?( of [the] "
     r"(file|module))?",
     top_import),
    (r"import (?P<name>[\w.]+) (at|on) ([the|module] )?(top|module|file|global)( level)?( of [the] (file|module))?",
     top_import),
    (r"(make|turn|convert) (it|this|that)? ?(in)?(to)? ?[an?] static ?method|(should|could|can) be [a] static ?method|"
     r"(doesn'?t|does not) (use|need) self,? ?(so )?(make it|should be) [a] static ?method", static),
    # comments
    (r"(add|put|leave|write) [an?] (short )?(todo )?comment( (above|before|to|at|on) [the] "
     r"(?P<where>`[^`]+`|loop|return|"
     r"try|while|[\w.]+))?( saying| that says)?[:,]? (?P<text>[\"'`A-Z#].+)", commented),
    (r"(add|put|leave) [an?] (?P<text>TODO:? .+)", commented),
]  # fmt: skip
