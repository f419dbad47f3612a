"""Chained steps over rows of several sequences: each step continues on the device from the tokens that the one before
chose, so the host reads a step's tokens while the next one runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fulgur.kernels.cuda.batch_step import ROWS, BatchStep, Int
from fulgur.kernels.cuda.few_step import FewStep
from fulgur.kernels.cuda.prefill_kernels import Launch, StepAdvance, fill
from fulgur.kernels.cuda.sampling import DeviceSampler
from fulgur.kernels.cuda.together import Together

if TYPE_CHECKING:
    from fulgur.engine.runtime import RowChoice

PLACES = 2  # buffers for the tokens of a step, used in turn


class ChainedSteps:
    """At most two steps are under way: one runs, the next is queued."""

    def __init__(
        self, together: Together, sampler: DeviceSampler, stream: Any, failed: Callable[[RuntimeError], Exception]
    ) -> None:
        import torch

        self._together, self._sampler, self._stream, self._failed = together, sampler, stream, failed
        self._events = [torch.cuda.Event(enable_timing=False) for _ in range(PLACES)]
        self._under_way: deque[int] = deque()  # places, in order
        self._graphs: list[Any] = []  # by the place of the tokens that the next step continues from
        self._way: FewStep | BatchStep | None = None
        self._rows = self._last = self._farthest = 0

    def begin(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, choices: Sequence[RowChoice | None]
    ) -> bool:
        """Queue a step in which every row chooses a token; False if these rows cannot run this way."""
        assert not self._under_way
        way, n = self._together.choose(sequences), len(tokens)
        if way is None or n > way.most or self._together.batch is None:
            return False
        if not self._graphs:
            self._graphs = self._capture(self._together.batch)
        self._way, self._rows, self._last, self._farthest = way, n, 0, int(positions.max())
        way.run(tokens, positions, sequences, tables)
        self._sampler.choose(list(enumerate(choices)), way.logits.data_ptr(), way.logits.shape[1])
        self._queued(0)
        return True

    def follow(self, tables: Int) -> None:
        """Queue the same rows again, one position further."""
        assert self._way is not None and len(self._under_way) < PLACES
        self._farthest += 1
        self._together.given.upload_tables(self._farthest, tables)
        import torch

        with torch.cuda.stream(self._stream):
            self._graphs[self._last].replay()
        self._way.again(self._rows)
        self._last = (self._last + 1) % PLACES
        self._sampler.again(self._rows, self._way.logits.data_ptr(), self._way.logits.shape[1], self._last)
        self._queued(self._last)

    def take(self) -> list[int]:
        """Wait for the oldest step and return the tokens that its rows chose."""
        place = self._under_way.popleft()
        try:
            self._events[place].synchronize()
        except RuntimeError as error:  # torch's error for a failed kernel
            raise self._failed(error) from None
        return self._sampler.tokens(self._rows, place)

    def close(self) -> None:
        self._graphs.clear()

    def _queued(self, place: int) -> None:
        self._events[place].record(self._stream)
        self._under_way.append(place)

    def _capture(self, batch: BatchStep) -> list[Any]:
        """The kernel that sets up a step with the tokens of a place, as a graph: so it is queued like the steps."""
        import torch

        made = []
        chosen, stride = self._sampler.positions
        for place in range(PLACES):
            arguments = fill(
                StepAdvance, rows=self._together.given.rows, tokens=self._sampler.place(place), chosen=chosen,
                stride=stride,
            )  # fmt: skip
            graph = torch.cuda.CUDAGraph()
            self._stream.synchronize()
            with torch.cuda.graph(graph, stream=self._stream):
                batch.kernels.run_dependent(Launch("step_advance", arguments, 1, ROWS))
            made.append(graph)
        return made
