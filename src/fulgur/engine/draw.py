"""Samples a token on the host by inverting the distribution function of a row of logits.

A vocabulary has 150,000 tokens and a step of a small model takes milliseconds, so the work on every token is done in
place and in single precision. Only the few tokens that can still be chosen are sorted and summed in double precision.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fulgur.engine.params import SamplingParams
from fulgur.engine.runtime import FloatArray

Ids: TypeAlias = npt.NDArray[np.int64]
Wide: TypeAlias = npt.NDArray[np.float64]

_HEADS = (1024, 16384)  # how many of the likeliest tokens to try before sorting all of them
_RUN = 256  # tokens whose weights are summed together
_GROUPS = 16
_STEEPEST = 1e30  # upper bound of 1 / temperature: the likeliest token is chosen long before it


class Room:
    """Arrays as long as the vocabulary, allocated once: otherwise every token would get new memory from the system."""

    def __init__(self, vocab_size: int) -> None:
        self.scaled = np.empty(vocab_size, np.float32)
        self._weights = np.zeros(-(-vocab_size // _RUN) * _RUN, np.float32)

    def masses(self) -> tuple[FloatArray, Wide]:
        """The weights exp(scaled) in runs, padded with zeros, and their cumulative sums at the end of each run."""
        np.exp(self.scaled, out=self._weights[: len(self.scaled)])
        runs = self._weights.reshape(-1, _RUN)
        return runs, runs.sum(axis=1).cumsum(dtype=np.float64)


def draw(logits: FloatArray, params: SamplingParams, u: float, room: Room | None = None) -> int:
    """Invert the distribution function at u in [0, 1), after min-p, then top-k, then top-p; ties to lower ids."""
    room = room or Room(len(logits))
    scaled = room.scaled
    np.subtract(logits, logits.max(), out=scaled)
    np.multiply(scaled, np.float32(min(1.0 / params.temperature, _STEEPEST)), out=scaled)
    top_k = params.top_k if params.top_k < len(logits) else 0
    if not top_k and params.top_p == 1.0 and params.min_p == 0.0:
        return _draw_from_all(room, u)
    floor = np.log(params.min_p) if params.min_p > 0.0 else -np.inf
    wanted = np.inf  # mass that is enough
    if top_k:
        tokens = _likeliest(logits, top_k)[:top_k]
        tokens = tokens[scaled[tokens] >= floor]
        if params.top_p < 1.0:
            wanted = params.top_p * float(_weights(scaled, tokens).sum())
    elif params.top_p < 1.0:
        tokens, wanted = _head(logits, room, params.top_p, floor)
    else:
        tokens = np.flatnonzero(scaled >= floor)
    mass = _weights(scaled, tokens).cumsum()
    mass = mass[: int(np.searchsorted(mass, wanted)) + 1]
    chosen = int(np.searchsorted(mass, u * mass[-1], side="right"))
    return int(tokens[min(chosen, len(mass) - 1)])


def _draw_from_all(room: Room, u: float) -> int:
    """Find the run of tokens first, then the token in it."""
    runs, mass = room.masses()
    at = u * mass[-1]
    run = min(int(np.searchsorted(mass, at, side="right")), len(mass) - 1)
    weights = runs[run]
    inside = weights.cumsum(dtype=np.float64)
    chosen = int(np.searchsorted(inside, at - (mass[run - 1] if run else 0.0), side="right"))
    if chosen == _RUN:  # sums were rounded: the last token that can be chosen
        chosen = int(np.flatnonzero(weights)[-1])
    return run * _RUN + chosen


def _head(logits: FloatArray, room: Room, top_p: float, floor: float) -> tuple[Ids, float]:
    """The likeliest tokens in order, enough of them to hold the fraction `top_p` of the mass, and that mass."""
    scaled = room.scaled
    heads = [head for head in _HEADS if 4 * head < len(logits)] if floor == -np.inf else []
    wanted = top_p * float(room.masses()[1][-1]) if heads else 0.0
    for head in heads:  # sorting all is expensive, and the tail hardly ever matters
        tokens = _likeliest(logits, head)
        if _weights(scaled, tokens).sum() >= wanted:
            return tokens, wanted
    tokens = np.flatnonzero(scaled >= floor) if floor > -np.inf else np.flatnonzero(scaled > -np.inf)
    tokens = tokens[np.argsort(-logits[tokens], kind="stable")]
    return tokens, top_p * float(_weights(scaled, tokens).cumsum()[-1])


def _likeliest(logits: FloatArray, count: int) -> Ids:
    """At least `count` tokens, the likeliest first; of equal ones the lower first."""
    groups = len(logits) // _GROUPS
    if groups > 2 * count:
        # At least `count` groups have a token that is this likely.
        maxima = logits[: groups * _GROUPS].reshape(_GROUPS, groups).max(axis=0)
        bound = np.partition(maxima, -count)[-count]
    else:
        bound = np.partition(logits, -count)[-count]
    tokens = np.flatnonzero(logits >= bound)
    tokens = tokens[logits[tokens] > -np.inf]
    ordered: Ids = tokens[np.argsort(-logits[tokens], kind="stable")]
    return ordered


def _weights(scaled: FloatArray, tokens: Ids) -> Wide:
    weights: Wide = np.exp(scaled[tokens].astype(np.float64))
    return weights
