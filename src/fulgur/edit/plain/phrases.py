"""The notation for wordings: phrases with optional words, translated to regular expressions, and common fragments.

    [the] else is (needless|not needed)     words in brackets are optional, one of those in parentheses is required

Everything else is a regular expression; parentheses do not capture unless they have a name.
"""

from __future__ import annotations

import re

VALUE = r"(?P<value>.+)"
NAME = r"[`'\"]?(?P<name>[A-Za-z_]\w*)[`'\"]?"
ARG = r"(?:parameter|param|argument|arg|kwarg|option|flag)"
DROP = r"(?:remove|rm|drop|delete|del|get rid of|kill|strip|take out|lose|eliminate|no|no need for|skip)"
QUOTED = r"`[^`]+`|\"[^\"]*\"|'[^']*'|-?\d+(?:\.\d+)?"
_OPTIONAL = r"\[([A-Za-z'@][^\[\]\\_]*)\]"
_RUN = re.compile(rf"( ?)({_OPTIONAL}(?: {_OPTIONAL})*)(?![+*?{{]) ?")


def phrase(text: str) -> str:
    """The regular expression of a phrase."""
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", _RUN.sub(_optional, text))


def _optional(match: re.Match[str]) -> str:
    """Optional words, each with one of the spaces around it."""
    found = re.findall(_OPTIONAL, match[2])
    if not match[1] and not match[0].endswith(" "):
        return match[0]  # a character class
    if match[1]:
        return "".join(f"(?: (?:{words}))?" for words in found) + (" " if match[0].endswith(" ") else "")
    return "".join(f"(?:(?:{words}) )?" for words in found)
