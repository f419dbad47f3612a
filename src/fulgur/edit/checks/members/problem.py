"""A problem found by a check of names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """`name` is the name that does not exist; `text` says so in words."""

    line: int
    name: str
    text: str
    certain: bool = False
    """It cannot be something that is still to be written elsewhere."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"
