"""Rules for equivalent rewrites: wordings of refactorings that need no name ("simplify with any()", "list comp")."""

from __future__ import annotations

import re

from fulgur.edit.plain.place import Place, Rule, always
from fulgur.edit.plain.replacing import fits
from fulgur.text.edit_format import Call

ART = r"(?:the |a |an |this |that )?"
HOW = (
    r"(?:use|using|with|try|prefer|make (?:it|this|that)(?: into| use)?|(?:should|could|can|must) (?:be|use)|"
    r"(?:re)?write (?:it |this |the \w+ )?(?:as|with|using|to use|to|in)|"
    r"simplify (?:it |this |the \w+ )?(?:with|using|to|by using|via)|"
    r"(?:convert|change|turn|switch|refactor|transform|collapse|rewrite) (?:it |this |the [\w/-]+(?: [\w/-]+)? |\w+ )?"
    r"(?:in)?(?:to|as|with|by)(?: use)?|"
    r"replace (?:it|this|the [\w/-]+(?: [\w/-]+)?|\w+) (?:with|by))"
)
OVER = (
    r"(?:,? (?:instead|instead of [^,]+|rather than [^,]+|not [^,]+|over [^,]+|here|"
    r"to (?:build|make|create|pick|choose|select|decide|set|get) .+))?"
)
FOR = r"(?: (?:for|in|on) (?:the |this |that )?[\w.]+(?: [a-z]+)?)?"
NEEDLESS = (
    r"(?:redundant|unnecessary|useless|superfluous|needless|pointless|not needed|unneeded|not necessary|not required)"
)
DROP = r"(?:remove|rm|drop|delete|del|get rid of|kill|strip|take out|lose|eliminate|skip|avoid|no|no need for|without)"


def that_optional(match: re.Match[str], place: Place) -> Call | None:
    """`Optional[str] should be str | None`: changes only this Optional."""
    inner = match["inner"]
    old, new = f"Optional[{inner}]", f"{inner} | None"
    return Call("replace_text", (old, new)) if place.has(old) and fits(place, old, new) else None


def _way(nouns: str, call: str, *, bare: bool = True) -> tuple[str, Rule]:
    """The pattern for `NOUNS`, optionally with a verb before and what it replaces after."""
    head = rf"(?:{HOW} )" + ("?" if bare else "")
    return rf"{head}{ART}(?:{nouns}){FOR}{OVER}", _if_plain(call)


def _if_plain(call: str) -> Rule:
    """A rule whose place, such as `for x`, must be in the region: other words say more than the call expresses."""

    def rule(match: re.Match[str], place: Place) -> Call | None:
        known = re.search(r"(?: for| in| on) (?:the |this |that )?([\w.]+)", match[0])
        common = (
            "loop lookup check test return result value comparison condition function method error message "
            "messages errors "
            "warning warnings exception exceptions log repr"
        )
        if known and known[1] not in common.split() and not place.has(known[1]):
            return None
        return Call(call)

    return rule


