"""The constants of the CUDA sources for one plan and one driver, and the shared memory they add up to."""

from __future__ import annotations

from ctypes import sizeof
from dataclasses import dataclass
from itertools import product
from math import gcd

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.formats import FEEDERS, FORMATS, PREDICTORS, TILE, WARPS
from fulgur.kernels.cuda.plan import Matrix, Plan
from fulgur.kernels.cuda.records import RING, Args, Mailbox, attention_record, shared_record, state_record

DRIVERS = ("persistent", "graph")
# Bytes of weights on their way to a multiprocessor: while its CTA waits for values, and while it multiplies (feed.cuh).
# From 160 KB on the memory gave two thirds of its speed (one H200).
SHALLOW, DEEP = 32 << 10, 96 << 10
# Bytes that are drawn into L2 beyond full rings, and the cycles between two pieces of a ring. With experts little can
# be known ahead, and drawing it cost more than it gave (3%).
AHEAD, PACE = 192 << 10, 2000
PREDICTION_PACE = 1500  # cycles between two pieces of a ring that are copied on a guess (guess.cuh)
CORE = 144  # of eight columns of 16 activations for `wgmma` (ptx.cuh)
# What a profiled step is made of, in the order of `Args.marks`: parts of a layer, parts of a step (both in cycles), and
# counts. Waiting for values counts in the part that needs them.
LAYER_PARTS = (
    "norm_qkv", "qkv", "router", "fetch", "project", "softmax", "join", "copy_o", "project_o", "norm_ffn", "route",
    "gate_up", "copy_down", "down",
)  # fmt: skip
STEP_PARTS = ("norm_head", "head", "wait_choose", "choose")
COUNTS = ("wrong_layers", "wrong_experts")
MARKS = 32  # places of a CTA for these


@dataclass(frozen=True)
class Operand:
    """Where a row's activations lie (operand.cuh): scales of blocks at 0, fp8 terms for `wgmma`, bf16. The last two
    share their place, but with experts for the attended heads and the residual, which are needed as both: the router
    and its fold are multiplied in bf16."""

    wgmma: bool
    terms_at: int
    bf16_at: int
    stride: int


@dataclass(frozen=True)
class Layout:
    """Bytes of shared memory of a CTA, and how the ring of a warp is cut."""

    slots: int
    chunks: int  # of a piece, at most
    slot: int  # bytes
    record: int
    attention: int
    area: int
    runs: int  # of a warp's list, at most
    tasks: int  # bytes of what a warp knows of its ring and, for one row and no flat cut, of its share of every matrix
    rounds: int  # of units whose slices are kept at a time
    folded: int  # slices of the router's fold
    overlap: int  # bytes of attention's scratch that lie where slices do
    operand: Operand

    @property
    def slices(self) -> int:
        """What follows stays aligned to 128 bytes: copies to 64 ran at three quarters of the speed."""
        return (self.rounds * WARPS + self.folded) * TILE * 4

    @property
    def total(self) -> int:
        return (
            self.record + self.slices + self.area + WARPS * (8 * self.runs + self.tasks + self.slots * (self.slot + 16))
        )

    @property
    def attention_only(self) -> int:
        return self.record + self.slices + self.attention - self.overlap


LINE = 128  # bytes that memory, L2 and shared memory move together


