"""Coding sessions: turns of a tool loop, pauses of the person in front of it, a context that grows.

The shape is assumed, not recorded: medians and spreads that agents such as ours show in use. A file of recorded turns
(`--trace`, one JSON object a line: session, pause_s, input, output) takes its place.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from fulgur.errors import UsageError

ACTIVE = 0.05  # the fraction of users that have a session under way at a time


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """`pause_s` after the turn before it; `input` tokens are new."""

    pause_s: Annotated[float, msgspec.Meta(ge=0)]
    input: Annotated[int, msgspec.Meta(ge=1)]
    output: Annotated[int, msgspec.Meta(ge=1)]
    session: str = ""


@dataclass(frozen=True)
class Shape:
    """Medians, each with the spread of a log-normal distribution."""

    begins: int = 11_000  # tokens of instructions and tools, the same for all sessions of a user
    input: tuple[float, float] = (600, 1.1)  # a tool's output or a person's words
    output: tuple[float, float] = (150, 0.9)
    tool_s: tuple[float, float] = (2.0, 1.1)
    person_s: tuple[float, float] = (40.0, 1.0)
    tools: float = 8.0  # calls before the person speaks again
    turns: float = 60.0  # per session
    most: int = 100_000  # tokens of context, then it is compacted to a fifth


def typical(seed: int, shape: Shape | None = None) -> Iterator[tuple[int, Turn]]:
    """A user's turns without end: (number of the session, turn)."""
    shape, dice, session = shape or Shape(), random.Random(seed), 0

    def draw(of: tuple[float, float]) -> float:
        return dice.lognormvariate(math.log(of[0]), of[1])

    while True:
        first = True
        while first or dice.random() > 1 / shape.turns:
            spoken = first or dice.random() < 1 / shape.tools
            given = int(draw(shape.input)) + 1 + (shape.begins if first else 0)
            yield session, Turn(draw(shape.person_s if spoken else shape.tool_s), given, int(draw(shape.output)) + 1)
            first = False
        session += 1


def recorded(path: Path) -> dict[str, list[Turn]]:
    """The recorded turns by session, in the order of the file."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    found: dict[str, list[Turn]] = {}
    for number, line in enumerate(lines, 1):
        try:
            turn = msgspec.json.decode(line, type=Turn)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}, line {number}: {error}") from None
        found.setdefault(turn.session, []).append(turn)
    if not found:
        raise UsageError(f"{path} has no turns")
    return found
