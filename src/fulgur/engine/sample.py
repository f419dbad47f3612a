"""Choosing the next token from a row of logits.

A choice depends on the row, the request's parameters and seed, and the position; on nothing else. So a draft can be
verified by choosing at each of its rows and going on while the choices agree with it: the output is the same with
and without speculation, and whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fulgur.engine.errors import EngineError
from fulgur.engine.events import TokenLogprob
from fulgur.engine.gumbel import COLDEST, Gumbel, base, mix, sharpness
from fulgur.engine.params import SamplingParams
from fulgur.engine.runtime import FloatArray, Matcher

Ids: TypeAlias = npt.NDArray[np.int64]
Wide: TypeAlias = npt.NDArray[np.float64]

_HEAD = 1024  # likeliest tokens that are looked at before all are


class Scratch:
    """Room to work on one row; all samplers of an engine share it. `draws`: a plain temperature is Gumbel's, as on the
    device; everything else inverts the distribution."""

    def __init__(self, vocab_size: int, *, draws: bool = False) -> None:
        self.logits = np.empty(vocab_size, np.float32)
        self.gumbel = Gumbel(vocab_size) if draws else None
        self.allowed = np.empty(vocab_size, np.uint8)


class Sampler:
    """The state of one sequence that needs more than the runtime's argmax."""

    def __init__(self, params: SamplingParams, seed: int, scratch: Scratch, prompt: Sequence[int]) -> None:
        self.params = params
        self.seed = seed
        self._gumbel = scratch.gumbel if _plain_temperature(params) else None
        self._work = scratch.logits
        self._allowed = scratch.allowed
        vocab_size = len(scratch.logits)
        self._counts = np.zeros(vocab_size, np.float32) if params.penalised else None
        self._seen = np.zeros(vocab_size, np.bool_) if params.repetition_penalty != 1.0 else None
        self.note_prompt(prompt)

    @property
    def on_device(self) -> tuple[float, int] | None:
        """1 / temperature and seed, if that is all there is to it and the device can do it."""
        params = self.params
        if self._gumbel is None or params.penalised or params.logprobs is not None or params.grammar is not None:
            return None
        return float(sharpness(params.temperature)), base(self.seed)

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
        elif self._gumbel is not None:
            token = self._gumbel.choose(work, params.temperature, self.seed, position)
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


def _plain_temperature(params: SamplingParams) -> bool:
    return params.temperature >= COLDEST and params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0


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
    wanted = np.inf  # mass that is enough
    if params.top_p < 1.0:
        tokens, scaled, wanted = _head(tokens, scaled, params.top_p, top_k)
    elif 0 < top_k < len(scaled):  # ties at the border
        order = np.argsort(-scaled, kind="stable")[:top_k]
        tokens, scaled = tokens[order], scaled[order]
    mass = np.exp(scaled).cumsum()
    mass = mass[: int(np.searchsorted(mass, wanted)) + 1]
    chosen = int(np.searchsorted(mass, u * mass[-1], side="right"))
    return int(tokens[min(chosen, len(mass) - 1)])


def _head(tokens: Ids, scaled: Wide, top_p: float, top_k: int) -> tuple[Ids, Wide, float]:
    """The likeliest tokens in order, enough of them to hold the share `top_p` of the mass, and that mass."""
    if not top_k and len(scaled) > 4 * _HEAD:  # sorting a large vocabulary is dear, and its tail hardly ever matters
        weights = np.exp(scaled)
        wanted = top_p * float(weights.sum())
        head = scaled >= np.partition(scaled, -_HEAD)[-_HEAD]
        if weights[head].sum() >= wanted:
            tokens, scaled = tokens[head], scaled[head]
        order = np.argsort(-scaled, kind="stable")
        return tokens[order], scaled[order], wanted
    order = np.argsort(-scaled, kind="stable")[: top_k or len(scaled)]
    tokens, scaled = tokens[order], scaled[order]
    return tokens, scaled, top_p * float(np.exp(scaled).cumsum()[-1])


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
