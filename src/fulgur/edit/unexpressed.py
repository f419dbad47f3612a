"""Find words of an instruction that a refactoring call does not account for.

A model's call is a guess at what an instruction means. A word that the call cannot express ("negative", "and use it")
shows that the guess is wrong, so the edit is refused and that word is named.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from fulgur.edit.plain import core
from fulgur.edit.refactor.meaning import MEANINGS
from fulgur.text.edit_format import Call

_TAKING = "remove rm drop delete del rid kill strip take lose get unneeded unnecessary no not without"
_STOP = """a an the this that these those it its it's is are be been was to of in on for with by from into as at so or
out off over up please pls plz just simply only here there now we our us you your i me my he she they them
their should must need needs want wants would could can may might do does doesn't don't dont instead rather
than use using used uses make makes made let lets also too where which what who how if when then every all
each any some one it'll function func method class variable var name parameter param argument arg value code
file line lines place python py thing things way own other still again enough like really actually have has
had give gives given"""
# Words for a change in general, which add nothing to a call that the model is sure of.
_CHANGING = """change changes changing replace rewrite rewritten convert turn switch write written fix correct update
simplify simplified shorten modern modernize modernise python3 style pythonic idiomatic nicer cleaner clearer
needed need needs necessary required redundant useless old properly prefer introduce specify named called
proper explicit explicitly take new instead real actual current existing while thing"""
_TAKES_AWAY = """inline return_directly use_generator narrow_except early_return merge_nested_if modern_super
use_truthiness use_ternary use_dict_get use_in use_literal use_comprehension change_base use_fstring not_in"""


# Calls that write the same code in another way, or set what the instruction gives: words for a change in general, and
# words of the changed lines, add nothing to them.
_PLAIN = """is_none not_in use_isinstance optional_union use_truthiness modern_super drop_keys use_in
augmented_assignment use_literal chain_comparison use_fstring quotes early_return remove_else_return merge_nested_if
use_ternary use_dict_get use_with use_comprehension use_enumerate use_items use_any_all return_directly inline
use_generator remove_pass change_default set_value extract_constant add_keyword annotate annotate_return
sort_imports remove_unused_imports make_async log_entry"""


# The name of a function used as a place: in "also escape single quotes", `escape` is a verb.
_AS_PLACE = (
    r"(?:\b(?:in|of|for|to|on|from|the|this|inside|method|function|func|class|make|let|with|rename)\s+|^)`?{0}\b"
)


def unexpressed(call: Call, instruction: str, region: str, changed: Collection[str] = ()) -> str | None:
    """The first word of an instruction that the call does not account for; None when it accounts for all of them.

    `changed` are the words of the lines that the call changes; an instruction may name them ("use conf.get").
    """
    text = core(instruction)
    known = {word.lower() for word in f"{MEANINGS[call.name][1]} {_STOP}".split()}
    if call.name in _PLAIN.split():
        known |= {*_CHANGING.split(), *(word.lower() for word in changed)}
    if call.name.startswith(("remove_", "drop_", "delete_")) or call.name in _TAKES_AWAY.split():
        known |= set(_TAKING.split())
    if call.name == "extract_constant" and re.search(r"\bclass(?:[- ]level)? (?:const|attr|var)", text, re.IGNORECASE):
        return "class"  # it asks for a constant of the class, not of the module
    if call.name == "change_default" and (typed := re.search(r"\w+: ?(\w+)", text)):
        return typed[1]  # "size: int = 0" asks for the type too
    if call.name == "annotate_return" and not re.search(r"(?i)\b(?:annotat|hint|typ(?:e|ed|ing))|->|\bmypy", text):
        return "return"  # "return a dict" asks for another value
    if call.name == "add_parameter" and len(call.args) < 3:
        known -= {"and", "pass"}  # the call has no value to pass
    joined = " ".join(call.args)
    known |= {word.lower() for word in re.findall(r"\w+", joined)}
    # The name of the function or class that the instruction names as its place.
    head = re.search(r"(?:def|class)\s+(\w+)", region)
    if head and re.search(_AS_PLACE.format(re.escape(head[1])), text):
        known |= {head[1].lower()}
    for word in re.findall(r"[A-Za-z_][\w'-]*|\d+(?:\.\d+)*|[^\w\s'\"`,.;:!?()\[\]{}-]+", text):
        plain = word.lower().strip("'-")
        parts = [part for part in re.split(r"[-']", plain) if part]
        if plain in known or all(part in known or part in joined.lower() for part in parts):
            continue
        if plain.rstrip("s") in known or f"{plain}s" in known or not re.search(r"\w", plain):
            continue
        return str(word)
    return None
