"""transformers beside the GPU engine: its compiled decode loop over random weights of the same shape."""

from __future__ import annotations

import json
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


def random_peer(config: ModelConfig, context: int, **more: Any) -> Any:
    """Build a transformers model with random bf16 weights on the GPU."""
    import torch
    import transformers

    shape = ModelConfig(**{**config.__dict__, "max_context": context})
    settings = settings_of(shape, **more)
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
    return model


def decode_rate(config: ModelConfig, prompt: int, steps: int, *, compiled: bool = True) -> float:
    """Tokens a second of transformers with a static cache, with or without torch.compile; random bf16 weights."""
    import torch
    import transformers

    # Compute a token's experts as one batched product: a loop over experts would break torch.compile's graph.
    more = {"experts_implementation": "batched_mm"} if config.n_experts else {}
    model = random_peer(config, prompt + 4 * steps, **more)
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


def prompt_times(config: ModelConfig, lengths: list[str], runs: int = 3) -> dict[str, float]:
    """Milliseconds until the last token's logits, uncompiled because lengths vary; `8192+200` is 200 tokens after 8,192
    in the cache."""
    import torch
    import transformers

    parts = {length: [int(part) for part in length.split("+")] for length in lengths}
    most = max(sum(part) for part in parts.values())
    more = {"experts_implementation": "grouped_mm"} if config.n_experts else {}
    model = random_peer(config, most + 8, attn_implementation="sdpa", **more)
    found: dict[str, float] = {}

    def run(tokens: Any, cache: Any) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1).item()
        return time.perf_counter() - start

    with torch.no_grad():
        for length, (first, *rest) in parts.items():
            times: list[float] = []
            for _ in range(runs + 1):
                cache = transformers.DynamicCache(config=model.config)
                tokens = torch.randint(0, config.vocab_size, (1, first + sum(rest)), device="cuda")
                times.append(run(tokens[:, :first], cache))
                if rest:
                    times[-1] = run(tokens[:, first:], cache)
            found[length] = 1e3 * statistics.median(times[1:])
    return found


if __name__ == "__main__":
    from fulgur.kernels.cuda.shapes import SHAPES

    name, prompt, *how = sys.argv[1:]
    if how == ["prompts"]:
        print(json.dumps(prompt_times(SHAPES[name], prompt.split(","))))
    elif how in ([], ["uncompiled"]):
        print(decode_rate(SHAPES[name], int(prompt), 40, compiled=not how))
    else:
        sys.exit(f"{' '.join(how)}: after the model and the prompt only `uncompiled` or `prompts` may follow")
