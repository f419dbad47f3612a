"""Chunks of prompts of the general driver in parts: beside others, left half way, short of memory."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import emulated_family
import numpy as np
import pytest
import torch
from held_models import held_source
from test_family import FAMILIES, WITH_A_HEAD

from fulgur.kernels.cuda.family_draft import DraftLogs
from fulgur.kernels.cuda.family_plan import make_family_plan
from fulgur.kernels.cuda.family_prefill import FamilyPrefill
from fulgur.kernels.cuda.family_prompts import FamilyPrompts
from fulgur.kernels.cuda.family_states import FamilyStates
from fulgur.kernels.cuda.family_weights import FamilyWeights, assemble
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.model.rope import rope_tables

TABLES = np.array([[0, 3, -1], [2, 1, -1]], np.int32)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_family.install(monkeypatch, folder)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


class Device:
    """The caches of two sequences, and prompts that fill them."""

    def __init__(self, weights: FamilyWeights) -> None:
        c, plan = weights.plan.config, weights.plan
        self.kv = KvCache(plan.kv_layers, 4, c.n_kv_heads, c.head_dim, "bf16", "cpu")
        rope = torch.from_numpy(np.concatenate(rope_tables(c, 256), axis=1))
        seen: Any = None
        self.drafts = DraftLogs(2, 1, c.d_model, "cpu", None, seen) if c.draft_vocab else None
        self.states = FamilyStates(plan, 2, 1, "cpu", None, seen, self.drafts) if plan.delta_layers else None
        prefill = FamilyPrefill(weights, self.kv, rope, None, self.states)
        self.prompts = FamilyPrompts(prefill, self.states, self.drafts, None)
        self.tokens = np.random.default_rng(1).integers(0, c.draft_vocab or c.vocab_size, (2, 90)).astype(np.int32)

    def begin(self, slot: int, begin: int, end: int) -> Generator[None]:
        return self.prompts.begin(self.tokens[slot, begin:end], begin, TABLES[slot], slot)

    def rows(self, slot: int, begin: int, end: int) -> int:
        return self.prompts.rows(self.tokens[slot, begin:end], begin, TABLES[slot], slot)

    def held(self) -> list[torch.Tensor]:
        states = [] if self.states is None else [self.states.held[:2], self.states.known]
        return [t.clone() for t in [self.kv.held, *states, *([] if self.drafts is None else [self.drafts.ring])]]


def weights_of(case: str) -> FamilyWeights:
    config, formats = WITH_A_HEAD if case == "with a head" else FAMILIES[case]
    return assemble(make_family_plan(config, formats, ctas=1), held_source(config, formats, 3), "cpu")


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("case", ["mistral", "gpt_oss", "qwen3_next", "with a head"])
def test_parts_of_two_prompts_by_turns(case: str) -> None:
    weights = weights_of(case)
    alone, beside = Device(weights), Device(weights)
    for slot in (0, 1):
        assert alone.rows(slot, 0, 40) == 40 and alone.rows(slot, 40, 90) == 50
        assert beside.rows(slot, 0, 40) == 40
    left = [beside.begin(slot, 40, 90) for slot in (0, 1)]
    count = 0
    while left:
        left = [parts for parts in left if next(parts, "end") is None]
        count += len(left)
    assert count == 2 * (2 * weights.plan.config.n_layers + 2 * (case == "with a head"))
    assert same(alone.held(), beside.held())


@pytest.mark.parametrize("case", ["qwen3_next", "with a head"])
def test_a_prompt_that_is_left_half_way(case: str) -> None:
    """The state and what the head has seen stay those before it; the prompt can begin again."""
    weights = weights_of(case)
    whole, left = Device(weights), Device(weights)
    for device in (whole, left):
        device.rows(0, 0, 40)
    before = left.held()[1:]
    parts = left.begin(0, 40, 90)
    for _ in range(3):
        next(parts)
    parts.close()
    assert same(left.held()[1:], before)
    assert left.states is not None
    left.states.save(0, 40, 0)  # as when its sequence gives its blocks up
    for device in (whole, left):
        device.rows(0, 40, 90)
    assert same(whole.held(), left.held())


def test_memory_that_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows, and the next chunk goes on behind them; or none."""
    weights = weights_of("with a head")
    whole, short = Device(weights), Device(weights)
    usual, most = FamilyPrefill._feed_forward, 30

    def feed_forward(self: FamilyPrefill, to: str, x: torch.Tensor) -> torch.Tensor:
        if len(x) > most and to == "layers.1.":
            raise torch.cuda.OutOfMemoryError
        return usual(self, to, x)

    whole.rows(0, 0, 25)
    whole.rows(0, 25, 50)
    monkeypatch.setattr(FamilyPrefill, "_feed_forward", feed_forward)
    assert short.rows(0, 0, 50) == 25
    assert short.rows(0, 25, 50) == 25
    assert same(whole.held(), short.held())
    most, before = 5, short.held()[1:]
    assert short.rows(0, 50, 90) == 0
    assert same(short.held()[1:], before)
