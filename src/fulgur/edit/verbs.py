"""The verbs that instructions begin with, and the polite phrases in front of them."""

from __future__ import annotations

import re

POLITE = (
    r"(?:(?:no|nope|wait|sorry)(?=,)|"  # as redirections begin
    r"please|pls|plz|hey|ok(?:ay)?|just|simply|can (?:you|we|i)|could (?:you|we)|should we|let'?s|we should|"
    r"you should|(?:i|we) (?:want|need) to|i'?d like to|need to|want to|go ahead and|try to|maybe|todo:?|nit:?|"
    r"minor:?|refactor:|fix:|cleanup:|style:|chore:)"
)
DELETE = (
    r"remove|rm|drop|delete|del|get rid(?: of)?|kill|strip|take out|lose|eliminate|erase|wipe(?: out)?|clear(?: out)?|"
    r"empty(?: out)?|trash|discard|unlink|truncate|throw away"
)
MOVE = r"rename|move|mv|relocate|copy|cp|duplicate|clone"
CREATE = r"create|touch|generate|new"
SPLIT = r"split(?: up)?|merge|join|concatenate|combine|divide|break up"
RUN = (
    r"run|execute|exec|test|start|launch|debug|profile|benchmark|build|compile|install|deploy|commit|push|publish|"
    r"release|review|explain|describe|summari[sz]e"
)
OPEN = r"open|close|save|show|view|read|display|cat|list|upload|download"
FORMAT = r"format|reformat|autoformat|lint|beautify|prettify|pretty-?print|black|indent|reindent"
UNDO = r"undo|revert|roll ?back|restore|take back"
CHANGE = (
    r"add|make|write|fix(?: up)?|improve|refactor|rewrite|optimi[sz]e|polish|enhance|clean(?: ?up)?|tidy(?: up)?|"
    r"moderni[sz]e|simplify|update|upgrade|change|edit|modify|finish|complete|continue|do|redo|reset|help|use|set|replace"
)
VAGUE = "|".join((DELETE, MOVE, CREATE, SPLIT, RUN, OPEN, FORMAT, UNDO, CHANGE))  # alone they ask for nothing
_TELLING = (
    r"inline|extract|convert|sort|document|annotate|type|raise|return|catch|handle|ignore|skip|avoid|prefer|prevent|"
    r"allow|accept|support|log|print|check|ensure|guard|assert|call|pass|give|let|put|turn|switch|swap|invert|flip|"
    r"reverse|wrap|unwrap|insert|append|include|exclude|keep|hide|disable|enable|increase|decrease|lower|bump|reduce|"
    r"cache|decorate|mark|pull|reorder|introduce|define|declare|override|implement|deprecate|expose|export|import|"
    r"correct|substitute|flatten|collapse"
)
VERBS = f"{VAGUE}|{_TELLING}"
_MODAL = r"should|must|needs?|ought|can|could|will|would|may|might|is|isn'?t|are|was|has|does|doesn'?t|never|always"
_FIRST = re.compile(
    rf"\s*(?:{POLITE}(?<=[\w:])[,:]?\s+)*(?:{VERBS})(?=\s+(?!(?:{_MODAL})\b)|[.!?]?\s*$)", re.IGNORECASE
)


def without_verb(instruction: str) -> str:
    """The instruction without its leading verb.

    "add a parameter" names no function `add`; "add should return a copy" and "add: return a copy" do.
    """
    return instruction[match.end() :] if (match := _FIRST.match(instruction)) else instruction
