"""Decoding: one token per sequence and step, or several when a draft is verified.

A decoding sequence has one token that is not computed yet, its last. The step runs this token, followed by a draft.
The result of each row is the token that comes after it. As long as the results match the draft, the next row has seen
the right context, so its result counts too.
"""

from __future__ import annotations

from fulgur.engine.batch import Batch, BatchEntry
from fulgur.engine.errors import EngineError
from fulgur.engine.events import Event, TokenLogprob
from fulgur.engine.sample import Sampler
from fulgur.engine.schedule import Scheduler
from fulgur.engine.sequence import Sequence
from fulgur.engine.speculate import Speculator
from fulgur.errors import FulgurError

MAX_LOGIT_ROWS = 64  # rows of full logits in a step: bounds their memory with a large vocabulary


def plan_decode(scheduler: Scheduler, batch: Batch) -> None:
    """Add the next token of every decoding sequence, with a draft where one is worth it."""
    running = scheduler.running
    decoding = [s for s in running if s.computed + 1 == len(s.tokens) and not s.prefill_only]
    spare = batch.capacity - len(decoding)
    spare_logits = MAX_LOGIT_ROWS - len(decoding)
    for sequence in decoding:
        length = len(sequence.tokens)
        if not scheduler.make_room(sequence, length, batch):
            continue  # it has to wait, or an older sequence has preempted it
        draft: list[int] = []
        if sequence.speculator is not None:
            limit = spare if sequence.sampler is None else min(spare, spare_logits)
            draft = _draft(sequence, sequence.speculator, limit, len(decoding) - 1)
            if draft:
                draft = scheduler.fit_draft(sequence, length, draft)
                spare -= len(draft)
                spare_logits -= len(draft)
        batch.add_decoding(sequence, draft)


def _draft(sequence: Sequence, speculator: Speculator, limit: int, others: int) -> list[int]:
    """Draft no further than the sequence may grow. Under a grammar: the tokens that it forces, else the guesses that it
    allows."""
    limit = min(limit, sequence.max_tokens - 1, sequence.context - len(sequence.tokens) - 1)
    draft = speculator.draft(limit, others)
    matcher = sequence.matcher
    if matcher is None:
        return draft
    try:
        forced = matcher.forced_tokens()[: max(limit, 0)]
        return forced or draft[: matcher.validate(draft)]
    except FulgurError:  # the grammar cannot be followed any further: `accept` ends this sequence, and only it
        return []


def accept(entry: BatchEntry, batch: Batch, best: list[int], events: list[Event]) -> None:
    """Take the results of a sequence's rows: the part of the draft that was right, and the token after it."""
    sequence, draft, first = entry.sequence, entry.draft, entry.first
    before = len(sequence.tokens)
    right = 0  # how many guesses were right
    if sequence.sampler is None:
        while right < len(draft) and best[first + right] == draft[right]:
            right += 1
        sequence.extend(best[first : first + right + 1], events)
    else:
        try:
            while sequence.finished is None:
                token = _choose(sequence, sequence.sampler, batch, best, first + right, events)
                if right == len(draft) or token != draft[right]:
                    break
                right += 1
        except FulgurError as error:  # a grammar that cannot be followed any further
            sequence.finished, sequence.message = "error", str(error)
    taken = len(sequence.tokens) - before
    sequence.computed += entry.rows - len(draft) - 1 + taken
    if draft:
        sequence.usage.draft_tokens += len(draft)
        sequence.usage.accepted_tokens += min(right, taken)


def _choose(sequence: Sequence, sampler: Sampler, batch: Batch, best: list[int], row: int, events: list[Event]) -> int:
    if batch.logprobs is not None:
        found = batch.logprobs[row]
        token, logprob = best[row], None if found is None else TokenLogprob(*found)
    else:
        token, logprob = sampler.choose(batch.logits[row], len(sequence.tokens), sequence.matcher)
    take(sequence, token, logprob, events)
    return token


def take(sequence: Sequence, token: int, logprob: TokenLogprob | None, events: list[Event]) -> None:
    """Append a chosen token to its sequence and advance the grammar."""
    matcher = sequence.matcher
    if matcher is not None and token not in sequence.stop_ids and not matcher.accept(token):
        raise EngineError(f"the grammar rejected token {token} after allowing it")
    sequence.push(token, logprob, events)
