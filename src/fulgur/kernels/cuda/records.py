"""The records that host and device share, byte by byte as in common.cuh, and the buffers a step needs."""

from __future__ import annotations

import ctypes
from typing import Any

from fulgur.kernels.cuda.formats import BLOCK
from fulgur.kernels.cuda.header import RING
from fulgur.kernels.cuda.plan import Plan

STOPS = 16
WORD = 8  # bytes that pass a value from CTA to CTA: the value and its epoch
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
    names = ("rows", "steps", "done", "produced", "stops", "error", "epoch")
    fields = (
        *((name, ctypes.c_int) for name in names),
        ("sharpness", ctypes.c_float),
        ("seed", ctypes.c_uint * 2),
        *((name, per_row) for name in ("token", "position", "first", "table")),
        ("stop", ctypes.c_int * STOPS),
    )
    return type("State", (ctypes.Structure,), {"_fields_": fields})


PAIRS = ("x", "qkv")  # buffers of words with 16 bits of the epoch
TURN = 1 << 14  # epochs after which words that may not have been written since must be made old anew


def old_pair(epoch: int) -> int:
    """A word (as a signed number) that counts as older than `epoch`, whatever the 16 bits of it are."""
    high = (epoch - 1) & 0xFFFF
    return (high - (1 << 16) if high >> 15 else high) << 48


def buffer_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of every activation buffer. All start as zeros: older than epoch 1."""
    c, m, rows = plan.config, plan.matrices, plan.rows
    group = c.n_heads // c.n_kv_heads
    return {
        "x": WORD * rows * (1 + m["down"].parts) * c.d_model // 2,  # vectors of pairs
        "qkv": WORD * rows * (c.q_rows + 2 * c.kv_rows) // 2,
        "partial": WORD * rows * c.n_kv_heads * plan.max_splits * group * (c.head_dim + 2),
        "attended": WORD * rows * m["o"].copy_blocks * BLOCK // 2,
        "router": WORD * (m["router"].split + m["fold"].split) * rows * c.n_experts if plan.moe else 16,
        "h": WORD * rows * m["down"].blocks * BLOCK // 2,
        "best": 8 * plan.ctas * rows,
        "counters": 256,
    }
