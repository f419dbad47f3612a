"""transformers beside the GPU engine: the same random weights for checks, its compiled loop as a peer."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from fulgur.kernels.cuda.formats import format_named
from fulgur.kernels.cuda.pack import pack, quantise, unpack
from fulgur.model.config import ModelConfig
from fulgur.model.random import random_model

CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}


def settings_of(config: ModelConfig, **more: Any) -> Any:
    import transformers

    raw = {k: v for k, v in config.to_json().items() if k not in ("model_type", "rope_theta", "rope_scaling")}
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        rope = dict(config.to_json()["rope_scaling"])
    rope["rope_theta"] = config.rope_theta
    return getattr(transformers, CLASSES[config.family] + "Config")(**raw, rope_parameters=rope, **more)


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


def decode_rate(config: ModelConfig, prompt: int, steps: int, *, compiled: bool = True) -> float:
    """Tokens a second of transformers with a static cache, with or without torch.compile; random bf16 weights."""
    import torch
    import transformers

    context = ModelConfig(**{**config.__dict__, "max_context": prompt + 4 * steps})
    # The experts of one token as one product: a loop over experts takes torch.compile apart.
    settings = settings_of(context, **({"experts_implementation": "batched_mm"} if config.n_experts else {}))
    with torch.device("meta"):
        model = getattr(transformers, CLASSES[config.family] + "ForCausalLM")(settings)
    model = model.to(torch.bfloat16).to_empty(device="cuda").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
        for name, module in model.named_modules():  # buffers were not made on the meta device
            if name.endswith("rotary_emb"):
                with torch.device("cuda"):
                    fresh = type(module)(settings)
                model.get_submodule(name.rpartition(".")[0]).rotary_emb = fresh
    cache = transformers.StaticCache(config=model.config, max_cache_len=prompt + 4 * steps)
    tokens = torch.randint(0, config.vocab_size, (1, prompt), device="cuda")

    def step(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        out = model(token, past_key_values=cache, cache_position=position, position_ids=position[None], use_cache=True)
        return out.logits[:, -1:].argmax(-1)

    fast = torch.compile(step, mode="reduce-overhead", fullgraph=False) if compiled else step
    times: list[float] = []
    with torch.no_grad():
        token = step(tokens, torch.arange(prompt, device="cuda")).clone()
        for i in range(3 * steps):
            position = torch.tensor([prompt + i], device="cuda")
            torch.cuda.synchronize()
            start = time.perf_counter()
            token = fast(token, position).clone()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return 1 / statistics.median(times[-steps:])


if __name__ == "__main__":
    from fulgur.kernels.cuda.shapes import SHAPES

    name, prompt, *how = sys.argv[1:]
    if how not in ([], ["uncompiled"]):
        sys.exit(f"{' '.join(how)}: after the model and the length of the prompt only `uncompiled` may follow")
    print(decode_rate(SHAPES[name], int(prompt), 40, compiled=not how))
