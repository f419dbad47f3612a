"""Scheduling: slots and KV blocks for sequences, oldest first.

A waiting sequence is admitted when a slot and enough blocks are available. When the running sequences outgrow the
cache, the youngest is preempted: it gives up its blocks and waits again. What it had computed stays in the prefix cache
as long as there is room; the rest is computed again. Nothing that was already reported changes.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from fulgur.engine.batch import Batch
from fulgur.engine.cache import BlockTable, Cache
from fulgur.engine.runtime import IntArray
from fulgur.engine.sequence import Sequence


class Scheduler:
    """The running and the waiting sequences of one engine."""

    def __init__(self, cache: Cache, context: int, max_sequences: int) -> None:
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.tables: IntArray = np.full((max_sequences, -(-context // cache.size)), -1, np.int32)
        self._slots = list(range(max_sequences - 1, -1, -1))

    def admit(self) -> Sequence | None:
        """Start the first waiting sequence on its cached prefix; None if there is none or it has to keep waiting."""
        if not self.waiting or not self._slots:
            return None
        sequence = self.waiting[0]
        tokens, owner = sequence.tokens, sequence.owner
        if self.running and self.cache.missing(tokens, len(tokens) + 1, owner) > self.cache.available():
            return None
        self.waiting.popleft()
        table, sequence.computed = self.cache.acquire(tokens, self.tables[self._slots[-1]], owner, self._slots[-1])
        self._run(sequence, table)
        return sequence

    def fork(self, leader: Sequence, sequence: Sequence) -> None:
        """Run `sequence`, whose tokens the leader has computed, on the leader's blocks; without room it has to wait."""
        length = len(sequence.tokens)
        if self._slots and leader.table is not None:
            table = self.cache.fork(leader.table, length, self.tables[self._slots[-1]], self._slots[-1])
            if table is not None:
                sequence.computed = length
                self._run(sequence, table)
                return
        self.waiting.append(sequence)

    def make_room(self, sequence: Sequence, length: int, batch: Batch) -> bool:
        """Make room for `length` tokens; if need be, preempt younger sequences that are not in the step yet."""
        table, cache = sequence.table, self.cache
        if table is None:
            return False
        if length <= len(table.blocks) * cache.size:
            return True
        while not cache.grow(table, length):
            planned = {id(entry.sequence) for entry in batch.entries}
            younger = self.running[self.running.index(sequence) + 1 :]
            victim = next((s for s in reversed(younger) if id(s) not in planned), None)
            if victim is None:
                return False
            self.leave(victim)
            self.waiting.appendleft(victim)
        return True

    def fit_draft(self, sequence: Sequence, length: int, draft: list[int]) -> list[int]:
        """Cut a draft to the memory there is: a guess is not worth another sequence's blocks."""
        table, cache = sequence.table, self.cache
        assert table is not None
        if length + len(draft) <= len(table.blocks) * cache.size or cache.grow(table, length + len(draft)):
            return draft
        return draft[: len(table.blocks) * cache.size - length]

    def own_draft(self, sequence: Sequence, length: int) -> list[int]:
        """Draft with the model's own head after the last token, as far as memory allows."""
        table, cache, at = sequence.table, self.cache, len(sequence.tokens) - 1
        drafting = cache.runtime.drafting
        assert table is not None and drafting is not None
        if at + length > len(table.blocks) * cache.size and not cache.grow(table, at + length):
            length = len(table.blocks) * cache.size - at
        return drafting.draft(sequence.tokens[-1], at, sequence.slot, self.tables, length) if length > 0 else []

    def commit(self, sequence: Sequence) -> None:
        """Share the blocks that became full."""
        assert sequence.table is not None
        self.cache.commit(sequence.table, sequence.tokens, sequence.computed)
        sequence.commit_at = (len(sequence.table.nodes) + 1) * self.cache.size

    def leave(self, sequence: Sequence) -> None:
        """Remove a running or waiting sequence; what it computed goes to the prefix cache."""
        if sequence.table is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            return
        drafting = self.cache.runtime.drafting
        if drafting is not None and sequence.computed:
            drafting.catch_up(sequence.slot, self.tables)
        self.cache.release(sequence.table, sequence.tokens, sequence.computed)
        self.running.remove(sequence)
        self._slots.append(sequence.slot)
        sequence.slot, sequence.table, sequence.computed = -1, None, 0

    def _run(self, sequence: Sequence, table: BlockTable) -> None:
        sequence.slot, sequence.table = self._slots.pop(), table
        sequence.commit_at = (len(table.nodes) + 1) * self.cache.size
        self.running.append(sequence)
