"""The generated constants of the CUDA sources for one plan and one driver, and how shared memory is divided."""

from __future__ import annotations

from ctypes import sizeof
from dataclasses import dataclass
from itertools import product
from math import gcd

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.formats import BLOCK, CHUNK, FEEDERS, FORMATS, GENERAL_ONLY, PREDICTORS, TILE, WARPS
from fulgur.kernels.cuda.plan import HIDDEN, KV_BLOCK, Matrix, Plan, state_floats
from fulgur.kernels.cuda.records import RING, Args, Mailbox, attention_record, shared_record, state_record

DRIVERS = ("persistent", "graph")
# Bytes of weights in flight to an SM: while its CTA waits for activations, and while it multiplies (feed.cuh). An H200
# reads at two thirds of its bandwidth with 160 KB.
SHALLOW, DEEP = 32 << 10, 96 << 10
# Bytes to prefetch into L2 when the rings are full, and the cycles between two pieces of a ring. Not used with experts:
# little is known ahead, and the prefetch cost 3%.
AHEAD, PACE = 192 << 10, 2000
PREDICTABLE = 512  # experts: the logits of more do not fit the registers of the prediction warp
PREDICTION_PACE = 1500  # cycles between two pieces of predicted experts (predict.cuh)
CORE = 144  # bytes of 8 columns of 16 activations for `wgmma` (CORE_BYTES in ptx.cuh)
# The parts of a profiled step, in the order of `Args.marks`: parts of a layer, parts of a step (both in cycles), and
# counts. Waiting for values counts towards the part that needs them.
LAYER_PARTS = (
    "norm_qkv", "qkv", "router", "fetch", "project", "softmax", "join", "copy_o", "project_o", "norm_ffn", "route",
    "gate_up", "copy_down", "down",
)  # fmt: skip
STEP_PARTS = ("norm_head", "head", "wait_choose", "choose")
COUNTS = ("wrong_layers", "wrong_experts")
MARKS = 32  # places per CTA for these


@dataclass(frozen=True)
class Operand:
    """Where a row's activations lie (operand.cuh): block scales at 0, fp8 terms for `wgmma`, bf16. Terms and bf16
    overlap, except for operands that are needed in both forms: with experts, the router and its fold read the residual
    and the heads' outputs in bf16."""

    wgmma: bool
    terms_at: int
    bf16_at: int
    stride: int


@dataclass(frozen=True)
class Layout:
    """Bytes of a CTA's shared memory, and the dimensions of a warp's ring."""

    slots: int
    chunks: int  # at most this many 512-byte chunks per piece
    slot: int  # bytes of a slot
    record: int  # `Shared`
    attention: int  # scratch of attention
    area: int  # the operand and the scratch of a delta net, or that of attention
    delta_at: int  # where in the area a delta net's scratch begins: after the operand, or at 0
    runs: int  # at most this many runs in a warp's list
    tasks: int  # a warp's `Ring` and, for one row without a flat cut, its `Task` for every matrix
    rounds: int  # rounds of units whose slices are kept at a time
    folded: int  # slices of the router's fold
    overlap: int  # bytes of attention's scratch that overlap the slices
    operand: Operand

    @property
    def slices(self) -> int:
        """A multiple of 128: copies to addresses aligned to 64 bytes ran at three quarters of the speed."""
        return (self.rounds * WARPS + self.folded) * TILE * 4

    @property
    def total(self) -> int:
        return (
            self.record + self.slices + self.area + WARPS * (8 * self.runs + self.tasks + self.slots * (self.slot + 16))
        )

    @property
    def attention_only(self) -> int:
        return self.record + self.slices + self.attention - self.overlap


LINE = 128  # bytes of a cache line


