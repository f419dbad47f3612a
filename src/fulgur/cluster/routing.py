"""Which replica takes a request: the one that holds its session's keys and values, unless that one is overloaded.

A session's home is found by rendezvous hashing over slot numbers. These are stable: a replica that is restarted gets
its old number, so a death moves only the sessions that lived there. A session that was sent elsewhere stays there (its
pin) as long as that replica lives.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

_SPREAD = 1.25  # a session stays until the tokens before its first answer token are so many times those elsewhere
_LITTLE = 512  # tokens: a wait as short as this is no reason to leave
_PINS = 100_000


class Slot(Protocol):
    """A replica that can take requests."""

    @property
    def number(self) -> int: ...
    @property
    def epoch(self) -> str: ...
    @property
    def queued(self) -> int:
        """Prompt tokens that wait to be computed there, those of this front's newest requests among them."""


S = TypeVar("S", bound=Slot)


@dataclass(frozen=True)
class Pin:
    """Where a session's keys and values are, and how many; another epoch means a replica that has lost them."""

    slot: int
    epoch: str
    tokens: int = 0


def home(key: str, slots: Sequence[S]) -> S:
    """The slot by rendezvous hashing: every front finds the same one, and a slot that goes moves only its own keys."""
    return max(slots, key=lambda slot: (_weight(key, slot.number), -slot.number))


def choose(key: str, prompt: int, slots: Sequence[S], pin: Pin | None) -> tuple[S, int]:
    """The slot for a prompt of `prompt` tokens, and how many of them are probably cached there.

    That is where the session was, or its home, unless the idlest slot would have the first token clearly sooner: when
    the tokens queued there plus the whole prompt are fewer than those queued here plus the part that is new.
    """
    kept = [slot for slot in slots if pin is not None and (slot.number, slot.epoch) == (pin.slot, pin.epoch)]
    wanted = kept[0] if kept else home(key, slots)
    known = min(pin.tokens, prompt - 1) if kept and pin is not None else 0
    idlest = min(slots, key=lambda slot: (slot.queued, -_weight(key, slot.number)))
    if wanted.queued <= _LITTLE or wanted.queued + prompt - known <= _SPREAD * (idlest.queued + prompt):
        return wanted, known
    return idlest, 0


def _weight(key: str, slot: int) -> int:
    return int.from_bytes(hashlib.blake2b(b"%d %b" % (slot, key.encode()), digest_size=8).digest(), "big")


class Pins:
    """The pins of the sessions that this front has served, the least recently used forgotten first."""

    def __init__(self, most: int = _PINS) -> None:
        self._pins: OrderedDict[str, Pin] = OrderedDict()
        self._most = most

    def get(self, key: str) -> Pin | None:
        pin = self._pins.get(key)
        if pin is not None:
            self._pins.move_to_end(key)
        return pin

    def put(self, key: str, pin: Pin) -> None:
        self._pins[key] = pin
        self._pins.move_to_end(key)
        if len(self._pins) > self._most:
            self._pins.popitem(last=False)

    def drop(self, key: str) -> None:
        self._pins.pop(key, None)

    def to_be_fetched(self, key: str) -> bool:
        """Whether another front may know more."""
        return False

    async def fetch(self, key: str) -> None:
        """Learn what others know."""
