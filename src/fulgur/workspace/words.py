"""Find words that look like code in what the user writes."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"[`'\"]([^`'\"\s]+)[`'\"]")
_CALLED = re.compile(r"([\w.]+)\(")
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_SHAPED = re.compile(r"_|\.|[a-z0-9][A-Z]|[A-Z]{2}|\d")


def code_words(text: str) -> list[str]:
    """Names that are not English, most certain first: quoted, called, or with `_`, `.`, digits or inner capitals."""
    shaped = [word for word in _NAME.findall(text) if _SHAPED.search(word)]
    found = [*_QUOTED.findall(text), *_CALLED.findall(text), *shaped]
    return list(dict.fromkeys(name for word in found if (name := word.strip("()."))))
