"""The shape of a model: one frozen record, read from and written to `config.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError

MAX_LAYERS = 1024  # far beyond any model: a damaged number must not make a list of millions of tensors


@dataclass(frozen=True)
class Family:
    """What sets one family's mathematics apart; everything else (RMSNorm, GQA, rope, SwiGLU) is shared."""

    qkv_bias: bool
    qk_norm: bool


FAMILIES: dict[str, Family] = {
    "llama": Family(qkv_bias=False, qk_norm=False),
    "qwen2": Family(qkv_bias=True, qk_norm=False),
    "qwen3": Family(qkv_bias=False, qk_norm=True),
    "fulgur": Family(qkv_bias=False, qk_norm=True),
    "qwen3_moe": Family(qkv_bias=False, qk_norm=True),
}


@dataclass(frozen=True)
class RopeScaling:
    """How positions beyond the trained context are squeezed; fields that a kind does not use keep their defaults."""

    kind: str  # "linear" | "llama3" | "yarn" | "factors" (one divisor a frequency: how GGUF stores llama3)
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    family: str
    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    # A mixture of experts (n_experts > 0): d_ffn is not used, every layer routes each token to a few experts.
    n_experts: int = 0
    experts_per_token: int = 0
    d_expert: int = 0
    norm_topk: bool = False

    def __post_init__(self) -> None:
        for field in ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ffn", "max_context"):
            if getattr(self, field) < 1:
                raise FulgurError(f"model config: {field} is {getattr(self, field)}, it must be at least 1")
        if self.n_layers > MAX_LAYERS:
            raise FulgurError(f"model config: {self.n_layers} layers; no model has more than {MAX_LAYERS}")
        if self.n_heads % self.n_kv_heads:
            raise FulgurError(
                f"model config: {self.n_heads} attention heads cannot share {self.n_kv_heads} key/value heads"
            )
        if self.head_dim % 2:
            raise FulgurError(f"model config: head_dim {self.head_dim} is odd, rotary positions need pairs")
        if self.n_experts and not (0 < self.experts_per_token <= self.n_experts and self.d_expert > 0):
            raise FulgurError(
                f"model config: {self.experts_per_token} of {self.n_experts} experts of width {self.d_expert}"
            )

    @property
    def q_rows(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Parameters in the matrices and vectors; a tied head counts once."""
        d, bias = self.d_model, self.qkv_bias * (self.q_rows + 2 * self.kv_rows)
        vectors = 2 * d + bias + self.qk_norm * 2 * self.head_dim
        ffn = self.n_experts * (3 * self.d_expert + 1) if self.n_experts else 3 * self.d_ffn
        layer = d * (2 * self.q_rows + 2 * self.kv_rows + ffn) + vectors
        return self.n_layers * layer + self.vocab_size * d * (1 if self.tied else 2) + d

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json` (and the end-of-text ids of `generation_config.json`, if there is one)."""
        path = Path(folder) / "config.json"
        raw = read_json(path)
        with naming(path):
            config = config_from_json(raw, path)
        generation = Path(folder) / "generation_config.json"
        if generation.exists():
            extra = _ids(read_json(generation).get("eos_token_id"))
            merged = tuple(dict.fromkeys(config.eos_ids + extra))
            config = ModelConfig(**{**config.__dict__, "eos_ids": merged})
        return config

    @classmethod
    def from_gguf(cls, path: Path) -> ModelConfig:
        from fulgur.model.gguf import GgufSource

        return GgufSource(Path(path)).config

    def to_json(self) -> dict[str, Any]:
        """The record in Hugging Face's keys, readable by `config_from_json`."""
        raw: dict[str, Any] = {
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.d_ffn,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.max_context,
            "tie_word_embeddings": self.tied,
            "eos_token_id": list(self.eos_ids),
            "bos_token_id": self.bos_id,
        }
        if self.n_experts:
            raw |= {"num_experts": self.n_experts, "num_experts_per_tok": self.experts_per_token}
            raw |= {"moe_intermediate_size": self.d_expert, "norm_topk_prob": self.norm_topk}
        if self.rope_scaling is not None:
            raw["rope_scaling"] = _scaling_to_json(self.rope_scaling)
        return raw


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error from within names this file or folder, if it does not yet."""
    try:
        yield
    except FulgurError as error:
        if str(path) in error.message:
            raise
        raise FulgurError(f"{path}: {error.message}", hint=error.hint) from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FulgurError(f"{path}: no such file", hint="Give a model folder (config.json + safetensors).") from None
    except (OSError, ValueError) as error:
        raise FulgurError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise FulgurError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw


def config_from_json(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    """Build the record from Hugging Face's keys (both the old `rope_theta`/`rope_scaling` and `rope_parameters`)."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise FulgurError(
            f"{path}: architecture {family!r} is not supported", hint=f"Supported: {', '.join(FAMILIES)}."
        )
    _refuse_unsupported(raw, path)

    def need(key: str) -> int:
        value = raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FulgurError(f"{path}: {key} is {value!r}, an integer is needed")
        return value

    d_model, n_heads = need("hidden_size"), need("num_attention_heads")
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    head_dim = raw.get("head_dim") or d_model // max(n_heads, 1)
    context = need("max_position_embeddings")
    # Transformers' default when the key is absent: tied for none of these families but our own.
    tied = bool(raw.get("tie_word_embeddings", family == "fulgur"))
    return ModelConfig(
        family=family,
        vocab_size=need("vocab_size"),
        d_model=d_model,
        n_layers=need("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=int(raw.get("num_key_value_heads") or n_heads),
        head_dim=int(head_dim),
        d_ffn=need("intermediate_size"),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope_scaling=_scaling_from_json(rope, context, path),
        max_context=context,
        tied=tied,
        qkv_bias=FAMILIES[family].qkv_bias,
        qk_norm=FAMILIES[family].qk_norm,
        eos_ids=_ids(raw.get("eos_token_id")),
        bos_id=raw.get("bos_token_id"),
        **_experts(raw, path, need),
    )


def _experts(raw: Mapping[str, Any], path: Path, need: Callable[[str], int]) -> dict[str, Any]:
    """The fields of a mixture of experts; only models whose every layer is one."""
    if raw.get("model_type") != "qwen3_moe":
        return {}
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        raise FulgurError(f"{path}: dense layers among layers of experts are not supported")
    return {
        "n_experts": need("num_experts" if "num_experts" in raw else "num_local_experts"),
        "experts_per_token": need("num_experts_per_tok"),
        "d_expert": need("moe_intermediate_size"),
        "norm_topk": bool(raw.get("norm_topk_prob", False)),
    }


def _refuse_unsupported(raw: Mapping[str, Any], path: Path) -> None:
    """A key that would change the mathematics is refused, never ignored."""
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise FulgurError(f"{path}: hidden_act {raw['hidden_act']!r} is not supported, only silu")
    # fp8 weights with block scales are read by the GPU loader; the CPU loader refuses their tensors by type.
    if (raw.get("quantization_config") or {"quant_method": "fp8"}).get("quant_method") != "fp8":
        raise FulgurError(f"{path}: quantization_config {raw['quantization_config']!r} is not supported, only fp8")
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(key):
            raise FulgurError(f"{path}: {key} = {raw[key]!r} is not supported")
    rope = raw.get("rope_parameters") or {}
    if float(raw.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise FulgurError(f"{path}: partial_rotary_factor is not supported")


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(value),)


def _scaling_from_json(rope: Mapping[str, Any], context: int, path: Path) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn", "factors"):
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
