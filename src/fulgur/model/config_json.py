"""`config.json` in Hugging Face's keys, read into a `ModelConfig` and written from one.

A key that would change the mathematics is read or refused, never ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError
from fulgur.model.config import DeltaShape, ModelConfig, RopeScaling
from fulgur.model.family import DELTA, FAMILIES, FULL, LAYER_TYPES, SLIDING, Family

log = logging.getLogger(__name__)
QUANTISED = ("fp8", "mxfp4", "gptq", "awq", "compressed-tensors")  # `quant_method`s that `stored.py` reads
_NESTED = ("qwen3_5", "qwen3_5_moe")  # their text model alone is `<family>_text`
DRAFT_VOCAB = 32768  # tokens that drafts are chosen from: frequent ones have low ids, and the head is the costly part
_SCALINGS = ("linear", "llama3", "yarn", "factors")

Need = Callable[[str], int]


def config_from_json(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    """Build the record; for a model that also has a vision tower, from its text part."""
    text = raw.get("text_config")
    if isinstance(text, dict):
        inherited = {key: raw[key] for key in ("tie_word_embeddings", "quantization_config") if key in raw}
        raw = {"model_type": raw.get("model_type"), **inherited, **text}
    family = str(raw.get("model_type")).removesuffix("_text")
    if family not in FAMILIES:
        raise FulgurError(
            f"{path}: architecture {raw.get('model_type')!r} is not supported",
            hint=f"Supported: {', '.join(FAMILIES)}.",
        )
    traits = FAMILIES[family]
    _refuse_unsupported(raw, traits, path)

    def need(key: str) -> int:
        value = raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FulgurError(f"{path}: {key} is {value!r}; it must be an integer")
        return value

    d_model, n_heads, n_layers = need("hidden_size"), need("num_attention_heads"), need("num_hidden_layers")
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    head_dim = int(raw.get("head_dim") or d_model // max(n_heads, 1))
    context = need("max_position_embeddings")
    experts = _experts(raw, traits, path, need) if traits.experts else {}
    window = int(raw.get("sliding_window", traits.window) or 0)
    kinds = _kinds(raw, traits, n_layers, window, path)
    rotary = float(raw.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or traits.partial_rotary)
    # Transformers' default when the key is absent: tied for none of these families but our own.
    tied = bool(raw.get("tie_word_embeddings", family == "fulgur"))
    return ModelConfig(
        family=family,
        vocab_size=need("vocab_size"),
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=int(raw.get("num_key_value_heads") or n_heads),
        head_dim=head_dim,
        d_ffn=experts["d_expert"] if experts and "intermediate_size" not in raw else need("intermediate_size"),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope_scaling=_scaling_from_json(rope, context, path),
        max_context=context,
        tied=tied,
        eos_ids=token_ids(raw.get("eos_token_id")),
        bos_id=raw.get("bos_token_id"),
        layer_kinds=() if set(kinds) <= {FULL} else kinds,
        window=window if SLIDING in kinds else 0,
        rotary_dim=0 if rotary == 1.0 else int(head_dim * rotary),
        query_scaling=_query_scaling(rope, context, path) if traits.query_scaling else None,
        delta=_delta(need) if DELTA in kinds else None,
        draft_vocab=_draft_vocab(raw, need("vocab_size")) if traits.mtp else 0,
        **experts,
    )


def _draft_vocab(raw: Mapping[str, Any], vocab: int) -> int:
    """What the config promises; whether the head exists is seen in the tensors (`with_draft_head`)."""
    promised = raw.get("mtp_num_hidden_layers") or 0
    return min(int(raw.get("draft_vocab_size") or DRAFT_VOCAB), vocab) if promised else 0


def with_draft_head(config: ModelConfig, found: bool) -> ModelConfig:
    """The config for what a checkpoint holds: some do not mention their drafting head, some promise one and lack it."""
    if found == bool(config.draft_vocab) or not config.traits.mtp:
        return config
    if not found:
        log.warning("the config declares a drafting head (MTP), but its tensors are missing")
    return replace(config, draft_vocab=min(DRAFT_VOCAB, config.vocab_size) if found else 0)


def _kinds(raw: Mapping[str, Any], traits: Family, n_layers: int, window: int, path: Path) -> tuple[str, ...]:
    listed = raw.get("layer_types")
    if listed is None:
        interval = raw.get("full_attention_interval")
        pattern = (DELTA,) * (int(interval) - 1) + (FULL,) if interval and DELTA in traits.layers else traits.layers
        kinds = tuple(pattern[i % len(pattern)] for i in range(min(n_layers, 1 << 16)))
    else:
        unknown = [kind for kind in listed if kind not in LAYER_TYPES]
        if unknown:
            raise FulgurError(f"{path}: layers of the type {unknown[0]!r} are not supported")
        kinds = tuple(LAYER_TYPES[kind] for kind in listed)
    wrong = set(kinds) - set(traits.layers) - {FULL}
    if wrong:
        raise FulgurError(f"{path}: {wrong.pop()} layers in a {raw.get('model_type')!r} are not supported")
    return kinds if window else tuple(FULL if kind == SLIDING else kind for kind in kinds)


def _experts(raw: Mapping[str, Any], traits: Family, path: Path, need: Need) -> dict[str, Any]:
    """The fields of a mixture of experts; every layer of the model must be one."""
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        raise FulgurError(f"{path}: models that mix dense and expert layers are not supported")
    width = "moe_intermediate_size" if "moe_intermediate_size" in raw else "intermediate_size"
    return {
        "n_experts": need("num_experts" if "num_experts" in raw else "num_local_experts"),
        "experts_per_token": need("num_experts_per_tok"),
        "d_expert": need(width),
        "norm_topk": bool(raw.get("norm_topk_prob", traits.norm_topk)),
        "d_shared": need("shared_expert_intermediate_size") if traits.shared_expert else 0,
        "swiglu_limit": float(raw.get("swiglu_limit", 7.0)) if traits.clamped else 0.0,
        "swiglu_alpha": float(raw.get("swiglu_alpha", 1.702)) if traits.clamped else 0.0,
    }


def _delta(need: Need) -> DeltaShape:
    heads, dims = ("linear_num_key_heads", "linear_num_value_heads"), ("linear_key_head_dim", "linear_value_head_dim")
    return DeltaShape(*(need(key) for key in (*heads, *dims, "linear_conv_kernel_dim")))


def _query_scaling(rope: Mapping[str, Any], context: int, path: Path) -> tuple[float, int] | None:
    beta = float(rope.get("llama_4_scaling_beta") or 0.0)
    if not beta:
        return None
    original = int(rope.get("original_max_position_embeddings") or context)
    if original < 1:
        raise FulgurError(f"{path}: original_max_position_embeddings is {original}; it must be at least 1")
    return beta, original


def _refuse_unsupported(raw: Mapping[str, Any], traits: Family, path: Path) -> None:
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise FulgurError(f"{path}: hidden_act {raw['hidden_act']!r} is not supported, only silu")
    quantisation = raw.get("quantization_config")
    if quantisation and quantisation.get("quant_method") not in QUANTISED:
        raise FulgurError(
            f"{path}: quantization_config {quantisation!r} is not supported", hint=f"Supported: {', '.join(QUANTISED)}."
        )
    if bool(raw.get("attention_bias", traits.o_bias)) != traits.o_bias:
        raise FulgurError(f"{path}: attention_bias = {raw['attention_bias']!r} is not supported")
    for key in ("mlp_bias", "use_sliding_window"):
        if raw.get(key):
            raise FulgurError(f"{path}: {key} = {raw[key]!r} is not supported")
    rope = raw.get("rope_parameters") or {}
    partial = float(raw.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1.0)
    if partial != 1.0 and traits.partial_rotary == 1.0:
        raise FulgurError(f"{path}: partial_rotary_factor is not supported")


def token_ids(value: Any) -> tuple[int, ...]:
    """One id or a list of them."""
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(value),)


def config_to_json(config: ModelConfig) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "model_type": config.family + ("_text" if config.family in _NESTED else ""),
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.d_ffn,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_context,
        "tie_word_embeddings": config.tied,
        "eos_token_id": list(config.eos_ids),
        "bos_token_id": config.bos_id,
    }
    if config.n_experts:
        raw |= {"num_experts": config.n_experts, "num_experts_per_tok": config.experts_per_token}
        raw |= {"moe_intermediate_size": config.d_expert, "norm_topk_prob": config.norm_topk}
    if config.d_shared:
        raw["shared_expert_intermediate_size"] = config.d_shared
    if config.traits.clamped:
        raw |= {"swiglu_limit": config.swiglu_limit, "swiglu_alpha": config.swiglu_alpha}
        raw |= {"num_local_experts": raw.pop("num_experts"), "intermediate_size": raw.pop("moe_intermediate_size")}
    if SLIDING in config.traits.layers:
        raw["sliding_window"] = config.window or None
    if len(config.traits.layers) > 1:
        names = {kind: name for name, kind in LAYER_TYPES.items()}
        raw["layer_types"] = [names[kind] for kind in config.kinds]
    if config.delta is not None:
        raw |= {"linear_num_key_heads": config.delta.k_heads, "linear_num_value_heads": config.delta.v_heads}
        raw |= {"linear_key_head_dim": config.delta.k_dim, "linear_value_head_dim": config.delta.v_dim}
        raw["linear_conv_kernel_dim"] = config.delta.taps
    if config.draft_vocab:
        raw |= {"mtp_num_hidden_layers": 1, "draft_vocab_size": config.draft_vocab}
    if config.traits.partial_rotary != 1.0:
        raw["partial_rotary_factor"] = config.rotated / config.head_dim
    if config.rope_scaling is not None:
        raw["rope_scaling"] = _scaling_to_json(config.rope_scaling)
    if config.query_scaling is not None:
        raw.setdefault("rope_scaling", {"rope_type": "default"})
        beta, original = config.query_scaling
        raw["rope_scaling"] |= {"llama_4_scaling_beta": beta, "original_max_position_embeddings": original}
    return raw


def _scaling_from_json(rope: Mapping[str, Any], context: int, path: Path) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in ("default", "mrope"):
        return None
    if kind not in _SCALINGS:
        raise FulgurError(f"{path}: rope scaling {kind!r} is not supported", hint="Supported: linear, llama3, yarn.")
    original = int(rope.get("original_max_position_embeddings") or context)
    factor = rope.get("factor")
    if factor is None and kind in ("linear", "llama3"):
        raise FulgurError(f"{path}: rope scaling {kind!r} has no factor")
    optional = {key: float(rope[key]) for key in ("attention_factor", "mscale", "mscale_all_dim") if rope.get(key)}
    return RopeScaling(
        kind=kind,
        factor=float(factor) if factor is not None else context / original,
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_context=original,
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        truncate=bool(rope.get("truncate", True)),
        factors=tuple(float(f) for f in rope.get("factors", ())),
        **optional,
    )


def _scaling_to_json(scaling: RopeScaling) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_context,
    }
    if scaling.kind == "llama3":
        raw |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        raw |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
        for key in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(scaling, key) is not None:
                raw[key] = getattr(scaling, key)
    if scaling.kind == "factors":
        raw["factors"] = list(scaling.factors)
    return raw
