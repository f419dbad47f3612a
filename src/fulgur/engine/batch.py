"""The rows of one step, in arrays that are made once and filled again each time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fulgur.engine.runtime import FloatArray, IntArray, Runtime
from fulgur.engine.sequence import Sequence

ALONE = 256  # rows of prefill in a step when nothing is decoding, unless the runtime wants more


@dataclass(slots=True)
class Entry:
    """What a sequence has in the step: `rows` rows, the last of them `draft`; its results start at `first`, if any."""

    sequence: Sequence
    rows: int
    draft: list[int]
    first: int  # -1: more of the prompt follows, no result is wanted yet


class Batch:
    """Rows to run. A sequence's rows are consecutive and begin where its computed part ends."""

    def __init__(self, runtime: Runtime, context: int, tables: IntArray) -> None:
        self.capacity = runtime.max_rows
        self.chunk = getattr(runtime, "prefill_rows", ALONE)
        self.rows = 0
        self.wanted = 0
        self.needs_logits = False
        self.entries: list[Entry] = []
        self.logits: FloatArray = np.empty((0, runtime.vocab_size), np.float32)
        self._runtime = runtime
        self._tables = tables
        self._tokens = np.zeros(self.capacity, np.int32)
        self._positions = np.zeros(self.capacity, np.int32)
        self._slots = np.zeros(self.capacity, np.int32)
        self._wanted = np.zeros(self.capacity, np.int32)
        self._counting = np.arange(max(context, self.capacity) + 1, dtype=np.int32)
        self._single = (self._tokens[:1], self._positions[:1], self._slots[:1], tables, self._wanted[:1])

    def clear(self) -> None:
        self.rows = self.wanted = 0
        self.needs_logits = False
        self.entries.clear()

    def add_token(self, sequence: Sequence) -> None:
        """The last token of a sequence, to get the next."""
        row, wanted = self.rows, self.wanted
        self._tokens[row] = sequence.tokens[-1]
        self._positions[row] = sequence.computed
        self._slots[row] = sequence.slot
        self._wanted[wanted] = row
        self.rows, self.wanted = row + 1, wanted + 1
        self.needs_logits |= sequence.sampler is not None
        self.entries.append(Entry(sequence, 1, [], wanted))

    def add_draft(self, sequence: Sequence, draft: list[int]) -> None:
        """The last token and guesses of what follows; every row gives a result."""
        count, wanted = len(draft) + 1, self.wanted
        rows = self._fill(sequence, count)
        self._tokens[rows.start] = sequence.tokens[-1]
        self._tokens[rows.start + 1 : rows.stop] = draft
        self._wanted[wanted : wanted + count] = self._counting[rows]
        self.wanted += count
        self.needs_logits |= sequence.sampler is not None
        self.entries.append(Entry(sequence, count, draft, wanted))

    def add_chunk(self, sequence: Sequence, count: int) -> None:
        """The next `count` tokens of a prompt; only its very last one gives a result."""
        at = sequence.computed
        rows = self._fill(sequence, count)
        self._tokens[rows] = sequence.tokens[at : at + count]
        first = -1
        if at + count == len(sequence.tokens) and not sequence.prefill_only:
            first = self.wanted
            self._wanted[first] = rows.stop - 1
            self.wanted += 1
            self.needs_logits |= sequence.sampler is not None
        self.entries.append(Entry(sequence, count, [], first))

    def run(self) -> list[int]:
        """One pass over the weights; the most likely token of each row that wants one. Fills `logits` if needed."""
        rows, wanted, logits = self.rows, self.wanted, None
        if self.needs_logits:
            if len(self.logits) < wanted:
                self.logits = np.empty((wanted, self._runtime.vocab_size), np.float32)
            logits = self.logits
        if rows == wanted == 1:
            return self._runtime.step(*self._single, logits).tolist()
        return self._runtime.step(
            self._tokens[:rows],
            self._positions[:rows],
            self._slots[:rows],
            self._tables,
            self._wanted[:wanted],
            logits,
        ).tolist()

    def _fill(self, sequence: Sequence, count: int) -> slice:
        rows = slice(self.rows, self.rows + count)
        self._positions[rows] = self._counting[sequence.computed : sequence.computed + count]
        self._slots[rows] = sequence.slot
        self.rows += count
        return rows
