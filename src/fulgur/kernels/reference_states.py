"""The recurrent states of the reference: kept for every recent position, so that a step may begin at any of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fulgur.model.config import ModelConfig
from fulgur.model.family import DELTA
from fulgur.model.tensors import delta_of

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int32]


class DeltaStates:
    """What the delta layers remember of every sequence, for each of its last positions: the inputs that the convolution
    still sees, and S of every head. A step may begin at any of these positions, which forgets wrong drafts."""

    KEPT = 320  # positions: a step and a draft before it
    slots, snapshots = 32, 8

    def __init__(self, config: ModelConfig) -> None:
        self._layers = [i for i, kind in enumerate(config.kinds) if kind == DELTA]
        self._kept: dict[int, dict[int, dict[int, tuple[Float, Float]]]] = {}  # sequence, position, layer
        self._saved: dict[int, tuple[int, dict[int, tuple[Float, Float]]]] = {}
        if self._layers:
            shape = delta_of(config)
            window = np.zeros((shape.taps - 1, shape.channels), np.float32)
            state = np.zeros((shape.v_heads, shape.k_dim, shape.v_dim), np.float32)
            self._nothing = dict.fromkeys(self._layers, (window, state))

        self.hidden = HiddenStates()

    def begin(self, position: Int, sequence: Int) -> None:
        """Begin a step: the position of each sequence's first row is the number of tokens that it has."""
        if not self._layers:
            return
        for s in dict.fromkeys(sequence.tolist()):
            first = int(position[sequence == s][0])
            kept = self._kept.setdefault(s, {})
            if first == 0:
                kept.clear()
                kept[0] = self._nothing
            if first not in kept:
                raise ValueError(f"sequence {s} has no recurrent state at position {first}")
            for other in [p for p in kept if p > first or p < first - self.KEPT]:
                del kept[other]

    def before(self, layer: int, sequence: int, position: int) -> tuple[Float, Float]:
        """Inputs and state of the tokens before a position."""
        return self._kept[sequence][position][layer]

    def put(self, layer: int, sequence: int, position: int, inputs: Float, state: Float) -> None:
        """Keep the inputs and state of the tokens up to a position."""
        self._kept[sequence].setdefault(position + 1, {})[layer] = inputs, state

    def save(self, slot: int, position: int, snapshot: int) -> None:
        self._saved[snapshot] = position, self._kept[slot][position]
        self.hidden.save(slot, position, snapshot)

    def restore(self, snapshot: int, slot: int) -> None:
        position, state = self._saved[snapshot]
        self._kept[slot] = {position: state}
        self.hidden.restore(snapshot, slot)

    def copy(self, source: int, target: int) -> None:
        self._kept[target] = dict(self._kept[source])
        self.hidden.copy(source, target)


class HiddenStates:
    """What the drafting head still has to see of every sequence: tokens, and the hidden states after them. Slot t of
    the head's keys is made of token t and the hidden state of t - 1, so it depends on the tokens up to t only."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, tuple[int, Float]]] = {}  # sequence, position
        self._done: dict[int, int] = {}  # by sequence: the first slot that the head has not seen
        self._saved: dict[int, tuple[int, dict[int, tuple[int, Float]]]] = {}

    def put(self, sequence: Int, position: Int, token: Int, hidden: Float) -> None:
        """Keep the rows of a step."""
        for s in dict.fromkeys(sequence.tolist()):
            mine = sequence == s
            first = int(position[mine][0])
            done = min(self._done.get(s, 1), first)
            rows = {p: row for p, row in self._rows.get(s, {}).items() if done - 1 <= p < first}
            rows |= zip(position[mine].tolist(), zip(token[mine].tolist(), hidden[mine], strict=True), strict=True)
            self._rows[s], self._done[s] = rows, max(done, min(rows) + 1)

    def take(self, sequence: int, end: int) -> tuple[list[int], list[int], list[Float]]:
        """The slots before `end` that the head has not seen: positions, tokens, and the hidden states before them."""
        rows, first = self._rows.get(sequence, {}), min(self._done.get(sequence, 1), end)
        self._done[sequence] = end
        return (
            list(range(first, end)),
            [rows[p][0] for p in range(first, end)],
            [rows[p - 1][1] for p in range(first, end)],
        )

    def before(self, sequence: int, position: int) -> Float | None:
        row = self._rows.get(sequence, {}).get(position - 1)
        return None if row is None else row[1]

    def end(self, sequence: int) -> int:
        return max(self._rows.get(sequence, {}), default=0) + 1

    def save(self, slot: int, position: int, snapshot: int) -> None:
        row = self._rows.get(slot, {}).get(position - 1)
        self._saved[snapshot] = position, {} if row is None else {position - 1: row}

    def restore(self, snapshot: int, slot: int) -> None:
        position, rows = self._saved[snapshot]
        self._rows[slot], self._done[slot] = rows, position if rows else position + 1

    def copy(self, source: int, target: int) -> None:
        self._rows[target], self._done[target] = dict(self._rows.get(source, {})), self._done.get(source, 1)
