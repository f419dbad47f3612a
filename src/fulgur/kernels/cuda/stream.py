"""One run of the device's decode loop, as the host sees it: tokens from the pinned ring, and a way to stop it.

The device needs nothing from the host while it runs. Reading takes a look at two numbers in pinned memory and a slice
of the ring; the host's work on the tokens overlaps with the next ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.records import RING

if TYPE_CHECKING:
    from fulgur.engine.runtime import Bits, Logprob
    from fulgur.kernels.cuda.sampling import DeviceSampler

QUEUED = 8  # steps that the graph driver queues ahead: after a stop, this many empty ones may still run
SPINS = 2000  # polls without a token (about a millisecond) before the host begins to sleep between them
NAP = 50e-6


class TokenStream:
    """`enqueue(n)` adds n steps to the device's queue (None: one launch runs them all)."""

    def __init__(
        self, box: Any, ring: npt.NDArray[np.int32], limit: int, busy: Callable[[], bool], wait: Callable[[], None],
        enqueue: Callable[[int], None] | None, logprobs: Callable[[int, int], list[Logprob]] | None = None,
        allow: Callable[[Bits], None] | None = None,
    ) -> None:  # fmt: skip
        """`logprobs(first, count)` returns log-probabilities; `allow` queues a step whose token a mask restricts."""
        self.ended = False
        self._logprobs, self._allow, self._given = logprobs, allow, (0, 0)
        self._box, self._ring, self._limit = box, ring, limit
        self._busy, self._wait, self._enqueue = busy, wait, enqueue
        self._seen = self._asked = 0
        self._refill(0)

    def read(self) -> list[int]:
        """The tokens since the last call, waiting for at least one; fewer only when the run has ended."""
        if self.ended:
            return []
        box, idle = self._box, 0
        while True:
            finished, count = box.finished, box.count  # in this order: after `finished` nothing is written
            if count > self._seen or finished:
                break
            idle += 1
            if idle > SPINS:
                # Steps may have finished since the values were read above, so read them again once the device is idle.
                if not self._busy() and not box.finished and box.count == self._seen:
                    self._fail()
                time.sleep(NAP)
        tokens = self._new(count)
        if finished:
            self._end()
        else:
            self._refill(count)
        return tokens

    def logprobs(self) -> list[Logprob]:
        """The log-probabilities of the tokens that were returned last."""
        return [] if self._logprobs is None else self._logprobs(*self._given)

    def allow(self, mask: Bits) -> None:
        """Set which tokens may come next."""
        assert self._allow is not None
        self._allow(mask)

    def stop(self) -> list[int]:
        """End the run at its next step; waits until the device is idle and returns the tokens that were not read."""
        if self.ended:
            return []
        box = self._box
        box.cancel = 1
        while not box.finished:
            if not self._busy() and not box.finished:
                if self._allow is None and (self._enqueue is None or self._asked >= self._limit):
                    self._fail()
                break  # the queue ran empty before the flag was seen: nothing runs, which is all that is needed
        self._end()
        return self._new(box.count)

    def _new(self, count: int) -> list[int]:
        begin, end = self._seen % RING, (self._seen + (count - self._seen)) % RING
        tokens = self._ring[begin : begin + count - self._seen].tolist()
        if len(tokens) < count - self._seen:  # round the end of the ring
            tokens += self._ring[:end].tolist()
        self._given, self._seen = (self._seen, count - self._seen), count
        return tokens

    def _refill(self, produced: int) -> None:
        more = min(produced + QUEUED, self._limit) - self._asked
        if self._enqueue is not None and more > 0 and (more > QUEUED // 2 or self._asked + more == self._limit):
            self._asked += more
            self._enqueue(more)

    def _end(self) -> None:
        self.ended = True
        self._wait()

    def _fail(self) -> None:
        """The device is idle but reported nothing: waiting for it raises its error, if it has one."""
        self._end()
        raise FulgurError("the GPU ended a run without a result", hint="Start the engine again.")


def sampled_stream(
    box: Any, ring: npt.NDArray[np.int32], sampler: DeviceSampler, step: Callable[[], None], grammar: bool, limit: int,
    busy: Callable[[], bool], wait: Callable[[], None],
) -> TokenStream:  # fmt: skip
    """A run whose steps are queued one by one (`step`), each followed by a choice that sets up the next. With a
    grammar, the step after a token is under way before the mask of the next token is known."""

    def steps(count: int) -> None:
        for _ in range(count):
            step()
            sampler.queue()

    def allow(mask: Bits) -> None:
        sampler.allow(mask)
        sampler.queue()
        step()

    if grammar:
        step()
    more = (None, sampler.logprobs, allow) if grammar else (steps, sampler.logprobs)
    return TokenStream(box, ring, limit, busy, wait, *more)