def _up(value: int, to: int = LINE) -> int:
    return -(-value // to) * to


def operand(plan: Plan, wgmma: bool) -> Operand:
    narrow = {name: m for name, m in plan.matrices.items() if wgmma and m.format.data < 8}
    wide = [m for name, m in plan.matrices.items() if name not in narrow]
    terms = {name: m.kw * m.split // 4 * steps(m) * 8 * CORE for name, m in narrow.items()}
    terms_at = _up(4 * max((m.blocks for m in narrow.values()), default=0), 64)
    # gate_up: some warps may still multiply the fold
    beside = () if not plan.moe else ("o", "gate_up") if plan.hybrid else ("qkv", "o", "gate_up")
    bf16_at = terms_at + max((terms.get(name, 0) for name in beside), default=0)
    # 64 bytes of padding avoid bank conflicts between rows of bf16.
    ends = [terms_at + max(terms.values(), default=0), bf16_at + max((256 * m.blocks + 64 for m in wide), default=0)]
    return Operand(wgmma, terms_at, bf16_at, max(ends))


def delta_bytes(plan: Plan) -> int:
    """The scratch of a delta net (delta.cuh)."""
    d, columns = plan.config.delta, plan.delta_columns if plan.hybrid else 0
    if d is None or not plan.hybrid:
        return 0
    return 4 * (plan.rows * (2 * d.k_dim + 2 * columns + 2) + 4 * WARPS * 32)


def steps(m: Matrix) -> int:
    """Blocks of the longest slice."""
    return -(-m.blocks // (m.kw * m.split))


def layout(plan: Plan, driver: str, limit: int = 227 << 10, *, wgmma: bool = False) -> Layout:
    """The deepest rings that fit; an SM runs one CTA."""
    c, rows = plan.config, plan.rows
    record, scratch = shared_bytes(plan), attention_record(plan)
    # Splits are joined in the same place (attention.cuh).
    joined = 16 * (c.n_heads // c.n_kv_heads * c.head_dim // 2 + plan.max_splits)
    attention = _up(max(sizeof(scratch), joined))
    delta = delta_bytes(plan)
    activations = operand(plan, wgmma)
    folded = _up(rows * plan.matrices["fold"].kw, 2) if plan.moe else 0
    # Attention writes these fields only after a barrier, when all slices have been added: they may overlap the slices.
    late = scratch.weight.offset
    formats = [m.format for m in plan.matrices.values()]
    runs = sum(m.runs(plan.ctas, rows) for m in plan.matrices.values())
    tasks = 16 + (32 * len(plan.matrices) if rows == 1 and not plan.matrices["head"].flat else 0)
    # Fewer than two slots hide no latency, so first try smaller pieces, then keep fewer rounds of slices at a time.
    # Only then let a delta net's scratch overlap the operand.
    places = (_up(rows * activations.stride), 0) if delta else (0,)
    for delta_at, rounds, chunks in product(places, slice_rounds(plan), (min(4, plan.matrices["qkv"].format.data), 2)):
        slices = (rounds * WARPS + folded) * TILE * 4
        overlap = min(slices, late) // LINE * LINE
        area = max(_up(rows * activations.stride), delta_at + _up(delta))
        if driver == "persistent":
            area = max(area, attention - overlap)
        slot = _up(max(f.piece(chunks) + f.record for f in formats) + _slack(plan))
        left = limit - record - slices - area - WARPS * (8 * runs + tasks)
        slots = min(left // (WARPS * (slot + 16)), 32)
        found = Layout(
            slots, chunks, slot, record, attention, area, delta_at, runs, tasks, rounds, folded, overlap, activations
        )  # fmt: skip
        if slots >= 2 and max(found.total, found.attention_only) <= limit:
            return found
    raise FulgurError(
        f"{rows} rows of {plan.operand_blocks * 128} activations do not fit the GPU's {limit >> 10} KB of shared memory"
    )


def shared_bytes(plan: Plan) -> int:
    """Bytes that are reserved for `Shared`, whose alignment is 16."""
    return _up(_up(sizeof(shared_record(plan)), 16))


def slice_rounds(plan: Plan) -> list[int]:
    """How many rounds of units may keep their slices in shared memory, the best first: all of a phase, if that is not
    too many. Every row of a step has its own slices (two in a flat cut); `store_candidates` needs four rounds."""
    most = _most_rounds(plan)
    wanted = max(most, 4) if plan.rows == 1 and most <= 24 else 16
    least = max(4, plan.rows * (2 if plan.matrices["head"].flat else 1))
    return [wanted, *(n for n in (16, 8, 4) if least <= n < wanted)]


def _most_rounds(plan: Plan, head: bool = True) -> int:
    """The most rounds of any phase over one row, with the head or without."""
    matrices = [m for m in plan.matrices.values() if head or m.name != "head"]
    return max(2 * m.chunks if m.flat else -(-m.units(1) // plan.ctas * m.kw // WARPS) for m in matrices)


def predicts_experts(plan: Plan, wgmma: bool) -> bool:
    """Whether the persistent driver predicts experts (predict.cuh): in steps of one row, on GPUs where warps can give
    up registers, since otherwise the prediction warps would leave too few for the others."""
    return plan.moe and plan.rows == 1 and wgmma and plan.config.n_experts <= PREDICTABLE


def in_flight(memory: Layout, limit: int) -> int:
    """Pieces of all rings that make up this many bytes; at least one per ring."""
    return max(WARPS, min(limit // (memory.chunks * 512), WARPS * memory.slots))


def _slack(plan: Plan) -> int:
    """The largest offset of a piece within a cache line: blocks with scales are not multiples of 128 bytes."""
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
        "FFN": max(c.d_expert, c.dense_width) if plan.moe else c.d_ffn,
        "VOCAB": c.vocab_size,
        "EXPERTS": c.n_experts,
        "EXPERTS_PER_ROW": plan.choices,
        "SHARED_EXPERT": int(c.d_shared > 0),
        "ROUTER_ROWS": plan.router_rows,
        "ROUTER_PARTS": plan.matrices["router"].split if "router" in plan.matrices else 1,
        "HAS_ROUTER": int("router" in plan.matrices),
        "QKV_ROWS": plan.matrices["qkv"].rows,
        "ROTATED": c.rotated,
        "GATED": int(c.traits.gated),
        "NORM_TOPK": int(c.norm_topk),
        "QKV_BIAS": int(c.qkv_bias),
        "QK_NORM": int(c.qk_norm),
        "KV_FP8": int(plan.kv_dtype == "fp8"),
        "NORM_EPS": f"{c.norm_eps!r}f",
        "ATTN_NORM_AT": 0,
        "FFN_NORM_AT": c.d_model,
        "Q_NORM_AT": q_norm,
        "K_NORM_AT": q_norm + c.head_dim,
        "BIAS_AT": bias,
        "NORM_STRIDE": norm_stride(plan),
        "LAYER_STRIDE": f"{plan.layer_stride}ll",
        "TILE": TILE,
        "BLOCK": BLOCK,
        "CHUNK": CHUNK,
        "KV_BLOCK": KV_BLOCK,
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
        "PERSISTENT": int(driver == "persistent"),
        "MAX_RUNS": memory.runs,
        "SLOTS": memory.slots,
        "SLICE_ROUNDS": memory.rounds,
        "FLAT": int(plan.matrices["head"].flat),
        "DOWN_PARTS": plan.matrices["down"].parts,
        "FOLD_SLICES": memory.folded,
        "ONE_BATCH": int(plan.rows == 1 and _most_rounds(plan) <= memory.rounds),
        "LAYER_BATCH": int(plan.rows == 1 and _most_rounds(plan, head=False) <= memory.rounds),
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
        "CORE_SIZE": CORE,
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
        "ROUTER_DIFFERS": int(plan.moe and plan.matrices["fold"].format != usual),
        **_delta_constants(plan, memory.delta_at),
    }
    lines = ["#pragma once", f"// generated for {c.family}, the {driver} driver"]
    lines += [f"#define {key} {value}" for key, value in values.items()]
    lines += [
        f"#define {f.name.upper().replace('-', '_')} {f.code}" for f in FORMATS.values() if f.name not in GENERAL_ONLY
    ]
    lines.append(f"enum Part {{ {', '.join(LAYER_PARTS + STEP_PARTS + COUNTS).upper()}, MARKS = {MARKS} }};")
    lines += [_constants(i, plan.matrices[name], memory.chunks, plan) for i, name in enumerate(names)]
    return "\n".join(lines) + "\n"


def norm_stride(plan: Plan) -> int:
    """Floats of a layer's small vectors (two norms, q and k norm, the bias of qkv or a delta net's vectors), rounded up
    for 16-byte loads, of a hybrid for whole lines."""
    c = plan.config
    if plan.hybrid:
        vectors = delta_vectors(plan)
        return _up(max(at + size for at, size in vectors.values()), LINE // 4)
    return _up(2 * c.d_model + 2 * c.head_dim + (c.q_rows + 2 * c.kv_rows if c.qkv_bias else 0), 4)


def delta_vectors(plan: Plan) -> dict[str, tuple[int, int]]:
    """Where a delta net's small vectors begin among those of a layer, and their lengths; names as in a `FamilyPlan`."""
    c, d = plan.config, plan.config.delta
    assert d is not None
    at, made = _up(2 * c.d_model + 2 * c.head_dim, LINE // 4), dict[str, tuple[int, int]]()
    for name, size in (("conv", d.taps * d.channels), ("delta_norm", d.v_dim), ("decay", d.v_heads),
                       ("dt_bias", d.v_heads)):  # fmt: skip
        made[name] = at, size
        at += _up(size, LINE // 4)
    return made


def _delta_constants(plan: Plan, delta_at: int) -> dict[str, object]:
    d = plan.config.delta
    if d is None or not plan.hybrid:
        return {"DELTA_LAYERS": 0, "VALUES": 0, "DELTA_PARTS": 0}
    at = {name: first for name, (first, _) in delta_vectors(plan).items()}
    return {
        "DELTA_LAYERS": plan.config.n_layers - plan.kv_layers,
        "LAYER_PLACES": f"{{{', '.join(map(str, plan.places))}}}",
        "K_HEADS": d.k_heads,
        "K_DIM": d.k_dim,
        "V_DIM": d.v_dim,
        "VALUES": d.values,
        "TAPS": d.taps,
        "DELTA_COLUMNS": plan.delta_columns,
        "DELTA_PARTS": d.v_dim // 32,
        "STATE_FLOATS": state_floats(d),
        "DELTA_AT": delta_at,
        "HIDDEN": HIDDEN,
        "SIDE_ROUTER": plan.side_rows[0],
        "SIDE": sum(plan.side_rows),
        "SIDE_ROWS": plan.router_rows + plan.gate_rows,
        "CONV_AT": at["conv"],
        "DELTA_NORM_AT": at["delta_norm"],
        "DECAY_AT": at["decay"],
        "DT_BIAS_AT": at["dt_bias"],
    }


def _constants(index: int, m: Matrix, chunks: int, plan: Plan) -> str:
    """The constants of one `Matrix` (matrix.cuh)."""
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
