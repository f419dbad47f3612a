"""A long prompt beside sequences that decode.

A runtime that can prefills it in parts, which the device runs between their steps: they go on, slower, instead of
waiting for the whole prompt, and the prompt is computed at the speed of long chunks instead of a few rows a step.
"""

from __future__ import annotations

import numpy as np

from fulgur.engine.cache import BlockTable
from fulgur.engine.runtime import PrefillRun, Runtime
from fulgur.engine.sequence import Sequence

SHARE = 0.55  # of the device's time that a prompt takes; a single stream keeps the rest of its speed


class BackgroundPrefill:
    """At most one prompt at a time; `sequence` is None while there is none."""

    def __init__(self, runtime: Runtime) -> None:
        self.sequence: Sequence | None = None
        self._runtime = runtime.prefilling
        self._run: PrefillRun | None = None
        self._table: BlockTable | None = None
        self._refused: Sequence | None = None  # memory was short for it: it goes a few rows a step
        self._rows = 0

    def rows_of(self, sequence: Sequence) -> int:
        """How many rows of a prompt it would take now. The last one stays: its result is wanted. Where more chunks
        follow, the next begins at a whole multiple of the longest, or where a snapshot of the recurrent state is
        wanted."""
        at, table, left = sequence.computed, sequence.table, len(sequence.tokens) - sequence.computed - 1
        if self._runtime is None or self.sequence is not None or sequence is self._refused:
            return 0
        if table is not None and at < table.captured < at + left:
            left = table.captured - at
        if left < self._runtime.prefill_from:
            return 0
        most = self._runtime.prefill_rows
        return left if left <= most else most - at % most

    def start(self, sequence: Sequence, rows: int) -> None:
        """Compute the next `rows` tokens, for which there are blocks."""
        assert self._runtime is not None and sequence.table is not None
        at = sequence.computed
        tokens = np.array(sequence.tokens[at : at + rows], np.int32)
        self._run = self._runtime.begin_prefill(tokens, at, sequence.table.row, sequence.slot)
        self.sequence, self._table, self._rows = sequence, sequence.table, rows

    def advance(self, alone: bool) -> None:
        """Parts of it run beside the step that comes next, all of them at once if nothing decodes."""
        if self.sequence is None or self._run is None:
            return
        if self.sequence.table is not self._table:  # it gave its blocks up
            self._drop()
        elif alone:
            self._run.finish()
        else:
            self._run.share = SHARE

    def leave(self, sequence: Sequence) -> None:
        """The sequence was cancelled: what is left of its prompt is not wanted."""
        if self.sequence is sequence:
            self._drop()

    def seconds(self, measured: float) -> float:
        """What a step took by itself."""
        return measured if self._run is None or self._runtime is None else self._runtime.step_seconds

    def settle(self) -> Sequence | None:
        """After the step: the sequence, if all parts are queued. What comes next on the device sees what they wrote."""
        sequence, run = self.sequence, self._run
        if sequence is None or run is None or not (run.done or run.failed):
            return None
        if run.failed:
            self._refused = sequence
        else:
            sequence.computed += self._rows
        self._drop()
        return sequence

    def _drop(self) -> None:
        if self._run is not None:
            self._run.close()
        self.sequence = self._run = self._table = None
