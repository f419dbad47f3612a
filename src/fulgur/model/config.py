"""The shape of a model: one frozen record, read from and written to `config.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError
from fulgur.model.family import DELTA, FAMILIES, FULL, SLIDING, Family
from fulgur.small_files import read_small

MAX_LAYERS = 1024
MAX_EXPERTS = 8192
MAX_WIDTH = 1 << 23
MAX_CONTEXT = 1 << 30


@dataclass(frozen=True)
class RopeScaling:
    """How positions beyond the trained context are scaled; fields that a kind does not use keep their defaults."""

    kind: str  # "linear" | "llama3" | "yarn" | "factors" (one divisor per frequency: how GGUF stores llama3)
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
class DeltaShape:
    """The heads of a gated delta net: each of `k_heads` serves v_heads // k_heads value heads."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    taps: int  # of the causal convolution over q, k and v

    @property
    def keys(self) -> int:
        return self.k_heads * self.k_dim

    @property
    def values(self) -> int:
        return self.v_heads * self.v_dim

    @property
    def channels(self) -> int:
        """What the convolution runs over: queries, keys and values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True)
class ModelConfig:
    """The numbers of one model; what its family computes with them is `traits`."""

    family: str
    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int  # of dense layers; not used where every layer is a mixture of experts
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context: int
    tied: bool
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    layer_kinds: tuple[str, ...] = ()  # one per layer; empty: full attention everywhere
    window: int = 0  # keys that a sliding layer sees, its own included
    rotary_dim: int = 0  # leading dimensions of a head that rope rotates; 0: all
    query_scaling: tuple[float, int] | None = None  # q * (1 + beta * ln(1 + position // context))
    # A mixture of experts (n_experts > 0): every layer routes each token to a few experts.
    n_experts: int = 0
    experts_per_token: int = 0
    d_expert: int = 0
    norm_topk: bool = False
    d_shared: int = 0  # width of the shared expert
    swiglu_limit: float = 0.0  # of the clamped gate
    swiglu_alpha: float = 0.0
    delta: DeltaShape | None = None
    draft_vocab: int = 0  # lowest token ids that the model's own drafting head (MTP) chooses from; 0: it has none

    def __post_init__(self) -> None:
        for field in ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ffn", "max_context"):
            if getattr(self, field) < 1:
                raise FulgurError(f"model config: {field} is {getattr(self, field)}, it must be at least 1")
        for counted, most in self._bounds().items():
            if most[0] > most[1]:
                raise FulgurError(f"model config: {counted} is {most[0]:,}; no model has more than {most[1]:,}")
        if self.bos_id is not None and (isinstance(self.bos_id, bool) or not isinstance(self.bos_id, int)):
            raise FulgurError(f"model config: the begin-of-text token is {self.bos_id!r:.50}, not a number")
        if self.n_heads % self.n_kv_heads:
            raise FulgurError(
                f"model config: {self.n_heads} attention heads cannot share {self.n_kv_heads} key/value heads"
            )
        if not (0 < self.rope_theta < math.inf and 0 <= self.norm_eps < 1):
            raise FulgurError(f"model config: rope_theta {self.rope_theta} or norm_eps {self.norm_eps} is out of range")
        if self.head_dim % 2:
            raise FulgurError(f"model config: head_dim {self.head_dim} is odd, rotary positions need pairs")
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.head_dim:
            raise FulgurError(
                f"model config: rotary_dim is {self.rotary_dim}; it must be even, from 0 to {self.head_dim}"
            )
        if self.n_experts and not (0 < self.experts_per_token <= self.n_experts and self.d_expert > 0):
            raise FulgurError(
                f"model config: {self.experts_per_token} of {self.n_experts} experts, width {self.d_expert}: invalid"
            )
        if self.layer_kinds and len(self.layer_kinds) != self.n_layers:
            raise FulgurError(f"model config: {len(self.layer_kinds)} layer types for {self.n_layers} layers")
        if SLIDING in self.layer_kinds and self.window < 1:
            raise FulgurError(f"model config: sliding-window layers with a window of {self.window}")
        if not 0 <= self.draft_vocab <= self.vocab_size:
            raise FulgurError(
                f"model config: draft_vocab is {self.draft_vocab}; it must be between 0 and {self.vocab_size}"
            )
        if self.draft_vocab and DELTA not in self.layer_kinds:
            raise FulgurError("model config: a drafting head (MTP) without delta layers is not supported")
        if DELTA in self.layer_kinds:
            shape = self.delta
            if shape is None or min(astuple(shape)) < 1 or shape.v_heads % shape.k_heads:
                raise FulgurError(f"model config: delta layers with the invalid shape {shape}")
        if self.query_scaling is not None and not abs(self.query_scaling[0]) < 1e6:
            raise FulgurError(f"model config: the query scale {self.query_scaling[0]} is out of range")
        if self.rope_scaling is not None:
            from fulgur.model.rope import check_rope

            check_rope(self)

    def _bounds(self) -> dict[str, tuple[int, int]]:
        """Counts and their limits, which are far beyond any model. A damaged number must not create lists of millions
        of tensors, or arrays that fill the memory, before it is compared with what the file holds."""
        delta = self.delta or DeltaShape(0, 0, 0, 0, 0)
        widths = {
            "hidden_size": self.d_model,
            "d_ffn": self.d_ffn,
            "d_expert": self.d_expert,
            "d_shared": self.d_shared,
            "heads * head_dim": max(self.n_heads, self.n_kv_heads) * self.head_dim,
            "vocab_size": self.vocab_size,
            "channels of a delta layer": delta.channels,
            "taps": delta.taps,
        }
        return {
            "n_layers": (self.n_layers, MAX_LAYERS),
            "n_experts": (self.n_experts, MAX_EXPERTS),
            "max_context": (self.max_context, MAX_CONTEXT),
            "window": (self.window, MAX_CONTEXT),
            "context of the query scale": (self.query_scaling[1] if self.query_scaling else 0, MAX_CONTEXT),
            **{name: (width, MAX_WIDTH) for name, width in widths.items()},
        }

    @property
    def traits(self) -> Family:
        return FAMILIES[self.family]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every layer."""
        return self.layer_kinds or (FULL,) * self.n_layers

    @property
    def qkv_bias(self) -> bool:
        return self.traits.qkv_bias

    @property
    def qk_norm(self) -> bool:
        return self.traits.qk_norm

    @property
    def rotated(self) -> int:
        """Leading dimensions of a head that rope rotates."""
        return self.rotary_dim or self.head_dim

    @property
    def dense_width(self) -> int:
        """Width of the dense feed-forward network of a layer: the only one, or the shared expert; 0: none."""
        return self.d_shared if self.n_experts else self.d_ffn

    @property
    def q_rows(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def features(self) -> frozenset[str]:
        """What a runtime must be able to compute, in words for error messages."""
        traits = self.traits
        found = {
            "biases of q, k and v": traits.qkv_bias,
            "norms of queries and keys": traits.qk_norm,
            "a mixture of experts": self.n_experts > 0,
            "a shared expert": self.d_shared > 0,
            "biases of o": traits.o_bias,
            "gated attention": traits.gated,
            "attention sinks": traits.sinks,
            "norms of 1 + weight": traits.norm_offset != 0,
            "sliding windows": SLIDING in self.kinds and self.window < self.max_context,
            "gated delta nets": DELTA in self.kinds,
            "partial rope": self.rotated != self.head_dim,
            "queries scaled by position": self.query_scaling is not None,
            "clamped experts with biases": traits.clamped,
        }
        return frozenset(name for name, needed in found.items() if needed)

    def require(self, supported: frozenset[str], where: str) -> None:
        """Refuse a model that needs features which a runtime lacks, and name them."""
        missing = sorted(self.features - supported)
        if missing:
            raise FulgurError(f"{self.family}: {where} does not support {', '.join(missing)} yet")

    @property
    def parameters(self) -> int:
        """Parameters in the matrices and vectors; a tied head counts once."""
        from fulgur.model.tensors import tensor_shapes

        return sum(math.prod(shape) for shape in tensor_shapes(self).values())

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json` (and the end-of-text ids of `generation_config.json`, if there is one)."""
        from fulgur.model.config_json import config_from_json, token_ids

        path = Path(folder) / "config.json"
        raw = read_json(path)
        with naming(path):
            config = config_from_json(raw, path)
        generation = Path(folder) / "generation_config.json"
        if generation.exists():
            with naming(generation):
                extra = token_ids(read_json(generation).get("eos_token_id"))
            config = replace(config, eos_ids=tuple(dict.fromkeys(config.eos_ids + extra)))
        return config

    @classmethod
    def from_gguf(cls, path: Path) -> ModelConfig:
        from fulgur.model.gguf import GgufSource

        return GgufSource(Path(path)).config

    def to_json(self) -> dict[str, Any]:
        """The record in Hugging Face's keys, readable by `config_from_json`."""
        from fulgur.model.config_json import config_to_json

        return config_to_json(self)


_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make errors raised inside name this file or folder, if they do not yet.

    A model is an untrusted file: wrong types and values in it are reported as errors of the model.
    """
    try:
        yield
    except _NONSENSE as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise FulgurError(f"{path}: not a valid model ({reason})", hint="Fetch the model again.") from error
    except FulgurError as error:
        if str(path) in error.message:
            raise
        raise FulgurError(f"{path}: {error.message}", hint=error.hint) from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(read_small(path))
    except FileNotFoundError:
        raise FulgurError(f"{path}: no such file", hint="Give a model folder (config.json + safetensors).") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FulgurError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise FulgurError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw
