"""The families: what sets the mathematics of one apart, as data.

A family is one row of `FAMILIES`. The numpy reference, the CPU runtime and the GPU planner read it (through
`ModelConfig`), and each of them says which features it has: a model that needs another one is refused by name before
its weights are read. docs/families.md shows how a family is added.
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
    gated: bool = False  # per head, q_proj gives the query and a gate: sigmoid(gate) multiplies what was attended
    sinks: bool = False  # a learnt logit a head that takes part in the softmax without a value
    norm_offset: float = 0.0  # norms multiply by this + weight
    layers: tuple[str, ...] = (FULL,)  # the kinds of the layers, repeated, where config.json does not list them
    window: int = 0  # of sliding layers, where config.json says nothing; 0: none
    # Rotary share of a head where config.json says nothing.
    partial_rotary: float = 1.0
    query_scaling: bool = False  # queries grow with the logarithm of the position
    # Feed-forward.
    experts: bool = False
    shared_expert: bool = False  # besides: a dense network whose result is multiplied by sigmoid(gate . x)
    norm_topk: bool = False  # routing weights are made to sum to 1, where config.json says nothing
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
