"""Learn a rule from how the last change altered a line, and apply it to the other lines that the rule fits.

The tokens around a change anchor it. The first rule requires the whole line as it was. Each further rule requires
less: fewer tokens around the change, any name in place of a name, any expression between two changes. The first rule
that fits another line wins.
"""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property, lru_cache

_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")
_NAME = re.compile(r"[^\W\d]\w*")
_START, _END = "\0start", "\0end"  # of a line, as tokens
_FIXED = frozenset((*keyword.kwlist, "self", "cls", "print"))  # never match another name
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_PREFIXES = frozenset("fbrFBR")  # of strings
_CONDITIONS = frozenset(("and", "or", "not"))
_MOST_CHANGES = 6  # in a line: more is a rewrite
_MOST_TOKENS = 400  # in a line: a longer one is data


class Around(Enum):
    """How much around a change must match."""

    LINE = auto()  # the whole line
    THREE = auto()  # three tokens before and after it
    TWO = auto()
    ONE = auto()
    BEFORE = auto()  # three before it, one after it
    BEHIND = auto()  # one before it, three after it
    SHAPE = auto()  # the whole line, with any names


_COUNTS = {
    Around.THREE: (3, 3),
    Around.TWO: (2, 2),
    Around.ONE: (1, 1),
    Around.BEFORE: (3, 1),
    Around.BEHIND: (1, 3),
}  # how many tokens before and after a change


class Between(Enum):
    """What may appear between two changes of a line."""

    SAME = auto()
    NAMES = auto()  # the same code with any names
    ANYTHING = auto()  # any expression


# How many distinctive words a rule must contain: if the change removes one, and if it only adds or moves tokens.
# Chosen on changes between releases (docs/model.md). None: the rule is wrong too often.
_LEVELS: tuple[tuple[Around, Between, int | None, int | None], ...] = (
    (Around.LINE, Between.SAME, 0, 1),
    (Around.THREE, Between.SAME, 2, 1),
    (Around.LINE, Between.NAMES, 0, 0),
    (Around.THREE, Between.NAMES, 0, 0),
    (Around.SHAPE, Between.SAME, 1, 1),
    (Around.TWO, Between.SAME, 1, 2),
    (Around.THREE, Between.ANYTHING, 0, 0),
    (Around.SHAPE, Between.NAMES, 0, 0),
    (Around.TWO, Between.NAMES, 0, 0),
    (Around.TWO, Between.ANYTHING, 0, 0),
    (Around.BEFORE, Between.SAME, 1, 2),
    (Around.BEHIND, Between.SAME, 1, 2),
    (Around.BEFORE, Between.NAMES, 0, 0),
    (Around.BEHIND, Between.NAMES, 0, 0),
    (Around.BEFORE, Between.ANYTHING, 1, 1),
    (Around.BEHIND, Between.ANYTHING, 1, 1),
    (Around.ONE, Between.SAME, 2, None),
)


@dataclass(frozen=True)
class Hole:
    """A placeholder in a rule: it matches any name, or any expression."""

    number: int
    name: bool


Pattern = tuple[str | Hole, ...]


@dataclass(frozen=True)
class Rule:
    """`old` becomes `new` between `left` and `right`, which contain no placeholders for expressions."""

    left: Pattern
    old: Pattern
    new: Pattern
    right: Pattern
    around: Around
    between: Between

    def applied(self, line: str) -> str:
        """The line with the rule applied everywhere it fits."""
        if not all(part in line for part in self._words):
            return line
        tokens = _tokens(line.strip())
        if len(tokens) > _MOST_TOKENS:
            return line
        pattern = (*self.left, *self.old, *self.right)
        out: list[str] = []
        at = changed = 0
        while at < len(tokens):
            begin = at - len(self.left)
            found = _match(pattern, tokens, begin) if begin >= 0 else None
            if found is None:
                out.append(tokens[at])
                at += 1
                continue
            end, filled = found
            for part in self.new:
                out += [part] if isinstance(part, str) else tokens[slice(*filled[part.number])]
            changed += 1
            if (end := end - len(self.right)) == at:  # a pure insertion
                out.append(tokens[at])
                at += 1
            at = max(at, end)
        if not changed:
            return line
        new = "".join(token for token in out if token not in (_START, _END))
        return line[: len(line) - len(line.lstrip())] + new + line[len(line.rstrip()) :]

    @cached_property
    def _words(self) -> list[str]:
        """Tokens that a line must contain; tested before it is tokenized."""
        parts = {part for part in (*self.left, *self.old, *self.right) if isinstance(part, str)}
        return sorted((part for part in parts if part not in (_START, _END)), key=len, reverse=True)

    @property
    def gives_none(self) -> bool:
        """Whether the rule adds `-> None`."""
        return "->" in self.added and re.sub(r"\s", "", self.added).endswith("->None")

    @property
    def added(self) -> str:
        """The tokens that are in `new` but not in `old`, joined."""
        old = [part for part in self.old if isinstance(part, str)]
        return "".join(part for part in self.new if isinstance(part, str) and part not in old)


