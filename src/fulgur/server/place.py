"""A run's place in the pool of its model: the wait for a slot, and making room for a higher tier."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from fulgur.backends.base import Turn
from fulgur.protocol.errors import ApiError
from fulgur.server import accounting
from fulgur.server.pools import Slot
from fulgur.text.parts import Finish, Usage

if TYPE_CHECKING:
    from fulgur.server.run import Run

MOST_CUTS = 2  # how often an answer makes room at most


class Place:
    """One run's ticket in the queue, from its create to its end; successors that continue from its cache share it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pool = run.prepared.entry.pool
        self.tier = self._pool.tier(run.prepared.turn.service_tier)
        self.cut = False  # the generation was stopped to make room, and continues later
        self._slot: Slot | None = None
        self._cuts = 0
        self._earlier: Usage | None = None  # of this response's generations that were cut
        self._steered = Usage()  # of responses that a steer at a token ended: they used the same slot

    def price(self) -> float:
        """The tier's price, as a multiple of the model's."""
        return self._pool.price(self.tier)

    async def ask(self) -> ApiError | None:
        """Queue for a slot; the error when the queue is full."""
        try:
            self._slot = await self._pool.ask(self._run.owner, self.tier, self._make_room)
        except ApiError as error:
            return error
        return None

    def waits(self) -> bool:
        return self._slot is not None and not self._slot.running

    async def enter(self) -> bool:
        """Wait for the slot, and tell the client its place in the queue. False when the run was told to stop first."""
        run = self._run
        if self._slot is not None and not self._slot.running:
            began = time.perf_counter()
            if not await run.until(self._pool.wait(self._slot, self._emit_queued)):
                return False
            run.server.metrics.observe("fulgur_queue_seconds", time.perf_counter() - began, tier=self.tier)
        run.response.status = "in_progress"
        run.emitter.response("response.in_progress", run.response)
        return True

    def leave(self, usage: Usage) -> None:
        """Release the slot, and charge everything that was used in it."""
        if self._slot is not None:
            used = accounting.added(self._steered, usage)
            self._run.server.leave(self._pool, self._slot, used)
            self._slot, self._steered = None, Usage()

    def add_steered(self, usage: Usage) -> None:
        """Count a response that was steered at a token: its successor continues in the same slot."""
        self._steered = accounting.added(self._steered, usage)

    def _emit_queued(self, position: int, seconds: float | None) -> None:
        queue = {"position": position, "expected_wait_seconds": seconds}
        self._run.emitter.emit("response.queued", response=self._run.response, queue=queue)

    # --- making room ---

    def _make_room(self) -> bool:
        """Stop at the next token for a higher tier, to continue from there later; False when that cannot be done.

        A message that is being written can be continued; reasoning and calls cannot.
        """
        run = self._run
        whole = run.output.kind == "message" or not (run.output.kind or run.output.items)
        if not whole or run.stopped or run.generation is None or self._cuts >= MOST_CUTS:
            return False
        self._cuts += 1
        self.cut = True
        run.generation.cancel()
        return True

    def was_cut(self, finish: Finish) -> bool:
        """Whether a generation ended to make room, and not by itself or because it was told to stop."""
        self.cut = self.cut and finish.reason == "cancelled" and not self._run.stopped
        return self.cut

    async def again(self, usage: Usage) -> Turn | None:
        """Queue again for the rest of the answer. None when the run was told to stop meanwhile."""
        self.cut = False
        self._earlier = self.in_all(usage)
        self.leave(usage)
        refused = await self.ask()
        if refused is not None:
            raise refused
        self._run.response.status = "queued"
        return self._rest() if await self.enter() else None

    def in_all(self, usage: Usage) -> Usage:
        """The usage of the last generation plus that of the cut ones before it."""
        earlier, self._earlier = self._earlier, None
        return usage if earlier is None else accounting.continued(earlier, usage)

    def _rest(self) -> Turn:
        """The same turn, ending with the message so far, which is to be continued."""
        run, turn = self._run, self._run.prepared.turn
        most = turn.sampling.max_tokens
        if most is not None and self._earlier is not None:
            turn = replace(turn, sampling=replace(turn.sampling, max_tokens=max(1, most - self._earlier.output_tokens)))
        partial = run.output.partial()
        if partial is None:
            return turn
        return replace(turn, conversation=run.conversation.extend([*run.output.items, partial]))
