"""How users word a new value, parameter, type or default: phrases (`phrases.py`), each with its rule."""

from __future__ import annotations

import re

from fulgur.edit.plain.annotations import parameter_type, result_type, same_type, typed
from fulgur.edit.plain.assignments import item, literal_constant, new_version, turned, value_or_default
from fulgur.edit.plain.definitions import decorated, documented, imported, other_base
from fulgur.edit.plain.parameters import keyword_only, optional, parameter_default, parameter_with, pass_keyword
from fulgur.edit.plain.phrases import ARG, DROP, NAME, QUOTED, VALUE
from fulgur.edit.plain.place import Rule
from fulgur.edit.plain.raising import asserted, caught, message, other_exception, raises
from fulgur.edit.plain.removals import unused, without_argument, without_call, without_statement, without_variable
from fulgur.edit.plain.replacing import other_method, other_methods, quoted_swap
from fulgur.edit.plain.returns_and_tests import looked_up, membership, other_test, returned, ternary_return
from fulgur.text.edit_format import Call


def _named(match: re.Match[str]) -> re.Match[str]:
    """The same match with the name in one place."""
    found = re.fullmatch(r"(?P<name>\w+)(?P<around>)", match["name"] or match["n2"])
    assert found is not None
    return found


RULES: list[tuple[str, Rule]] = [
    # signatures
    (
        rf"[make] [the] (?P<names>`?\w+`?((, ?| and | & |, and )`?\w+`?)*)( {ARG}s?)? [should be|must be|needs? to "
        rf"be|to be|be|are|is] [a] key-?word[- ]?only( {ARG}s?)?",
        keyword_only,
    ),
    (
        r"(force|require|only allow|pass(?=.* only\b)|accept) [the] (?P<names>`?\w+`?((, ?| and |, and )`?\w+`?)*)"
        rf"( {ARG}s?)? [to be passed|only|passed|must be passed] [only] (by|as|via) (key-?words?|name) [only]"
        rf"( {ARG}s?)?",
        keyword_only,
    ),
    # defaults and values
    (rf"{NAME} (should|must|needs to) be {VALUE} by default", parameter_default),
    (
        rf"(set|make|change|let) [the] ({ARG} )?{NAME}('s)? (default(s)? [value]) ?(to|be|=|:)? ?{VALUE}",
        parameter_default,
    ),
    (
        rf"(set|make|change|use) [the|a] default [number of|value of|value for|for|of] ({ARG} )?{NAME}( to| be| as|"
        rf":|=)? {VALUE}",
        parameter_default,
    ),
    (
        rf"[the] default [number of|value of|value for|for|of] ({ARG} )?{NAME}( is| to| should be|:| =|=) ?{VALUE}",
        parameter_default,
    ),
    (rf"(give|set) ({ARG} )?{NAME} [a|the] default [value]( of|:| to)? {VALUE}", parameter_default),
    (
        rf"[the] ({ARG} )?{NAME} [should|must|needs to|to] (have [a] )?default(s)? [value]( to| of| is|:)? {VALUE}",
        parameter_default,
    ),
    (
        rf"make ({ARG} )?{NAME} optional[,;]? (and |with [a] )?default(ing|s)? [value]( to| of|:| is)? {VALUE}",
        parameter_default,
    ),
    (rf"make [the] ({ARG} )?{NAME} [an] optional( {ARG})?", optional),
    (
        rf"[use] {NAME} ?=? (?P<value>\S+) (instead of|not|rather than) (?P<old>\S+?)( by default| as [the] "
        rf"default)?",
        value_or_default,
    ),
    (
        rf"[use] (?P<value>\S+) {NAME} (instead of|not|rather than) (?P<old>\S+?)( by default| as [the] default)?",
        parameter_default,
    ),
    (
        rf"(bump|set|change|update|increase|decrease|raise|lower|reduce) [the] [default] ({ARG} |constant )?{NAME} "
        rf"from (?P<old>\S+) to (?P<value>\S+)",
        value_or_default,
    ),
    (
        rf"(bump|set|change|update|increase|decrease|raise|lower|reduce|make) [the] [default] ({ARG} |constant "
        rf")?{NAME}( to| =|=)? {VALUE}",
        value_or_default,
    ),
    (rf"{NAME} ?= ?{VALUE}", parameter_default),
    (
        rf"{NAME} (should|must|needs to|has to) be (?P<value>\S+?)(,? (instead of|not|rather than) (?P<old>\S+))?",
        value_or_default,
    ),
    (
        r"(version|v)[: ] ?(?P<value>\d[\w.]*)|(new|next) version:? (?P<other>\d[\w.]*)",
        lambda match, place: new_version(match, place),
    ),
    (
        rf"{NAME} [should be] (?P<how>on|off|enabled|disabled|true|false) [by default]",
        lambda match, place: turned(match, place),
    ),
    # texts
    (
        rf"(change|update|switch|correct|fix|turn)( [the|this] (\w+ )?(text|message|string|value|result|default|"
        rf"error|key|label|name|prefix|suffix|separator|number))* [from] (?P<old>{QUOTED}) (to|into|->|=>|with|by) "
        rf"(?P<new>{QUOTED})",
        quoted_swap,
    ),
    (
        rf"[fix|correct|change] [the] (\w+ )?(message|text|string|typo)[:,]? (?P<old>{QUOTED}) ?(->|=>|→|to|should "
        rf"be) ?(?P<new>{QUOTED})",
        quoted_swap,
    ),
    (rf"(?P<old>{QUOTED}) ?(->|=>|→|to|should be|becomes) ?(?P<new>{QUOTED})", quoted_swap),
    (
        rf"(use |return |\w+ should be |([a-z]+ ){{1,3}})?(?P<new>{QUOTED}),? (instead of|not|rather than) "
        rf"(?P<old>{QUOTED})",
        quoted_swap,
    ),
    (r"[the] [error|exception] (message|text) (should (be|say|read)|to|:|must be) (?P<value>.+)", message),
    (r"(change|set|make|update) [the] [error|exception] (message|text) [to] (?P<value>.+)", message),
    (
        r"[use|call] (?P<new>\.?[a-z_]+(\(\))?),? (instead of|not|rather than|over) (?P<old>\.?[a-z_]+(\(\))?)",
        other_method,
    ),
    (
        r"[use|call] (?P<new>\.?[a-z_]+(\(\))?),? (instead of|not|rather than) (?P<old>\.?[a-z_]+\(\)(\.[a-z_]+\(\))+)",
        other_methods,
    ),
    (r"(replace|swap|change) (?P<old>\.?[a-z_]+(\(\))?) (with|by|for|to) (?P<new>\.?[a-z_]+(\(\))?)", other_method),
    # removals
    (
        rf"({DROP}) [the|that] ({NAME}\(\)|\.(?P<n2>\w+)(\(\))?) [call|wrapper]",
        lambda match, place: without_call(_named(match), place),
    ),
    (rf"({DROP}) [the|that] {NAME}(\(\))? (call|wrapper)", without_call),
    (rf"({DROP}) [the|that] {NAME}(\(\))? [call|wrapper] around [the|it's] (?P<around>.+)", without_call),
    (
        rf"[the] {NAME}\(\) [call] (is|isn'?t|is not) [not] (needed|necessary|required|redundant|useless|"
        rf"unnecessary|superfluous)( (here|any ?more|anyway|in py(thon)? ?3|after [the] \w+))?",
        without_call,
    ),
    (rf"[call] `?(?P<called>[\w.]+)`?(\(\))? without [the] [mode] (?P<argument>{QUOTED}|\w+=\S+)", without_argument),
    (
        rf"({DROP}) [the] (\w+ )?(?P<argument>{QUOTED}|\w+=\S+)( {ARG}| mode)? (from|in|to|of) [the] "
        rf"`?(?P<called>[\w.]+)`?(\(\))? [call]",
        without_argument,
    ),
    (
        rf"({DROP}) [the|that|this] (line|statement|call|assignment)? ?(?P<code>[^,]+?) [line|statement|call|"
        rf"assignment]",
        without_statement,
    ),
    (
        rf"{NAME}( ({ARG}|import|is|isn'?t|not|never))* (unused|not used|never used|used) [anywhere|any "
        rf"?more][,;:.]? [so] [please] ({DROP})( it| that| the ({ARG}|import))?",
        unused,
    ),
    (
        rf"({DROP}) [the] [unused|useless] ({ARG} )?{NAME}( {ARG})?(,? [it'?s|its] (unused|not used))?",
        lambda match, place: unused(match, place) if match["name"] in place.parameters() else None,
    ),
    (
        rf"({DROP}|inline) [the] (temp(orary)? |local |intermediate )?[variable|var] {NAME} [variable|var](,? "
        rf"[and] [just] return [it] (directly|right away|straight away|immediately))?",
        without_variable,
    ),
    (
        rf"[the] [variable|var] {NAME} [variable|var] is (pointless|useless|unnecessary|not needed|redundant|"
        rf"superfluous)(,? [just] return [it] directly|,? inline it|,? ({DROP}) it)?",
        without_variable,
    ),
    # tests, exceptions, decorators
    (
        r"(use |just |return |simply )*`?(?P<map>\w+)\.get(?P<given>\(.*?\))?`?(,? (instead of|rather than|not) .+)?",
        looked_up,
    ),
    (
        r"(use |just |simply )*`?(?P<test>[\w.]+ [not] in [\[({].+?[\])}])`?(,? (instead of|rather than|not) .+)?",
        membership,
    ),
    (
        r"(use |just |simply )*`?if (?P<new>.+?)`? [is enough|suffices],? (instead of|rather than|not|over) "
        r"`?(?P<old>.+?)`?",
        other_test,
    ),
    (
        r"(change|switch|turn) [the] (?P<old>[A-Z]\w*(Error|Exception|Warning)) (to|into) [an?] "
        r"(?P<new>[A-Z][\w.]*)",
        other_exception,
    ),
    (r"[it|this|the function|that] (should|must|needs to) (raise|throw) [an?] (?P<kind>[A-Z][\w.]*)", raises),
    (r"(raise|throw) [an?] (?P<kind>[A-Z][\w.]*) instead", raises),
    (r"(use )?[an?] (?P<kind>[A-Z]\w*(Error|Exception)) instead", raises),
    (
        r"(only catch|catch only|only handle|just catch) (?P<kind>[A-Z][\w.]*) [here]|(catch|handle|except) "
        r"(?P<kind2>[A-Z][\w.]*) only",
        lambda match, place: (
            Call("narrow_except", (match["kind"] or match["kind2"],)) if "except" in place.region else None
        ),
    ),
    (r"(add [an?] )?assert(ion)?( that|:)? (?P<test>.+)", asserted),
    (
        r"(decorate [it|this] with|add|put|use|cache (it|this|the results?) (with|using)|wrap [it|this] (with|"
        r"in)) [an?|the] (?P<with>@?(functools\.|contextlib\.)?(lru_cache|cache|cached_property|wraps|"
        r"contextmanager|staticmethod|classmethod|property|total_ordering)(\(.*\))?) [decorator]",
        decorated,
    ),
    # what is returned
    (r"(just |simply |directly |should |it should |must )*return `?(?P<value>.+? if .+ else .+?)`?", ternary_return),
    (r"(just |simply |directly |should |it should |must )*return (?P<value>.+?) [directly]", returned),
    # constants
    (
        rf"(make|turn|put|move|pull|extract|hoist|lift|factor) [out] [the] (?P<value>.+?) [out] (in(to)?|to|as|"
        rf"at)? ?[a|the] [new] (module[- ]level |module |global |named |class )?const(ant)?( called| named|,|:| "
        rf"with the "
        rf"name)? {NAME}",
        literal_constant,
    ),
    (
        rf"(introduce|add|define|create|use|need) [a|the] [new] (module[- ]level |global |named )?const(ant)?( "
        rf"called| named|,|:)? {NAME} (for|=|with|instead of|in place of) [the] (?P<value>.+)",
        literal_constant,
    ),
    (
        rf"[the] (magic (number|value|string) )?(?P<value>\S+) (should be|->|=>|to|into) [a|the] (module[- ]level |"
        rf"global |named )?const(ant)?( called| named|,|:)? {NAME}",
        literal_constant,
    ),
    (
        rf"(no magic number|magic number)[,;:]? [make] [the] (?P<value>\S+) (a |->|to )?[constant] [called|named] "
        rf"{NAME}",
        literal_constant,
    ),
    # types
    (r"[add] [type] (hints?|types?|annotations?) [for|to][:,]? (?P<hints>.+)", typed),
    (r"(annotate|type|hint|type[- ]hint) [it] [with|as] (?P<hints>.+)", typed),
    (r"(?P<hints>\w+: [\w.\[\]| ]+(, ?\w+: [\w.\[\]| ,]+?)*,? [and] (->|returns?|it returns) .+)", typed),
    (
        r"(it|this|function|method)? ?[always|only] returns [an?] (?P<hints>[\w.\[\], |]+?)[,;]? [so] (annotate|"
        r"hint|add|type|please annotate)( (it|that|the [return] (type|annotation|hint)))?",
        result_type,
    ),
    (
        rf"(type[- ]?hint|annotate|type|hint) {NAME} (as|with|to be|:) (?P<kind>[\w.\[\]| ]+?),? (and|same for) "
        rf"[the] returns? [type|value] (too|as well|also)",
        same_type,
    ),
    (
        rf"[the] ({ARG} )?{NAME} (is|should be|must be) (an? |of type |typed as |annotated as )(?P<kind>[\w.\[\]| "
        rf"]+)",
        parameter_type,
    ),
    # arguments
    (
        rf"(pass|add|give|specify|set|use) [an?|the] [explicit] {NAME}( ?= ?| )(?P<value>\"[^\"]*\"|'[^']*'|"
        rf"[\w.-]+)( {ARG})? (to|in|for|when calling|with) [the] `?(?P<called>[\w.]+)`?(\(\))? [calls?]",
        pass_keyword,
    ),
    (
        rf"[call] `?(?P<called>[\w.]+)`?(\(\))? [it|the file|call] (with|should (get|have|use|pass)|needs) [an?|"
        rf"the] [explicit] {NAME}( ?= ?| )(?P<value>\"[^\"]*\"|'[^']*'|[\w.-]+)",
        pass_keyword,
    ),
    (
        rf"(specify|set|use|add|with|explicit) [the|an] {NAME}( ?= ?| )(?P<value>\"[^\"]*\"|'[^']*'|[\w.-]+) (when|"
        rf"for|on|while) (opening|open) [the] [file]",
        pass_keyword,
    ),
    (
        rf"(add|take|accept|introduce|new|have|support) [an?|the] (new |optional )*{NAME} {ARG}(,? (and |with [an?|"
        rf"the] |that )?default(s|ing)? [value]( to| of|:| is)? ?{VALUE})",
        parameter_with,
    ),
    (
        rf"(add|take|accept|introduce|new|have|support) [an?|the] (new |optional )*{ARG} {NAME}(,? (and |with [an?|"
        rf"the] |that )?default(s|ing)? [value]( to| of|:| is)? ?{VALUE})",
        parameter_with,
    ),
    (
        rf"(add|take|accept|introduce|new|have|support) [an?|the] (new |optional )*({ARG} )?{NAME} ?= ?{VALUE}",
        parameter_with,
    ),
    # classes and handlers
    (
        r"((no need to|don'?t|do not|doesn'?t need to|shouldn'?t|stop) (inherit|inheriting|derive|deriving|"
        r"subclass|subclassing) [from] |(remove|drop|no|lose|without|get rid of) [the] [explicit] [base] "
        r")\(?object\)?( (base|parent|superclass|class|inheritance))*(,? it'?s python ?3)?",
        other_base,
    ),
    (
        r"(use |make it |make this )?[a] (python|py) ?3( ?-?style)? class(es)?(,? no \(?object\)?)?|(class \w+:? "
        r")(instead of|not|rather than) class "
        r"\w+\(object\):?",
        other_base,
    ),
    (
        r"(it |this |should |must |make (it|this) |let it )*(?P<also>also |additionally )?(inherit|derive|"
        r"subclass|extend|inherits)s? [from] (?P<new>[A-Z_][\w.]*)(?P<more> too| as well| also)?",
        other_base,
    ),
    (r"[also] (handle|catch|except|cover)(ing)? (?P<kind>[\w.]+)( too| as well| also)", caught("catch_also")),
    (r"also (handle|except|cover) (?P<kind>[\w.]+)", caught("catch_also")),
    (
        r"(add|include) (?P<kind>[A-Z][\w.]*) (to|in) [the] (excepts?|except clause|handler|caught exceptions|"
        r"exceptions|tuple) [tuple|clause]",
        caught("catch_also"),
    ),
    (
        r"(don'?t|do not|stop|no longer|never|shouldn'?t|should not)( (be))? ?(catch|catching|handle|handling|"
        r"swallow|swallowing) (?P<kind>[A-Z][\w.]*) [here|any ?more]",
        caught("uncatch"),
    ),
    (r"(remove|drop) (?P<kind>[A-Z][\w.]*) (from|in) [the] (excepts?|except clause|handler|tuple)", caught("uncatch")),
    # imports, lists, docstrings
    (
        r"(?P<line>(import|from) [\w. ]+) is missing|missing (?P<other>(import|from) [\w. ]+)",
        lambda match, place: imported(match["line"] or match["other"], place),
    ),
    (
        r"[we] need(s)? (?P<name>[\w.]+)[,;] [please] import it|[please] import [the] (?P<module>[\w.]+) [module]",
        lambda match, place: imported(f"import {match['name'] or match['module']}", place),
    ),
    (rf"(append|include|put|insert) (?P<value>.+?) (to|in|into|at the end of) {NAME}", item),
    (rf"{NAME} (should|must) [also] (contain|include|have) (?P<value>.+?) [too|as well|also]", item),
    (r"[add|write|give it] [a|the] (short |one[- ]line )?(docstring|doc|docs)[:,] (?P<text>.+)", documented),
    (r"document (it|this) [as][:,]? (?P<text>[\"'A-Z].+)", documented),
]
