"""Chained steps over several sequences, which do not wait for the host.

While every sequence decodes one token at a time and the device chooses them, the next step is queued before the tokens
of the one under way are read, so the host's work on these overlaps with it. When anything else is to be done (a
request, a steer, a draft that is worth it, the end of a sequence), the queued step still runs, and the engine plans the
one after it as usual.

A row of the queued step may belong to a sequence that has ended since, or was steered or cancelled: its token is
dropped. The row wrote after what the sequence had computed, into blocks that the sequence held then. A later owner of
these blocks writes to them only after that.
"""

from __future__ import annotations

from time import perf_counter

from fulgur.engine.batch import Batch, BatchEntry
from fulgur.engine.cache import BlockTable, Cache
from fulgur.engine.loop import WORTH
from fulgur.engine.runtime import Runtime
from fulgur.engine.schedule import Scheduler


class StepsAhead:
    """`entries` are the rows of the step under way, none while the runtime is free."""

    def __init__(self, runtime: Runtime, cache: Cache) -> None:
        streaming = runtime.streaming
        self.entries: list[BatchEntry] = []
        self.seconds = 0.0  # between the ends of the last two steps taken
        self._since = 0.0
        self._runtime = None if streaming is None else streaming.chained
        self._cache = cache
        self._tables: list[BlockTable | None] = []  # by row, as they were when the chain began
        self._position: list[int] = []  # by row: the position of the token that it runs

    def start(self, batch: Batch, scheduler: Scheduler) -> bool:
        """Queue the planned step, if a chain can begin with it."""
        rows = len(batch.entries)
        if self._runtime is None or scheduler.waiting or not rows == batch.rows == len(scheduler.running) > 1:
            return False
        if not batch.steady or any(entry.sequence.followers for entry in batch.entries):
            return False
        self._since = perf_counter()
        if not batch.begin(self._runtime):
            return False
        self.entries = list(batch.entries)
        self._tables = [entry.sequence.table for entry in self.entries]
        self._position = [entry.sequence.computed for entry in self.entries]
        return True

    def follow(self, scheduler: Scheduler) -> bool:
        """Queue the next step after the one under way; False if it has to be planned, or there is no room for it."""
        rows, size = len(self.entries), self._cache.size
        if scheduler.waiting or rows != len(scheduler.running):
            return False
        for row, entry in enumerate(self.entries):
            sequence, length = entry.sequence, self._position[row] + 2
            if not self.counts(row) or sequence.max_tokens <= 1 or length >= sequence.context:
                return False
            if (
                sequence.speculator is not None
                and sequence.speculator.worth(sequence.max_tokens - 2, rows - 1) >= WORTH
            ):
                return False
            table = sequence.table
            assert table is not None
            if length > len(table.blocks) * size and not self._cache.grow(table, length):
                return False
        assert self._runtime is not None
        self._runtime.follow(scheduler.tables)
        return True

    def take(self, follows: bool) -> list[tuple[BatchEntry, int]]:
        """Wait for the step under way and return the rows that count, each with its token. `follows`: the next step is
        queued."""
        assert self._runtime is not None
        tokens = self._runtime.take()
        now = perf_counter()
        self.seconds, self._since = now - self._since, now
        found = [(entry, tokens[row]) for row, entry in enumerate(self.entries) if self.counts(row)]
        self._position = [position + 1 for position in self._position]
        if not follows:
            self.entries = []
        return found

    def counts(self, row: int) -> bool:
        """Whether the sequence of a row is still as it was when the row was queued."""
        sequence, position = self.entries[row].sequence, self._position[row]
        held = sequence.table is self._tables[row] and sequence.finished is None
        return held and sequence.computed == position and len(sequence.tokens) == position + 1
