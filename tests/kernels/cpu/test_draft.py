"""The drafting head (MTP) of the C++ runtime: its guesses are the reference's, and depend on the text alone, not on how
it was computed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from random_models import TrainedLike

from fulgur.kernels import reference
from fulgur.kernels.cpu import native
from fulgur.model.random import tiny_config
from fulgur.model.weights import Weights, assemble

TABLE = np.array([[3, 5, 1, 4], [0, 2, 6, 7]], np.int32)
LENGTH = 150
TOKENS = np.random.default_rng(1).integers(0, 301, LENGTH).astype(np.int32)
FAMILIES = ["qwen3_5", "qwen3_5_moe", "qwen3_next"]


@cache
def weights_of(family: str) -> Weights:
    return assemble(TrainedLike(tiny_config(family, draft_vocab=200), 7), bits=8, group=32)


def feed(runtime: native.Runtime | reference.Runtime, start: int, end: int, sequence: int = 0) -> None:
    rows = np.arange(start, end, dtype=np.int32)
    runtime.step(TOKENS[start:end], rows, np.full_like(rows, sequence), TABLE, rows[:0])


def guesses(runtime: native.Runtime | reference.Runtime, at: int, count: int = 3, sequence: int = 0) -> list[int]:
    return runtime.draft(int(TOKENS[at]), at, sequence, TABLE, count)


@pytest.mark.parametrize("family", FAMILIES)
def test_guesses_are_those_of_the_reference(family: str) -> None:
    fast = native.Runtime(weights_of(family), kv_blocks=8, threads=2)
    plain = reference.Runtime(weights_of(family), kv_blocks=8)
    same, at = [], 0
    for end in (40, 41, 44, 45, 100, 101, 149):
        for runtime in (fast, plain):
            feed(runtime, at, end)
        same += [a == b for a, b in zip(guesses(fast, end), guesses(plain, end), strict=True)]
        at = end
    assert len(same) == 21 and sum(same) >= 19  # rounding may tip a close one
    assert max(guesses(fast, 149, 16)) < 200


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("threads", [1, 3])
def test_guesses_depend_on_the_text_alone(family: str, threads: int) -> None:
    """Steps of any width, wrong drafts, pauses longer than the log, snapshots and forks."""
    rng = np.random.default_rng(3)
    once = native.Runtime(weights_of(family), kv_blocks=8, threads=1)
    runtime = native.Runtime(weights_of(family), kv_blocks=8, threads=threads, snapshots=2)
    assert runtime.states is not None
    at = 0
    for _ in range(12):
        for _ in range(int(rng.integers(0, 40)) if at else 1):
            if at + 2 > LENGTH - 4:
                break
            end = min(at + int(rng.integers(1, 9 if at else 60)), LENGTH - 3)
            feed(runtime, at, end)
            at = int(rng.integers(at + 1, end + 1)) if at else end  # what came after was wrong
        if at == LENGTH - 3:
            break
        feed(once, 0, at)
        expected = guesses(once, at)
        assert len(expected) == 3 and guesses(runtime, at) == expected
        runtime.catch_up(0, TABLE)
        for source, target in zip(TABLE[0], TABLE[1], strict=True):
            runtime.copy_block(int(source), int(target))
        runtime.states.save(0, at, 1)
        runtime.states.restore(1, 1)
        assert guesses(runtime, at, sequence=1) == expected, "after a snapshot"
        runtime.states.copy(0, 1)
        assert guesses(runtime, at, sequence=1) == expected, "after a fork"


def test_wrong_drafts_are_refused() -> None:
    runtime = native.Runtime(weights_of("qwen3_5"), kv_blocks=8, threads=1)
    assert guesses(runtime, 5) == []  # nothing is known yet
    feed(runtime, 0, 20)
    for token, at, sequence, count in ((301, 20, 0, 1), (1, 0, 0, 1), (1, 20, 2, 1), (1, 20, 0, 300), (1, 20, 0, 0)):
        with pytest.raises((IndexError, ValueError)):
            runtime.draft(token, at, sequence, TABLE, count)
    with pytest.raises(IndexError, match="needs KV blocks"):  # a table that was given back
        runtime.catch_up(0, np.full_like(TABLE, -1))
    without = native.Runtime(assemble(TrainedLike(tiny_config("qwen3_5"), 7), bits=8), kv_blocks=8, threads=1)
    assert without.drafting is None
    with pytest.raises(ValueError, match="no drafting head"):
        without.draft(1, 1, 0, TABLE, 1)
