"""What transformers computes in fp32 with the weights that the GPU engine gets."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fulgur.bench.gpu_peer import CLASSES, settings_of
from fulgur.kernels.cuda.formats import format_named
from fulgur.kernels.cuda.pack import pack, quantise, unpack
from fulgur.model.config import ModelConfig
from fulgur.model.random import MemorySource, hf_tensors, random_model
from fulgur.model.tensors import tensor_shapes


def shared_tensors(config: ModelConfig, weights: str, device: Any, seed: int) -> dict[str, Any]:
    """Random tensors whose matrices the format holds exactly, so that both sides compute with the same numbers."""
    import torch

    out: dict[str, Any] = {}
    for name, value in random_model(config, seed).items():
        tensor = torch.from_numpy(value).to(device).bfloat16().float()
        if tensor.ndim == 2 and ("proj" in name or ("lm_head" in name and not config.tied)):
            fmt = format_named(weights)
            q, scale = quantise(tensor, fmt)
            tensor = unpack(pack(q, fmt, scale), fmt, *tensor.shape)
        out[name] = tensor
    return out


def reference_logits(config: ModelConfig, tensors: dict[str, Any], tokens: list[int], device: Any) -> tuple[Any, Any]:
    """float32 [len(tokens), vocab] of the whole sequence, and for every token how clearly its experts were chosen: the
    smallest distance, over the layers, of the last chosen router logit to the next, relative to what they spread."""
    import torch
    import transformers

    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.device(device):
        model = getattr(transformers, CLASSES[config.family] + "ForCausalLM")(
            settings_of(config, attn_implementation="eager")
        )
    model = model.float().eval()
    names = set(model.state_dict())
    state = {name: value for name, value in tensors.items() if name in names}
    for i in range(config.n_layers if config.n_experts else 0):  # experts in one tensor, as newer versions hold them
        prefix = f"model.layers.{i}.mlp.experts."
        parts = {
            short: [tensors[f"{prefix}{e}.{short}_proj.weight"] for e in range(config.n_experts)]
            for short in ("gate", "up", "down")
        }
        if prefix + "gate_up_proj" in names:
            state[prefix + "gate_up_proj"] = torch.stack(
                [torch.cat(pair) for pair in zip(parts["gate"], parts["up"], strict=True)]
            )
            state[prefix + "down_proj"] = torch.stack(parts["down"])
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"transformers wants other tensors: missing {missing[:3]}, unexpected {unexpected[:3]}")
    clear = torch.full((len(tokens),), float("inf"), device=device)

    def watch(gate: Any, inputs: tuple[Any, ...]) -> None:
        logits = inputs[0].reshape(len(tokens), -1) @ gate.weight.T
        ranked = logits.sort(dim=1, descending=True).values
        k = config.experts_per_token
        torch.minimum(clear, (ranked[:, k - 1] - ranked[:, k]) / logits.std(dim=1), out=clear)

    for name, module in model.named_modules():
        if name.endswith("mlp.gate") and config.n_experts:
            module.register_forward_pre_hook(watch)
    with torch.no_grad():
        return model(torch.tensor([tokens], device=device)).logits[0].float(), clear


def family_logits(source: MemorySource, tokens: list[int], device: Any) -> Any:
    """float32 [len(tokens), vocab] of a model of any family that transformers knows."""
    import torch
    import transformers

    config = replace(source.config, draft_vocab=0)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config.to_json()), encoding="utf-8")
        settings = transformers.AutoConfig.from_pretrained(folder)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    wanted = model.state_dict()
    given = hf_tensors(config, {name: source.tensor(name) for name in tensor_shapes(config)})
    state = {name: torch.from_numpy(given[name]).to(device) for name in wanted if name in given}
    for name in set(wanted) - set(state):  # the experts of a layer in one tensor
        prefix, _, short = name.rpartition(".")
        each = [given.pop(f"{prefix}.{e}.{s}_proj.weight") for e in range(config.n_experts)
                for s in (("gate", "up") if short == "gate_up_proj" else ("down",))]  # fmt: skip
        state[name] = torch.from_numpy(np.concatenate(each)).to(device).reshape(wanted[name].shape)
    if unused := set(given) - set(state):
        raise ValueError(f"transformers has no {sorted(unused)[:3]}")
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.tensor([tokens], device=device)).logits[0].float()
