"""A runtime without a model: the next token is a hash of everything the row attends to.

It honours the contract of the real ones. Keys and values are one number a slot, mixed from token and position; a row
reads all slots up to its own through its table. A wrong block, a stale slot or a wrong position changes the output.
With `window` and `alphabet` texts soon repeat themselves; with `script` the answer mostly follows a given text: then
drafts have something to find.
"""

from __future__ import annotations

import numpy as np

from fulgur.engine.gumbel import Gumbel
from fulgur.engine.runtime import SEEN, RowChoice
from fulgur.engine.sample import gumbel_choice, shift, token_logprob

_A, _B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


def _stir(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(29))) * _B
    return x ^ (x >> np.uint64(32))


class ToyRuntime:
    """`window`: only that many last tokens decide (0: all). `alphabet`: only that many tokens are ever likely.
    `script`: (position of its first token, tokens) which are likely, though not certain, at their positions."""

    block_tokens = 64
    max_rows = prefill_rows = 256
    isa, threads, streaming, prefilling, states, drafting = "toy", 1, None, None, None, None

    def __init__(
        self,
        vocab_size: int = 300,
        kv_blocks: int = 32,
        max_context: int = 1024,
        window: int = 0,
        alphabet: int = 0,
        script: tuple[int, list[int]] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.kv_blocks = kv_blocks
        self.max_context = max_context
        self.window = window
        self.alphabet = alphabet
        self.script = script
        self.kv = np.zeros((kv_blocks, self.block_tokens), np.uint64)
        self.steps = 0
        self.rows = 0
        self.copies = 0
        self.logit_steps = 0
        self._ids = np.arange(vocab_size, dtype=np.uint64) * _A

    def step(self, tokens, positions, sequences, tables, logit_rows, logits=None):
        self.steps += 1
        self.rows += len(tokens)
        self.logit_steps += logits is not None
        assert 0 < len(tokens) <= self.max_rows
        assert tokens.min() >= 0 and tokens.max() < self.vocab_size and positions.max() < self.max_context
        blocks = tables[sequences, positions // 64]
        assert blocks.min() >= 0, "a row without a block"
        assert len({(b, p % 64) for b, p in zip(blocks.tolist(), positions.tolist(), strict=True)}) == len(tokens)
        where = np.zeros_like(positions) if self.window else positions
        value = _stir((tokens.astype(np.uint64) + np.uint64(1)) * _A + where.astype(np.uint64))
        self.kv[blocks, positions % 64] = value
        best = np.empty(len(logit_rows), np.int32)
        for i, row in enumerate(logit_rows.tolist()):
            scores = self._scores(int(positions[row]), tables[sequences[row]])
            best[i] = scores.argmax()
            if logits is not None:
                logits[i] = scores
        return best

    def _scores(self, position: int, table: np.ndarray) -> np.ndarray:
        held = self.kv[table[: position // 64 + 1]].ravel()[: position + 1]
        held = held[-self.window :] if self.window else held
        weights = np.arange(1, len(held) + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        state = (held * weights).sum(dtype=np.uint64)
        hashed = _stir(self._ids + _stir(np.array([state]))[0])
        scores = (hashed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 21)  # 0 to 8
        if self.alphabet:
            scores[self.alphabet :] -= 20
        if self.script is not None and 0 <= position + 1 - self.script[0] < len(self.script[1]):
            scores[self.script[1][position + 1 - self.script[0]]] += 7.5
        return scores

    def copy_block(self, source: int, target: int) -> None:
        assert source != target
        self.copies += 1
        self.kv[target] = self.kv[source]

    def close(self) -> None:
        pass


class StreamingToy(ToyRuntime):
    """The same model with a decode loop of its own, which is up to `ahead` tokens further than what was read."""

    def __init__(self, *args, ahead: int = 5, **more) -> None:
        super().__init__(*args, **more)
        self.ahead = ahead
        self.streams: list[ToyStream] = []
        self.chosen = 0
        self._gumbel = Gumbel(self.vocab_size)

    def step(self, *args):
        assert all(stream.ended for stream in self.streams), "a step while the device runs by itself"
        return super().step(*args)

    def copy_block(self, source: int, target: int) -> None:
        assert all(stream.ended for stream in self.streams), "a copy while the device runs by itself"
        super().copy_block(source, target)

    chooses, chained = True, None

    @property
    def streaming(self):
        return self if self.chooses else None

    def choose(self, tokens, positions, sequences, tables, logit_rows, choices):
        logits = np.zeros((len(logit_rows), self.vocab_size), np.float32)
        best = self.step(tokens, positions, sequences, tables, logit_rows, logits)
        self.chosen += len(choices)
        told = [None] * len(choices)
        for i, choice in enumerate(choices):
            if choice is not None:
                held = None if choice.sampling.history is None else choice.sampling.history.held.copy()
                best[i], told[i] = self.choose_one(logits[i], choice, held)
        return best, told

    def choose_one(self, logits, choice, held):
        """As the device does: `held` is the history without the draft, which is noted in it."""
        sampling, work = choice.sampling, logits.copy()
        for token in choice.draft if held is not None else ():
            held[token] = (int(held[token]) + 1) | SEEN
        shift(work, sampling, held)
        if choice.mask is not None:
            allowed = np.unpackbits(choice.mask.view(np.uint8), bitorder="little")[: self.vocab_size]
            work[allowed == 0] = -np.inf
        token = int(work.argmax())
        if sampling.sharpness:
            token = gumbel_choice(work, sampling, choice.position, self._gumbel)
        if sampling.logprobs < 0:
            return token, None
        told = token_logprob(logits, token, sampling.logprobs)
        return token, (told.logprob, told.top)

    def stream(self, token, position, table, stop, limit, sampling=None, slot=0):
        assert limit > 0 and (table[: (position + limit - 1) // 64 + 1] >= 0).all(), "no room for the run"
        assert all(stream.ended for stream in self.streams)
        self.streams.append(ToyStream(self, token, position, table.copy(), set(stop), limit, sampling))
        return self.streams[-1]

    def next_token(self, token: int, position: int, table: np.ndarray, sampling, held, mask):
        """One step of the loop."""
        row = (np.array([v], np.int32) for v in (token, position, 0))
        logits = np.zeros((1, self.vocab_size), np.float32)
        steps, rows = self.steps, self.rows
        (best,) = ToyRuntime.step(self, *row, table[None], np.zeros(1, np.int32), logits)
        self.steps, self.rows = steps, rows
        if sampling is None:
            return int(best), None
        return self.choose_one(logits[0], RowChoice(sampling, position + 1, [], mask), held)


class CompanionToy(StreamingToy):
    """The same model, whose long prompts are computed in parts; what is computed shows with the last of them."""

    prefill_rows, prefill_from, step_seconds = 96, 20, 1e-3

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.prefills: list[ToyPrefill] = []

    def step(self, *args):
        best = super().step(*args)
        for run in self.prefills:
            if run.time_fraction is not None and not run.failed:
                run.part()
        return best

    @property
    def prefilling(self):
        return self

    def begin_prefill(self, tokens, position, table, slot=0):
        assert self.prefill_from <= len(tokens) <= self.prefill_rows
        self.prefills.append(ToyPrefill(self, tokens, position, table.copy()))
        return self.prefills[-1]


class ChainedToy(CompanionToy):
    """The same model, whose steps over several sequences follow each other; each runs as late as it may."""

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.followed = 0
        self._queued: list[tuple] = []

    chained = property(lambda self: self)

    def step(self, *args):
        assert not self._queued, "a step while others are under way"
        return super().step(*args)

    def copy_block(self, source: int, target: int) -> None:
        assert not self._queued, "a copy while steps are under way"
        super().copy_block(source, target)

    def begin(self, tokens, positions, sequences, tables, choices):
        assert not self._queued and all(choice is None or choice.sampling.steady for choice in choices)
        self._last = None
        rows = tokens.copy(), positions.copy(), sequences.copy()
        self._queued.append((*rows, tables.copy(), list(choices)))
        return True

    def follow(self, tables):
        assert len(self._queued) == 1
        _, positions, sequences, _, choices = self._queued[0]
        choices = [None if c is None else RowChoice(c.sampling, c.position + 1) for c in choices]
        self._queued.append((None, positions + 1, sequences, tables.copy(), choices))
        self.followed += 1

    def take(self):
        (tokens, positions, sequences, tables, choices), self._queued[:1] = self._queued[0], []
        tokens = self._last if tokens is None else tokens
        held, self._queued = self._queued, []
        rows = np.arange(len(positions), dtype=np.int32)
        self._last, _ = self.choose(tokens, positions, sequences, tables, rows, choices)
        self._queued = held
        return self._last.tolist()


class ToyPrefill:
    def __init__(self, runtime, tokens, position, table) -> None:
        self.done, self.failed, self.time_fraction = False, position % 5 == 4, None
        self._runtime, self._tokens, self._position, self._table = runtime, tokens, position, table
        self._left = 1 + int(np.random.default_rng(position).integers(0, 7))

    def part(self) -> None:
        assert not self.done and not self.failed, "it has ended"
        self.time_fraction, self._left = None, self._left - 1
        if self._left == 0:
            self.finish()

    def finish(self) -> None:
        n, (steps, rows) = len(self._tokens), (self._runtime.steps, self._runtime.rows)
        positions = np.arange(self._position, self._position + n, dtype=np.int32)
        zeros = np.zeros(n, np.int32)
        ToyRuntime.step(self._runtime, self._tokens, positions, zeros, self._table[None], zeros[:0])
        self._runtime.steps, self._runtime.rows = steps, rows
        self.done = True

    def close(self) -> None: ...


class ToyStream:
    def __init__(self, runtime, token, position, table, stop, limit, sampling) -> None:
        self.ended = False
        self.made: list[int] = []
        self.finished = False
        self._runtime, self._token, self._position, self._table = runtime, token, position, table
        self._stop, self._limit, self._sampling, self._read = stop, limit, sampling, 0
        history = None if sampling is None else sampling.history
        self._held = None if history is None else history.held.copy()
        self._mask, self._masked = None, sampling is not None and sampling.grammar
        self._logprobs, self._given = [], (0, 0)
        self._noise = np.random.default_rng(position)

    def read(self) -> list[int]:
        if self.ended:
            return []
        assert not self._masked or self._mask is not None, "no mask for the next token"
        self._advance(1 if self._masked else 1 + int(self._noise.integers(0, self._runtime.ahead + 1)))
        told = int(self._noise.integers(self._read + 1, len(self.made) + 1)) if not self.finished else len(self.made)
        self._given = self._read, told
        tokens, self._read = self.made[self._read : told], told
        self.ended = self.finished
        return tokens

    def logprobs(self):
        return self._logprobs[slice(*self._given)]

    def allow(self, mask) -> None:
        assert self._masked and self._mask is None
        self._mask = mask.copy()

    def stop(self) -> list[int]:
        if self.ended:
            return []
        if not self._masked or self._mask is not None:
            self._advance(1)  # the step under way is finished
        self.ended = True
        self._given = self._read, len(self.made)
        return self.made[self._read :]

    def _advance(self, steps: int) -> None:
        for _ in range(steps):
            if self.finished or len(self.made) - self._read > self._runtime.ahead:
                return
            self._token, told = self._runtime.next_token(
                self._token, self._position, self._table, self._sampling, self._held, self._mask
            )
            self._logprobs.append(told)
            self._mask = None
            if self._held is not None:
                self._held[self._token] = (int(self._held[self._token]) + 1) | SEEN
            self._position += 1
            self.made.append(self._token)
            self.finished = self._token in self._stop or len(self.made) == self._limit
