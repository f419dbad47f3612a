"""Chunks of prompts of any family on the device, with the recurrent states and the drafting head.

A chunk is computed on a copy of its sequence's state, which replaces the state once the whole chunk is queued. So steps
of other sequences may run between its parts, and a chunk that is dropped, or runs out of memory, leaves its sequence as
it was.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.family_draft import DraftLogs
from fulgur.kernels.cuda.family_prefill import FamilyPrefill
from fulgur.kernels.cuda.family_states import FamilyStates
from fulgur.kernels.cuda.plan import HIDDEN

Int = npt.NDArray[np.int32]

LEAST = 16  # fewer rows are not worth it


class FamilyPrompts:
    def __init__(
        self, prefill: FamilyPrefill, states: FamilyStates | None, drafts: DraftLogs | None, stream: Any
    ) -> None:  # fmt: skip
        self.prefill, self._states, self._drafts, self._stream = prefill, states, drafts, stream

    def rows(self, tokens: Int, position: int, table: Int, slot: int) -> int:
        """Queue a chunk; returns how many of its rows: fewer if memory is short, or none."""
        import torch

        n = len(tokens)
        while n >= LEAST:
            try:
                for _ in self.begin(tokens[:n], position, table, slot):
                    pass
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                n //= 2
                continue
            return n
        return 0

    def begin(self, tokens: Int, position: int, table: Int, slot: int) -> Generator[None]:
        """A chunk in parts: each `next` queues one. The device is idle now; later it need not be."""
        import torch

        device = self.prefill.kv.device
        with torch.cuda.stream(self._stream), torch.no_grad():
            if self._states is not None:
                self._states.settle(slot, position, table)
            if self._drafts is not None and position:
                self._drafts.catch_up(slot, table, position)
            given = torch.from_numpy(np.ascontiguousarray(tokens)).long().to(device)
            places = torch.from_numpy(np.maximum(table, 0).astype(np.int32)).to(device)
            state = None if self._states is None else self._states.held[slot].clone()
        return self._on_stream(self._parts(given, position, places, slot, state))

    def _on_stream(self, parts: Generator[None]) -> Generator[None]:
        import torch

        while True:
            with torch.cuda.stream(self._stream), torch.no_grad():
                if next(parts, self) is self:
                    return
            yield

    def _parts(self, tokens: Any, position: int, table: Any, slot: int, state: Any | None) -> Generator[None]:
        hidden = yield from self.prefill.parts(tokens, position, table, state)
        end = position + len(tokens)
        if self._drafts is not None:
            yield from self._see(tokens, hidden, position, table, slot)
            self._drafts.prefilled(slot, end, hidden[-1])
        if self._states is not None:
            self._states.computed(slot, end, state)

    def _see(self, tokens: Any, hidden: Any, position: int, table: Any, slot: int) -> Generator[None]:
        """Run the drafting head on each token with the hidden state before it, if that is known."""
        import torch

        assert self._drafts is not None
        before, skip = hidden[:-1], 1
        if position > 0 and self._drafts.knows(slot, position):
            before, skip = torch.cat((self._drafts.ring[slot, (position - 1) % HIDDEN][None], before)), 0
        if len(tokens) > skip:
            yield from self.prefill.see_parts(tokens[skip:], before, position + skip, table)
