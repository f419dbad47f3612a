"""The rows of one step, in arrays that are allocated once and refilled each time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fulgur.engine.runtime import ChainedRuntime, FloatArray, IntArray, Logprob, RowChoice, Runtime
from fulgur.engine.sequence import Sequence


@dataclass(slots=True)
class BatchEntry:
    """One sequence's part of the step: `rows` rows, the last of them `draft`; its results, if any, start at `first`."""

    sequence: Sequence
    rows: int
    draft: list[int]
    first: int  # -1: no result is wanted; the prompt goes on, or only its prefill was asked for


class Batch:
    """Rows to run. A sequence's rows are consecutive and begin where its computed part ends."""

    def __init__(self, runtime: Runtime, context: int, tables: IntArray) -> None:
        self.capacity = runtime.max_rows
        self.chunk = runtime.prefill_rows
        self.rows = 0
        self.result_rows = 0
        self.needs_logits = False
        self.sampled = False  # some row's token is not simply the likeliest
        self.entries: list[BatchEntry] = []
        self.logprobs: list[Logprob | None] | None = None  # log-probabilities by result if the device chose, else None
        self._choices: list[RowChoice | None] = []
        self.logits: FloatArray = np.empty((0, runtime.vocab_size), np.float32)
        self._runtime = runtime
        self._tables = tables
        self._tokens = np.zeros(self.capacity, np.int32)
        self._positions = np.zeros(self.capacity, np.int32)
        self._slots = np.zeros(self.capacity, np.int32)
        self._logit_rows = np.arange(self.capacity, dtype=np.int32)
        self._counting = np.arange(max(context, self.capacity) + 1, dtype=np.int32)
        # Between two steps the CPU caches hold weights, so numpy's own code would be fetched from memory for a few
        # numbers. So decoding rows are written one by one, and the array views of each width are made once.
        self._cells = self._tokens.data, self._positions.data, self._slots.data
        self._widths: dict[int, tuple[IntArray, IntArray, IntArray, IntArray, IntArray]] = {}

    def clear(self) -> None:
        if self.rows != self.result_rows:
            self._logit_rows[:] = self._counting[: self.capacity]
        self.rows = self.result_rows = 0
        self.needs_logits = self.sampled = False
        self.logprobs = None
        self._choices.clear()
        self.entries.clear()

    def add_decoding(self, sequence: Sequence, draft: list[int]) -> None:
        """Add the last token of a sequence and its draft; every row gives a result.

        Such rows come before all chunks, so results are in the order of the rows.
        """
        tokens, positions, slots = self._cells
        first, slot, position = self.rows, sequence.slot, sequence.computed
        assert first == self.result_rows
        row = first
        for token in (sequence.tokens[-1], *draft):
            tokens[row], positions[row], slots[row] = token, position, slot
            row, position = row + 1, position + 1
        self.entries.append(BatchEntry(sequence, row - first, draft, first))
        self.rows = self.result_rows = row
        self._note_choices(sequence, draft)

    def add_chunk(self, sequence: Sequence, count: int) -> None:
        """Add the next `count` tokens of a prompt; only the prompt's last token gives a result."""
        at = sequence.computed
        rows = slice(self.rows, self.rows + count)
        self._tokens[rows] = sequence.tokens[at : at + count]
        self._positions[rows] = self._counting[at : at + count]
        self._slots[rows] = sequence.slot
        self.rows += count
        first = -1
        if at + count == len(sequence.tokens) and not sequence.prefill_only:
            first = self.result_rows
            self._logit_rows[first] = rows.stop - 1
            self.result_rows += 1
            self._note_choices(sequence, [])
        self.entries.append(BatchEntry(sequence, count, [], first))

    def _note_choices(self, sequence: Sequence, draft: list[int]) -> None:
        """Note how the tokens of a sequence's rows are chosen: by the device if it can choose for the whole step."""
        sampler, streaming = sequence.sampler, self._runtime.streaming
        if sampler is None:
            self._choices += [None] * (len(draft) + 1)
            return
        self.sampled = True
        sampling = None if streaming is None else sampler.on_device
        masks = None if sampling is None else sequence.masks(draft, self._runtime.vocab_size)
        if sampling is None or masks is None or sequence.followers:  # followers choose from the same row
            self.needs_logits = True
            return
        at = len(sequence.tokens)
        self._choices += [RowChoice(sampling, at + i, draft[:i], masks[i]) for i in range(len(draft) + 1)]

    def run(self) -> list[int]:
        """Run the step: one pass over the weights. Returns a token for each row that wants one: the most likely, or
        the one that the device chose. Fills `logits` if the host has to choose."""
        rows, results, logits = self.rows, self.result_rows, None
        streaming = self._runtime.streaming
        if self.sampled and not self.needs_logits and streaming is not None:
            chosen, self.logprobs = streaming.choose(*self._arrays(rows, results), self._choices)
            made: list[int] = chosen.tolist()
            return made
        if self.needs_logits:
            if len(self.logits) < results:
                self.logits = np.empty((results, self._runtime.vocab_size), np.float32)
            logits = self.logits
        if rows == results:
            arrays = self._widths.get(rows)
            if arrays is None:
                arrays = self._widths[rows] = self._arrays(rows, results)
        else:
            arrays = self._arrays(rows, results)
        best: list[int] = self._runtime.step(*arrays, logits).tolist()
        return best

    @property
    def steady(self) -> bool:
        """Whether every row is a sequence's next token, and the device can choose it and all later ones by itself."""
        if self.needs_logits or not self.rows == self.result_rows == len(self.entries) == len(self._choices):
            return False
        return not self.sampled or all(choice is None or choice.sampling.steady for choice in self._choices)

    def begin(self, runtime: ChainedRuntime) -> bool:
        """Queue the step as the first of a chain; False if the runtime cannot chain these rows."""
        tokens, positions, slots, tables, _ = self._arrays(self.rows, self.result_rows)
        begun = runtime.begin(tokens, positions, slots, tables, self._choices)
        self.logprobs = [None] * self.rows if begun else None
        return begun

    def _arrays(self, rows: int, results: int) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        return self._tokens[:rows], self._positions[:rows], self._slots[:rows], self._tables, self._logit_rows[:results]
