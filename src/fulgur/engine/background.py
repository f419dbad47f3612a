"""Prefill of a long prompt beside sequences that decode.

A runtime that can prefills the prompt in parts, which the device runs between decoding steps. The other sequences go
on, more slowly, instead of waiting for the whole prompt, and the prompt is computed at the speed of long chunks instead
of a few rows per step.
"""

from __future__ import annotations

import numpy as np

from fulgur.engine.cache import BlockTable
from fulgur.engine.runtime import PrefillRun, Runtime
from fulgur.engine.sequence import Sequence

TIME_FRACTION = 0.55  # fraction of the device's time for the prompt; a single stream keeps the rest of its speed


class BackgroundPrefill:
    """At most one prompt at a time; `sequence` is None while there is none."""

    def __init__(self, runtime: Runtime) -> None:
        self.sequence: Sequence | None = None
        self._runtime = runtime.prefilling
        self._run: PrefillRun | None = None
        self._table: BlockTable | None = None
        self._refused: Sequence | None = None  # there was too little memory for it: it gets a few rows per step
        self._rows = 0

    def rows_of(self, sequence: Sequence) -> int:
        """How many rows of a prompt to compute in the background now; 0: none. The last row is left for a step, which
        gives its result. If more chunks follow, the next begins at a multiple of the longest one, or where a snapshot
        of the recurrent state is taken."""
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
        """Queue parts of the prompt beside the next step, or all of them at once if there is no step."""
        if self.sequence is None or self._run is None:
            return
        if self.sequence.table is not self._table:  # it was preempted
            self._drop()
        elif alone:
            self._run.finish()
        else:
            self._run.time_fraction = TIME_FRACTION

    def leave(self, sequence: Sequence) -> None:
        """Drop the rest of a sequence's prompt: it was cancelled."""
        if self.sequence is sequence:
            self._drop()

    def seconds(self, measured: float) -> float:
        """What a step took without the parts beside it."""
        return measured if self._run is None or self._runtime is None else self._runtime.step_seconds

    def settle(self) -> Sequence | None:
        """After the step: the sequence, if all parts are queued (or failed). What the device runs next sees their
        writes."""
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