def rules(before: str, after: str) -> Iterator[Rule]:
    """Rules that turn the line `before` into `after`, the strictest first."""
    before, after = before.strip(), after.strip()
    old, new = _tokens(before), _tokens(after)
    if max(len(old), len(new)) > _MOST_TOKENS:
        return
    runs = _runs(old, new)
    changes = [index for index, (same, *_) in enumerate(runs) if not same]
    if not 1 <= len(changes) <= _MOST_CHANGES:
        return
    runs, left, right = (
        runs[changes[0] : changes[-1] + 1],
        old[: runs[changes[0]][1]],
        old[runs[changes[-1]][2] :],
    )
    for around, between, least_gone, least_added in _LEVELS:
        if len(changes) == 1 and between is not Between.SAME:
            continue
        if (rule := _rule(old, new, runs, left, right, around, between)) is None:
            continue
        least = least_gone if _loses_word(rule.old, rule.new) else least_added
        if rule.gives_none and "def" in old:
            least = 0  # whether a function returns nothing can be checked
        words = sum(_distinctive(part) for part in (*rule.left, *rule.old, *rule.right))
        if least is None or words < least or not _meant_for_others(rule, words):
            continue
        if rule.applied(before) == after:
            yield rule


def _meant_for_others(rule: Rule, words: int) -> bool:
    """Whether a change may be meant for other lines.

    A comment is about its line, a return type about its function, the f of a string about its content. A condition, or
    a changed True or False, is a decision for one place.
    """
    comment = "#" in rule.old or "#" in rule.new
    if rule.around is Around.LINE:
        return not comment or words > 1
    if comment or rule.added in _PREFIXES or ("->" in rule.added and not rule.gives_none):
        return False
    if _CONDITIONS & {part for part in rule.new if part not in rule.old}:
        return False
    if rule.between is Between.ANYTHING and rule.right[:1] == (_END,) and not _loses_word(rule.old, rule.new):
        return False  # an addition around whatever ends a line
    return not any(re.search("True|False", part) for part in rule.old if isinstance(part, str) and part not in rule.new)


def _rule(
    old: Sequence[str],
    new: Sequence[str],
    runs: list[tuple[bool, int, int, int, int]],
    left: Sequence[str],
    right: Sequence[str],
    around: Around,
    between: Between,
) -> Rule | None:
    holes = 0
    found: list[str | Hole] = []
    written: list[str | Hole] = []
    for same, a, b, c, d in runs:
        if not same:
            found += old[a:b]
            written += new[c:d]
            continue
        part: Sequence[str | Hole] | None = old[a:b]
        if between is Between.NAMES:
            part = _any_names(old[a:b], holes)
        elif between is Between.ANYTHING:
            part = _any_expression(old[a:b], holes)
        if part is None:
            return None
        holes += sum(isinstance(one, Hole) for one in part)
        found += part
        written += part
    before: Sequence[str | Hole] = left
    behind: Sequence[str | Hole] = right
    if around is Around.SHAPE:
        before = _any_names(left, holes)
        behind = _any_names(right, holes + len(left))
        if not _loses_word(found, written):
            # The names next to an addition stay fixed: what is added to `state` is not meant for any other name.
            before, behind = [*before[:-1], *left[-1:]], [*right[:1], *behind[1:]]
    elif around is not Around.LINE:
        counts = _COUNTS[around]
        before, behind = _nearest(left[::-1], counts[0])[::-1], _nearest(right, counts[1])
    return Rule(tuple(before), tuple(found), tuple(written), tuple(behind), around, between)


@lru_cache(maxsize=4096)
def _tokens(text: str) -> tuple[str, ...]:
    return (_START, *_TOKEN.findall(text), _END)


