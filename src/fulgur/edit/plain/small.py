"""Small changes of one thing, in the words that people use for them."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.guards import return_guard
from fulgur.edit.plain.names import bound
from fulgur.edit.plain.results import variable_type
from fulgur.edit.plain.rules import Place, Rule, always, annotation, code, payload, unquoted
from fulgur.edit.plain.slips import one_slip
from fulgur.edit.plain.values import ARG, DROP, NAME
from fulgur.edit.refactor.source import FUNCTIONS
from fulgur.text.edit_format import Call

SIGN = r"(?:<=|>=|==|!=|<|>)"
_MADE = {"an empty string": '""', "an empty list": "[]", "an empty dict": "{}", "an empty tuple": "()",
         "empty string": '""', "empty list": "[]", "empty dict": "{}", "empty tuple": "()"}  # fmt: skip


def operator(match: re.Match[str], place: Place) -> Call | None:
    """`use >= instead of >`: where the region has one such comparison."""
    old, new = match["old"].strip("`"), match["new"].strip("`")
    found = [
        sign
        for node in ast.walk(place.tree or ast.Module([], []))
        if isinstance(node, ast.Compare)
        for sign in node.ops
        if _sign(sign) == old
    ]
    return Call("change_operator", (old, new)) if len(found) == 1 and old != new else None


def _sign(node: ast.cmpop) -> str:
    signs = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
    return signs.get(type(node), "")


def narrowed(match: re.Match[str], place: Place) -> Call | None:
    kind = match["kind"]
    wide = re.search(r"^\s*except(?: (?:Base)?Exception(?: as \w+)?)?\s*:", place.region, re.MULTILINE)
    return Call("narrow_except", (kind,)) if wide else None


def new_docstring(match: re.Match[str], place: Place) -> Call | None:
    text = payload(match["text"])
    return Call("set_docstring", (text,)) if text and len(text.split()) > 1 and place.symbol is not None else None


def with_default(match: re.Match[str], place: Place) -> Call | None:
    """`an argument called timeout, default None`, `timeout: float = None`"""
    name, value, kind = match["name"], code(match["value"]), match.groupdict().get("kind")
    if value is None or place.function is None or name in place.parameters() or (kind and not annotation(kind)):
        return None
    if re.fullmatch(r"[a-z]+", value):
        return None
    return Call("new_parameter", (f"{name}: {kind} = {value}" if kind else f"{name}={value}",))


def member(match: re.Match[str], place: Place) -> Call | None:
    """`delete fetch`, of a class that was named: its method."""
    tree, name = place.tree, match["name"]
    owner = place.symbol if isinstance(place.symbol, ast.ClassDef) else None
    found = [n for n in owner.body if isinstance(n, FUNCTIONS) and n.name == name] if owner and tree else []
    return Call("delete_symbol", (f"{owner.name}.{name}",)) if owner and len(found) == 1 else None


def class_value(match: re.Match[str], place: Place) -> Call | None:
    owner, value = place.symbol, code(match["value"])
    known = isinstance(owner, ast.ClassDef) and value is not None
    return Call("add_member", (owner.name, match["name"], value)) if known and value else None  # type: ignore[union-attr]


def kind_of_literal(match: re.Match[str], place: Place) -> Call | None:
    name = match["name"]
    listed = re.search(rf"^\s*{re.escape(name)}\b[^=\n]*= *[\[(]", place.region, re.MULTILINE)
    return Call("literal_kind", (name, match["kind"].lower())) if listed else None


def entry(match: re.Match[str], place: Place) -> Call | None:
    """`set accept to "html" in HEADERS`: a key that the dictionary has."""
    name, value = match["name"], code(match["value"])
    keys = [
        ast.unparse(key)
        for node in ast.walk(place.tree or ast.Module([], []))
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict)
        and name in ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for key in node.value.keys
        if key is not None and unquoted(match["key"].strip("`")) in (ast.unparse(key), unquoted(ast.unparse(key)))
    ]  # fmt: skip
    return Call("set_entry", (name, keys[0], value)) if len(keys) == 1 and value else None


def without_base(match: re.Match[str], place: Place) -> Call | None:
    owner = place.symbol
    bases = [ast.unparse(base) for base in owner.bases] if isinstance(owner, ast.ClassDef) else []
    known = isinstance(owner, ast.ClassDef) and match["base"] in bases and match["base"] != "object"
    return Call("remove_base", (owner.name, match["base"])) if known else None  # type: ignore[union-attr]


def made_value(match: re.Match[str], place: Place) -> Call | None:
    """`return an empty dict instead of None`"""
    new, old = _MADE.get(match["new"].lower(), match["new"]), _MADE.get(match["old"].lower(), match["old"])
    if code(new) is None or code(old) is None or place.function is None:
        return None
    dump = ast.dump(ast.parse(old, mode="eval").body)
    found = [n for n in ast.walk(place.function) if isinstance(n, ast.Return) and n.value and ast.dump(n.value) == dump]
    return Call("change_return", (new, old)) if len(found) == 1 and place.has(f"return {old}") else None


def handed_on(match: re.Match[str], place: Place) -> Call | None:
    """`pass limit to self.pages`: a name of the region, to a function of the file that takes it by that name."""
    name, called = match["name"], match["called"]
    last = called.rpartition(".")[2]
    heads = re.findall(rf"\bdef {re.escape(last)}\(([^)]*)\)", place.file)
    calls = re.findall(rf"(?<![\w.]){re.escape(called)}\(", place.region)
    known = name in {*bound(place), *place.parameters()}
    takes = len(heads) == 1 and re.search(rf"(?:^|, ?|\n\s*){re.escape(name)}\b", heads[0])
    return Call("add_keyword", (called, name, name)) if known and takes and len(calls) == 1 else None


def misspelt(match: re.Match[str], place: Place) -> Call | None:
    """`typo transaltion`: the word of the file that it is one slip away from."""
    word = match["word"]
    near = {w for w in re.findall(r"[A-Za-z]{4,}", place.file) if one_slip(word.lower(), w.lower())}
    fitting = sorted(w for w in near if w[0].isupper() == word[0].isupper())
    once = len(re.findall(rf"\b{word}\b", place.region)) == 1 and len(re.findall(rf"\b{word}\b", place.file)) == 1
    return (
        Call("replace_text", (word, fitting[0])) if once and len({w.lower() for w in near}) == 1 and fitting else None
    )


def bail(match: re.Match[str], place: Place) -> Call | None:
    found = re.fullmatch(r"(?P<value>)(?P<condition>.+)", match["condition"])
    return return_guard()(found, place) if found is not None else None


_BROAD = r"(bare )?(except( Exception)?|exception|handler|clause)( clause)?"
RULES: list[tuple[str, Rule]] = [
    (rf"(use|should be|make it|must be)? ?(?P<new>`?{SIGN}`?),? (instead of|not|rather than) (?P<old>`?{SIGN}`?)"
     r"( (in|for) the (if|while|condition|comparison|check|test|loop))?", operator),
    (rf"(change|switch|replace|turn) [the] (?P<old>`?{SIGN}`?) (to|into|with|by) [a]? ?(?P<new>`?{SIGN}`?)", operator),
    (rf"(?P<old>{SIGN}) ?(->|=>|→|should be) ?(?P<new>{SIGN})", operator),
    (rf"(narrow|restrict|limit|change) [the|this] {_BROAD} (down )?to (just |only )?(?P<kind>[A-Z][\w.]*)", narrowed),
    (rf"[the] {_BROAD} is (too|way too|very|overly) (broad|wide|general|greedy)[,;:.]? (just |only |please "
     rf")?(catch|use) "
     r"(just |only )?(?P<kind>[A-Z][\w.]*)( instead)?", narrowed),
    (r"(don'?t|do not|stop) catch(ing)? (everything|all( exceptions| errors)?|too much|Exception)[,;:]? "
     r"(just|only|but only|"
     r"catch|use) (?P<kind>[A-Z][\w.]*)", narrowed),
    (r"(fix|correct) [the] (None|null) (comparison|check|test)s?|(use )?== ?None ?(->|=>|to) ?is None|E711",
     always("is_none")),
    (r"(mark|set|make|declare|give) [the|it a] return (type|annotation) (as|to|be|of)? ?(?P<kind>[\w.\[\], |\"]+)",
     lambda match, place: Call("annotate_return", (kind,))
     if (kind := annotation(match["kind"])) and place.function is not None else None),
    (r"(un-?nest|un-?indent|dedent|flatten) [the] else( (branch|block))?", always("remove_else_return")),
    (r"(invert|flip|swap|reverse) [the] (first|second|third|last) (if|condition)( (branches|statement))?",
     always("swap_branches")),
    (r"(build|make|format|write|create) [the] (?P<what>\w+) (with|using|as) [an] f-? ?string",
     always("use_fstring")),
    (r"[the] (error |exception )?message: ?(?P<value>[\"'].+[\"'])",
     lambda match, place: Call("set_message", (text,)) if (text := payload(match["value"])) else None),
    (r"(change|update|replace|rewrite|set|make|fix) [the] doc-?string( to| with| say|:)( say| read| be)?:? "
     r"(?P<text>[\"'`A-Z].+)", new_docstring),
    (r"[the] doc-?string (should|must) (be|say|read):? (?P<text>[\"'`A-Z].+)", new_docstring),
    (rf"(add|take|accept|introduce|new|have|support) [an?|the] (new |optional )*{ARG} (called |named )?{NAME}"
     r"(: ?(?P<kind>[\w.\[\]| ]+?))?(,? \(?(with )?(a )?default(s|ing)?( value)?( to| of| is|:)? ?| ?= "
     r"?)(?P<value>[^()\s]+)\)?",
     with_default),
    (rf"(add|take|accept|introduce|new|have|support) [an?|the] (new |optional )*{NAME} {ARG},? "
     r"\(?(with )?(a )?default(s|ing)?( value)?( to| of| is|:)? ?(?P<value>[^()\s]+)\)?(?P<kind>(?!))?", with_default),
    (rf"({DROP}) {NAME}(\(\))?( method)?", member),
    (rf"{NAME}: ?(?P<kind>[\w.\[\], |]+)", variable_type),
    (r"(no|drop|remove|get rid of) [the] `?str(\(\))?`? (calls? )?(needed )?(in|inside|from) [the] f-? ?strings?|[the] "
     r"`?str(\(\))?`? (calls? )?(in|inside) [the] f-? ?strings? (is|are|isn'?t|aren'?t) "
     r"(redundant|useless|needed|unnecessary|"
     r"needless|superfluous)", always("plain_placeholders")),
    (r"[the|this|that] lambda (is|isn'?t) "
     r"(pointless|unnecessary|useless|redundant|needless|needed|superfluous)(,? (just |"
     r"simply )?(pass|use) (?P<name>\w+)( directly| itself)?)?|(pass|use) (?P<n2>\w+) (directly|itself)(,? "
     r"(no|instead of|"
     r"without) [a|the] lambda)", always("unwrap_lambda")),
    (r"(drop|remove|no need for|no|get rid of|strip) [the] u[- ]?prefix(es)?( (from|on|of|in) [the] "
     r"strings?)?|[the] u[- ]?"
     r"prefix(es)? (is|are|isn'?t|aren'?t) (not )?(needed|redundant|useless|unnecessary|superfluous)",
     always("drop_u")),
    (r"(use )?[a] (plain )?if(,)? (instead of|not|rather than) [an|the] elif|[the] elif (can|should|could) be "
     r"[an?] (plain )?if",
     lambda match, place: Call("flatten_elif")
     if len(re.findall(r"^\s*elif\b", place.region, re.MULTILINE)) == 1 else None),
    (r"(fix |correct )?[the|a] typo:? `?(?P<word>[A-Za-z]{5,})`?", misspelt),
    (rf"(add|introduce|define|new) [an?|the] (class|new class) (attribute|variable|constant|field|attr|var) {NAME} ?= ?"
     r"(?P<value>.+)", class_value),
    (rf"(make|turn|convert|change) {NAME} (in)?(to )?[an?] (?P<kind>tuple|set|list)", kind_of_literal),
    (rf"(set|change|update) [the] (?P<key>[\"'`]?[\w-]+[\"'`]?)( (key|entry|value))? (to|=) (?P<value>\S+) "
     rf"(in|of) [the] "
     rf"{NAME}( dict| mapping)?", entry),
    (rf"({DROP}) [the] (?P<base>[A-Z]\w*)( (base|parent|superclass|mixin))?( class)?", without_base),
    (r"(no longer|don'?t|do not) (inherit|derive|subclass)( from)? (?P<base>[A-Z]\w*)", without_base),
    (r"(should |must )?return (?P<new>an? empty \w+|empty \w+|\S+),? (instead of|not|rather than) (?P<old>an? "
     r"empty \w+|\S+)",
     made_value),
    (rf"pass [the] {NAME} (on |along |through )?(in)?to [the] `?(?P<called>[\w.]+)`?(\(\))?( call)?", handed_on),
    (r"(bail|bail out|exit|stop|leave|get out)( early)? (if|when) (?P<condition>.+)",
     bail),
]  # fmt: skip
