"""A single sequence on the device's own decode loop.

When one sequence decodes and nothing else is asked, a runtime that can goes on by itself; the engine reads tokens as
they arrive, and turning them into text overlaps with the next ones. It ends when the sequence does, when anything else
wants the runtime (a request, a steer, a cancel, a draft that is worth a wide step), or when its room is used up.

The device may be some tokens ahead of what was read. What lies beyond the end of a sequence, or beyond the point of a
steer, is dropped: the cache's length is the sequence's own count, and its slots are written again.
"""

from __future__ import annotations

from time import perf_counter

from fulgur.engine.cache import Cache
from fulgur.engine.events import Event
from fulgur.engine.runtime import Runtime, TokenStream
from fulgur.engine.sequence import Sequence
from fulgur.engine.speculate import StepCost

WORTH = 4  # tokens of a draft for which the loop is left: to stop and start it costs a part of a step
ROOM = 512  # tokens a run may make: more would take blocks from cached prefixes long before they are needed


class DeviceLoop:
    """At most one sequence at a time; `sequence` is None while the runtime is free."""

    def __init__(self, runtime: Runtime, cache: Cache, cost: StepCost) -> None:
        self.sequence: Sequence | None = None
        self._runtime = runtime.streaming
        self._cache, self._cost = cache, cost
        self._run: TokenStream | None = None
        self._last = 0.0

    def start(self, sequence: Sequence) -> bool:
        """Let a decoding sequence run there; False if it needs more than the device does."""
        runtime, table = self._runtime, sequence.table
        sampler = sequence.sampler
        draw = None if sampler is None else sampler.on_device
        if runtime is None or table is None or (sampler is not None and draw is None):
            return False
        length = len(sequence.tokens)
        limit = min(sequence.max_tokens, sequence.context - length, ROOM)
        self._cache.grow(table, sequence.computed + limit)
        limit = min(limit, len(table.blocks) * self._cache.size - sequence.computed)
        if limit <= 1:
            return False
        self._run = runtime.stream(sequence.tokens[-1], sequence.computed, table.row, sequence.stop_ids, limit, draw)
        self.sequence, self._last = sequence, perf_counter()
        return True

    def read(self, events: list[Event]) -> None:
        """Wait for tokens and take them; leave when they end the sequence or the run, or call for a draft."""
        sequence, run = self.sequence, self._run
        assert sequence is not None and run is not None
        tokens = run.read()
        now = perf_counter()
        if tokens:
            sequence.note_first_token(now)
            self._cost.observe(1, (now - self._last) / len(tokens))
        self._last = now
        _take(sequence, tokens, events)
        if sequence.finished is not None:
            self.leave(None)
        elif run.ended:
            self.leave(events)
        elif sequence.speculator is not None:
            limit = min(sequence.max_tokens - 1, sequence.context - len(sequence.tokens) - 1)
            if len(sequence.speculator.draft(limit, 0)) >= WORTH:
                self.leave(events)

    def leave(self, events: list[Event] | None) -> Sequence:
        """Stop the run. What was not read yet is taken if there are `events` to report it to, else dropped."""
        sequence, run = self.sequence, self._run
        assert sequence is not None and run is not None
        self.sequence = self._run = None
        rest = run.stop()
        if events is not None:
            _take(sequence, rest, events)
        return sequence


def _take(sequence: Sequence, tokens: list[int], events: list[Event]) -> None:
    sequence.extend(tokens, events)
    sequence.computed = len(sequence.tokens) - 1