RULES: list[tuple[str, Rule]] = [
    (
        r"(use |switch to |prefer )?[the] (X )?`?\|( None)?`?( syntax| unions?)?,? (instead of|not|over|rather than) "
        r"(typing\.)?(Union|Optional)(\[.*\])?|(get rid of|no|drop|remove|avoid) [the] (typing\.)?(Union|Optional)s?"
        r"(,? (use|with|and use) [the] (X )?`?\|( None)?`?( syntax)?( instead)?)|(use )?pep ?604( unions?| syntax)?",
        always("optional_union"),
    ),
    (r"`?Optional\[(?P<inner>\w+)\]`? ?(->|=>|→|to|should be) ?`?(?P=inner) ?\| ?None`?", that_optional),
    _way(r"[builtin] (any|all)(\(\))?( (builtin|function|call))? [with a generator]", "use_any_all"),
    _way(r"(list|dict|set|dictionary)?[- ]?comp(rehension)?s?", "use_comprehension"),
    _way(r"enumerate(\(\))?", "use_enumerate"),
    _way(r"(\.|dict\.)?items(\(\))?", "use_items"),
    _way(r"isinstance(\(\))?", "use_isinstance"),
    _way(r"f-? ?strings? [formatting|interpolation]", "use_fstring"),
    (
        r"(convert|change|turn|switch|rewrite) [the|these|those|all|both|this] (\.?formats?|formatting|format calls?|"
        r"strings?|messages?|concatenations?) (in)?to f-? ?strings?",
        always("use_fstring"),
    ),
    (r"(modern|new[- ]style|f-?string) [string] (formatting|interpolation)", always("use_fstring")),
    (
        r"(old[- ]style|%|percent|\.format(\(\))?|printf[- ]style) ?[string] (formatting)? ?(is (old|outdated|"
        r"ugly|so \w+)|->|=>|to)[,;:]? [use|switch to|convert to] [an?] f-?strings?",
        always("use_fstring"),
    ),
    _way(
        r"(ternary( (operator|expression))?|conditional [expression]|(inline|one[- ]line) if(/else)?|if[- "
        r"]expression|single conditional)",
        "use_ternary",
    ),
    (r"(one|single) (return|line) (with|using) [a|an] (ternary|conditional expression)", always("use_ternary")),
    (r"[use] [a] (ternary|conditional expression) and return (it|that) [directly]", always("use_ternary")),
    _way(r"(\.get(\(\))?|dict\.get(\(\))?|get\(\)) [with a default|with default]", "use_dict_get"),
    _way(r"(\+=|augmented assignments?|in-?place (addition|operator)|compound assignment)", "augmented_assignment"),
    _way(
        r"(with( ?statement| ?block)?|context manager|with open(\(.*?\))?)( to (open|close) (the |it)?(file)?)?",
        "use_with",
    ),
    (
        r"(open|read|close) (it|the file|this)? [properly] ?(in|with|using|inside) [a] (with [block|statement]|"
        r"context manager)",
        always("use_with"),
    ),
    _way(r"(is [not] None|is|identity) [checks?|comparisons?]", "is_none", bare=False),
    (
        r"[fix|correct] [the] (comparisons?|compare|comparing|check|checks?) (to|with|against|for) None( (with|"
        r"using|by|should use) (is|is not|is/is not|identity))?",
        always("is_none"),
    ),
    (
        r"is [not] None,? (instead of|not|rather than) [!=]= ?None|none (checks?|comparisons?) (should|must) use "
        r"is [not]",
        always("is_none"),
    ),
    (
        r"[use] (truthiness|implicit booleaness)( instead of len(\(\))?)?|(don'?t|no need to) (use|check|compare|"
        r"call|need) [the] len(gth)?(\(\))?( to (check|test) [for] (emptiness|empty))?|no len\(?\)? [check|"
        r"comparison]|(empty|emptiness) (checks?|tests?) without len(\(\))?",
        always("use_truthiness"),
    ),
    (
        rf"[the] else( (branch|block))? (is|isn'?t|is not) ({NEEDLESS}|needed|necessary|required)( after [the] "
        rf"\w+)?|(no|{DROP}) [the] ({NEEDLESS} )?else( (branch|block))?( [is] (needed|necessary|required))?( after "
        rf"[the|a] \w+)?(,? {NEEDLESS})?|(un-?indent|dedent|flatten) [the] else( (branch|block))?",
        always("remove_else_return"),
    ),
    (
        rf"[the] pass (is|isn'?t|is not) ({NEEDLESS}|needed|necessary) [here]|({DROP}) [the|that] (extra |stray |"
        rf"{NEEDLESS} )?pass [statement] [at the end]",
        always("remove_pass"),
    ),
    (
        r"(merge|combine|join|collapse|fold|unify|squash) [up] [the] (two |both |these |those |nested )*(ifs?|if "
        r"statements?|conditions?|if'?s)( (in)?to one [if|condition]| with [an] and| together)?|(one|single|a "
        r"single) if [with and]( instead of (two|nested).*)?|(no|avoid) nested ifs?",
        always("merge_nested_if"),
    ),
    (
        r"(early return|return early|guard clause|use [an?] (early return|guard clause)s?|early exit)( to (reduce|"
        r"avoid|cut) [the] (nesting|indentation))?|(reduce|less|cut|avoid) [the] (nesting|indentation)( with [an] "
        r"early returns?)?",
        always("early_return"),
    ),
    (
        r"(use |modern |simplify |moderni[sz]e |shorten |plain |bare |python ?3(-| )?(style)? |py3 [style] |new[- "
        r"]style |no[- ]arg(ument)? )*[the] super(\(\))? [call]( (without|with no|doesn'?t need|needs no|no) "
        r"[the] (args?|arguments?|parameters?) [any ?more])?",
        always("modern_super"),
    ),
    (
        r"(use |call )?super\(\)(\.\w+(\(.*?\))?)?,? (instead of|rather than|not) [the|calling] [\w.]+\.\w+(\(.*?\))? "
        r"[directly|explicitly]",
        always("modern_super"),
    ),
    (
        r"(no [need for] |drop [the] |remove [the] )(super\(?\)? ?(args?|arguments?)|(args?|arguments?) (of|to|in|"
        r"from) super(\(\))?)",
        always("modern_super"),
    ),
    (
        r"[the] (join|sum|any|all|min|max|sorted|set|tuple|list|dict)(\(\))? (does ?n[o']?t|doesnt|does not) need "
        r"(a|the|that) list [comprehension]|[use|with|pass] [a|the] generator [expression]( instead of [a|the] "
        r"list [comprehension])?( (in|for|to|inside) [the] (join|sum|any|all|min|max|sorted|set)(\(\))?)?|no list "
        r"[comprehension] (in|inside|needed (in|for)) [the] \w+",
        always("use_generator"),
    ),
    (
        r"(alphabeti[sz]e|organi[sz]e|reorder|tidy) [the|all] imports?|imports? (should be|in) (sorted|"
        r"alphabetical order|alphabetical)",
        always("sort_imports"),
    ),
    (
        r"(clean ?up|tidy|prune) [the|all] [unused] imports|(no|there are|has) unused imports|unused imports?",
        always("remove_unused_imports"),
    ),
    (
        rf"({DROP}) [the|all|these|that|this] (debug(ging)? |leftover |left-over )*prints?(\(\))? [statements?|"
        rf"calls?|lines?|output]",
        always("remove_prints"),
    ),
    (
        r"(return (it|the value|the result|that) (directly|right away|straight away)|(remove|drop|get rid of|no "
        r"need for|avoid|no) [the|a] (temp(orary)?|intermediate|extra|local) [local] (variable|var)( before [the] "
        r"return(ing)?)?|no (temp|temporary) [needed])(,? [just] return [it] (directly|right away))?",
        always("return_directly"),
    ),
    (
        r"[use] (single|one) (in|membership) [test|check]|[use] `?in`?( (for|in) the comparisons?)?,? (instead of|"
        r"not|rather than) [the] [chained|two|several|multiple] (or|ors|==|equality checks|comparisons)",
        always("use_in"),
    ),
    (r"[use] (chained|a chained|chain [the]) comparisons?", always("chain_comparison")),
    (
        r"(drop|remove|no need for|no) [the] \.?keys(\(\))? [calls?]|iterate [over] [the] \w+ directly(,? (no|"
        r"without) \.?keys(\(\))?)?",
        always("drop_keys"),
    ),
    (
        r"[use] (dict|list|tuple|\[\]|\{\})? ?literals?( instead of [the] (dict|list|tuple)(\(\))? [calls?|"
        r"constructors?])?",
        always("use_literal"),
    ),
    (
        r"(make|turn|convert|change|rewrite) (it|this|that|the lambda( \w+)?|(?P<name>\w+)) (in)?[to|as] [a|an] (real |"
        r"normal |regular |proper |plain |named )*(def|function|func)( instead of [a] lambda)?|"
        r"replace [the] lambda (with|by) [a] (real |normal |proper |regular |named )*(def|function)|[use] [a] (def|"
        r"regular function|normal function)(,? (instead of|not|rather than) [a|the] lambda)?|(no|don'?t assign "
        r"[a] ) ?lambda(,? use [a] def)?|(convert|turn|change|rewrite) (in)?to [a] (real |normal |regular |proper "
        r"|plain )*(def|function)",
        lambda match, place: (
            Call("lambda_to_def", ()) if re.search(r"^\s*\w+ = lambda\b", place.region, re.MULTILINE) else None
        ),
    ),
    (
        r"(chain|link) [the] (exceptions?|errors?|cause|original (exception|error))|raise (\.\.\. |it |the \w+ "
        r")?from [the] (e|err|exc|error|ex|original [exception|error]|cause|caught (exception|error))|keep the "
        r"[original] (cause|traceback)|explicit exception chaining",
        always("raise_from"),
    ),
    (
        r"(no|avoid|replace|fix|don'?t use|remove) [the|a] bare except(,? (use|with|by|catch) [except] "
        r"(?P<kind>[A-Z][\w.]*) [instead])|[the] bare except (should be|to|->|=>) [except] (?P<other>[A-Z][\w.]*)|"
        r"except (?P<more>[A-Z][\w.]*) (instead of|not|rather than) [a|the] bare except",
        lambda match, place: (
            Call("narrow_except", (match["kind"] or match["other"] or match["more"],))
            if re.search(r"^\s*except\s*:", place.region, re.MULTILINE)
            else None
        ),
    ),
]
