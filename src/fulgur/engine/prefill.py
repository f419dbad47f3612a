"""Prefill: running the tokens that a sequence holds but has not computed, one chunk per step.

Chunks keep steps short, so that a cancel takes effect soon. They are shorter still while other sequences decode, since
the next tokens of these wait for the same step. A long prompt beside decoding sequences is prefilled in the background,
if the runtime can do that.
"""

from __future__ import annotations

from collections.abc import Callable

from fulgur.engine.background import BackgroundPrefill
from fulgur.engine.batch import Batch
from fulgur.engine.schedule import Scheduler
from fulgur.engine.sequence import Sequence

BESIDE = 64  # prefill rows in a step beside decoding sequences


def plan_prefill(
    scheduler: Scheduler, batch: Batch, background: BackgroundPrefill, admitted: Callable[[Sequence], None]
) -> None:
    """Add chunks of the running prompts, then of waiting ones, as long as the step has room."""
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
    """Add the sequence's next chunk and return its rows: 0 if there is no memory or it runs in the background."""
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
        count -= sequence.computed % batch.chunk  # so the next one begins at a multiple: its shape is a known one
    if sequence.table is not None and sequence.computed < sequence.table.captured < sequence.computed + count:
        count = sequence.table.captured - sequence.computed  # a snapshot of the recurrent state is taken there
    if not scheduler.make_room(sequence, sequence.computed + count, batch):
        return 0
    batch.add_chunk(sequence, count)
    return count
