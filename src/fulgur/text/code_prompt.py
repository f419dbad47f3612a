"""Builds prompts that fit the context of the embedded models, cut around the place in question.

Every door (commands, agent, HTTP, evaluation) builds its prompts here, so that the same question gets the same answer.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.text.edit_format import FILE, Piece, RecentEdit, Special, completion_pieces, edit_pieces

PREFIX_CHARS = 4200  # the most that a completion sees before and after the cursor
SUFFIX_CHARS = 1200
FOLLOWING = 2  # lines by which a whole guess is judged (`text/search.py`)
_LEEWAY = 1200  # a prefix that is too long begins within so many characters of its cut
UNNAMED = "main.py"  # every text the models were trained on had a name
ANSWER_ROOM, MARGIN = 1.5, 96  # an answer may be this much longer than its region
_SPARE = 16  # special tokens of a prompt
_LONGEST_TOKEN = 32  # characters per token: a text longer than that is cut before its tokens are counted
# The last piece of a text as the embedded tokenizer splits it, digits aside: they stand alone.
_DUNDER = r"__(?:[^\W\d_]+(?:_[^\W\d_]+)*_{0,2})?"  # __init__ and its beginnings
_SIGN = r"(?:[^\s\w]|_)"
_LAST_PIECE = re.compile(
    rf"(?:\r?\n[ \t]*(?:{_DUNDER}|{_SIGN}?[^\W\d_]+|{_SIGN}+)?"  # a line break, the indentation and a first word
    rf"|[ .]?{_DUNDER}"
    rf"|(?:(?<=[^\W_]){_SIGN}|[^\S\r\n])?[^\W\d_]+"  # a word, with one character before it
    rf"| ?{_SIGN}+"  # operators and brackets
    r"|[^\S\r\n]+)\Z"  # spaces inside a line
)
_LONGEST_PIECE = 64

Count = Callable[[str], int]


@dataclass(frozen=True)
class CodePrompt:
    """One prompt; `source` is the text the answer will mostly repeat."""

    pieces: Sequence[Piece]
    source: str | None = None
    max_tokens: int = 256
    one_line: bool = False  # the answer ends with its line
    begins: str = ""  # the end of the prefix, which the model writes again
    path: str = ""
    around: tuple[str, str] = ("", "")  # the text before and after a cursor
    forward: Sequence[Piece] = ()  # the text before it alone, as a file that is read from its top
    following: str = ""  # the next lines after it


def edit_request(
    count: Count,
    context: int,
    path: str,
    above: str,
    region: str,
    below: str,
    instruction: str | None,
    recent: Sequence[RecentEdit] = (),
) -> CodePrompt:
    """The prompt for an edit, its context cut so that an answer somewhat longer than the region fits."""
    size = count(region)
    fixed = size + count(f"{path}{instruction or ''}") + sum(count(e.before + e.after) + 8 for e in recent)
    most = context - fixed - _SPARE
    if most < size + MARGIN:
        raise FulgurError(f"the region is too large for the model ({size} tokens)", hint="Name a smaller part.")
    room = min(int(ANSWER_ROOM * size) + MARGIN, most)
    above, below = shortened(count, above, below, most - room)
    return CodePrompt(edit_pieces(path, above, region, below, instruction, recent), region, room)


def completion_request(
    count: Count,
    context: int,
    path: str,
    prefix: str,
    suffix: str,
    max_tokens: int,
    *,
    one_line: bool = False,
    suffix_first: bool = True,
) -> CodePrompt:
    """The prompt for a completion, its context cut to fit.

    A model trained with the suffix between prefix and answer completes a line better without it (21% of held-out lines
    against 13%): it loses sight of the prefix.
    """
    seen = prefix, suffix = around(prefix, suffix)
    prefix, begins = healed(prefix)
    suffix = "" if one_line and not suffix_first else suffix
    most = context - max_tokens - count(path) - count(begins) - _SPARE
    if most < 16:
        raise FulgurError(f"{max_tokens} tokens do not fit the model's context ({context})")
    prefix, suffix = shortened(count, prefix, suffix, most)
    pieces = completion_pieces(path, prefix, suffix, suffix_first=suffix_first)
    below = following(suffix) if one_line and suffix_first else ""
    forward: list[Piece] = [Special(FILE), f"{path}\n{prefix}"] if below else []
    return CodePrompt(pieces, None, max_tokens, one_line, begins, path, seen, forward, below)


def following(suffix: str) -> str:
    """The text after a cursor, to the end of the next lines that are not blank; empty when there are none."""
    rest, *lines = suffix.split("\n")
    said = [number for number, line in enumerate(lines, 1) if line.strip()][:FOLLOWING]
    return "\n".join([rest, *lines[: said[-1]], ""]) if said else ""


def healed(prefix: str) -> tuple[str, str]:
    """The text before a cursor, cut where a token may begin, and what the answer then begins with.

    `\n        `, ` name`, `.append` and `(self` are one token each. After `return r` the model has never seen `eturn`
    as a beginning; after `return` it writes ` result` when it must start with ` r`.
    """
    at = _LAST_PIECE.search(prefix, max(0, len(prefix) - _LONGEST_PIECE))
    return (prefix[: at.start()], at[0]) if at else (prefix, "")


def around(prefix: str, suffix: str) -> tuple[str, str]:
    """What a completion sees: the text next to the cursor, cut at whole lines."""
    if len(prefix) > PREFIX_CHARS:
        prefix = prefix[-PREFIX_CHARS:]
        prefix = prefix[steady_line(prefix, 0, _LEEWAY) :]
    if len(suffix) > SUFFIX_CHARS:
        suffix = suffix[:SUFFIX_CHARS]
        suffix = suffix[: suffix.rfind("\n") + 1] or suffix
    return prefix, suffix


def steady_line(text: str, first: int, last: int) -> int:
    """Where to cut a text between two offsets: at a line that stays the same while somebody types at the text's end.

    When the beginning of a prompt changes, all of it is computed anew. The least indented line wins; which of several
    depends on the line itself, not on its position.
    """
    starts = [match.end() for match in re.finditer(r"\n(?=[^\n])", text[first:last])]
    if not starts:
        return max(first, text.find("\n", first, last) + 1)

    def rank(start: int) -> tuple[int, int]:
        line = text[first + start : text.find("\n", first + start)]
        return len(line) - len(line.lstrip()), zlib.crc32(line.encode("utf-8", "surrogatepass"))

    return first + min(starts, key=rank)


def shortened(count: Count, above: str, below: str, most: int) -> tuple[str, str]:
    """Text before and after a place, cut at its far ends until it is at most this many tokens."""
    above, below = above[-most * _LONGEST_TOKEN :], below[: most * _LONGEST_TOKEN]
    while (above or below) and count(above + below) > most:
        if len(below) > len(above) // 2:
            below = below[: len(below) * 2 // 3] if len(below) > 20 else ""
        else:
            above = above[steady_line(above, len(above) // 4, len(above) // 2) :] if len(above) > 20 else ""
    return above, below


def trained_suffix_first(folder: Path) -> bool:
    """Whether a packed folder says that completions put the suffix before the prefix."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(config.get("fulgur", {}).get("fim") == "suffix-first")
