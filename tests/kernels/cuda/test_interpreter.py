"""The plan, interpreted in numpy, is the model: against transformers in fp32 for every family, experts included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gpu_check import CLOSE
from interpreter import Interpreter
from small_models import SMALL
from transformers_logits import reference_logits

from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.weights import GpuWeights, assemble
from fulgur.model.bfloat16 import from_bfloat16, to_bfloat16
from fulgur.model.config import ModelConfig
from fulgur.model.random import random_model

TOKENS = [5, 17, 300, 33, 2, 77, 240, 12, 5, 5, 402]


def stored(config: ModelConfig) -> dict[str, np.ndarray]:
    """Weights that bf16 holds exactly, so that packing changes nothing."""
    return {name: from_bfloat16(to_bfloat16(value)) for name, value in random_model(config, 3).items()}


def against_transformers(config: ModelConfig) -> tuple[GpuWeights, np.ndarray, np.ndarray]:
    """A model, its logits by transformers, and how clearly every token's experts were chosen."""
    tensors = {name: torch.from_numpy(value) for name, value in stored(config).items()}
    weights = assemble(make_plan(config, ctas=5), lambda name: (tensors[name], None), "cpu")
    expected, clear = reference_logits(config, tensors, TOKENS, "cpu")
    return weights, np.asarray(expected), np.asarray(clear)


@pytest.mark.parametrize("family", SMALL)
def test_matches_transformers(family: str) -> None:
    config = SMALL[family]
    weights, expected, clear = against_transformers(config)
    plain = Interpreter(weights, narrow=False)
    got = np.concatenate([plain.step(TOKENS[:8], 0), plain.step(TOKENS[8:], 8)])
    # The norm's weight inside the router and the fold costs a rounding to bf16 that shows in the routing weights.
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < (3e-3 if config.n_experts else 2e-5)
    rounded = Interpreter(weights)
    narrow = np.concatenate([rounded.step(TOKENS[:8], 0), rounded.step(TOKENS[8:], 8)])
    errors = np.linalg.norm(narrow - expected, axis=1) / np.linalg.norm(expected, axis=1)
    # Rounded, experts that are too close to call may be chosen the other way round: two of eleven tokens have such.
    assert (clear > CLOSE).sum() >= 9
    assert (errors > 1e-5).all() and (errors[clear > CLOSE] < 1e-2).all(), errors


def test_experts_without_normalised_weights() -> None:
    weights, expected, _ = against_transformers(replace(SMALL["qwen3_moe"], norm_topk=False))
    got = Interpreter(weights, narrow=False).step(TOKENS, 0)
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < 3e-3
