"""Read instructions that say exactly what to do, without a model.

A rule must account for every word. Polite phrases at the ends and reasons ("…, it is unused") are stripped; the rest
has to match a rule as a whole, and whatever the rule names must exist. Everything else goes to the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fulgur.edit.plain import (
    classes,
    exchanges,
    guards,
    habits,
    inputs,
    names,
    raising,
    removals,
    results,
    shapes,
    style,
    usual,
    wordings,
)
from fulgur.edit.plain.asides import plainer
from fulgur.edit.plain.example import by_example
from fulgur.edit.plain.phrases import phrase
from fulgur.edit.plain.place import Place
from fulgur.edit.plain.slips import one_slip
from fulgur.edit.plain.steps import in_steps, renamed_together
from fulgur.edit.refactor.verify import words
from fulgur.edit.region import Region
from fulgur.edit.verbs import POLITE, VERBS
from fulgur.text.edit_format import Call

_AFTER = (
    r"(?:please|pls|plz|thanks|thx|now|here|in here|there|everywhere|throughout|for me|anyways?|nowadays|these days|"
    r"in py(?:thon)? ?3(?:\.\d+)?)"
)
_WHY = (
    r"nothing|it|its|it'?s|this|that|that'?s|they|there|there'?s|theres|we|we'?re|nobody|"
    r"no ?one|none (?:of|is|are|uses?|has|have)|since|because|cause|cuz|which|"
    r"the (?:\w+ )?(?:if|variable|name|branch|\w+) (?:returns|raises|is|are)|to (?:avoid|match|fix|be)|"
    r"like (?:\w+ )?(?:everywhere|elsewhere)|for (?:clarity|consistency|readability)"
)
# A remark that does not say how the result should be: "the KeyError is noise", "every branch returns".
_STATES = (
    r"(?![^,;]*(?:\bdefault|\bshould|\bmust|\bexcept\b|\bunless|\binstead|\bkeep|\bleave|\bbut\b|\botherwise|"
    r"\b(?:is|are|as|be) (?:an? )?(?:int|str|float|bool|list|dict|bytes|set|tuple|none|optional|true|false|on|off|"
    r"required|private|public)\b|"
    r"\buse\b|\bmake\b|\band\b|\bbetter|\bclearer|\bnicer|\bnot return|[\d\"'`=]))(?!not\b|no\b|don'?t\b|return\b)(?:"
    r"(?:the|a|an|every|each|all|both|this|that|python|these) )*(?:[\w.()]+ )?"
    r"[\w.()]+ (?:is|are|isn'?t|aren'?t|was|never|always|shadows|returns|raises|has|uses|does(?:n'?t)?)"
)
# What follows is another request, not a reason.
_DOES = (
    r"(?![^\"'`]*\b(?:(?:and|then) (?:also |just )?"
    r"(?:return|raise|use|make|pass|add|remove|rename|log|call|set|store|drop|keep|leave|sort|inline|replace|move)|"
    r"and then|unless|except (?:for|on|in|when|if|where))\b)"
)
_TELLS = (
    _DOES + r"(?!it (?:just |always )?returns (?:nothing|none)\b|it (?:should|must|needs)|[^,;]*\bdefaults?\b[ :=]+\S)"
)
# The rest of the text, up to an arrow or a sentence with another request: "…, it says nothing. target too -> inner".
_REST = (
    rf"(?:(?!->|=>|→|(?<!e\.g)(?<!i\.e)[.!?;]\s+(?:(?:also|and|then|please) )*(?:{VERBS})\b|"
    r"[.!?]\s[^.!?]*\b(?:too|also|as well)\b).)*"
)
# "so we return early" says how the result should be.
_SO = (
    r"(?!so (?:that )?(?:it|we|you|they) (?:can |could |just |always )*(?:returns?|raises?|exits?|bails?|continues?)\b)"
    r"(?:since|because|so that|so callers|cause|cuz|so (?:that )?(?:the|it|its|it'?s|we|you|they|"
    r"\w+ (?:can|could|will|won'?t|do|don'?t|are|is))|for (?:clarity|consistency|readability))"
)
_REASON = re.compile(
    rf"(?:\s*[,;]\s*{_TELLS}{_STATES}\b{_REST}|\s*[,;:]\s*{_TELLS}(?:{_WHY})\b{_REST}|\s+-+\s+(?:{_WHY})\b{_REST}|"
    rf"\s+{_SO}\b{_REST}|\.\s+(?:{_WHY})\b{_REST}|\s*\((?:pep ?-?8|see [^)]*)\))$",
    re.IGNORECASE | re.DOTALL,
)


def core(instruction: str) -> str:
    """The instruction without polite phrases and reasons."""
    text = " ".join(instruction.split())
    text = _REASON.sub("", text)
    text = re.sub(rf"^(?:{POLITE}(?<=[\w:])[,:]?\s+)+", "", text, flags=re.IGNORECASE)
    if not re.search(r"[\"'`]", text):
        text = re.sub(r"\b(?:really|actually|probably|perhaps) ", "", text, flags=re.IGNORECASE)
    text = re.sub(rf"(?:[,\s]+{_AFTER})+\s*[.!?]*$", "", text, flags=re.IGNORECASE)
    return text.strip()


def read(instruction: str, region: Region, file: str) -> Call | None:
    """The refactoring that an instruction spells out; None: a model has to read it."""
    place = Place(region.text, file, region.named)
    said = core(instruction)
    span = (region.start, region.end) if file[region.start : region.end] == region.text else (0, 0)
    if (call := by_example(said, place) or renamed_together(said, file, span, _first)) is not None:
        return call
    for text in (said, _without_judgement(said)):
        if text and (call := _first(text, place) or in_steps(text, file, span, _first)) is not None:
            return call
    for text in plainer(said, place):
        if (call := _first(text, place)) is not None:
            return call
    return next((call for text in corrected(said, place) if (call := _first(text, place)) is not None), None)


_BAD = (
    r"bad|ugly|old|outdated|slow|unnecessary|useless|redundant|needless|pointless|deprecated|confusing|wrong|terrible|"
    r"weird|inconsistent|awful|horrible|overkill|unpythonic|superfluous|not needed|too (?:long|deep|nested|complicated)"
)
_JUDGED = re.compile(
    rf"[^,;:.]*\b(?:is|are|looks?|isn'?t|aren'?t)\b[^,;:.]*\b(?:{_BAD})\b[^,;:.]*[,;:.-]+\s*(?:so |please |just "
    rf"|let'?s )?"
    r"(?P<rest>(?:use|drop|remove|replace|rename|return|raise|make|turn|convert|merge|inline|write|catch|delete)\b.+)",
    re.IGNORECASE,
)


def _without_judgement(said: str) -> str:
    """`type comparisons are bad, use isinstance`: the request, if it does not refer to the first part."""
    match = _JUDGED.fullmatch(said)
    return match["rest"] if match and not re.search(r"\b(?:it|that|this|them|those)\b", match["rest"]) else ""


def _first(said: str, place: Place) -> Call | None:
    without = re.sub(_WHERE.format(re.escape(getattr(place.symbol, "name", "this"))), "", said, flags=re.IGNORECASE)
    for text in dict.fromkeys((said, said.rstrip(".!?"), without, without.rstrip(".!?"))):
        left = [found[0] for found in _LIMITS.finditer(re.sub(r"`[^`]*`|\"[^\"]*\"|'[^']*'", "", text))]
        for number, (pattern, rule) in enumerate(_COMPILED):
            match = pattern.fullmatch(text)
            call = rule(match, place) if match else None
            guard = number < len(guards.RULES)
            if call is not None and (guard or all(limit in " ".join(call.args) for limit in left)):
                return call
    return None


# Words that limit or extend a request. Guards handle them; any other rule whose pattern matched them as part of a
# description would ignore them.
_LIMITS = re.compile(
    r"\bunless\b|\band then\b|\btwice\b|\bexcept (?:for|on|in|when|if|where|that)\b|"
    r"\bonly (?:for|if|when|on|in|where|the first|the last)\b|\bbut (?:not|only|keep|leave)\b|"
    r"\b(?:first|last) (?:two|three|few|\d+)\b",
    re.IGNORECASE,
)
# Places that only repeat the target: "in this function", "in load", a leading "load:".
_WHERE = (
    r"^(?:in |for |of )?(?:this |the )?(?:function |method |class )?(?:{0})(?: function| method)?[:,] |^in (?:{0}),? |"
    r"[, ]+(?:in|inside|within|of|for) (?:this|the|that) (?:function|method|class|file|module|one)$|"
    r"[, ]+(?:in|inside|within|to|of|for|on) (?:the )?(?:function |method |class )?`?(?:{0})`?(?:\(\))?(?: too)?$|"
    r"[, ]+(?:in|inside|of|to) (?:the |its )?(?:constructor|initiali[sz]er|__init__)(?:\(\))?$|"
    r"^(?:in|on) lines? \d+ ?(?:-|–|to) ?\d+[:,]? |[, ]+(?:in|on) lines? \d+ ?(?:-|–|to) ?\d+$"
)
_VERBS = """rename change replace remove delete convert extract inline return raise default instead parameter argument
function method docstring annotate import imports unused constant variable should"""


def corrected(said: str, place: Place) -> Iterator[str]:
    """The instruction with one unknown word corrected to the only usual word or name in the region that is one slip
    away."""
    known = {*words(place.file), *_KNOWN, *_VERBS.split()}
    names = {word for word in words(place.region) if len(word) > 4}
    for match in re.finditer(r"[A-Za-z_]\w{3,}", said):
        word = match[0]
        if word in known or word.lower() in known:
            continue
        near = [verb for verb in _VERBS.split() if one_slip(word.lower(), verb)]
        near += [name for name in sorted(names) if len(word) > 4 and one_slip(word, name)]
        if len(near) == 1:
            yield said[: match.start()] + near[0] + said[match.end() :]


_PHRASES = (
    *names.RULES,
    *wordings.RULES,
    *style.RULES,
    *removals.RULES,
    *raising.RULES,
    *shapes.RULES,
    *inputs.RULES,
    *results.RULES,
    *exchanges.RULES,
    *classes.RULES,
)
# In order of priority: the first rule that fits wins.
_ALL = [
    *((phrase(text), rule) for text, rule in guards.RULES),
    *((phrase(text), rule) for text, rule in habits.RULES),
    *usual.RULES,
    *((phrase(text), rule) for text, rule in _PHRASES),
]
_COMPILED = [(re.compile(pattern, re.IGNORECASE | re.DOTALL), rule) for pattern, rule in _ALL]
_KNOWN = frozenset(words(" ".join(pattern for pattern, _ in _ALL)))
