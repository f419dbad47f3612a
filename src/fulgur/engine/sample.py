"""Choosing the next token from a row of logits.

A choice depends on the row, the request's parameters and seed, and the position; on nothing else. So a draft can be
verified by choosing at each of its rows and going on while the choices agree with it: the output is the same with
and without speculation, and whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fulgur.engine.draw import Room, draw
from fulgur.engine.errors import EngineError
from fulgur.engine.events import TokenLogprob
from fulgur.engine.gumbel import COLDEST, Gumbel, base, mix, sharpness, weights_of
from fulgur.engine.params import SamplingParams
from fulgur.engine.runtime import SEEN, Bits, FloatArray, History, Matcher, Sampling

Ids: TypeAlias = npt.NDArray[np.int64]


class Scratch:
    """Work arrays for one row; all samplers of an engine share them. `device_samples`: sample with Gumbel noise, as
    the device does; otherwise invert the distribution function, which is cheaper on a CPU."""

    def __init__(self, vocab_size: int, *, device_samples: bool = False) -> None:
        self.logits = np.empty(vocab_size, np.float32)
        self.gumbel = Gumbel(vocab_size) if device_samples else None
        self.room = Room(vocab_size)
        self.allowed = np.empty(vocab_size, np.uint8)


class Sampler:
    """Chooses the tokens of one sequence that needs more than the runtime's argmax."""

    def __init__(self, params: SamplingParams, seed: int, scratch: Scratch, prompt: Sequence[int]) -> None:
        self.params = params
        self.seed = seed
        self.sampling = _sampling(params, seed, len(scratch.logits))
        self._gumbel = scratch.gumbel if params.temperature >= COLDEST else None
        self._draws = scratch.gumbel is not None
        self._work = scratch.logits
        self._room = scratch.room
        self._allowed = scratch.allowed
        self.note_prompt(prompt)

    @property
    def on_device(self) -> Sampling | None:
        """The parameters for a device that samples; None if the host has to choose."""
        cold = 0.0 < self.params.temperature < COLDEST
        return self.sampling if self._draws and not cold and not self.params.weigh_begins else None

    def note_prompt(self, tokens: Iterable[int]) -> None:
        """Tokens that were given, not chosen: only the repetition penalty looks at them."""
        history = self.sampling.history
        if history is not None and self.sampling.repetition != 1.0:
            history.held[np.fromiter(tokens, np.int64)] |= np.uint32(SEEN)
            history.device = None

    def note(self, token: int) -> None:
        """A chosen token became part of the sequence."""
        if self.sampling.history is not None:
            self.sampling.history.add(token)

    def choose(self, logits: FloatArray, position: int, matcher: Matcher | None) -> tuple[int, TokenLogprob | None]:
        """The token at `position`, given its row of logits (left untouched)."""
        params, work, sampling = self.params, logits, self.sampling
        if matcher is not None or sampling.history is not None or sampling.bias is not None:
            work = self._work
            np.copyto(work, logits)
            shift(work, sampling, None if sampling.history is None else sampling.history.held)
        if matcher is not None:
            matcher.mask(self._allowed)
            forbidden = self._allowed == 0
            if forbidden.all():
                raise no_token_allowed()
            work[forbidden] = -np.inf
        if params.temperature == 0.0:
            token = int(work.argmax())
        elif self._gumbel is not None:
            token = gumbel_choice(work, sampling, position, self._gumbel)
        else:
            token = draw(work, params, uniform(self.seed, position), self._room)
        if params.logprobs is None:
            return token, None
        row = work if matcher is not None and matcher.given and not params.weigh_begins else logits
        return token, token_logprob(row, token, params.logprobs)


def _sampling(params: SamplingParams, seed: int, vocab_size: int) -> Sampling:
    bias = None
    if params.logit_bias:
        bias = np.zeros(vocab_size, np.float32)
        bias[[token for token, _ in params.logit_bias]] = [value for _, value in params.logit_bias]
    return Sampling(
        sharpness=float(sharpness(params.temperature)) if params.temperature else 0.0,
        seed=base(seed),
        top_k=params.top_k,
        top_p=params.top_p,
        floor=float(np.float32(np.log(params.min_p))) if params.min_p > 0.0 else -math.inf,
        repetition=float(np.float32(params.repetition_penalty)),
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        logprobs=-1 if params.logprobs is None else params.logprobs,
        bias=bias,
        history=History(vocab_size) if params.penalised else None,
        grammar=params.constrained,
    )


def no_token_allowed() -> EngineError:
    return EngineError("the grammar allows no token here", hint="Check the grammar: it leads to a dead end.")


def shift(work: FloatArray, sampling: Sampling, held: Bits | None) -> None:
    """Penalties, then the bias."""
    if held is not None:
        if sampling.repetition != 1.0:
            seen = np.flatnonzero(held)
            values = work[seen]
            work[seen] = np.where(values > 0, values / sampling.repetition, values * sampling.repetition)
        counts = held & np.uint32(SEEN - 1)
        present = np.flatnonzero(counts)
        penalty = sampling.frequency * counts[present].astype(np.float32) + sampling.presence
        work[present] -= penalty
    if sampling.bias is not None:
        biased = np.flatnonzero(sampling.bias)
        work[biased] += sampling.bias[biased]


def gumbel_choice(work: FloatArray, sampling: Sampling, position: int, gumbel: Gumbel) -> int:
    """The largest of logit / temperature + noise among the tokens that min-p, top-k and top-p keep; the lowest of
    equals. `cuda/csrc/sample.cu` does the same operations."""
    key, factor = mix(sampling.seed + position), np.float32(sampling.sharpness)
    if not sampling.narrows:
        return int((work * factor + gumbel.noise(key)).argmax())
    tokens = np.sort(kept(work, sampling))
    return int(tokens[(work[tokens] * factor + gumbel.noise(key, tokens)).argmax()])


def kept(work: FloatArray, sampling: Sampling) -> Ids:
    """The tokens that min-p, top-k and top-p leave, likeliest first; of equal ones the lower first."""
    tokens = np.flatnonzero(work > -np.inf)
    if not len(tokens):  # the logits are not numbers: any token will do
        return np.zeros(1, np.int64)
    top_k = sampling.top_k
    if 0 < top_k < len(tokens):
        border = np.partition(work[tokens], -top_k)[-top_k]
        tokens = tokens[work[tokens] >= border]
    tokens = tokens[np.argsort(-work[tokens], kind="stable")][: top_k or None]
    scaled = (work[tokens] - work[tokens[:1]]) * np.float32(sampling.sharpness)
    count = int((scaled >= sampling.floor).sum())
    if sampling.top_p < 1.0:
        mass = weights_of(scaled[:count]).cumsum(dtype=np.uint64).astype(np.float64)
        count = int(np.searchsorted(mass, mass[-1] * sampling.top_p)) + 1
    return tokens[:count]


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
        top = top[wide[top] > -np.inf]  # where a text is given, few tokens may spell it
    return TokenLogprob(float(wide[token]), tuple((int(i), float(wide[i])) for i in top))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that belongs to this seed and position: a counter-based generator, so no state to keep."""
    return (mix(mix(seed) + position) >> 11) * 2.0**-53
