"""Chooses the kernels for a single sequence of a hybrid: the decode kernels or the general driver. Both are tried when
the model opens.

The decode kernels were measured on few GPUs. They are used if their logits equal those of the general driver, within
what rounding explains, and if they are faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fulgur.kernels.cuda.family_runtime import FamilyRuntime

TOKENS, RUN, RUNS = 12, 32, 3  # tokens whose logits are compared; tokens of a timed run; how many runs
ROOM = TOKENS + RUN * RUNS  # tokens of the cache
APART = 5e-2  # relative difference of the median token's logits: both ways round to bf16, at different places


@dataclass(frozen=True)
class Trial:
    """The result of one way for the same tokens."""

    logits: npt.NDArray[np.float32]
    seconds: float  # of a run


def trial(model: FamilyRuntime) -> Trial:
    """Try the way that is set. Uses the state and blocks of the first sequence, which are worthless afterwards."""
    each = np.arange(TOKENS, dtype=np.int32)
    table, none = np.arange(model.kv_blocks, dtype=np.int32), np.zeros(1, np.int32)
    tokens, logits = each * 97 % model.vocab_size, np.zeros((TOKENS, model.vocab_size), np.float32)
    for i in range(TOKENS):
        model.step(tokens[i : i + 1], each[i : i + 1], none, table[None], none, logits[i : i + 1])
    times, last = [], int(logits[-1].argmax())
    for i in range(RUNS):
        start = time.perf_counter()
        run, made = model.stream(last, TOKENS + i * RUN, table, (), RUN), [last]
        while not run.ended:
            made += run.read()
        last = made[-1]
        times.append(time.perf_counter() - start)
    return Trial(logits, min(times))


def why_general(decode: Trial, general: Trial) -> str:
    """Why the general driver runs a single sequence; an empty string if the decode kernels do."""
    apart = np.linalg.norm(decode.logits - general.logits, axis=1) / np.linalg.norm(general.logits, axis=1)
    if not np.median(apart) <= APART:  # also where it is not a number
        return f"the decode kernels compute different logits here (relative difference {np.median(apart):.1%})"
    if decode.seconds > general.seconds:
        return (
            f"the decode kernels are slower here ({general.seconds / decode.seconds:.0%} of the general driver's speed)"
        )
    return ""
