"""The records that host and device share, byte by byte as in common.cuh, and the buffers a step needs."""

from __future__ import annotations

import ctypes
from typing import Any

from fulgur.kernels.gpu.formats import BLOCK
from fulgur.kernels.gpu.header import RING
from fulgur.kernels.gpu.plan import Plan

STOPS = 16
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
    names = ("rows", "steps", "done", "produced", "stops", "error")
    fields = (
        *((name, ctypes.c_int) for name in names),
        ("sharpness", ctypes.c_float),
        ("seed", ctypes.c_uint * 2),
        *((name, per_row) for name in ("token", "position", "first", "table")),
        ("stop", ctypes.c_int * STOPS),
    )
    return type("State", (ctypes.Structure,), {"_fields_": fields})


def buffer_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of every activation buffer. All start as zeros: padding is never written."""
    c, m, rows = plan.config, plan.matrices, plan.rows
    group = c.n_heads // c.n_kv_heads
    return {
        "x": 4 * rows * c.d_model,
        "qkv": 4 * m["qkv"].split * rows * (c.q_rows + 2 * c.kv_rows),
        "partial": 4 * rows * c.n_kv_heads * plan.max_splits * group * (c.head_dim + 2),
        "attended": 2 * rows * m["o"].copy_blocks * BLOCK,
        "router": 4 * m["router"].split * rows * c.n_experts if plan.moe else 16,
        "h": 2 * rows * m["down"].blocks * BLOCK,
        "best": 8 * plan.ctas * rows,
        "counters": 4 * (64 + rows * c.n_kv_heads),
    }
