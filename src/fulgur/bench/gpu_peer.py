"""transformers beside the GPU engine: its compiled decode loop over random weights of the same shape."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from fulgur.model.config import ModelConfig

CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}


def settings_of(config: ModelConfig, **more: Any) -> Any:
    import transformers

    raw = {k: v for k, v in config.to_json().items() if k not in ("model_type", "rope_theta", "rope_scaling")}
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        rope = dict(config.to_json()["rope_scaling"])
    rope["rope_theta"] = config.rope_theta
    return getattr(transformers, CLASSES[config.family] + "Config")(**raw, rope_parameters=rope, **more)


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
