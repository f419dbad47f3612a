"""The plan, interpreted in numpy, is the model: against transformers in fp32 for every family, experts included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fulgur.kernels.gpu.interpreter import Interpreter
from fulgur.kernels.gpu.plan import make_plan
from fulgur.kernels.gpu.shapes import SMALL
from fulgur.kernels.gpu.weights import assemble
from fulgur.model.bfloat16 import from_bfloat16, to_bfloat16
from fulgur.model.config import ModelConfig
from fulgur.model.random import random_model

TOKENS = [5, 17, 300, 33, 2, 77, 240, 12, 5, 5, 402]


def stored(config: ModelConfig) -> dict[str, np.ndarray]:
    """Weights that bf16 holds exactly, so that packing changes nothing."""
    return {name: from_bfloat16(to_bfloat16(value)) for name, value in random_model(config, 3).items()}


def transformers_logits(config: ModelConfig, tensors: dict[str, np.ndarray]) -> np.ndarray:
    import transformers

    kinds = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}
    kind = kinds[config.family]
    raw = {k: v for k, v in config.to_json().items() if k not in ("model_type", "rope_theta")}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    settings = getattr(transformers, f"{kind}Config")(**raw, rope_parameters=rope, attn_implementation="eager")
    model = getattr(transformers, f"{kind}ForCausalLM")(settings).float().eval()
    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    if config.n_experts and any("gate_up_proj" in name for name in model.state_dict()):
        state = fused(state, config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def fused(state: dict[str, torch.Tensor], config: ModelConfig) -> dict[str, torch.Tensor]:
    """Experts in one tensor, as newer versions hold them."""
    out = {name: value for name, value in state.items() if ".experts." not in name}
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}.mlp.experts."
        one = {
            s: [state[f"{prefix}{e}.{s}_proj.weight"] for e in range(config.n_experts)] for s in ("gate", "up", "down")
        }
        pairs = [torch.cat(pair) for pair in zip(one["gate"], one["up"], strict=True)]
        out[prefix + "gate_up_proj"], out[prefix + "down_proj"] = torch.stack(pairs), torch.stack(one["down"])
    return out


@pytest.mark.parametrize("family", SMALL)
def test_matches_transformers(family: str) -> None:
    config = SMALL[family]
    tensors = stored(config)
    weights = assemble(make_plan(config, ctas=5), lambda name: (torch.from_numpy(tensors[name]), None), "cpu")
    expected = transformers_logits(config, tensors)
    plain = Interpreter(weights, narrow=False)
    got = np.concatenate([plain.step(TOKENS[:8], 0), plain.step(TOKENS[8:], 8)])
    # The norm's weight inside the router and the fold costs a rounding to bf16 that shares of experts show.
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < (3e-3 if config.n_experts else 2e-5)
    rounded = Interpreter(weights)
    narrow = np.concatenate([rounded.step(TOKENS[:8], 0), rounded.step(TOKENS[8:], 8)])
    errors = np.linalg.norm(narrow - expected, axis=1) / np.linalg.norm(expected, axis=1)
    # Rounded, a token may have another expert where two are close: one of eleven does, by 0.15.
    assert errors.min() > 1e-5 and np.sort(errors)[-2 if config.n_experts else -1] < 2e-2


def test_experts_without_normalised_shares() -> None:
    config = ModelConfig(**{**SMALL["qwen3_moe"].__dict__, "norm_topk": False})
    tensors = stored(config)
    weights = assemble(make_plan(config, ctas=5), lambda name: (torch.from_numpy(tensors[name]), None), "cpu")
    expected = transformers_logits(config, tensors)
    got = Interpreter(weights, narrow=False).step(TOKENS, 0)
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < 3e-3
