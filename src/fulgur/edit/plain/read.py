"""Instructions that say exactly what to do are read without a model.

A rule must account for every word: politeness at the ends and a reason ("…, it is unused") are set aside, what is left
has to match a rule as a whole, and what the rule names must be there. Everything else is for the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fulgur.edit.plain import (
    guards,
    habits,
    inputs,
    names,
    raising,
    removals,
    results,
    shapes,
    small,
    style,
    values,
    wordings,
)
from fulgur.edit.plain.asides import plainer
from fulgur.edit.plain.example import by_example
from fulgur.edit.plain.phrases import phrase
from fulgur.edit.plain.rules import (
    N,
    Place,
    Q,
    Rule,
    add_to,
    always,
    annotate,
    bare_return,
    base,
    catch_instead,
    constant,
    decorate,
    default,
    delete,
    docstring,
    flatten,
    function_of_lines,
    hint_with_default,
    hints,
    imports,
    inline,
    inline_this,
    instead,
    instead_in_call,
    is_true,
    make_async,
    move,
    named_exception,
    new_parameter,
    not_chained,
    remove_parameter,
    rename,
    returns,
    set_value,
    substitute,
    swap_exception,
    swap_return,
    switched,
    unimport,
    variable,
    version,
    visibility,
)
from fulgur.edit.plain.slips import one_slip
from fulgur.edit.plain.steps import in_steps, renamed_together
from fulgur.edit.refactor.verify import words
from fulgur.edit.region import Region
from fulgur.text.edit_format import Call

_BEFORE = (
    r"(?:please|pls|plz|hey|ok(?:ay)?|just|simply|can (?:you|we|i)|could (?:you|we)|should we|let'?s|we should|"
    r"you should|(?:i|we) (?:want|need) to|i'?d like to|need to|want to|go ahead and|try to|maybe|todo:?|nit:?|"
    r"minor:?|refactor:|fix:|cleanup:|style:|chore:)"
)
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
# A statement about something, which says nothing of how it is to be: "the KeyError is noise", "every branch returns".
_STATES = (
    r"(?![^,;]*(?:\bdefault|\bshould|\bmust|\bexcept\b|\bunless|\binstead|\bkeep|\bleave|\bbut\b|\botherwise|"
    r"\b(?:is|are|as|be) (?:an? )?(?:int|str|float|bool|list|dict|bytes|set|tuple|none|optional|true|false|on|off|"
    r"required|private|public)\b|"
    r"\buse\b|\bmake\b|\band\b|\bbetter|\bclearer|\bnicer|\bnot return|[\d\"'`=]))(?!not\b|no\b|don'?t\b|return\b)(?:"
    r"(?:the|a|an|every|each|all|both|this|that|python|these) )*(?:[\w.()]+ )?"
    r"[\w.()]+ (?:is|are|isn'?t|aren'?t|was|never|always|shadows|returns|raises|has|uses|does(?:n'?t)?)"
)
# What follows is more to do, and no reason.
_DOES = (
    r"(?![^\"'`]*\b(?:(?:and|then) (?:also |just )?"
    r"(?:return|raise|use|make|pass|add|remove|rename|log|call|set|store|drop|keep|leave|sort|inline|replace|move)|"
    r"and then|unless|except (?:for|on|in|when|if|where))\b)"
)
_TELLS = (
    _DOES + r"(?!it (?:just |always )?returns (?:nothing|none)\b|it (?:should|must|needs)|[^,;]*\bdefaults?\b[ :=]+\S)"
)
_REASON = re.compile(
    rf"(?:\s*[,;]\s*{_TELLS}{_STATES}\b.*|\s*[,;:]\s*{_TELLS}(?:{_WHY})\b.*|"
    rf"\s+-+\s+(?:{_WHY})\b.*|\s+(?:since|because|so that|so callers|cause|cuz|"
    rf"so (?:that )?(?:the|it|its|it'?s|we|you|they|\w+ (?:can|could|will|won'?t|do|don'?t|are|is))|for "
    rf"(?:clarity|consistency|readability))\b.*|\.\s+(?:{_WHY})\b.*|\s*\((?:pep ?-?8|see [^)]*)\))$",
    re.IGNORECASE | re.DOTALL,
)


def core(instruction: str) -> str:
    """What is asked, without politeness and reasons."""
    text = " ".join(instruction.split())
    text = _REASON.sub("", text)
    text = re.sub(rf"^(?:{_BEFORE}(?<=[\w:])[,:]?\s+)+", "", text, flags=re.IGNORECASE)
    if not re.search(r"[\"'`]", text):
        text = re.sub(r"\b(?:really|actually|probably|perhaps) ", "", text, flags=re.IGNORECASE)
    text = re.sub(rf"(?:[,\s]+{_AFTER})+\s*[.!?]*$", "", text, flags=re.IGNORECASE)
    return text.strip()


def read(instruction: str, region: Region, file: str) -> Call | None:
    """The refactoring that an instruction spells out, or None: then a model has to read it."""
    place = Place(region.text, file)
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
    """`type comparisons are bad, use isinstance`: what is asked, if it does not speak of the first part."""
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


# Words that say when or where something is to be done, and what more. Guards have a place for them; any other rule,
# whose pattern has let them pass as the description of something, would leave them out.
_LIMITS = re.compile(
    r"\bunless\b|\band then\b|\btwice\b|\bexcept (?:for|on|in|when|if|where|that)\b|"
    r"\bonly (?:for|if|when|on|in|where|the first|the last)\b|\bbut (?:not|only|keep|leave)\b|"
    r"\b(?:first|last) (?:two|three|few|\d+)\b",
    re.IGNORECASE,
)


# Words of place that say nothing more than what was named: "in this function", "in load", "load:" in front.
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
    """The instruction with one word that nobody knows put right: a usual word, or the name in the region that it is one
    slip away from."""
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


# Pieces of patterns.
D = rf"{Q}([A-Za-z_][\w.]*?){Q}"
ART = r"(?:the |a |an |this |that )?"
KIND = (
    r"(?:(?:local|loop|module|instance|class|global|lambda|private|helper)[- ])?"
    r"(?:functions?|func|fn|methods?|class(?:es)?|variables?|vars?|constants?|const|parameters?|params?|arguments?|args?|"
    r"symbols?|fields?|attributes?|attr|names?|identifiers?|property)"
)
TO = r"(?:to|->|=>|→|into|as)"
DROP = r"(?:remove|rm|drop|delete|del|get rid of|kill|strip|take out|lose)"
TYPE = r"[`]?([A-Za-z_\"'(\[][\w.\[\], |\"'()]*?)[`]?"
FSTRING = r"f-? ?strings?"


LINES = r"(?:the )?lines? \d+ ?(?:-|–|to|through) ?\d+"
_AT_CALLS = r"(?: (?:in(?:to)? |at )?(?:all |every |its |the )*(?:call ?sites?|callers?|calls?|places?)| everywhere)?"
BECAUSE = r"after (?:the |a )?(?:return|raise|continue|break|returning|raising)|when the if (?:returns|raises)"
NEEDLESS = r"(?:redundant |unnecessary |useless |superfluous |needless )?"
ARG = r"(?:parameter|param|argument|arg|kwarg)"
OLD_FORMAT = r"(?:format|\.format\(?\)?|%(?: formatting)?|concatenation)"
ARROW = r" ?(?:->|=>|→) ?"
QUOTED = values.QUOTED
RULES: list[tuple[str, Rule]] = [
    # names
    (rf"(?P<old>{QUOTED}) ?(?:->|=>|→) ?(?P<new>{QUOTED})", values.quoted_swap),
    (rf"renam(?:e|ing) {ART}(?:{KIND} )*(?:of |from )?{D}(?: {KIND})? {TO} (?:be )?{N}", rename),
    (r"(?:rename |change )?self\.(?P<old>\w+) ?(?:->|=>|→|to) ?self\.(?P<new>\w+)", names.attribute),
    (rf"{D}{ARROW}{N}", rename),
    (rf"s/{N}/{N}/g?", rename),
    (rf"{N} (?:should|must|needs to|ought to) be (?:called|named|renamed(?: to)?) {N}", rename),
    (rf"{N} is (?:an? )?(?:\w+ )?name[,.;:]? (?:use|call it|make it|rename (?:it )?to) {N}(?: instead)?", rename),
    (rf"{N} is (?:an? )?(?:\w+ )?name[,.;:]? {N} (?:would be|is) (?:better|clearer|nicer)", rename),
    (rf"make {N} (public|private)", visibility),
    (
        r"(?:use |log with )?(?:the |a )?(?P<logger>log(?:ger|ging)?)(?:\.(?P<level>\w+))?(?:\(\))?,? "
        r"(?:instead of|rather than|not) (?:the )?print(?:s|ing|\(\))?(?: statements?| calls?)?",
        values.logged,
    ),
    (
        r"(?:replace|change|turn|convert) (?:the |all )?prints?(?:\(\))?(?: statements?| calls?)? "
        r"(?:with|by|to|into) (?:a |the )?"
        r"(?P<logger>log(?:ger|ging)?)(?:\.(?P<level>\w+))?(?:\(\))?(?: calls?)?|"
        r"prints? ?(?:->|=>|→) ?(?P<logger2>log(?:ger|ging)?)(?:\.(?P<level2>\w+))?",
        values.logged,
    ),
    # texts and values
    (rf"(?:fix |correct )?(?:the )?typo:? (.+?){ARROW}(.+?)(?: in (?:the )?(?:\w+ )?docstring)?", substitute),
    (r"(?:in (?:the )?docstring,? |docstring:? )?(?:replace|swap|substitute) (.+?) (?:with|by|for) (.+)", substitute),
    (r"elif (.+?) ?(?:->|=>|→|to) ?if (.+)", flatten),
    (rf"(.+?){ARROW}(.+)", substitute),
    (
        r"raise (?:an? )?(.+?) (?:instead of|rather than|not) (?:an? )?(?:plain |generic |bare |regular |simple )?(.+)",
        swap_exception,
    ),
    (r"return (.+?) (?:instead of|rather than) (.+)", swap_return),
    (
        r"(?:just |only |plain )?(?:a )?(?:plain |bare )?return,? (?:not|instead of|rather than) (?:return )?None",
        bare_return,
    ),
    (r"(?:exit|return|status|error) code:? (-?\d+) (?:instead of|rather than|not) (-?\d+)(?: on \w+)?", instead),
    (r"(?:just )?(?:use )?if (.+?)(?: is enough)?,? instead of comparing (?:it )?(?:with|to|against) (\S+)", is_true),
    (r"catch ([\w.]+) (?:instead of|rather than|not) ([\w.]+)", catch_instead),
    (
        r"(?:re)?raise (?:(?:the |an? )?(?P<kind>[A-Z][\w.]*) )?from None(?: in (?:the )?(?:except|handler))?",
        not_chained,
    ),
    (r"(?:use )?(.+?) (?:instead of|rather than) (.+)", instead),
    (
        r"(?:use )?(?P<new>.+?) (?:instead of|rather than) (?P<old>.+?) (?:in|inside|for) (?:the "
        r")?`?(?P<called>[\w.]+)`?"
        r"(?:\(\))?(?: call)?",
        instead_in_call,
    ),
    (r"(?:bump|set|change|update) (?:the )?version (?:to|number to) ([\w.'\"-]+)", version),
    (rf"(?:set|change|update|bump|increase|raise|lower|reduce) {D} (?:to|=) (.+)", set_value),
    (rf"{D} ?= ?(.+)", set_value),
    (r"turn (?P<name>\w+) (?P<how>on|off)(?: by default)?", switched),
    (r"(?P<how>enable|disable) (?P<name>\w+)(?: by default)?", switched),
    (
        rf"(?:change |set |make )?(?:the )?default (?:value )?(?:of |for )?{ART}(?:{KIND} )?{N} "
        r"(?:to |should be |is |= ?|)(.+)",
        default,
    ),
    (rf"{N} (?:should )?defaults? (?:to|should be) (.+)", default),
    (rf"add (.+) to {D}", add_to),
    # signatures
    (
        r"(?:add |annotate |missing )*(?:the )?(?:missing )?returns?(?: type| annotation)?:?"
        rf"(?: should be| is| as| with)? {TYPE}",
        returns,
    ),
    (rf"(?:add )?(?:return type |annotation )?-> ?{TYPE}", returns),
    (rf"(?:annotate|type|type[- ]hint|hint) {ART}(?:{KIND} )?{N} (?:as|with|to be) {TYPE}", annotate),
    (rf"(?:annotate )?{N}: {TYPE}", annotate),
    (rf"{N}: {TYPE} ?= ?(.+)", hint_with_default),
    (rf"annotate ((?:\w+: [\w.\[\]]+(?:, )?)+) and -> {TYPE}", hints),
    (rf"(?:add|introduce) {ART}(?:new )?(?:optional )?{KIND} (\w+(?:: ?[\w.\[\]|\" ]+?)? ?= ?\S+)", new_parameter),
    (rf"add {ART}(\w+ ?= ?\S+) {ARG}", new_parameter),
    (rf"{DROP} {ART}(?:unused )?(?:{N} {ARG}|{ARG} {N})", remove_parameter),
    (r"(?:decorate (?:it |this )?with|add|use) @([\w.()]+)(?: decorator)?", decorate),
    (r"add (?:a |the )?docstring(:|,? saying|)? (.+)", docstring),
    # guards and handlers
    (r"(?:also catch|catch also) ([A-Za-z_][\w.]*)", named_exception("catch_also")),
    (r"catch ([A-Za-z_][\w.]*) (?:too|as well|also)", named_exception("catch_also")),
    # classes and functions as a whole
    (rf"(?:{DROP}|no) {ART}\(?(?P<old>object)\)? base(?: class)?(?P<new>)", base),
    (r"class \w+: no (?P<old>object) base(?P<new>)", base),
    (r"(?:derive|inherit|subclass)(?: it)?(?: from)? (?P<new>[A-Z][\w.]*)(?: instead of (?P<old>[\w.]+))?", base),
    (rf"{DROP} (?:this|the) (?:function|method|class)(?: {N})?", delete),
    (rf"{DROP} (?:function |method |class )?{N}", delete),
    (rf"{DROP}()", delete),
    # imports
    (rf"{DROP} (?:the |all )?unused imports?", always("remove_unused_imports")),
    (rf"{DROP} (?:the )?(?:unused )?import(?: of)? {N}", unimport),
    (rf"{DROP} (?:the )?(?:unused )?{N} import", unimport),
    (r"(?:sort|isort|order) (?:the )?imports?|isort", always("sort_imports")),
    (r"(?:add (?:an? |the )?(?:import:? )?)?((?:import|from) [\w., ]+(?: import [\w., ]+)?)", imports),
    # constants and variables
    (
        rf"(?:extract|pull|move|turn|put) (.+?) (?:out )?(?:in)?to {ART}(?:module[- ]level )?constant "
        rf"(?:called |named )?{N}",
        constant,
    ),
    (rf"(?:extract|pull) (.+?) (?:out )?(?:in)?to {ART}(?:local |new )?variable (?:called |named )?{N}", variable),
    (rf"inline (?:the )?(?:{KIND} )?{N}(?:\(\))?{_AT_CALLS}", inline),
    (rf"inline (?:it|this|(?:this|the) (?:function|helper)){_AT_CALLS}", inline_this),
    # over the whole project
    (
        rf"(?:extract|pull|move|factor|put|split) (?:this|it|these lines?|the lines?|that|{LINES})?(?: code| part)? ?"
        rf"(?:out )?(?:in)?to {ART}(?:new |own |separate |helper |private )*(?:function|method|helper)"
        rf"(?: called| named|:)? {N}(?:\(\))?",
        function_of_lines,
    ),
    (rf"extract (?:this |it |these lines? |{LINES} )?(?:out )?(?:in)?to {N}(?:\(\))?", function_of_lines),
    (rf"extract {ART}(?:new )?(?:function|method|helper)(?: called| named)? {N}(?:\(\))?", function_of_lines),
    (
        rf"move (?:(?:it|this|{ART}(?:{KIND} )?{Q}(?P<name>[A-Za-z_]\w*){Q})(?: (?:function|class|method|constant))?) "
        rf"(?:over )?(?:in)?to {ART}(?:module |file )?`?(?P<target>[\w./]*\w)`?(?: module| file)?"
        r"(?:,? and (?:fix|update) (?:the |its |all )?(?:imports|importers))?",
        move,
    ),
    (
        rf"(?:make|turn|convert) (?:it|this|{ART}(?:{KIND} ?)?{Q}(?P<name>(?!async)[A-Za-z_]\w*)?{Q}) ?"
        r"(?:in)?(?:to )?(?:be )?(?:an? )?(?:async(?:hronous)?(?: def| function)?|coroutine)"
        r"(?:,? (?:and|with) (?:await(?:ing)? )?(?:it )?(?:in )?(?:the |its |all |all its )?(?:callers?|calls?)"
        r"(?: too)?)?",
        make_async,
    ),
    # ways to write the same
    (
        rf"(?:use |make (?:it|this) |convert (?:it |this )?to |turn (?:it )?into )?{ART}{FSTRING}"
        rf"(?: instead of (?:the )?{OLD_FORMAT})?(?: (?:for|in) (?:the )?(?:two |both |all )?"
        rf"(?:{OLD_FORMAT}|messages?|errors?|strings?|regex(?:es)?|pattern)(?: with \w+)?)?",
        always("use_fstring"),
    ),
    (
        rf"(?:convert|change|turn|replace) (?:the )?{OLD_FORMAT}(?:[- ]formatting| calls?)? (?:in)?(?:to|with|by) "
        rf"{ART}{FSTRING}",
        always("use_fstring"),
    ),
    (
        rf"(?:{DROP}|no need for|no|flatten:? (?:{DROP})?) ?{ART}{NEEDLESS}else(?: branch| block)?(?: (?:{BECAUSE}))?",
        always("remove_else_return"),
    ),
    (
        r"(?:use )?(?:python ?3 |py3 |modern |bare |plain )?super\(\)(?: without (?:args|arguments)| calls?)?",
        always("modern_super"),
    ),
    (r"moderni[sz]e (?:the )?super(?:\(\))?(?: calls?)?", always("modern_super")),
    (r"(?:use )?(?:an? )?(?:ternary|conditional expression)(?: for (?:the )?(?:return|\w+))?", always("use_ternary")),
    (r"use dict\.get(?: for [\w-]+| instead of .*)?", always("use_dict_get")),
    (r"(?:merge|combine|join) (?:the )?nested ifs?", always("merge_nested_if")),
    (r"(?:invert|flip|swap|reverse) (?:the )?(?:if|condition|branches)", always("swap_branches")),
    (
        r"return (?:it |the \w+ )?(?:directly|right away|right from (?:the )?\w+|straight(?: away)?)"
        r"(?:,? (?:no|without (?:a|the)) (?:temp(?:orary)? |local )?(?:variable|var|temp))?",
        always("return_directly"),
    ),
    (
        r"(?:(?:sum|any|all|join|min|max|sorted|set)(?:\(\))? does ?n[o']?t need (?:a|the) list(?: here)?[,;:] )?"
        r"(?:use|pass) (?:a |the )?generator(?: expression)?(?: instead of (?:a |the )?list(?: comprehension)?)?",
        always("use_generator"),
    ),
    (r"(?:use )?(?:raise )?from (?:e|err|exc|error|ex)|raise from|chain the exception", always("raise_from")),
    (rf"{DROP} (?:the |all )?{NEEDLESS}pass(?: statements?)?", always("remove_pass")),
    (rf"{DROP} (?:the |this |that |all )?comments?", always("remove_comments")),
    (rf"{DROP} (?:the |all )?(?:debug )?prints?(?: statements| calls)?", always("remove_prints")),
    (r"(?:use )?`?in`? instead of (?:the )?(?:two |both |several )?comparisons", always("use_in")),
    (r"(?:use )?(single|double)[- ]quotes?", lambda match, place: Call("quotes", (match[1].lower(),))),
    (r"(?:use |type hints with )?(?:x )?\| ?None instead of (?:typing\.)?Optional", always("optional_union")),
]
_PHRASES = (
    *names.RULES,
    *wordings.RULES,
    *style.RULES,
    *removals.RULES,
    *raising.RULES,
    *shapes.RULES,
    *inputs.RULES,
    *results.RULES,
    *small.RULES,
)
# In this order: the first rule that fits is taken.
_ALL = [
    *((phrase(text), rule) for text, rule in guards.RULES),
    *((phrase(text), rule) for text, rule in habits.RULES),
    *RULES,
    *((phrase(text), rule) for text, rule in _PHRASES),
]
_COMPILED = [(re.compile(pattern, re.IGNORECASE | re.DOTALL), rule) for pattern, rule in _ALL]
_KNOWN = frozenset(words(" ".join(pattern for pattern, _ in _ALL)))