def _up(value: int, to: int = LINE) -> int:
    return -(-value // to) * to


def operand(plan: Plan, wgmma: bool) -> Operand:
    narrow = {name: m for name, m in plan.matrices.items() if wgmma and m.format.data < 8}
    wide = [m for name, m in plan.matrices.items() if name not in narrow]
    terms = {name: m.kw * m.split // 4 * steps(m) * 8 * CORE for name, m in narrow.items()}
    terms_at = _up(4 * max((m.blocks for m in narrow.values()), default=0), 64)
    beside = ("qkv", "o", "gate_up") if plan.moe else ()  # gate and up: some warps may still multiply the fold
    bf16_at = terms_at + max((terms.get(name, 0) for name in beside), default=0)
    # 64 bytes spread rows of bf16 over banks.
    ends = [terms_at + max(terms.values(), default=0), bf16_at + max((256 * m.blocks + 64 for m in wide), default=0)]
    return Operand(wgmma, terms_at, bf16_at, max(ends))


def steps(m: Matrix) -> int:
    """Blocks of the longest slice."""
    return -(-m.blocks // (m.kw * m.split))


def layout(plan: Plan, driver: str, limit: int = 227 << 10, *, wgmma: bool = False) -> Layout:
    """The deepest ring that fits: the threads of a CTA, feeders too, leave no room for a second on a multiprocessor."""
    c, rows = plan.config, plan.rows
    record, scratch = shared_bytes(plan), attention_record(plan)
    # Splits are joined in the same place (attention.cuh).
    joined = 16 * (c.n_heads // c.n_kv_heads * c.head_dim // 2 + plan.max_splits)
    attention = _up(max(sizeof(scratch), joined))
    activations = operand(plan, wgmma)
    folded = _up(rows * plan.matrices["fold"].kw, 2) if plan.moe else 0
    # What attention writes only behind a barrier, when nobody adds slices any more: values and scores.
    late = scratch.weight.offset
    formats = [m.format for m in plan.matrices.values()]
    runs = sum(m.runs(plan.ctas, rows) for m in plan.matrices.values())
    tasks = 16 + (32 * len(plan.matrices) if rows == 1 and not plan.matrices["head"].flat else 0)
    # Fewer than two slots hide nothing: rather smaller pieces, then sums of fewer units at a time.
    for rounds, chunks in product(slice_rounds(plan), (min(4, plan.matrices["qkv"].format.data), 2)):
        slices = (rounds * WARPS + folded) * TILE * 4
        overlap = min(slices, late) // LINE * LINE
        area = _up(rows * activations.stride)
        if driver == "persistent":
            area = max(area, attention - overlap)
        slot = _up(max(f.piece(chunks) + f.record for f in formats) + _slack(plan))
        left = limit - record - slices - area - WARPS * (8 * runs + tasks)
        slots = min(left // (WARPS * (slot + 16)), 32)
        found = Layout(slots, chunks, slot, record, attention, area, runs, tasks, rounds, folded, overlap, activations)
        if slots >= 2 and max(found.total, found.attention_only) <= limit:
            return found
    raise FulgurError(
        f"{rows} rows of {plan.operand_blocks * 128} activations do not fit the GPU's {limit >> 10} KB of shared memory"
    )


def shared_bytes(plan: Plan) -> int:
    """What the record of a CTA takes; it holds vectors of 16 bytes."""
    return _up(_up(sizeof(shared_record(plan)), 16))


def slice_rounds(plan: Plan) -> list[int]:
    """Rounds whose slices may wait in shared memory to be added, the best first: all of a phase, where that is not too
    many. Every row of a step has slices of its own, of a flat cut two; candidates for a token need four rounds."""
    most = _most_rounds(plan)
    wanted = max(most, 4) if plan.rows == 1 and most <= 24 else 16
    least = max(4, plan.rows * (2 if plan.matrices["head"].flat else 1))
    return [wanted, *(n for n in (16, 8, 4) if least <= n < wanted)]


def _most_rounds(plan: Plan) -> int:
    """Of any phase over one row."""
    return max(2 * m.chunks if m.flat else -(-m.units(1) // plan.ctas * m.kw // WARPS) for m in plan.matrices.values())


def predicts_experts(plan: Plan, wgmma: bool) -> bool:
    """Whether the persistent driver predicts_experts experts (guess.cuh): where warps can hand over registers, for those that
    guess leave too few to the others."""
    return plan.moe and plan.rows == 1 and wgmma


def in_flight(memory: Layout, limit: int) -> int:
    """Pieces of all rings that make up so many bytes; at least one a ring."""
    return max(WARPS, min(limit // (memory.chunks * 512), WARPS * memory.slots))


def _slack(plan: Plan) -> int:
    """Blocks with scales are no multiple of 128 bytes: how far behind one their pieces begin, at most."""
    return max(LINE - gcd(m.format.block_bytes, LINE) for m in plan.matrices.values())


def header(plan: Plan, driver: str, memory: Layout, profile: bool = False) -> str:
    c = plan.config
    names = [name for name in ("qkv", "router", "fold", "o", "gate_up", "down", "head") if name in plan.matrices]
    usual, q_norm = plan.matrices["qkv"].format, 2 * c.d_model
    bias = q_norm + 2 * c.head_dim
    values: dict[str, object] = {
        "D_MODEL": c.d_model,
        "LAYERS": c.n_layers,
        "HEADS": c.n_heads,
        "KV_HEADS": c.n_kv_heads,
        "HEAD_DIM": c.head_dim,
        "FFN": c.d_expert if plan.moe else c.d_ffn,
        "VOCAB": c.vocab_size,
        "EXPERTS": c.n_experts,
        "CHOSEN": c.experts_per_token,
        "NORM_TOPK": int(c.norm_topk),
        "QKV_BIAS": int(c.qkv_bias),
        "QK_NORM": int(c.qk_norm),
        "NORM_EPS": f"{c.norm_eps!r}f",
        "ATTN_NORM_AT": 0,
        "FFN_NORM_AT": c.d_model,
        "Q_NORM_AT": q_norm,
        "K_NORM_AT": q_norm + c.head_dim,
        "BIAS_AT": bias,
        "NORM_STRIDE": norm_stride(plan),
        "LAYER_STRIDE": f"{plan.layer_stride}ll",
        "CTAS": plan.ctas,
        "WARPS": WARPS,
        "FEEDERS": FEEDERS,
        "PREDICTORS": PREDICTORS,
        "MATRICES": len(names),
        "WARP_BITS": WARPS.bit_length() - 1,
        "MAX_ROWS": plan.rows,
        "MAX_SPLITS": plan.max_splits,
        "RING": RING,
        "PROFILE": int(profile),
        "MAX_RUNS": memory.runs,
        "SLOTS": memory.slots,
        "SLICE_ROUNDS": memory.rounds,
        "FLAT": int(plan.matrices["head"].flat),
        "DOWN_PARTS": plan.matrices["down"].parts,
        "FOLD_SLICES": memory.folded,
        "ONE_BATCH": int(plan.rows == 1 and _most_rounds(plan) <= memory.rounds),
        "SHIFTED": int(_slack(plan) > 0),
        "UNEVEN": int(any(m.format.record and m.format.data > memory.chunks for m in plan.matrices.values())),
        "SLOT_BYTES": memory.slot,
        "AHEAD": 0 if plan.moe else AHEAD // (WARPS * 512 * memory.chunks),
        "PACE": PACE,
        "SHALLOW": in_flight(memory, SHALLOW),
        "DEEP": in_flight(memory, DEEP),
        "WGMMA": int(memory.operand.wgmma),
        "PREDICTION": int(driver == "persistent" and predicts_experts(plan, memory.operand.wgmma)),
        "PREDICTION_PACE": PREDICTION_PACE,
        "EVEN": int(not any(m.blocks % (m.kw * m.split) for m in plan.matrices.values() if m.format.data < 8)),
        "TERMS_AT": memory.operand.terms_at,
        "BF16_AT": memory.operand.bf16_at,
        "OPERAND_STRIDE": memory.operand.stride,
        "ARGS_SIZE": sizeof(Args),
        "STATE_SIZE": sizeof(state_record(plan.rows)),
        "MAILBOX_SIZE": sizeof(Mailbox),
        "SHARED_SIZE": _up(sizeof(shared_record(plan)), 16),
        "ATTENTION_SIZE": sizeof(attention_record(plan)),
        "LAUNCH_BYTES": memory.total,
        "SHARED_BYTES": memory.record,
        "ATTENTION_BYTES": memory.attention,
        "ATTENTION_OVERLAP": memory.overlap,
        "AREA_BYTES": memory.area,
        "HEAD_DIFFERS": int(plan.matrices["head"].format != usual),
        "ROUTER_DIFFERS": int(plan.moe and plan.matrices["router"].format != usual),
    }
    lines = ["#pragma once", f"// generated for {c.family}, the {driver} driver"]
    lines += [f"#define {key} {value}" for key, value in values.items()]
    lines += [f"#define {f.name.upper().replace('-', '_')} {f.code}" for f in FORMATS.values()]
    lines.append(f"enum Part {{ {', '.join(LAYER_PARTS + STEP_PARTS + COUNTS).upper()}, MARKS = {MARKS} }};")
    lines += [_constants(i, plan.matrices[name], memory.chunks, plan) for i, name in enumerate(names)]
    return "\n".join(lines) + "\n"


def norm_stride(plan: Plan) -> int:
    """float32 of a layer's small vectors: two norms, q and k norm, the bias of qkv; rounded up for 16-byte loads."""
    c = plan.config
    return _up(2 * c.d_model + 2 * c.head_dim + (c.q_rows + 2 * c.kv_rows if c.qkv_bias else 0), 4)


def _constants(index: int, m: Matrix, chunks: int, plan: Plan) -> str:
    """What matrix.cuh makes a `Matrix` of."""
    grain = 1 if m.parts > 1 else m.blocks
    values = {
        "ID": index,
        "TILES": m.tiles,
        "UNITS": m.units(1),
        "BLOCKS": m.blocks,
        "STEPS": steps(m),
        "COPY_BLOCKS": m.copy_blocks,
        "SPLIT": m.split,
        # Matrices of one format share their code.
        "SPLITS": int(any(other.split > 1 for other in plan.matrices.values() if other.format == m.format)),
        "KW": m.kw,
        "KW_BITS": m.kw.bit_length() - 1,
        "CUT_BITS": (m.kw * m.split).bit_length() - 1,
        "FORMAT": m.format.code,
        "PIECES": -(-m.format.data // chunks),
        "PIECE_BYTES": m.format.piece(chunks),
        "RECORD": m.format.record,
        "BLOCK_BYTES": m.format.block_bytes,
        "COPIES": m.copies,
        "CHOSEN_COPIES": m.chosen,
        "JOINED": int(m.joined),
        "OVER": m.over,
        "PARTS": m.parts,
        "GRAIN": grain,
        "GRAINS": m.tiles * m.blocks // grain,
    }
    name = "".join(part.capitalize() for part in m.name.split("_"))
    constants = ", ".join(f"{key} = {value}" for key, value in values.items())
    offsets = f"OFFSET = {m.offset}ll, COPY_BYTES = {m.copy_bytes}ll"
    return (
        f"struct {name}Constants {{\n  static constexpr int {constants};\n  static constexpr long long {offsets};\n}};"
    )
