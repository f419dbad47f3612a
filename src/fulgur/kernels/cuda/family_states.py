"""Recurrent states on the GPU: one per slot, which steps advance, and copies of them (`engine.states.StateStore`).

A slot holds S of every delta layer as of the first row of the last step, and a log of that step's rows
(csrc/family.cu). So a step may begin at any row of the last one, or after it. A run of the device's loop, and a draft
of more rows than a pass has, leave only their last pass in the slot; a copy from before and their tokens restore any of
their positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.family_draft import DraftLogs
from fulgur.kernels.cuda.family_plan import FamilyPlan
from fulgur.kernels.cuda.plan import LOG

Int = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LayerState:
    """Views of one layer's part of a slot (`Delta` of csrc/family.cu)."""

    state: Any  # [value head, k_dim, v_dim]
    inputs: Any  # [LOG, channels], by position
    keys: Any  # [LOG, key head, k_dim]
    corrections: Any  # [LOG, values]
    decays: Any  # [LOG, value head]


@dataclass(frozen=True)
class _Run:
    """Passes that can be undone: where they began, the state before them, their tokens from there on."""

    position: int
    known: int
    before: Any  # the copy of the state
    tokens: list[int]
    table: Int


class FamilyStates:
    """Copies are queued on `stream`, between the steps. `replay(slot, position, tokens, table)` computes tokens again,
    from a position on. What the drafting head has still to see (`drafts`) is saved and restored with the states."""

    def __init__(
        self, plan: FamilyPlan, slots: int, snapshots: int, device: Any, stream: Any,
        replay: Callable[[int, int, list[int], Int], None], drafts: DraftLogs | None = None,
    ) -> None:  # fmt: skip
        import torch

        assert plan.config.delta is not None
        self._shape, self._layers = plan.config.delta, plan.delta_layers
        self.slots, self.snapshots = slots, snapshots
        self.held = torch.zeros(  # the slots, the snapshots
            (slots + snapshots, plan.delta_layers, plan.state_floats), dtype=torch.float32, device=device
        )
        self.known = torch.zeros(slots, dtype=torch.int32, device=device)  # tokens that each slot's S holds
        self._known: list[int] = [0] * slots
        self._end: list[int] = [0] * slots  # tokens that the slot has seen
        self._saved: dict[int, tuple[int, int]] = {}  # by snapshot: known, end
        self._stream, self._replay, self._drafts = stream, replay, drafts
        self._runs: dict[int, _Run] = {}  # by slot
        self._copies = [torch.zeros_like(self.held[0])]  # for runs; more are made if several drafts are long

    @property
    def nbytes(self) -> int:
        return int((self.held.numel() + self.held[0].numel()) * 4)

    def begin(self, slot: int, position: int, rows: int, table: Int) -> None:
        """A step of `rows` rows from `position` on is about to be queued."""
        if position:
            self._go_to(slot, position, table)
        run = self._runs.get(slot)
        if run is not None and run.tokens:  # it is over, and nothing goes back to before this step
            self._forget(slot)
        self._known[slot], self._end[slot] = position, position + rows

    def views(self, state: Any, layer: int) -> LayerState:
        """Views of one slot's state (`held[slot]`, or a copy of it)."""
        d, at, flat = self._shape, 0, state[layer]

        def take(*shape: int) -> Any:
            nonlocal at
            size = math.prod(shape)
            at += size
            return flat[at - size : at].view(shape)

        state, inputs, keys = take(d.v_heads, d.k_dim, d.v_dim), take(LOG, d.channels), take(LOG, d.k_heads, d.k_dim)
        log = take(LOG, d.values + d.v_heads)
        return LayerState(state, inputs, keys, log[:, : d.values], log[:, d.values :])

    def settle(self, slot: int, position: int, table: Int) -> None:
        """Add the log to S, up to `position`: prefill continues from there."""
        if position:
            self._go_to(slot, position, table)
            for layer in range(self._layers if self._known[slot] < position else 0):
                held, d = self.views(self.held[slot], layer), self._shape
                for at in range(self._known[slot], position):
                    place = at % LOG
                    keys = held.keys[place].repeat_interleave(d.v_heads // d.k_heads, 0)
                    added = keys[:, :, None] * held.corrections[place].view(d.v_heads, 1, d.v_dim)
                    held.state.mul_(held.decays[place][:, None, None]).add_(added)
        self._set(slot, position, position)

    def computed(self, slot: int, position: int, state: Any | None = None) -> None:
        """After prefill has updated a slot's S, or a copy of it, which becomes the slot's."""
        if state is not None:
            self._copy(state, self.held[slot])
        self._set(slot, position, position)

    def before_runs(self, begins: dict[int, int], tables: dict[int, Int]) -> None:
        """Keep the states that runs begin with; by slot, their positions and tables. Those of other slots stay: their
        sequences may still have to go back."""
        for slot, position in begins.items():
            if position:
                self._go_to(slot, position, tables[slot])
            self._forget(slot)
        for slot, position in begins.items():
            before = self._copies.pop() if self._copies else self._room()
            self._copy(self.held[slot], before)
            self._runs[slot] = _Run(position, self._known[slot], before, [], tables[slot].copy())

    def after_run(self, slot: int, tokens: list[int]) -> None:
        """Note that the device's loop computed `tokens`, one by one."""
        position = self._runs[slot].position
        self.after_passes(slot, tokens)
        if tokens:
            self._known[slot], self._end[slot] = position + len(tokens) - 1, position + len(tokens)

    def after_passes(self, slot: int, tokens: list[int]) -> None:
        """Note that passes computed `tokens`; each of them called `begin`."""
        self._runs[slot].tokens[:] = tokens

    def save(self, slot: int, position: int, snapshot: int) -> None:
        self._go_to(slot, position)
        self._copy(self.held[slot], self.held[self.slots + snapshot])
        self._saved[snapshot] = self._known[slot], position
        if self._drafts is not None:
            self._drafts.save(slot, position, snapshot)

    def restore(self, snapshot: int, slot: int) -> None:
        self._copy(self.held[self.slots + snapshot], self.held[slot])
        self._set(slot, *self._saved[snapshot])
        if self._drafts is not None:
            self._drafts.restore(snapshot, slot)

    def copy(self, source: int, target: int) -> None:
        self._copy(self.held[source], self.held[target])
        self._set(target, self._known[source], self._end[source])
        if self._drafts is not None:
            self._drafts.copy(source, target)

    def _room(self) -> Any:
        """Memory for one more copy. Never filled on another stream: that could happen after the copy."""
        import torch

        with torch.cuda.stream(self._stream):
            return torch.empty_like(self.held[0])

    def _copy(self, source: Any, target: Any) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            target.copy_(source)

    def _forget(self, slot: int) -> None:
        run = self._runs.pop(slot, None)
        if run is not None:
            self._copies.append(run.before)

    def _set(self, slot: int, known: int, end: int) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            self.known[slot] = known
        self._known[slot], self._end[slot] = known, end
        self._forget(slot)

    def _go_to(self, slot: int, position: int, table: Int | None = None) -> None:
        """Make sure that a step can begin at `position`. `table` is the sequence's current one: since the run, a block
        may have been replaced by an equal one and belong to another sequence."""
        if self._known[slot] <= position <= self._end[slot]:
            return
        run = self._runs.get(slot)
        if run is None or not run.position <= position <= run.position + len(run.tokens):
            raise ValueError(f"sequence {slot} has no recurrent state at position {position}")
        self._copy(run.before, self.held[slot])
        self._set(slot, run.known, run.position)
        if position > run.position:
            again = run.tokens[: position - run.position]
            self._replay(slot, run.position, again, run.table if table is None else table)
