"""Other words for an instruction in training: what the lists say, with synonyms and asides."""

from __future__ import annotations

import random
import re

SHARE = 0.45  # fraction of the training instructions that are put into other words
OPENINGS = [
    "I want to", "I'd like to", "we should", "let's", "time to", "need to", "you should", "go ahead and", "just",
    "now", "quick fix:", "refactor:", "next,", "it would be good to", "would you", "help me", "todo:", "make sure to",
    "then", "also", "- ", "try to", "we need to", "my reviewer wants me to", "better to",
]  # fmt: skip
ENDINGS = [
    "here", "in this code", "in this piece", "if possible", "for readability", "as the linter says", "now", "ok",
    "so that it is clearer", "like we do elsewhere", "would be nicer", "in the selection", "as usual", "thx", "!",
]  # fmt: skip
# Phrases that can replace one another in any of the lists; `_` words begin an instruction.
_SETS = [
    "remove|delete|drop|get rid of|take out|strip|cut|eliminate|erase|throw out",
    "add|insert|put in|introduce|include",
    "_use|_switch to|_go for|_prefer|_change to|_work with|_make use of",
    "_convert|_turn|_change|_rewrite|_transform|_refactor",
    "_simplify|_shorten|_condense|_reduce|_tidy up|_clean up|_streamline",
    "_replace|_swap out|_exchange|_substitute",
    "_wrap|_enclose|_surround|_envelop",
    "_merge|_combine|_join|_fold together|_unite",
    "_rename|_give a new name to|_change the name of",
    "_extract|_pull out|_factor out|_lift out",
    "_annotate|_type|_add types to",
    "_update|_adjust|_modify|_edit|_change",
    "_make|_have|_let",
    "_check|_test|_verify",
    "_sort|_order|_arrange",
    "_log|_write a log line for|_record",
    "instead of|rather than|in place of",
    "parameter|param|argument|arg",
    "arguments|args|parameters|params",
    "function|method|func|routine",
    "variable|var|local variable",
    "docstring|doc string|documentation|docs",
    "type hints|type annotations|annotations|hints|typing",
    "should be|must be|has to be|ought to be|needs to be",
    "should not|must not|shouldn't|ought not to",
    "if/else|if-else|if else|if and else|conditional",
    "don't|do not|dont",
    "can you|could you|will you|would you|are you able to",
    "exception|error",
    "called|named|with the name",
    "directly|right away|straight away|immediately|at once",
    "unused|unneeded|not used|dead|superfluous",
    "decorator|decoration",
    "constant|module constant|named constant",
    "list comprehension|comprehension|listcomp",
    "redundant|needless|unnecessary|pointless|superfluous",
    "callers|call sites|usages|calls",
    "default|default value",
]
CASUAL = 0.25  # fraction of the training instructions that are written in haste
REASONS = [
    "it confuses people", "the linter complains", "review comment", "easier to read", "we never use it", "it's ugly",
    "it keeps breaking", "for the new API", "mypy is unhappy", "nobody understands it", "python 3.12", "house style",
    "the old way is deprecated", "I keep forgetting", "it is clearer", "for consistency", "as discussed",
]  # fmt: skip
_SHORT = {
    "function": "fn", "parameter": "param", "parameters": "params", "argument": "arg", "arguments": "args",
    "variable": "var", "default": "dflt", "string": "str", "dictionary": "dict", "docstring": "docs", "and": "&",
    "without": "w/o", "with": "w/", "because": "bc", "comprehension": "comp", "exception": "exc", "return": "ret",
    "annotations": "types", "message": "msg", "please": "pls", "something": "sth", "import": "imp", "value": "val",
}  # fmt: skip
_OTHERS: dict[str, list[str]] = {}
for _line in _SETS:
    for _phrase in _line.split("|"):
        _OTHERS.setdefault(_phrase.lstrip("_"), []).extend(p for p in _line.split("|") if p != _phrase)
_FIRST = {p.lstrip("_") for line in _SETS for p in line.split("|") if p.startswith("_")}
_PATTERN = re.compile(
    r"(?<![\w{@.'/-])(" + "|".join(re.escape(p) for p in sorted(_OTHERS, key=len, reverse=True)) + r")(?![\w}(='./:-])"
)


def paraphrase(template: str, rng: random.Random, *, verb: bool) -> str:
    """Change some words of a template; `verb`: it begins with a verb, so words may be put before it."""
    budget = rng.choice((1, 1, 2, 2, 3))

    def other(match: re.Match[str]) -> str:
        nonlocal budget
        begins = match.start() == 0
        choices = [p.lstrip("_") for p in _OTHERS[match[1]] if p.startswith("_") <= begins]
        if (match[1] in _FIRST and not begins) or not choices or budget <= 0 or rng.random() < 0.35:
            return match[1]
        budget -= 1
        return rng.choice(choices)

    text = _PATTERN.sub(other, template)
    if verb and rng.random() < 0.25:
        text = f"{rng.choice(OPENINGS)} {text}"
    if rng.random() < 0.15 and text[-1] not in ".?!":
        text = f"{text} {rng.choice(ENDINGS)}"
    return text


def casual(template: str, rng: random.Random) -> str:
    """Write it in haste: no articles, short words, no capitals, with a reason or with the point first."""
    parts = template.split(" ")
    if rng.random() < 0.6:
        kept = [word for word in parts if word.lower() not in ("the", "a", "an", "this", "that")]
        parts = kept if len(kept) > 1 else parts
    if rng.random() < 0.35:
        parts = [_SHORT.get(word, word) if rng.random() < 0.6 else word for word in parts]
    text = " ".join(parts)
    if rng.random() < 0.3:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.3 and text[-1] not in ".?!":
        text += rng.choice((", ", " - ", " because ", " bc ", "; ")) + rng.choice(REASONS)
    elif rng.random() < 0.1:
        text = f"{rng.choice(REASONS)}: {text}"
    return text
