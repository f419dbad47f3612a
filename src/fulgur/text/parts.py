"""What a model's answer is made of, as splitters find it while it streams. Types only.

Order: deltas of one kind follow each other; a tool call is `ToolCallStart`, any number of `ToolCallDelta`, then either
`ToolCallEnd` or, if the call turns out to be broken, one `Malformed` with the same index. Calls do not interleave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer that the reader sees."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins; calls of one answer are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the call's arguments: all pieces together are one JSON object."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is complete and its arguments are valid JSON."""

    index: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """Text that was meant as a call and is none. `text` is all of it, markers included.

    index: the call it belongs to if one had started; that call is void.
    """

    text: str
    reason: str
    index: int | None = None


Part: TypeAlias = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | Malformed


def merge(parts: Iterable[Part]) -> list[Part]:
    """The same parts with neighbouring deltas joined: the record of a stream, however it was cut."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, TextDelta) and isinstance(last, TextDelta):
            merged[-1] = TextDelta(last.text + part.text)
        elif isinstance(part, ReasoningDelta) and isinstance(last, ReasoningDelta):
            merged[-1] = ReasoningDelta(last.text + part.text)
        elif isinstance(part, ToolCallDelta) and isinstance(last, ToolCallDelta) and part.index == last.index:
            merged[-1] = ToolCallDelta(part.index, last.arguments + part.arguments)
        else:
            merged.append(part)
    return merged
