"""What the model's own drafting head (MTP) on the GPU has still to see of every sequence.

Slot t of the head's keys and values holds token t with the model's hidden state at t - 1, so it depends on the tokens
up to t only. Hidden states wait in a ring on the device; the head catches up when a draft is wanted, when too many
wait, or when a sequence is released. Slot 0 has no hidden state and is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.plan import HIDDEN

Int = npt.NDArray[np.int32]


@dataclass
class _Log:
    """Positions whose hidden states are in the ring: `first` and the tokens from there on."""

    first: int = 0
    tokens: list[int] = field(default_factory=list)
    done: int = 1  # the head has seen the slots before this one

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)


class DraftLogs:
    """`see(slot, position, tokens, table)` runs the head over tokens whose hidden states are known."""

    def __init__(
        self, slots: int, snapshots: int, width: int, device: Any, stream: Any,
        see: Callable[[int, int, list[int], Int], None],
    ) -> None:  # fmt: skip
        import torch

        self.ring = torch.zeros((slots, HIDDEN, width), dtype=torch.float32, device=device)
        self._kept = torch.zeros((max(snapshots, 1), width), dtype=torch.float32, device=device)
        self._logs = [_Log() for _ in range(slots)]
        self._saved: dict[int, tuple[int, bool]] = {}  # by snapshot: position, whether its hidden state is known
        self._stream, self._see = stream, see

    def begin(self, slot: int, position: int, tokens: list[int], table: Int) -> None:
        """Before the model computes `tokens`: drop what was known from `position` on."""
        log = self._logs[slot]
        if position == 0 or not log.first <= position <= log.end:
            self._logs[slot] = log = _Log(position, [], position + 1)
        del log.tokens[position - log.first :]
        log.done = max(min(log.done, position), log.first + 1)
        if position + len(tokens) - (log.done - 1) > HIDDEN:
            self.catch_up(slot, table)
        drop = log.done - 1 - log.first  # the hidden state before the first slot that waits is still needed
        log.first, log.tokens = log.first + max(drop, 0), [*log.tokens[max(drop, 0) :], *tokens]

    def made(self, slot: int, position: int, tokens: list[int]) -> None:
        """Note the tokens that a run computed from `position` on, for which `begin` made room."""
        log = self._logs[slot]
        log.tokens[position - log.first :] = tokens

    def prefilled(self, slot: int, position: int, last: Any) -> None:
        """The head has seen all tokens before `position`; `last` is the hidden state of the one before it."""
        self._copy(last, self.ring[slot, (position - 1) % HIDDEN])
        self._logs[slot] = _Log(position - 1, [0], position)

    def knows(self, slot: int, position: int) -> bool:
        """Whether the hidden state before `position` is there."""
        log = self._logs[slot]
        return log.first < position <= log.end

    def catch_up(self, slot: int, table: Int, end: int | None = None) -> None:
        """Run the head over the waiting slots, up to `end`."""
        log = self._logs[slot]
        end = log.end if end is None else min(end, log.end)
        first, log.done = log.done, max(log.done, end)
        if first < end:
            self._see(slot, first, log.tokens[first - log.first : end - log.first], table)

    def save(self, slot: int, position: int, snapshot: int) -> None:
        known = self.knows(slot, position)
        self._saved[snapshot] = position, known
        if known:
            self._copy(self.ring[slot, (position - 1) % HIDDEN], self._kept[snapshot])

    def restore(self, snapshot: int, slot: int) -> None:
        position, known = self._saved[snapshot]
        if known:
            self.prefilled(slot, position, self._kept[snapshot])
        else:
            self._logs[slot] = _Log(position, [], position + 1)

    def copy(self, source: int, target: int) -> None:
        log = self._logs[source]
        self._copy(self.ring[source], self.ring[target])
        self._logs[target] = _Log(log.first, list(log.tokens), log.done)

    def _copy(self, source: Any, target: Any) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            target.copy_(source)
