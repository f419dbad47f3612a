"""Prompts of the embedded models that fit their context: cut around the place that is meant.

Every door (commands, agent, HTTP, evaluation) builds its prompts here, so that the same question gets the same answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.text.edit_format import Piece, RecentEdit, completion_pieces, edit_pieces

PREFIX_CHARS = 3600  # what a completion sees before and after the cursor
SUFFIX_CHARS = 1200
UNNAMED = "main.py"  # every text the models were trained on had a name
ANSWER_ROOM, MARGIN = 1.5, 96  # an answer may be this much longer than its region
_SPARE = 16  # special tokens of a prompt
_LONGEST_TOKEN = 32  # characters: a text longer than this a token is cut before it is counted

Count = Callable[[str], int]


@dataclass(frozen=True)
class CodePrompt:
    """One prompt; `source` is the text the answer will mostly repeat."""

    pieces: Sequence[Piece]
    source: str | None = None
    max_tokens: int = 256
    one_line: bool = False  # the answer ends with its line
    begins: str = ""  # the end of the prefix, left to the model to write
    plain: CodePrompt | None = None  # asked instead when the answer begins otherwise


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
    prefix, suffix = around(prefix, suffix)
    suffix = "" if one_line and not suffix_first else suffix
    most = context - max_tokens - count(path) - _SPARE
    if most < 16:
        raise FulgurError(f"{max_tokens} tokens do not fit the model's context ({context})")
    prefix, suffix = shortened(count, prefix, suffix, most)
    pieces = completion_pieces(path, prefix, suffix, suffix_first=suffix_first)
    plain = CodePrompt(pieces, None, max_tokens, one_line)
    # ` name`, `.append` and `(self` are one token each: a sign right before the cursor is given back to the model.
    sign = re.search(r"(?<=\S)[^\w\s]$|(?<=\S) $", prefix) if one_line else None
    if sign is None:
        return plain
    pieces = completion_pieces(path, prefix[: sign.start()], suffix, suffix_first=suffix_first)
    return CodePrompt(pieces, None, max_tokens + 1, one_line, sign[0], plain)


def around(prefix: str, suffix: str) -> tuple[str, str]:
    """What a completion sees: the text next to the cursor, cut at whole lines."""
    if len(prefix) > PREFIX_CHARS:
        prefix = prefix[-PREFIX_CHARS:]
        prefix = prefix[prefix.find("\n") + 1 :]
    if len(suffix) > SUFFIX_CHARS:
        suffix = suffix[:SUFFIX_CHARS]
        suffix = suffix[: suffix.rfind("\n") + 1] or suffix
    return prefix, suffix


def shortened(count: Count, above: str, below: str, most: int) -> tuple[str, str]:
    """Text before and after a place, cut at its far ends until it is at most this many tokens."""
    above, below = above[-most * _LONGEST_TOKEN :], below[: most * _LONGEST_TOKEN]
    while (above or below) and count(above + below) > most:
        if len(below) > len(above) // 2:
            below = below[: len(below) * 2 // 3] if len(below) > 20 else ""
        else:
            above = above[len(above) // 4 :] if len(above) > 20 else ""
    return above, below


def trained_suffix_first(folder: Path) -> bool:
    """Whether a packed folder says that completions put the suffix before the prefix."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(config.get("fulgur", {}).get("fim") == "suffix-first")
