"""The parts of an answer while it streams: one vocabulary for splitters, backends and the server. Types only.

An answer is `Begin`, then deltas of text, reasoning and calls, then `Finish`. A call is `CallStart`, any number of
`CallDelta`, then `CallEnd`, or `Malformed` with `in_call` if it turns out to be broken; calls do not interleave.
`Steered` stands where an old direction ends: what follows belongs to the new one.

Splitters (`text/split*.py`) make text, reasoning, calls and `Malformed`. Backends add the rest; a `Malformed` that is
not part of a call they pass on as text. Other readers have vocabularies of their own: `engine/events.py` is what the
engine reports of tokens, `protocol/events.py` what clients read, `protocol/agent.py` what screens read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias


@dataclass(slots=True)
class Usage:
    """What one answer used, in tokens; `accepted_tokens` of `draft_tokens` were right guesses."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    seconds: float = 0.0  # from the prompt reaching the engine to its last token, where the backend knows it


@dataclass(slots=True)
class Begin:
    """The input was taken; `cached_tokens` of it are not computed again."""

    input_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class TextDelta:
    """More of the answer that the reader sees."""

    text: str
    logprobs: list[dict[str, Any]] | None = None


@dataclass(slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(slots=True)
class CallStart:
    """A tool call begins. `custom` calls carry free text, the others JSON arguments."""

    name: str
    custom: bool = False
    namespace: str | None = None
    call_id: str | None = None


@dataclass(slots=True)
class CallDelta:
    """More of the call's input: all pieces together are its text, or one JSON object."""

    text: str


@dataclass(slots=True)
class CallEnd:
    """The call is complete."""


@dataclass(slots=True)
class Malformed:
    """What was meant as a call but is not one. `text` is all of it, markers included.

    `in_call`: the call had started; it is void. Otherwise nothing of the text was passed on before.
    """

    text: str
    reason: str
    in_call: bool = False


@dataclass(slots=True)
class Steered:
    """The new direction begins here: `items` were appended, `usage` is that of the old direction."""

    items: list[dict[str, Any]]
    usage: Usage
    begin: Begin


@dataclass(slots=True)
class Finish:
    """`reason`: stop, length, tool_calls, content_filter or cancelled. `stop`: the stop string that ended it."""

    reason: str
    usage: Usage
    stop: str = ""


Delta: TypeAlias = TextDelta | ReasoningDelta | CallDelta
Part: TypeAlias = Begin | Delta | CallStart | CallEnd | Malformed | Steered | Finish


def merge(parts: Iterable[Part]) -> list[Part]:
    """The same parts with neighbouring deltas joined: the record of a stream, however it was cut."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Delta) and isinstance(last, Delta) and type(part) is type(last):
            merged[-1] = replace(last, text=last.text + part.text)
        else:
            merged.append(part)
    return merged
