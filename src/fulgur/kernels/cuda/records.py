"""The records of the CUDA sources as ctypes, field by field, and the buffers a step needs.

`Args`, `State` and `Mailbox` pass between host and device. `Shared` and `AttentionScratch` never leave the device: the
host needs their sizes to divide shared memory. The sources assert that every size agrees.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fulgur.kernels.cuda.formats import BLOCK, WARPS
from fulgur.kernels.cuda.plan import KV_BLOCK, Plan

RING = 4096  # tokens in the ring to the host
STOPS = 16
WORD = 8  # bytes of a word that CTAs exchange: a value and its epoch (exchange.cuh)
POINTERS = ("weights", "norms", "embed", "kv", "rope", "x", "qkv", "partial", "attended", "router", "h", "best")


class Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("logits", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("counters", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("mailbox", ctypes.c_void_p),
        ("marks", ctypes.c_void_p),
        ("kv_blocks", ctypes.c_longlong),
        ("table_width", ctypes.c_int),
        ("layer", ctypes.c_int),
        ("exponents", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("side", "squares", "states", "known", "hidden")),
        ("slot_floats", ctypes.c_longlong),
    )


class Mailbox(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int),
        ("cancel", ctypes.c_int),
        ("finished", ctypes.c_int),
        ("pad", ctypes.c_int * 13),
        ("token", ctypes.c_int * RING),
    )


def state_record(rows: int) -> Any:
    """The class of `State` for this many rows."""
    per_row = ctypes.c_int * rows
    names = ("rows", "steps", "done", "produced", "stops", "epoch", "sampled", "slot")
    fields = (
        *((name, ctypes.c_int) for name in names),
        ("sharpness", ctypes.c_float),
        ("seed", ctypes.c_uint * 2),
        *((name, per_row) for name in ("token", "position", "first", "table")),
        ("stop", ctypes.c_int * STOPS),
    )
    return type("State", (ctypes.Structure,), {"_fields_": fields})


def shared_record(plan: Plan) -> Any:
    """The class of `Shared`, which a CTA keeps in shared memory (common.cuh)."""
    rows, experts, chosen = plan.rows, plan.config.n_experts, plan.choices
    padded = -(-experts // 4) * 4
    per_row, per_choice = ctypes.c_int * rows, ctypes.c_int * (rows * chosen)
    counters = (
        "layers_routed", "layers_predicted", "multiplying", "finished", "layers_weighted", "mispredicted",
        "layers_projected",
    )  # fmt: skip
    fields: list[tuple[str, Any]] = [("sums", ctypes.c_float * (rows * WARPS))]
    if plan.moe:
        fields += [("logit", ctypes.c_float * (rows * padded)), ("shared_logit", ctypes.c_float * rows)]
    fields += [("last_mark", ctypes.c_uint64), ("units", ctypes.c_int * 2 * len(plan.matrices))]
    if plan.moe:
        fields.append(("bounds", ctypes.c_uint64 * -(-experts // 32)))
    fields += [(name, per_row) for name in ("token", "position", "first", "table")]
    fields += [(name, ctypes.c_int) for name in ("rows", "done", "produced", "epoch", *counters)]
    fields += [("sharpness", ctypes.c_float), ("seed", ctypes.c_uint * 2)]
    fields += [("slot", ctypes.c_int), ("fold", ctypes.c_int)]
    if plan.hybrid:
        fields.append(("side", ctypes.c_float * (rows * sum(plan.side_rows) * WARPS)))
    if plan.moe:
        fields += [(name, per_choice) for name in ("expert", "predicted", "chosen")]
        fields += [("routing_weight", ctypes.c_float * chosen), ("place", ctypes.c_byte * padded)]
    return type("Shared", (ctypes.Structure,), {"_fields_": fields})


def attention_record(plan: Plan) -> Any:
    """The class of `AttentionScratch` (attention.cuh)."""
    c = plan.config
    queries, slabs = -(-(c.n_heads // c.n_kv_heads) // 8) * 8, min(c.head_dim // 32, 4)
    bf16 = ctypes.c_uint16
    block = 2 * KV_BLOCK * (c.head_dim + 8) + 4 * slabs * queries * KV_BLOCK  # values and scores of a block
    many = 4 * (2 * 5 * 8 + 4 * 8 * max(KV_BLOCK + 8, c.head_dim))  # `LongScratch` (long_attention.cuh)
    fields = (
        ("keys", ctypes.c_byte * -(-max(block, many) // 16 * 16)),
        ("weight", bf16 * (queries * (KV_BLOCK + 8))),
        ("q", bf16 * (queries * (c.head_dim + 8))),
        *((name, bf16 * (plan.rows * c.head_dim)) for name in ("key", "value")),
        *((name, ctypes.c_float * queries) for name in ("total", "shrink")),
    )
    return type("AttentionScratch", (ctypes.Structure,), {"_fields_": fields})


PAIRS = ("x", "qkv")  # buffers whose words carry only 16 bits of the epoch
TURN = 1 << 14  # epochs after which words that were not rewritten must be marked as old again


def old_pair(epoch: int) -> int:
    """A word, as a signed number, whose 16 bits of the epoch count as older than `epoch`."""
    high = (epoch - 1) & 0xFFFF
    return (high - (1 << 16) if high >> 15 else high) << 48


def buffer_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of every activation buffer. All start as zeros: older than epoch 1."""
    c, m, rows = plan.config, plan.matrices, plan.rows
    group = c.n_heads // c.n_kv_heads
    return {
        "x": WORD * rows * (1 + m["down"].parts) * c.d_model // 2,  # vectors of pairs
        "qkv": WORD * rows * m["qkv"].rows // 2,
        "partial": WORD * rows * c.n_kv_heads * plan.max_splits * group * (c.head_dim + 2),
        "attended": WORD * rows * m["o"].copy_blocks * BLOCK // 2,
        "router": WORD * ((m["router"].split if "router" in m else 1) + m["fold"].split) * rows * plan.router_rows
        if plan.moe
        else 16,
        "squares": WORD * rows * c.delta.values // 32 if c.delta is not None and plan.hybrid else 16,
        "h": WORD * rows * m["down"].blocks * BLOCK // 2,
        "best": 8 * plan.ctas * rows,
        "counters": 256,
    }
