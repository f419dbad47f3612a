"""Rephrase an instruction: drop adjectives that only judge, and turn questions into what they ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fulgur.edit.plain.place import Place
from fulgur.edit.refactor.verify import words

# Opinions that do not identify a thing. Words such as "trailing", "legacy" or "odd" may tell two things apart.
_JUDGING = (
    r"silly|ugly|stupid|annoying|weird|damn|nasty|horrible|awful|terrible|pointless|useless|redundant|unnecessary|"
    r"needless|superfluous|unneeded|confusing|strange|leftover|dumb|hacky|gross|messy|pesky|obsolete"
)
_ADJECTIVE = re.compile(
    rf"\b(?:(the|that|this|those|these|a|an|all) (?P<one>{_JUDGING})|(an?) (?P<two>real|proper)) (?=\w|`)",
    re.IGNORECASE,
)
_BARE = re.compile(
    rf"^((?:remove|drop|delete|kill|strip|get rid of)) (?P<one>{_JUDGING}) (?P<two>)(?=\w|`)", re.IGNORECASE
)
_NOT_NEEDED = (
    r"(?:(?:isn'?t|aren'?t|is not|are not|is no longer|are no longer) (?:really |actually )?"
    r"(?:needed|necessary|required|useful)|(?:is|are) (?:really |actually |just )?"
    r"(?:redundant|useless|unneeded|unnecessary|superfluous|pointless|deprecated|outdated|obsolete|overkill))"
    r"(?: (?:any ?more|any longer|here|nowadays|these days|in py(?:thon)? ?3))*"
)
_REWRITES: tuple[tuple[str, str], ...] = (
    # "what if values is empty? return {} early"
    (
        r"what (?:if|when|happens (?:if|when)) (?P<test>[^?]+)\? ?(?:just |please |should |we should |then )*"
        r"(?P<do>(?:return|raise)\b.*?)(?: early| there| then| in that case)*",
        r"\g<do> if \g<test>",
    ),
    (
        r"(?:guard|protect|watch out|check) (?:against|for) (?:an? )?(?P<what>empty|negative|missing|None) "
        r"(?P<name>\w+)(?: ?[,:;]| and| by|,? then)+ ?(?P<do>(?:return|rais)\w*\b.*)",
        r"\g<do> if \g<name> is \g<what>",
    ),
    # "OrderedDict isn't needed anymore, use plain dict"
    (
        rf"`?(?P<old>(?-i:[A-Z])\w+)`? {_NOT_NEEDED}[,;:.-]+ ?(?:so |just |please )*use (?:a |an |the )?"
        r"(?:plain |normal |regular |simple |builtin )?`?(?P<new>\w+)`?(?: instead)?",
        r"replace \g<old> with \g<new>",
    ),
    # "float() isn't needed in py3, remove it", "the f.close() is redundant, drop it"
    (
        rf"(?:the |that |this )?(?P<what>`[^`]+`|[\w.]+\(\)) {_NOT_NEEDED}[,;:.-]+ ?(?:so |just |please )*"
        r"(?P<do>remove|drop|delete|kill) (?:it|that|this)",
        r"\g<do> \g<what>",
    ),
    # "unused `as e`, drop it"
    (
        r"unused (?P<what>[^,;:]+)[,;:] ?(?:so |just |please )*(?P<do>remove|drop|delete|kill) (?:it|that|this)",
        r"\g<do> unused \g<what>",
    ),
    # "simplify: while True instead of while 1"
    (r"(?:simplify|cleanup|clean up|moderni[sz]e|readability|style|lint|pep ?8|cosmetic): ?(?P<do>.+)", r"\g<do>"),
    # "don't shadow the builtin format, call it fmt"
    (
        r"(?:don'?t|do not|stop|avoid) (?:shadow(?:ing)?|overrid(?:e|ing)|hid(?:e|ing)) (?:the |a )?"
        r"(?:builtins? |built-?in )?(?:function |name |type )*`?(?P<old>\w+)`?(?: builtin)?[,;:.-]+ ?"
        r"(?:so |just |please )*(?:call it|rename it to|rename to|name it) (?P<new>\w+)(?: instead)?",
        r"rename \g<old> to \g<new>",
    ),
    (
        r"(?:don'?t|do not|stop|avoid) shadow(?:ing)? (?:the |a )?(?:builtins? |built-?in )?(?:function |name |type )*"
        r"`?(?P<old>\w+)`?(?: builtin)?[,;:.-]+ ?(?:so |just |please )*use (?P<new>\w+)(?: instead)?",
        r"rename \g<old> to \g<new>",
    ),
    # "l is ambiguous, call it line": the judgement may be any word
    (
        r"(?:the )?(?:variable |parameter |arg |argument |name )?`?(?P<old>[A-Za-z_]\w*)`? (?:is|isn'?t|shadows|hides|"
        r"sounds|looks|reads)(?: (?:an?|the|so|too|very|not|way|really|rather|quite))*(?: [a-z-]+){0,3}(?: name)?"
        r"[,;:.-]+ ?(?:so |just |please )*(?:call it|rename it to|rename to|name it|better call it) "
        r"`?(?P<new>[A-Za-z_]\w*)`?(?: instead)?",
        r"rename \g<old> to \g<new>",
    ),
    # "exception is a bad variable name, use exc"
    (
        r"(?:the )?`?(?P<old>[A-Za-z_]\w*)`? (?:is|isn'?t)(?: (?:an?|the|so|too|very|not|such|really))*"
        r"(?: [a-z-]+){0,2} (?:variable|parameter|argument|arg|param|var|loop|local)? ?name[,;:.-]+ ?"
        r"(?:so |just |please )*use `?(?P<new>[A-Za-z_]\w*)`?(?: instead)?",
        r"rename \g<old> to \g<new>",
    ),
    # "remove the else, dedent"
    (
        r"(?P<do>(?:remove|drop|kill|delete|lose) (?:the )?else)(?:[,;]| and)+ ?(?:please |then |just )*"
        r"(?:dedent|unindent|de-?indent|outdent)(?: (?:it|the (?:rest|body|block|code)))?",
        r"\g<do>",
    ),
    # "the docstring is empty, make it "Return …""
    (
        r"(?:the |this )?docstring is (?:an? )?(?:empty|missing|wrong|outdated|useless|stale|misleading)[,;:.-]+ ?"
        r"(?:so |just |please )*(?:make it|change it to|should be|it should say|set it to|use|write):? ?"
        r"(?P<text>[\"'].+[\"'])",
        r"change the docstring to \g<text>",
    ),
    # "return the pointer directly, no ptr variable"
    (
        r"return (?:it |that |(?:the|that) \w+ )?(?:directly|right away|straight away)[,;]? (?:no|without (?:the|a)|"
        r"drop the|no need for(?: the)?|skip the|instead of (?:the |using )?(?:the )?) ?`?(?P<name>[A-Za-z_]\w*)`? "
        r"(?:variable|var|temp|local)",
        r"no \g<name> variable",
    ),
)
_COMPILED = [(re.compile(pattern, re.IGNORECASE | re.DOTALL), new) for pattern, new in _REWRITES]


def plainer(said: str, place: Place) -> Iterator[str]:
    """Other wordings of the whole instruction; none when nothing can be dropped or rephrased."""
    text = said.rstrip(".!")
    for pattern, new in _COMPILED:
        if match := pattern.fullmatch(text):
            yield match.expand(new)
    if re.search(r"[\"']", text):
        return  # quoted text must stay as it is
    known = set(words(place.region))

    def left_out(match: re.Match[str]) -> str:
        # A word that occurs in the code may name the thing that is meant.
        kept = (match["one"] or match["two"]) in known
        return match[0] if kept else f"{match[1] or match[3]} "

    without = _BARE.sub(left_out, _ADJECTIVE.sub(left_out, text))
    if without != text:
        yield without
