"""A single sequence in the device's own decode loop.

When one sequence decodes and there is nothing else to do, a runtime that can decodes by itself. The engine reads tokens
as they arrive, and turning them into text overlaps with the next ones. The loop ends when the sequence does, when
something else needs the runtime (a request, a steer, a cancel, a draft that is worth a wide step), or when its room is
used up.

The device may be some tokens ahead of what was read. Tokens beyond the end of a sequence, or beyond the point of a
steer, are dropped: only what the sequence counts as computed is valid in the cache, and the slots after it are
overwritten.
"""

from __future__ import annotations

from time import perf_counter

from fulgur.engine.cache import Cache
from fulgur.engine.decode import take
from fulgur.engine.events import Event, TokenLogprob
from fulgur.engine.runtime import Runtime, TokenStream
from fulgur.engine.sequence import Sequence
from fulgur.engine.speculate import StepCost
from fulgur.errors import FulgurError

WORTH = 4  # length of a draft that is worth leaving the loop: stopping and starting it costs part of a step
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
        """Run a decoding sequence in the loop; False if it needs more than the device can do, or there is no room."""
        runtime, table = self._runtime, sequence.table
        sampler = sequence.sampler
        sampling = None if sampler is None else sampler.on_device
        if runtime is None or table is None or (sampler is not None and sampling is None):
            return False
        length = len(sequence.tokens)
        limit = min(sequence.max_tokens, sequence.context - length, ROOM)
        self._cache.grow(table, sequence.computed + limit)
        limit = min(limit, len(table.blocks) * self._cache.size - sequence.computed)
        if limit <= 1:
            return False
        first = sequence.masks([], runtime.vocab_size)
        if first is None:
            return False
        stop = sequence.stop_ids
        last, at = sequence.tokens[-1], sequence.computed
        self._run = runtime.stream(last, at, table.row, stop, limit, sampling, sequence.slot)
        if first[0] is not None:
            self._run.allow(first[0])
        self.sequence, self._last = sequence, perf_counter()
        return True

    def read(self, events: list[Event]) -> None:
        """Wait for tokens and take them. Leave the loop if the sequence or the run has ended or a draft is worth it."""
        sequence, run = self.sequence, self._run
        assert sequence is not None and run is not None
        tokens = run.read()
        now = perf_counter()
        if tokens:
            sequence.note_first_token(now)
            self._cost.observe(1, (now - self._last) / len(tokens))
        self._last = now
        _take(sequence, tokens, run, events)
        if sequence.finished is not None:
            self.leave(None)
        elif run.ended or self._wants_a_draft(sequence) or not self._allowed(sequence, run):
            self.leave(events)

    def _wants_a_draft(self, sequence: Sequence) -> bool:
        if sequence.speculator is None:
            return False
        limit = min(sequence.max_tokens - 1, sequence.context - len(sequence.tokens) - 1)
        return sequence.speculator.worth(limit) >= WORTH

    def _allowed(self, sequence: Sequence, run: TokenStream) -> bool:
        """Under a grammar, tell the device what the next token may be; False if the host has to choose it."""
        if sequence.matcher is None or self._runtime is None:
            return True
        masks = sequence.masks([], self._runtime.vocab_size)
        if masks is None or masks[0] is None:
            return False
        run.allow(masks[0])
        return True

    def leave(self, events: list[Event] | None) -> Sequence:
        """Stop the run. Tokens that were not read yet are taken if `events` is given, else dropped."""
        sequence, run = self.sequence, self._run
        assert sequence is not None and run is not None
        self.sequence = self._run = None
        rest = run.stop()
        if events is not None:
            _take(sequence, rest, run, events)
        return sequence


def _take(sequence: Sequence, tokens: list[int], run: TokenStream, events: list[Event]) -> None:
    sampler = sequence.sampler
    if sampler is None or sampler.sampling.plain:
        sequence.extend(tokens, events)
    else:
        logprobs = run.logprobs() if sampler.sampling.logprobs >= 0 else [None] * len(tokens)
        try:
            for token, one in zip(tokens, logprobs, strict=True):
                take(sequence, token, None if one is None else TokenLogprob(*one), events)
                if sequence.finished is not None:
                    break
        except FulgurError as error:  # a grammar that cannot be followed any further
            sequence.finished, sequence.message = "error", str(error)
    sequence.computed = len(sequence.tokens) - 1
