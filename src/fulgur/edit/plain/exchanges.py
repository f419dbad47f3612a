"""Rules that replace a thing by another of its kind: operator, exception, docstring, literal, entry, misspelt word."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.phrases import NAME
from fulgur.edit.plain.place import Place, Rule, always, annotation, code, payload, unquoted
from fulgur.edit.plain.results import variable_type
from fulgur.edit.plain.slips import one_slip
from fulgur.edit.refactor.verify import identifiers
from fulgur.text.edit_format import Call

SIGN = r"(?:<=|>=|==|!=|<|>)"
_MADE = {"an empty string": '""', "an empty list": "[]", "an empty dict": "{}", "an empty tuple": "()",
         "empty string": '""', "empty list": "[]", "empty dict": "{}", "empty tuple": "()"}  # fmt: skip


def operator(match: re.Match[str], place: Place) -> Call | None:
    """`use >= instead of >`, if the region has one such comparison."""
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


def kind_of_literal(match: re.Match[str], place: Place) -> Call | None:
    name = match["name"]
    listed = re.search(rf"^\s*{re.escape(name)}\b[^=\n]*= *[\[(]", place.region, re.MULTILINE)
    return Call("literal_kind", (name, match["kind"].lower())) if listed else None


def entry(match: re.Match[str], place: Place) -> Call | None:
    """`set accept to "html" in HEADERS`, for an existing key of the dictionary."""
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


def made_value(match: re.Match[str], place: Place) -> Call | None:
    """`return an empty dict instead of None`"""
    new, old = _MADE.get(match["new"].lower(), match["new"]), _MADE.get(match["old"].lower(), match["old"])
    if code(new) is None or code(old) is None or place.function is None:
        return None
    dump = ast.dump(ast.parse(old, mode="eval").body)
    found = [n for n in ast.walk(place.function) if isinstance(n, ast.Return) and n.value and ast.dump(n.value) == dump]
    return Call("change_return", (new, old)) if len(found) == 1 and place.has(f"return {old}") else None


def misspelt(match: re.Match[str], place: Place) -> Call | None:
    """`typo transaltion`: replaced by the word of the file that is one slip away."""
    word = match["word"]
    near = {w for w in re.findall(r"[A-Za-z]{4,}", place.file) if one_slip(word.lower(), w.lower())}
    fitting = sorted(w for w in near if w[0].isupper() == word[0].isupper())
    once = len(re.findall(rf"\b{word}\b", place.region)) == 1 and len(re.findall(rf"\b{word}\b", place.file)) == 1
    return (
        Call("replace_text", (word, fitting[0])) if once and len({w.lower() for w in near}) == 1 and fitting else None
    )


_BROAD = r"(bare )?(except( Exception)?|exception|handler|clause)( clause)?"


def misspelt_there(match: re.Match[str], place: Place) -> Call | None:
    """`fix the spelling of recieve`; a name of the code after "in" is the place of the typo, not the typo."""
    if match["where"] == " in" and match["word"] in identifiers(place.file):
        return None
    return misspelt(match, place) if match["word"].lower() not in _PLACES else None


_PLACES = frozenset({"message", "messages", "comment", "comments", "docstring", "error", "string", "function", "method",
                     "class", "module", "header", "title"})  # fmt: skip
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
    (rf"(make|turn|convert|change) {NAME} (in)?(to )?[an?] (?P<kind>tuple|set|list)", kind_of_literal),
    (rf"(set|change|update) [the] (?P<key>[\"'`]?[\w-]+[\"'`]?)( (key|entry|value))? (to|=) (?P<value>\S+) "
     rf"(in|of) [the] "
     rf"{NAME}( dict| mapping)?", entry),
    (r"(should |must )?return (?P<new>an? empty \w+|empty \w+|\S+),? (instead of|not|rather than) (?P<old>an? "
     r"empty \w+|\S+)",
     made_value),
]  # fmt: skip
