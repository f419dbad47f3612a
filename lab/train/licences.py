"""Which licences the corpus may use, according to a distribution's own metadata."""

from __future__ import annotations

import re
from email.message import Message

PERMISSIVE = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSD", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC",
        "MIT", "MIT-0", "MIT-CMU", "NCSA", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib", "Public-Domain",
    }
)  # fmt: skip

# Free-text licence names as packages write them, the most specific first. A copyleft word overrides all of these.
_COPYLEFT = re.compile(
    r"gpl|lesser general|mozilla|mpl|eclipse|\bepl|cddl|cecill|eupl|sspl|proprietary|commercial", re.I
)
_NAMES = (
    (re.compile(r"apache", re.I), "Apache-2.0"),
    (re.compile(r"mit no attribution|mit-0", re.I), "MIT-0"),
    (re.compile(r"\bmit\b|permission is hereby granted, free of charge", re.I), "MIT"),
    (re.compile(r"3-clause|bsd-3|new bsd|revised bsd", re.I), "BSD-3-Clause"),
    (re.compile(r"2-clause|bsd-2|simplified bsd|freebsd", re.I), "BSD-2-Clause"),
    (re.compile(r"\bbsd\b|redistribution and use in source", re.I), "BSD"),
    (re.compile(r"\bisc\b", re.I), "ISC"),
    (re.compile(r"python software foundation|\bpsf", re.I), "PSF-2.0"),
    (re.compile(r"unlicense", re.I), "Unlicense"),
    (re.compile(r"zlib", re.I), "Zlib"),
    (re.compile(r"public domain", re.I), "Public-Domain"),
)


def permitted(expression: str | None) -> bool:
    """Whether an SPDX expression permits using the code: every part of an AND, one part of an OR."""
    if not expression:
        return False
    plain = re.sub(r"\s+WITH\s+[\w.-]+", "", expression)
    words = re.findall(r"[()]|[^\s()]+", plain)
    try:
        value, rest = _any_of(words)
    except IndexError:
        return False
    return value and not rest


def _any_of(words: list[str]) -> tuple[bool, list[str]]:
    """Parse `A OR B OR …`: return whether one is permitted, and the remaining words."""
    value, words = _all_of(words)
    while words[:1] == ["OR"]:
        other, words = _all_of(words[1:])
        value = value or other
    return value, words


def _all_of(words: list[str]) -> tuple[bool, list[str]]:
    value, words = _one(words)
    while words[:1] == ["AND"]:
        other, words = _one(words[1:])
        value = value and other
    return value, words


def _one(words: list[str]) -> tuple[bool, list[str]]:
    if words[0] != "(":
        return words[0] in PERMISSIVE, words[1:]
    value, words = _any_of(words[1:])
    return value and words[0] == ")", words[1:]


def licence_of(metadata: Message) -> str | None:
    """The SPDX expression of a distribution: from its licence expression, its classifiers or its licence text."""
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression).strip()
    classifiers = [c.split("::")[-1].strip() for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    text = str(metadata.get("License") or "").strip()
    for source in (" / ".join(classifiers), text[:300]):
        if not source or source == "OSI Approved":
            continue
        if _COPYLEFT.search(source):
            return None
        for pattern, spdx in _NAMES:
            if pattern.search(source):
                return spdx
    return None
