"""Prefill: running the tokens that a sequence holds but has not computed, a chunk a step.

Chunks keep a step short, so that a cancel takes effect soon; and shorter still while others are decoding, whose next
tokens wait for the same step. Beside those a long prompt goes to the background, where the runtime can.
"""

from __future__ import annotations

from collections.abc import Callable

from fulgur.engine.background import BackgroundPrefill
from fulgur.engine.batch import Batch
from fulgur.engine.schedule import Scheduler
from fulgur.engine.sequence import Sequence

BESIDE = 64  # rows of prefill beside decoding sequences


def plan_prefill(
    scheduler: Scheduler, batch: Batch, background: BackgroundPrefill, admitted: Callable[[Sequence], None]
) -> None:
    """Add chunks of the prompts in work, then of waiting ones, as long as the step has room."""
    beside = batch.rows > 0
    room = min(batch.capacity - batch.rows, BESIDE if beside else batch.chunk)
    planned = {id(entry.sequence) for entry in batch.entries}
    for sequence in list(scheduler.running):
        if room and id(sequence) not in planned and sequence.table is not None:
            room -= _add_chunk(scheduler, batch, background, sequence, room, beside)
    while room and (waiting := scheduler.admit()) is not None:
        admitted(waiting)
        room -= _add_chunk(scheduler, batch, background, waiting, room, beside)


def _add_chunk(
    scheduler: Scheduler, batch: Batch, background: BackgroundPrefill, sequence: Sequence, room: int, beside: bool
) -> int:
    """How many rows of the step the sequence got; none if it is computed in the background."""
    if background.sequence is sequence:
        return 0
    rows = background.rows_of(sequence) if beside else 0
    if rows:
        if scheduler.make_room(sequence, sequence.computed + rows, batch):
            background.start(sequence, rows)
        return 0
    left = len(sequence.tokens) - sequence.computed
    count = min(left, room)
    if count < left and batch.chunk <= room and count > sequence.computed % batch.chunk:
        count -= sequence.computed % batch.chunk  # the next one begins at a whole multiple: shapes that are known
    if sequence.table is not None and sequence.computed < sequence.table.captured < sequence.computed + count:
        count = sequence.table.captured - sequence.computed  # a snapshot of the recurrent state is taken there
    if not scheduler.make_room(sequence, sequence.computed + count, batch):
        return 0
    batch.add_chunk(sequence, count)
    return count