def _runs(old: Sequence[str], new: Sequence[str]) -> list[tuple[bool, int, int, int, int]]:
    """Alternating runs that stayed (True) and that changed; a space between two changes belongs to them."""
    runs: list[tuple[bool, int, int, int, int]] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        same = tag == "equal" and not (runs and not runs[-1][0] and b < len(old) and "".join(old[a:b]).isspace())
        if runs and runs[-1][0] == same:
            _, a, _, c, _ = runs.pop()
        runs.append((same, a, b, c, d))
    return runs


def _distinctive(part: str | Hole) -> bool:
    return isinstance(part, str) and len(part) > 2 and _is_name(part)


def _loses_word(old: Sequence[str | Hole], new: Sequence[str | Hole]) -> bool:
    return any(_distinctive(part) and part not in new for part in old)


def _is_name(token: str) -> bool:
    return _NAME.fullmatch(token) is not None and token not in _FIXED


def _any_names(tokens: Sequence[str], first: int) -> list[str | Hole]:
    return [Hole(first + at, True) if _is_name(token) else token for at, token in enumerate(tokens)]


def _any_expression(tokens: Sequence[str], number: int) -> list[str | Hole] | None:
    """A hole in place of the tokens, keeping spaces at its ends; None when they are no whole expression."""
    inner = tokens[bool(tokens[:1] and tokens[0].isspace()) : len(tokens) - (len(tokens) > 1 and tokens[-1].isspace())]
    if not any(token[0].isalnum() or token[0] == "_" for token in inner):
        return list(tokens)
    if len(inner) not in _ends(inner, 0):
        return None
    at = tokens.index(inner[0])
    return [*tokens[:at], Hole(number, False), *tokens[at + len(inner) :]]


def _nearest(tokens: Sequence[str], count: int) -> list[str]:
    """The first `count` tokens that are not spaces, with the spaces between them."""
    taken: list[str] = []
    for token in tokens:
        if not count:
            break
        taken.append(token)
        count -= not token.isspace()
    return taken


def _ends(tokens: Sequence[str], at: int) -> Iterator[int]:
    """Where an expression that begins at a token may end, nearest first: brackets and quotes closed, no comma."""
    open_brackets: list[str] = []
    quote = ""
    while at < len(tokens) and tokens[at] not in (_START, _END):
        token = tokens[at]
        at += 1
        if quote:
            at += token == "\\"
            quote = "" if token == quote else quote
        elif token in ("'", '"'):
            quote = token
        elif token in _CLOSING:
            open_brackets.append(_CLOSING[token])
        elif token in (")", "]", "}"):
            if not open_brackets or open_brackets.pop() != token:
                return
        elif token == "," and not open_brackets:
            return
        if not open_brackets and not quote:
            yield at


def _match(pattern: Pattern, tokens: Sequence[str], at: int) -> tuple[int, dict[int, tuple[int, int]]] | None:
    """The end of a pattern that begins at a token, and the token span that each hole matches.

    An expression hole takes the shortest match after which the pattern fits up to its next expression hole.
    """
    filled: dict[int, tuple[int, int]] = {}
    expression: Hole | None = None
    for fixed, following in _split(pattern):
        if expression is None:
            if (end := _fits(fixed, tokens, at, filled)) is None:
                return None
        else:
            for stop in _ends(tokens, at):
                if (end := _fits(fixed, tokens, stop, filled)) is not None:
                    filled[expression.number] = at, stop
                    break
            else:
                return None
        at, expression = end, following
    return at, filled


@lru_cache(maxsize=256)
def _split(pattern: Pattern) -> list[tuple[Pattern, Hole | None]]:
    """The fixed parts of a pattern, each with the expression hole that follows it."""
    parts: list[tuple[Pattern, Hole | None]] = []
    begin = 0
    for index, part in enumerate(pattern):
        if isinstance(part, Hole) and not part.name:
            parts.append((pattern[begin:index], part))
            begin = index + 1
    return [*parts, (pattern[begin:], None)]


def _fits(pattern: Pattern, tokens: Sequence[str], at: int, filled: dict[int, tuple[int, int]]) -> int | None:
    """Where a pattern without expression holes ends if it matches at a token, else None; fills its name holes."""
    if at + len(pattern) > len(tokens):
        return None
    for part, token in zip(pattern, tokens[at : at + len(pattern)], strict=True):
        if isinstance(part, Hole):
            if not _is_name(token):
                return None
            filled[part.number] = at, at + 1
        elif token != part:
            return None
        at += 1
    return at
