"""The shape of a model from a GGUF file's metadata."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fulgur.errors import FulgurError
from fulgur.model.config import DeltaShape, ModelConfig, RopeScaling
from fulgur.model.config_json import DRAFT_VOCAB
from fulgur.model.family import DELTA, FAMILIES, FULL, SLIDING, Family
from fulgur.model.gguf_blocks import TO_FLOAT
from fulgur.model.gguf_file import GgufFile
from fulgur.model.gguf_names import ARCHITECTURES, FC

Number = Callable[..., int]


def config_of(file: GgufFile) -> ModelConfig:
    meta, path = file.metadata, file.path
    arch = str(meta.get("general.architecture"))
    family = ARCHITECTURES.get(arch, arch)
    if family not in FAMILIES or arch in ARCHITECTURES.values():
        known = sorted({*ARCHITECTURES, *(set(FAMILIES) - set(ARCHITECTURES.values()))})
        raise FulgurError(f"{path}: architecture {arch!r} is not supported", hint=f"Supported: {', '.join(known)}.")
    traits = FAMILIES[family]

    def number(key: str, default: int | None = None) -> int:
        value = meta.get(f"{arch}.{key}", default)
        if isinstance(value, list) and len(set(value)) == 1:  # one per layer
            value = value[0]
        if not isinstance(value, int):
            raise FulgurError(f"{path}: {arch}.{key} is {value!r}; it must be an integer")
        return value

    for key, has in (("expert_count", traits.experts), ("attention.sliding_window", SLIDING in traits.layers)):
        if meta.get(f"{arch}.{key}") and not has:
            raise FulgurError(f"{path}: {arch}.{key} = {meta[f'{arch}.{key}']} is not supported")
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise FulgurError(f"{path}: tensor token_embd.weight is missing")
    d_model, n_heads, context = number("embedding_length"), number("attention.head_count"), number("context_length")
    head_dim = number("attention.key_length", d_model // max(n_heads, 1))
    rotary = number("rope.dimension_count", head_dim)
    if rotary != head_dim and traits.partial_rotary == 1.0:
        raise FulgurError(
            f"{path}: {arch}.rope.dimension_count differs from the head dimension {head_dim}, which is not supported"
        )
    n_layers = number("block_count") - number("nextn_predict_layers", 0)  # drafting layers come last
    window = number("attention.sliding_window", 0)
    kinds = _kinds(traits, n_layers, window, number("full_attention_interval", 0))
    ends = (meta.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot"))
    experts = _experts(traits, number) if traits.experts else {}
    return ModelConfig(
        family=family,
        vocab_size=embed.shape[0],
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=number("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        d_ffn=number("feed_forward_length", experts.get("d_expert")),
        norm_eps=float(meta.get(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)),
        rope_theta=float(meta.get(f"{arch}.rope.freq_base", 10000.0)),
        rope_scaling=_scaling(file, arch, context, truncate=not traits.sinks),
        max_context=context,
        tied="output.weight" not in file.tensors,
        eos_ids=tuple(dict.fromkeys(int(end) for end in ends if end is not None)),
        bos_id=meta.get("tokenizer.ggml.bos_token_id"),
        layer_kinds=() if set(kinds) <= {FULL} else kinds,
        window=window if SLIDING in kinds else 0,
        rotary_dim=0 if rotary == head_dim else rotary,
        query_scaling=_query_scaling(meta, arch, context) if traits.query_scaling else None,
        delta=_delta(number) if DELTA in kinds else None,
        draft_vocab=min(DRAFT_VOCAB, embed.shape[0]) if traits.mtp and f"blk.{n_layers}.{FC}" in file.tensors else 0,
        **experts,
    )


def _kinds(traits: Family, n_layers: int, window: int, interval: int) -> tuple[str, ...]:
    pattern = (DELTA,) * (interval - 1) + (FULL,) if interval and DELTA in traits.layers else traits.layers
    kinds = (pattern[i % len(pattern)] for i in range(min(n_layers, 1 << 16)))
    return tuple(FULL if kind == SLIDING and not window else kind for kind in kinds)


def _experts(traits: Family, number: Number) -> dict[str, Any]:
    return {
        "n_experts": number("expert_count"),
        "experts_per_token": number("expert_used_count"),
        "d_expert": number("expert_feed_forward_length"),
        "norm_topk": not traits.router_after,  # as every reader of these files does
        "d_shared": number("expert_shared_feed_forward_length") if traits.shared_expert else 0,
        "swiglu_limit": 7.0 if traits.clamped else 0.0,
        "swiglu_alpha": 1.702 if traits.clamped else 0.0,
    }


def _delta(number: Number) -> DeltaShape:
    v_heads = number("ssm.time_step_rank")
    v_dim = number("ssm.inner_size") // max(v_heads, 1)
    return DeltaShape(number("ssm.group_count"), v_heads, number("ssm.state_size"), v_dim, number("ssm.conv_kernel"))


def _query_scaling(meta: dict[str, Any], arch: str, context: int) -> tuple[float, int] | None:
    beta = float(meta.get(f"{arch}.attention.temperature_scale", 0.0))
    return (beta, int(meta.get(f"{arch}.rope.scaling.original_context_length", context))) if beta else None


def _scaling(file: GgufFile, family: str, context: int, *, truncate: bool) -> RopeScaling | None:
    if "rope_freqs.weight" in file.tensors:
        factors = TO_FLOAT["F32"](file.blocks("rope_freqs.weight")).reshape(-1)
        return RopeScaling("factors", factors=tuple(float(f) for f in factors))
    prefix = f"{family}.rope.scaling."
    meta = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    kind = meta.get("type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise FulgurError(f"{file.path}: rope scaling {kind!r} is not supported", hint="Supported: linear, yarn.")
    factor = float(meta.get("factor", 1.0))
    # GGUF's attention factor multiplies the usual one; ours replaces it.
    extra = float(meta.get("yarn_attn_factor", meta.get("attn_factor", 1.0)))
    # Mistral's files give mscale_all_dim; mscale is the same, so their quotient is 1.
    same = 1.0 if "yarn_log_multiplier" in meta else None
    usual = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
    return RopeScaling(
        kind,
        factor=factor,
        original_context=int(meta.get("original_context_length", context)),
        beta_fast=float(meta.get("yarn_beta_fast", 32.0)),
        beta_slow=float(meta.get("yarn_beta_slow", 1.0)),
        attention_factor=same if extra == 1.0 else extra * usual,
        truncate=truncate,
    )
