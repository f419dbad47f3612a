"""Was the machine quiet during a measurement? The system's own accounting shows what others took of it."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import monotonic

from fulgur.bench.report import cores

_OTHERS, _STEAL = 0.05, 0.02  # fractions of the cores; above them a figure is not to be quoted
_SPREAD = 0.1  # how far rounds may lie from their median, on average


class Watch:
    """Measures what other programs and the host take, from its creation to `notes`."""

    def __init__(self) -> None:
        self._start, self._own, self._books = monotonic(), _own_seconds(), _books()

    def notes(self) -> list[str]:
        """One line per disturbance. Children must have been waited for, or they count as others."""
        if self._books is None or (now := _books()) is None:
            return []
        available = (monotonic() - self._start) * cores()
        busy, stolen = (b - a for a, b in zip(self._books, now, strict=True))
        others = busy - (_own_seconds() - self._own)
        notes = []
        if others > _OTHERS * available:
            notes.append(f"other programs took {others / available:.0%} of the cores: not to be quoted")
        if stolen > _STEAL * available:
            notes.append(f"the host took {stolen / available:.0%} of the cores for itself: not to be quoted")
        return notes


def spread(values: Sequence[float]) -> float:
    """How far values lie from their median, on average, relative to it."""
    middle = median(values)
    return sum(abs(value - middle) for value in values) / len(values) / middle


def too_far(values: Sequence[float]) -> bool:
    return len(values) > 1 and spread(values) > _SPREAD


def _own_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def _books() -> tuple[float, float] | None:
    """Seconds, over all cores, that programs ran and that the host kept."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, stat.read_text(encoding="ascii").split()[1:9])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) / tick, steal / tick
