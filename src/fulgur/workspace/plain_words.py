"""Match words of a question with words of code, which are split at capitals and underscores, and stemmed. Synonyms that
programmers use count too."""

from __future__ import annotations

import functools
import re

PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]+")
# Stop words of a question.
_COMMON = frozenset(
    """
    a an and are as at be been by can code class constant contains could defined definition define defines did do
    does doing done file files find for from function functions get gets give given gives handle handled handles
    has have how i if implement implemented implements in into is it its keep keeps kept live lives located
    made make makes many
    me method module much no not of on one or our own owned owns place project put puts responsible set should
    show so tell than that the their them then there these they thing this to too type use used uses using was we
    were what when where whether which who whose why will with would you
    """.split()  # noqa: SIM905 (a list of 120 literals is no easier to read)
)
# Each line is a set of synonyms.
_SAME = [
    line.split()
    for line in """
    argument arg argv param parameter
    option opt flag
    environment env environ envvar
    variable var envvar
    color colour ansi
    directory dir folder
    delete remove del erase strip discard drop
    print echo output
    terminal tty isatty console
    error exception fail failure err
    configuration config conf cfg setting
    message msg
    number num int float
    string str text
    database db sql
    password passwd pwd secret
    response resp answer reply
    temporary temp tmp
    maximum max limit capacity
    minimum min
    length len size
    connection conn socket
    address addr url uri host
    execute exec run
    previous prev
    reference ref
    authenticate auth login credential
    certificate cert ssl tls
    expression expr
    index idx
    value val
    image img picture
    disk file filesystem
    memory cache
    untrusted unsafe safe sandbox secure security
    split parse partition
    uppercase upper capital title
    suggest suggestion possibility similar
    timeout deadline expire
    wait sleep delay
    start begin launch spawn
    stop end terminate kill shutdown
    list enumerate walk
    change modify update edit
    copy clone duplicate
    check validate verify
    ask prompt input
    """.strip().splitlines()
]


@functools.lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The stem of a word: the same for `Caches`, `caching` and `cache`, and for `strip` and `stripped`."""
    word = word.lower()
    for ending in ("ations", "ation", "ically", "ings", "ing", "ies", "ers", "er", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz" and ending not in ("s", "e", "y"):
                word = word[:-1]
            break
    return word


@functools.lru_cache(maxsize=1 << 16)
def parts(name: str) -> frozenset[str]:
    """The stems of the parts of a name: for `load_KVBlocks`, those of load, kv and blocks."""
    return frozenset(stem(part) for part in PARTS.findall(name))


def asked_words(question: str) -> list[str]:
    """The words of a question without stop words, in lower case."""
    return list(dict.fromkeys(w.lower() for w in _WORD.findall(question) if w.lower() not in _COMMON))


def alternatives(word: str) -> dict[str, float]:
    """The stems that match a word of a question, each with its weight."""
    own = stem(word)
    found = {own: 1.0}
    for group in _SAMES:
        if own in group:
            found.update({other: 0.6 for other in group if other not in found})
    return found


_SAMES = [frozenset(map(stem, group)) for group in _SAME]
