"""Choosing the next token from a row of logits.

A choice depends on the row, the request's parameters and seed, and the position; on nothing else. So a draft can be
verified by choosing at each of its rows and going on while the choices agree with it: the output is the same with
and without speculation, and whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fulgur.engine.errors import EngineError
from fulgur.engine.events import TokenLogprob
from fulgur.engine.params import SamplingParams
from fulgur.engine.runtime import FloatArray, Matcher

_MASK64 = (1 << 64) - 1


class Sampler:
    """The state of one sequence that needs more than the runtime's argmax."""

    def __init__(self, params: SamplingParams, seed: int, vocab_size: int, prompt: Sequence[int]) -> None:
        self.params = params
        self.seed = seed
        self._work = np.empty(vocab_size, np.float32)
        self._allowed = np.empty(vocab_size, np.uint8)
        self._counts = np.zeros(vocab_size, np.float32) if params.penalised else None
        self._seen = np.zeros(vocab_size, np.bool_) if params.repetition_penalty != 1.0 else None
        self.note_prompt(prompt)

    def note_prompt(self, tokens: Iterable[int]) -> None:
        """Tokens that were given, not chosen: only the repetition penalty looks at them."""
        if self._seen is not None:
            self._seen[np.fromiter(tokens, np.int64)] = True

    def note(self, token: int) -> None:
        """A chosen token became part of the sequence."""
        if self._counts is not None:
            self._counts[token] += 1
        if self._seen is not None:
            self._seen[token] = True

    def choose(self, logits: FloatArray, position: int, matcher: Matcher | None) -> tuple[int, TokenLogprob | None]:
        """The token at `position`, given its row of logits (left untouched)."""
        params, work = self.params, self._work
        np.copyto(work, logits)
        if self._counts is not None:
            self._penalise(work)
        if matcher is not None:
            matcher.mask(self._allowed)
            forbidden = self._allowed == 0
            if forbidden.all():
                raise EngineError("the grammar allows no token here", hint="Check the grammar: it leads to a dead end.")
            work[forbidden] = -np.inf
        if params.temperature == 0.0:
            token = int(work.argmax())
        else:
            token = draw(work, params, uniform(self.seed, position))
        logprob = None if params.logprobs is None else token_logprob(logits, token, params.logprobs)
        return token, logprob

    def _penalise(self, work: FloatArray) -> None:
        params, counts = self.params, self._counts
        if self._seen is not None:
            seen = np.flatnonzero(self._seen)
            values = work[seen]
            work[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        assert counts is not None
        present = np.flatnonzero(counts)
        work[present] -= params.frequency_penalty * counts[present] + params.presence_penalty


def draw(logits: FloatArray, params: SamplingParams, u: float) -> int:
    """Invert the distribution function at u in [0, 1), after min-p, then top-k, then top-p; ties to lower ids."""
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()
    scaled /= params.temperature
    floor = np.log(params.min_p) if params.min_p > 0.0 else -np.inf
    top_k = params.top_k
    if 0 < top_k < len(scaled):
        floor = max(floor, float(np.partition(scaled, -top_k)[-top_k]))
    if floor > -np.inf:
        tokens = np.flatnonzero(scaled >= floor)
        scaled = scaled[tokens]
    else:
        tokens = np.flatnonzero(scaled > -np.inf)
        if len(tokens) < len(scaled):
            scaled = scaled[tokens]
    if params.top_p < 1.0 or 0 < top_k < len(scaled):
        order = np.argsort(-scaled, kind="stable")
        if top_k:
            order = order[:top_k]
        tokens, scaled = tokens[order], scaled[order]
    mass = np.exp(scaled).cumsum()
    if params.top_p < 1.0:
        mass = mass[: int(np.searchsorted(mass, params.top_p * mass[-1])) + 1]
    chosen = int(np.searchsorted(mass, u * mass[-1], side="right"))
    return int(tokens[min(chosen, len(mass) - 1)])


def token_logprob(logits: FloatArray, token: int, alternatives: int) -> TokenLogprob:
    """The model's own log-probabilities: of `token`, and of the most likely tokens."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    top: npt.NDArray[np.int64] = np.empty(0, np.int64)
    if alternatives:
        kept = min(alternatives, len(wide))
        top = np.flatnonzero(wide >= np.partition(wide, -kept)[-kept])
        top = top[np.argsort(-wide[top], kind="stable")[:kept]]
    return TokenLogprob(float(wide[token]), tuple((int(i), float(wide[i])) for i in top))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that belongs to this seed and position: a counter-based generator, so no state to keep."""
    return (mix(mix(seed) + position) >> 11) * 2.0**-53


def mix(value: int) -> int:
    """64 bits well stirred (the splitmix64 finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
