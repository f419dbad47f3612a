"""The embedded model's own token format: completion, edit and next-edit prompts, and how its answers are read.

A prompt is a list of pieces: special tokens and plain text, kept apart so that text which happens to spell a special
token can never become one. The file's text comes first and the instruction last: the KV cache of the file is reused
while the instruction is typed or changed. Pure Python; nothing here needs a tokenizer loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

PAD = "<|pad|>"
EOS = "<|eos|>"
FIM_PREFIX = "<|fim_prefix|>"
FIM_SUFFIX = "<|fim_suffix|>"
FIM_MIDDLE = "<|fim_middle|>"
FILE = "<|file|>"
REGION = "<|region|>"
AFTER = "<|after|>"
RECENT = "<|recent|>"
INSTRUCTION = "<|instruction|>"
REWRITE = "<|rewrite|>"
NOEDIT = "<|noedit|>"
CALL = "<|call|>"
END = "<|end|>"
CURSOR = "<|cursor|>"

SPECIAL_TOKENS: tuple[str, ...] = (
    PAD, EOS, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FILE, REGION, AFTER, RECENT, INSTRUCTION, REWRITE, NOEDIT, CALL, END,
    CURSOR,
    *(f"<|reserved_{i}|>" for i in range(9)),
)  # fmt: skip
SPECIAL_IDS: dict[str, int] = {token: index for index, token in enumerate(SPECIAL_TOKENS)}


@dataclass(frozen=True)
class Special:
    """One special token of a prompt."""

    token: str


Piece = Special | str


@dataclass(frozen=True)
class RecentEdit:
    """A change made a moment ago: whole lines before and after it."""

    before: str
    after: str


@dataclass(frozen=True)
class Rewrite:
    """The region's new text."""

    text: str


@dataclass(frozen=True)
class NoEdit:
    """Nothing to change, or nothing the model can do."""


@dataclass(frozen=True)
class Call:
    """A refactoring that the deterministic engine applies."""

    name: str
    args: tuple[str, ...] = ()


Answer = Rewrite | NoEdit | Call


class PieceEncoder(Protocol):
    """What `encode_pieces` needs of a tokenizer (`fulgur.text.tokenizer.Tokenizer` has it)."""

    def encode(self, text: str, *, special: bool = ...) -> list[int]: ...
    def token_id(self, piece: str) -> int | None: ...


def completion_pieces(path: str, prefix: str, suffix: str, *, suffix_first: bool = False) -> list[Piece]:
    """Fill in the middle. Suffix first, the answer follows its prefix directly, and typing only adds to the prompt."""
    before: list[Piece] = [Special(FIM_PREFIX), prefix]
    after: list[Piece] = [Special(FIM_SUFFIX), suffix]
    parts = [*after, *before] if suffix_first else [*before, *after]
    return [Special(FILE), f"{path}\n", *parts, Special(FIM_MIDDLE)]


def edit_pieces(
    path: str,
    above: str,
    region: str,
    below: str,
    instruction: str | None,
    recent: Sequence[RecentEdit] = (),
) -> list[Piece]:
    """Rewrite a region as the instruction says; with recent edits and no instruction, predict the next edit."""
    if instruction is None and not recent:
        raise ValueError("an edit prompt needs an instruction or recent edits")
    pieces: list[Piece] = [Special(FILE), f"{path}\n{above}", Special(REGION), region, Special(AFTER), below]
    if recent:
        pieces += [Special(RECENT), format_recent(recent)]
    if instruction is not None:
        pieces += [Special(INSTRUCTION), instruction]
    return [*pieces, Special(REWRITE)]


def pieces_text(pieces: Iterable[Piece]) -> str:
    """A prompt as one text, special tokens spelled out."""
    return "".join(piece.token if isinstance(piece, Special) else piece for piece in pieces)


def encode_pieces(tokenizer: PieceEncoder, pieces: Iterable[Piece]) -> list[int]:
    """Token ids of a prompt; the text pieces can never yield special tokens."""
    tokens: list[int] = []
    for piece in pieces:
        if isinstance(piece, Special):
            token = tokenizer.token_id(piece.token)
            if token is None:
                raise ValueError(f"the tokenizer has no token {piece.token}")
            tokens.append(token)
        elif piece:
            tokens += tokenizer.encode(piece, special=False)
    return tokens


def format_recent(edits: Sequence[RecentEdit]) -> str:
    """Recent edits, oldest first: the lines before with `-`, the lines after with `+`, an empty line between edits."""
    blocks = []
    for edit in edits:
        lines = [f"-{line}" for line in edit.before.splitlines()] + [f"+{line}" for line in edit.after.splitlines()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


_QUOTED = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")


def answer_pieces(answer: Answer) -> list[Piece]:
    """What the model is trained to write for an answer."""
    if isinstance(answer, Rewrite):
        return [answer.text, Special(END)]
    if isinstance(answer, Call):
        return [Special(CALL), format_call(answer), Special(END)]
    return [Special(NOEDIT), Special(END)]


def format_call(call: Call) -> str:
    """`rename old new`, as a model writes it; `edit.refactor.meaning` has it in words."""
    return " ".join((call.name, *call.args))


def split_arguments(text: str) -> list[str]:
    """Split into words; a quoted string or a text in brackets belongs to one word, spaces and all."""
    words, current, depth, at = [], "", 0, 0
    while at < len(text):
        quoted = _QUOTED.match(text, at)
        piece = quoted[0] if quoted else text[at]
        depth = max(0, depth + (piece in "([{") - (piece in ")]}"))
        if piece.isspace() and depth == 0:
            words.append(current)
            current = ""
        else:
            current += piece
        at += len(piece)
    return [word for word in [*words, current] if word]


def parse_call(text: str) -> Call | None:
    """`rename old new` as a Call. None when there is no name."""
    words = split_arguments(text)
    if not words or not words[0].isidentifier():
        return None
    return Call(words[0], tuple(words[1:]))


def parse_answer(text: str) -> Answer:
    """Read what the model wrote (special tokens spelled out; everything from `<|end|>` on is ignored)."""
    body = text.split(END, 1)[0].split(EOS, 1)[0]
    if body.startswith(NOEDIT):
        return NoEdit()
    if body.startswith(CALL):
        return parse_call(body[len(CALL) :]) or NoEdit()
    return Rewrite(body)
