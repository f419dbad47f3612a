"""The most common wordings: a table of patterns, each with its rule."""

from __future__ import annotations

from fulgur.edit.plain.annotations import annotate, hint_with_default, hints, returns
from fulgur.edit.plain.assignments import add_to, constant, set_value, switched, variable, version
from fulgur.edit.plain.definitions import (
    base,
    decorate,
    delete,
    delete_kind,
    docstring,
    function_of_lines,
    imports,
    inline,
    inline_this,
    make_async,
    move,
    unimport,
)
from fulgur.edit.plain.names import attribute, rename, visibility
from fulgur.edit.plain.parameters import default, new_parameter, remove_parameter
from fulgur.edit.plain.phrases import QUOTED
from fulgur.edit.plain.place import N, Q, Rule, always
from fulgur.edit.plain.raising import catch_instead, logged, named_exception, not_chained, swap_exception
from fulgur.edit.plain.replacing import instead, instead_in_call, quoted_swap, substitute
from fulgur.edit.plain.returns_and_tests import bare_return, flatten, is_true, swap_return
from fulgur.text.edit_format import Call

# Fragments of patterns.
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
RULES: list[tuple[str, Rule]] = [
    # names
    (rf"(?P<old>{QUOTED}) ?(?:->|=>|→) ?(?P<new>{QUOTED})", quoted_swap),
    (rf"renam(?:e|ing) {ART}(?:{KIND} )*(?:of |from )?{D}(?: {KIND})? {TO} (?:be )?{N}", rename),
    (r"(?:rename |change )?self\.(?P<old>\w+) ?(?:->|=>|→|to) ?self\.(?P<new>\w+)", attribute),
    (rf"{D}{ARROW}{N}", rename),
    (rf"s/{N}/{N}/g?", rename),
    (rf"{N} (?:should|must|needs to|ought to) be (?:called|named|renamed(?: to)?) {N}", rename),
    (rf"{N} is (?:an? )?(?:\w+ )?name[,.;:]? (?:use|call it|make it|rename (?:it )?to) {N}(?: instead)?", rename),
    (rf"{N} is (?:an? )?(?:\w+ )?name[,.;:]? {N} (?:would be|is) (?:better|clearer|nicer)", rename),
    (rf"make {N} (public|private)", visibility),
    (
        r"(?:use |log with )?(?:the |a )?(?P<logger>log(?:ger|ging)?)(?:\.(?P<level>\w+))?(?:\(\))?,? "
        r"(?:instead of|rather than|not) (?:the )?print(?:s|ing|\(\))?(?: statements?| calls?)?",
        logged,
    ),
    (
        r"(?:replace|change|turn|convert) (?:the |all )?prints?(?:\(\))?(?: statements?| calls?)? "
        r"(?:with|by|to|into) (?:a |the )?"
        r"(?P<logger>log(?:ger|ging)?)(?:\.(?P<level>\w+))?(?:\(\))?(?: calls?)?|"
        r"prints? ?(?:->|=>|→) ?(?P<logger2>log(?:ger|ging)?)(?:\.(?P<level2>\w+))?",
        logged,
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
    (rf"{DROP} (?:this|the) (?P<kind>function|method|class)(?: {Q}(?P<name>[A-Za-z_]\w*){Q})?", delete_kind),
    (rf"{DROP} (?:function |method |class )?{N}", delete),
    (rf"{DROP}()(?: (?:it|this|that))?", delete),
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
