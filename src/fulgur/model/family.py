"""The model families: what distinguishes the mathematics of each, as data.

A family is one row of `FAMILIES`. The numpy reference, the CPU runtime and the GPU planner read it (through
`ModelConfig`), and each of them declares the features that it has: a model that needs another one is refused, with the
name of that feature, before its weights are read. docs/families.md shows how to add a family.
"""

from __future__ import annotations

from dataclasses import dataclass

FULL, SLIDING, DELTA = "full", "sliding", "delta"  # kinds of layers: attention to all, to a window; gated delta net
# How Hugging Face's `layer_types` names them.
LAYER_TYPES = {"full_attention": FULL, "sliding_attention": SLIDING, "linear_attention": DELTA}


@dataclass(frozen=True)
class Family:
    """All share RMSNorm before each part, grouped heads, rope (pairs i and i + half) and a gated feed-forward."""

    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False  # RMSNorm of every query and key head, before rope
    gated: bool = False  # per head, q_proj gives the query and a gate: sigmoid(gate) multiplies the attention output
    sinks: bool = False  # one learnt logit per head that is in the softmax but has no value
    norm_offset: float = 0.0  # norms multiply by this + weight
    layers: tuple[str, ...] = (FULL,)  # the kinds of the layers, repeated, if config.json does not list them
    window: int = 0  # of sliding layers, if config.json does not say; 0: none
    # The fraction of a head that is rotated, if config.json does not say.
    partial_rotary: float = 1.0
    query_scaling: bool = False  # queries grow with the logarithm of the position
    # Feed-forward.
    experts: bool = False
    shared_expert: bool = False  # besides: a dense network whose result is multiplied by sigmoid(gate . x)
    norm_topk: bool = False  # routing weights are normalised to sum to 1, if config.json does not say
    router_bias: bool = False
    router_after: bool = False  # softmax over the chosen experts only, not over all before the choice
    expert_bias: bool = False
    clamped: bool = False  # (up + 1) * gate * sigmoid(alpha * gate), both clamped, instead of up * silu(gate)
    # Gated delta net: q, k, v and z in one tensor, grouped by key head.
    grouped_delta: bool = False
    mtp: bool = False  # checkpoints may hold a head that drafts (multi-token prediction)


_HYBRID = (DELTA, DELTA, DELTA, FULL)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "fulgur": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True, experts=True),
    "mistral": Family(layers=(SLIDING,), window=4096),
    "ministral3": Family(layers=(SLIDING,), query_scaling=True),
    "gpt_oss": Family(
        qkv_bias=True,
        o_bias=True,
        sinks=True,
        layers=(SLIDING, FULL),
        window=128,
        experts=True,
        router_bias=True,
        router_after=True,
        expert_bias=True,
        clamped=True,
    ),
    "qwen3_next": Family(
        qk_norm=True,
        gated=True,
        norm_offset=1.0,
        layers=_HYBRID,
        partial_rotary=0.25,
        experts=True,
        shared_expert=True,
        norm_topk=True,
        grouped_delta=True,
        mtp=True,
    ),
    "qwen3_5": Family(qk_norm=True, gated=True, norm_offset=1.0, layers=_HYBRID, partial_rotary=0.25, mtp=True),
    "qwen3_5_moe": Family(
        qk_norm=True,
        gated=True,
        norm_offset=1.0,
        layers=_HYBRID,
        partial_rotary=0.25,
        experts=True,
        shared_expert=True,
        norm_topk=True,
        mtp=True,
    ),
}
