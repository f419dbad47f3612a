"""Recurrent states on the GPU: one a slot, which steps move on, and copies of them (`engine.states.StateStore`).

A slot holds S of every delta layer as of the first row of the last step, and a log of that step's rows
(csrc/family.cu). So a step may begin at any row of the last one, or behind it. A run of the device's loop leaves only
its last step behind; a copy from before the run and the run's own tokens bring any of its positions back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.family_draft import DraftLogs
from fulgur.kernels.cuda.family_plan import LOG, FamilyPlan

Int = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LayerState:
    """Views of what a slot holds of one layer (`Delta` of csrc/family.cu)."""

    state: Any  # [value head, k_dim, v_dim]
    inputs: Any  # [LOG, channels], by position
    keys: Any  # [LOG, key head, k_dim]
    corrections: Any  # [LOG, values]
    decays: Any  # [LOG, value head]


@dataclass(frozen=True)
class _Run:
    """A run that has ended: its slot, where it began, the state before it, its tokens from there on."""

    slot: int
    position: int
    known: int
    tokens: list[int]
    table: Int


class FamilyStates:
    """Copies are queued on `stream`, between the steps. `replay(slot, position, tokens, table)` computes tokens again,
    from a position on. What the drafting head has to see (`drafts`) goes with the states."""

    def __init__(
        self, plan: FamilyPlan, slots: int, snapshots: int, device: Any, stream: Any,
        replay: Callable[[int, int, list[int], Int], None], drafts: DraftLogs | None = None,
    ) -> None:  # fmt: skip
        import torch

        assert plan.config.delta is not None
        self._shape, self._layers = plan.config.delta, plan.delta_layers
        self.slots, self.snapshots = slots, snapshots
        # The slots, the copy from before a run, the snapshots.
        self.held = torch.zeros(
            (slots + 1 + snapshots, plan.delta_layers, plan.state_floats), dtype=torch.float32, device=device
        )
        self.known = torch.zeros(slots, dtype=torch.int32, device=device)  # tokens that each slot's S holds
        self._known: list[int] = [0] * slots
        self._end: list[int] = [0] * slots  # tokens that the slot has seen
        self._saved: dict[int, tuple[int, int]] = {}  # by snapshot: known, end
        self._stream, self._replay, self._drafts = stream, replay, drafts
        self._run: _Run | None = None

    @property
    def nbytes(self) -> int:
        return int(self.held.numel() * 4)

    def begin(self, slot: int, position: int, rows: int) -> None:
        """A step of `rows` rows from `position` on is about to be queued."""
        if position:
            self._go_to(slot, position)
        self._known[slot], self._end[slot] = position, position + rows

    def views(self, slot: int, layer: int) -> LayerState:
        d, at, flat = self._shape, 0, self.held[slot, layer]

        def take(*shape: int) -> Any:
            nonlocal at
            size = math.prod(shape)
            at += size
            return flat[at - size : at].view(shape)

        state, inputs, keys = take(d.v_heads, d.k_dim, d.v_dim), take(LOG, d.channels), take(LOG, d.k_heads, d.k_dim)
        log = take(LOG, d.values + d.v_heads)
        return LayerState(state, inputs, keys, log[:, : d.values], log[:, d.values :])

    def settle(self, slot: int, position: int) -> None:
        """Add what the log holds to S, up to `position`: prefill goes on from there."""
        if position:
            self._go_to(slot, position)
            for layer in range(self._layers if self._known[slot] < position else 0):
                held, d = self.views(slot, layer), self._shape
                for at in range(self._known[slot], position):
                    place = at % LOG
                    keys = held.keys[place].repeat_interleave(d.v_heads // d.k_heads, 0)
                    added = keys[:, :, None] * held.corrections[place].view(d.v_heads, 1, d.v_dim)
                    held.state.mul_(held.decays[place][:, None, None]).add_(added)
        self._set(slot, position, position)

    def computed(self, slot: int, position: int) -> None:
        """Prefill has brought a slot's S up to date itself."""
        self._set(slot, position, position)

    def before_run(self, slot: int, position: int) -> None:
        """Keep what a run begins with."""
        if position:
            self._go_to(slot, position)
        self._copy(slot, self.slots)

    def after_run(self, slot: int, position: int, tokens: list[int], table: Int) -> None:
        """It computed `tokens`, from `position` on, one by one."""
        self._run = _Run(slot, position, self._known[slot], tokens, table.copy())
        if tokens:
            self._known[slot], self._end[slot] = position + len(tokens) - 1, position + len(tokens)

    def save(self, slot: int, position: int, snapshot: int) -> None:
        self._go_to(slot, position)
        self._copy(slot, self.slots + 1 + snapshot)
        self._saved[snapshot] = self._known[slot], position
        if self._drafts is not None:
            self._drafts.save(slot, position, snapshot)

    def restore(self, snapshot: int, slot: int) -> None:
        self._copy(self.slots + 1 + snapshot, slot)
        self._set(slot, *self._saved[snapshot])
        if self._drafts is not None:
            self._drafts.restore(snapshot, slot)

    def copy(self, source: int, target: int) -> None:
        self._copy(source, target)
        self._set(target, self._known[source], self._end[source])
        if self._drafts is not None:
            self._drafts.copy(source, target)

    def _copy(self, source: int, target: int) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            self.held[target].copy_(self.held[source])

    def _set(self, slot: int, known: int, end: int) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            self.known[slot] = known
        self._known[slot], self._end[slot] = known, end
        if self._run is not None and self._run.slot == slot:
            self._run = None

    def _go_to(self, slot: int, position: int) -> None:
        """Make sure that a step can begin at `position`."""
        if self._known[slot] <= position <= self._end[slot]:
            return
        run = self._run
        if run is None or run.slot != slot or not run.position <= position <= run.position + len(run.tokens):
            raise ValueError(f"sequence {slot} has no state of {position} tokens")
        self._copy(self.slots, slot)
        self._set(slot, run.known, run.position)
        if position > run.position:
            self._replay(slot, run.position, run.tokens[: position - run.position], run.table)
