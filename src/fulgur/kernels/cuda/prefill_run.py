"""A prompt that is prefilled beside decoding sequences: half a layer at a time, within its fraction of device time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

KINDS = 2  # of parts: attention, feed-forward


class PrefillRun:
    """Parts are queued after a step of the other sequences, and nothing waits for them: while the device runs them, the
    host takes the step's results and prepares the next. What the device runs after them sees their writes."""

    def __init__(self, parts: Generator[None], stream: Any) -> None:
        self.done = self.failed = False
        self.time_fraction: float | None = None  # of the device, in the next step; None: no parts beside it
        self._parts, self._stream = parts, stream
        self._next = 0
        self._balance = 0.0  # seconds that it may still take; negative: it took too long
        self._seconds = [0.0] * KINDS  # of a part of each kind
        self._timed: tuple[Any, Any, list[int]] | None = None

    def finish(self) -> None:
        """Queue all the remaining parts: no other sequence waits."""
        while not (self.done or self.failed):
            self._one()

    def close(self) -> None:
        self._parts.close()

    def _one(self) -> None:
        import torch

        try:
            self.done = next(self._parts, self) is self
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            self.failed = True

    def queue(self, seconds: float) -> None:
        """Queue parts for the prompt's fraction of the time, beside a step that takes `seconds`."""
        import torch

        assert self.time_fraction is not None
        self._observe()
        self._balance += seconds * self.time_fraction / (1 - self.time_fraction)
        self.time_fraction = None
        kinds: list[int] = []
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self._stream)
        while self._balance > 0 and not (self.done or self.failed):
            kind = self._next % KINDS
            known = self._seconds[kind] > 0
            if kinds and not known:
                break  # a part whose time is not known yet runs alone
            self._one()
            if not (self.done or self.failed):
                kinds.append(kind)
                self._next += 1
                self._balance -= self._seconds[kind]
            if not known:
                break
        end.record(self._stream)
        self._timed = (start, end, kinds) if kinds else None

    def _observe(self) -> None:
        """Measure the parts that were queued last: update the estimates, and settle the difference in the balance."""
        if self._timed is None:
            return
        start, end, kinds = self._timed
        end.synchronize()
        took, expected = start.elapsed_time(end) / 1e3, sum(self._seconds[kind] for kind in kinds)
        self._balance += expected - took
        for kind in set(kinds):
            self._seconds[kind] = self._seconds[kind] * took / expected if expected else took / len(kinds)
