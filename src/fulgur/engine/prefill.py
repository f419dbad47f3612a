"""Prefill: running the tokens that a sequence holds but has not computed, a chunk a step.

Chunks keep a step short, so that a cancel takes effect soon; and shorter still while others are decoding, whose next
tokens wait for the same step.
"""

from __future__ import annotations

from collections.abc import Callable

from fulgur.engine.batch import Batch
from fulgur.engine.schedule import Scheduler
from fulgur.engine.sequence import Sequence

BESIDE = 64  # rows of prefill beside decoding sequences


def plan_prefill(scheduler: Scheduler, batch: Batch, admitted: Callable[[Sequence], None]) -> None:
    """Add chunks of the prompts in work, then of waiting ones, as long as the step has room."""
    room = min(batch.capacity - batch.rows, BESIDE if batch.rows else batch.chunk)
    planned = {id(entry.sequence) for entry in batch.entries}
    for sequence in list(scheduler.running):
        if room and id(sequence) not in planned and sequence.table is not None:
            room -= _add_chunk(scheduler, batch, sequence, room)
    while room and (waiting := scheduler.admit()) is not None:
        admitted(waiting)
        room -= _add_chunk(scheduler, batch, waiting, room)


def _add_chunk(scheduler: Scheduler, batch: Batch, sequence: Sequence, room: int) -> int:
    count = min(len(sequence.tokens) - sequence.computed, room)
    if not scheduler.make_room(sequence, sequence.computed + count, batch):
        return 0
    batch.add_chunk(sequence, count)
    return count
