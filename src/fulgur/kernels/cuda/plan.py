"""One decode step as data: how matrices are cut over CTAs and warps, the phases in order, what each reads and writes.

Both drivers and the generated constants of the CUDA sources are made from this description.

A unit of work is a tile of 16 rows (of one expert, of one split of K). CTAs take equal numbers of units. If they do not
divide evenly, the CTAs in the middle take one more: not the first ones, which attend, nor the last quarter, which
multiply the router (matrix.cuh). KW warps share a unit by cutting its blocks of 128 columns into slices; 16 // KW units
run at a time. Slices are added in a fixed order, so a result never depends on how many rows run together.

Dense models in bf16 use a flat cut instead. Blocks are counted through all tiles and a CTA takes one stretch of them:
whole tiles, or parts of tiles whose sums are sent separately. Its warps divide the stretch evenly, up to 16 tiles at a
time, and may begin anywhere in a tile. No warp has much more work than another, and each reads contiguous memory.
(Formats that use `wgmma` cannot be cut flat: four warps must step through K together.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fulgur.errors import FulgurError
from fulgur.kernels.cpu.arguments import BLOCK_TOKENS
from fulgur.kernels.cuda.formats import BLOCK, GENERAL_ONLY, TILE, WARPS, Format, format_named
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.family import DELTA

KV_BLOCK = BLOCK_TOKENS  # also the shortest attention split
MAX_ROWS = 8  # columns of the matrix instruction
ALIGN = 256
# Of `ModelConfig.features`: what the decode kernels can compute, and what the general driver can (family_plan.py). A
# model that needs another one is refused by its name.
DECODE_FEATURES = frozenset({"biases of q, k and v", "norms of queries and keys", "a mixture of experts"})
# The features of hybrids: a single sequence runs in the decode kernels, everything else in the general driver.
HYBRID_FEATURES = frozenset({
    "norms of queries and keys", "a mixture of experts", "a shared expert", "gated attention", "norms of 1 + weight",
    "gated delta nets", "partial rope",
})  # fmt: skip
FEATURES = DECODE_FEATURES | HYBRID_FEATURES | {
    "biases of o", "attention sinks", "sliding windows", "queries scaled by position", "clamped experts with biases",
}  # fmt: skip
LOG = 16  # positions in the log of a delta layer: the rows of two steps
HIDDEN = 128  # positions whose hidden states wait for the drafting head
_ROUND_COST = 0.25  # what the reduction of one more round of units costs, in blocks


@dataclass(frozen=True)
class Matrix:
    """`copies` experts of `tiles` tiles each; one row uses `chosen` of them. `joined`: the experts follow each other
    along K (the down projection adds them up); otherwise each gives its own rows."""

    name: str
    rows: int
    cols: int
    format: Format
    split: int
    kw: int
    offset: int  # bytes, from the layer's start (from the arena's start for the head)
    copies: int = 1
    chosen: int = 1
    joined: bool = False
    over: int = 0  # flat cut: over this many CTAs, the last ones
    parts: int = 1  # flat cut: CTAs that each send a partial sum of every tile; the reader adds them

    @property
    def flat(self) -> bool:
        return self.over > 0

    @property
    def tiles(self) -> int:
        return -(-self.rows // TILE)

    @property
    def copy_blocks(self) -> int:
        """Blocks along K of one copy."""
        return -(-self.cols // BLOCK)

    @property
    def blocks(self) -> int:
        """Blocks along K that a unit adds up over all of its slices."""
        return self.copy_blocks * (self.chosen if self.joined else 1)

    @property
    def copy_bytes(self) -> int:
        return self.tiles * self.copy_blocks * self.format.block_bytes

    @property
    def nbytes(self) -> int:
        return self.copies * self.copy_bytes

    @property
    def bytes_per_row(self) -> int:
        """Bytes that one token makes the GPU read."""
        return self.chosen * self.copy_bytes

    def units(self, n: int) -> int:
        """Units of a step over n rows; dense matrices serve all rows at once."""
        if self.copies == 1:
            return self.tiles * self.split
        return n * self.tiles * (1 if self.joined else self.chosen)

    @property
    def chunks(self) -> int:
        """Flat cut: passes of at most 16 tiles that a CTA makes."""
        return 1 if self.parts > 1 else -(-self.tiles // (self.over * WARPS))

    def runs(self, ctas: int, n: int) -> int:
        """At most how many contiguous runs of weights a warp reads in a step over n rows."""
        if self.flat:
            return self.chunks
        units = -(-self.units(n) // ctas)
        longest = max(b - a for a, b in (self.slice(s, w) for s in range(self.split) for w in range(self.kw)))
        within = -(-longest // self.copy_blocks) + 1 if self.joined else 1
        return -(-units // (WARPS // self.kw)) * within

    def slice(self, split: int, warp: int) -> tuple[int, int]:
        """The blocks that warp `warp` (of the unit's KW) adds up for this K split."""
        total, index = self.split * self.kw, split * self.kw + warp
        return index * self.blocks // total, (index + 1) * self.blocks // total


@dataclass(frozen=True)
class Phase:
    """Every CTA runs its units of a phase, and waits for each value that it reads (exchange.cuh)."""

    name: str
    layer: int
    matrix: Matrix | None
    reads: frozenset[str]
    writes: frozenset[str]


@dataclass
class Plan:
    config: ModelConfig
    ctas: int
    rows: int  # at most this many rows in one pass
    matrices: dict[str, Matrix]
    layer_stride: int
    arena_bytes: int
    kv_dtype: str = "bf16"  # of keys and values (kv_cache.py)

    @property
    def moe(self) -> bool:
        return self.config.n_experts > 0

    @property
    def choices(self) -> int:
        """Experts that a row uses, a shared one included."""
        return self.config.experts_per_token + (self.config.d_shared > 0)

    @property
    def hybrid(self) -> bool:
        return DELTA in self.config.kinds

    @property
    def kv_layers(self) -> int:
        return sum(kind != DELTA for kind in self.config.kinds)

    @property
    def places(self) -> list[int]:
        """Each layer's number among those of its kind: attention from 0 upwards, delta nets from -1 downwards."""
        made: list[int] = []
        for kind in self.config.kinds:
            same = sum((place < 0) == (kind == DELTA) for place in made)
            made.append(-1 - same if kind == DELTA else same)
        return made

    @property
    def delta_columns(self) -> int:
        """Columns of a delta net's state in a unit: as few as give each CTA at most one unit, if that is possible."""
        d = self.config.delta
        assert d is not None
        return next((n for n in (32, 64) if d.values <= n * self.ctas), 32)

    @property
    def router_rows(self) -> int:
        """Rows of the router, with the gate of a shared expert."""
        return self.config.n_experts + (self.config.d_shared > 0)

    @property
    def gate_rows(self) -> int:
        """Rows that give b and a of delta nets."""
        return 2 * self.config.delta.v_heads if self.config.delta is not None and self.hybrid else 0

    @property
    def side_rows(self) -> tuple[int, int]:
        """Of a hybrid: rows of the router, and of gates, that a CTA multiplies while it computes a norm (side.cuh)."""
        d = self.config.delta
        if d is None or not self.hybrid:
            return 0, 0
        return -(-self.router_rows // self.ctas), 2 * -(-d.values // (self.delta_columns * self.ctas))

    @property
    def max_splits(self) -> int:
        """Attention units of one row fill the GPU about once."""
        most = max(self.ctas // self.config.n_kv_heads, 1)
        return int(min(1 << (most.bit_length() - 1), 64))

    @property
    def operand_blocks(self) -> int:
        """The widest activation vector of any matrix, in blocks: the size of the operand buffer."""
        return max(m.blocks for m in self.matrices.values())

    @property
    def weight_bytes_per_token(self) -> int:
        """The model's own weights. `fold` is read in addition: it counts as time, not as work."""
        layers = [m.bytes_per_row for name, m in self.matrices.items() if name not in ("fold", "head")]
        return self.config.n_layers * sum(layers) + self.matrices["head"].bytes_per_row

    def address(self, matrix: Matrix, layer: int, copy: int, tile: int, block: int) -> int:
        base = matrix.offset + (0 if matrix.name == "head" else layer * self.layer_stride)
        return base + copy * matrix.copy_bytes + (tile * matrix.copy_blocks + block) * matrix.format.block_bytes

    def phases(self) -> Iterator[Phase]:
        """The step in order. `x` is the residual between layers (before layer 0 the token's embedding), `y` that
        between attention and feed-forward."""
        m = self.matrices
        for i in range(self.config.n_layers):
            x, kv = "x" if i else "token", f"kv.{i}"
            yield _phase("qkv", i, m["qkv"], {x}, {"qkv"})
            if self.moe:
                yield _phase("router", i, m["router"], {x}, {"router"})
            yield _phase("attention", i, None, {"qkv", kv}, {kv, "attended"})
            routed = set()
            if self.moe:  # before o: memory waits for the experts
                yield _phase("fold", i, m["fold"], {"attended"}, {"folded"})
                routed = {"router", "folded"}
            yield _phase("o", i, m["o"], {"attended", x}, {"y"})
            yield _phase("gate_up", i, m["gate_up"], {"y", *routed}, {"h"})
            yield _phase("down", i, m["down"], {"h", "y", *routed}, {"x"})
        yield _phase("head", 0, m["head"], {"x"}, {"candidates", "logits"})
        yield _phase("finish", 0, None, {"candidates"}, {"token"})


def state_floats(d: DeltaShape) -> int:
    """Floats of the state of one delta layer for one sequence (family.cu): S, inputs of the convolution, the log."""
    log = d.channels + d.keys + d.values + d.v_heads
    return -(-(d.v_heads * d.k_dim * d.v_dim + LOG * log) // 4) * 4


def _phase(name: str, layer: int, matrix: Matrix | None, reads: set[str], writes: set[str]) -> Phase:
    return Phase(name, layer, matrix, frozenset(reads), frozenset(writes))


def make_plan(
    config: ModelConfig, *, weights: str = "bf16", head: str | None = None, ctas: int = 132, rows: int = MAX_ROWS
) -> Plan:
    """Cut a model for a GPU of `ctas` multiprocessors.

    The router R multiplies the norm of x + O a: the residual x before attention plus the projected heads O a. With W
    the norm's weight that is R W x + (R W O) a, divided by a root mean square, which does not change the order of the
    experts. So `router` = R W is multiplied while attention runs, `fold` = R W O together with O, and the experts are
    known as soon as the residual is. Both stay in bf16, since they decide which weights are read. Of a hybrid `router`
    is no matrix of the plan: every CTA multiplies a few of its rows (side.cuh).
    """
    config.require(HYBRID_FEATURES if DELTA in config.kinds else DECODE_FEATURES, "the decode kernels of the GPU")
    if config.head_dim not in (32, 64, 128, 256) or config.d_model % 4:
        raise FulgurError(f"heads of {config.head_dim} and a width of {config.d_model} are not supported on the GPU")
    if config.n_heads // config.n_kv_heads > 16:
        raise FulgurError(f"{config.n_heads} heads on {config.n_kv_heads} key/value heads: at most 16 may share one")
    shared = int(config.d_shared > 0)
    if config.n_experts > 512 or config.experts_per_token + shared > 16:
        raise FulgurError(f"{config.experts_per_token} of {config.n_experts} experts: at most 16 of 512 on the GPU")
    if DELTA in config.kinds:
        _check_hybrid(config)
    usual, last = format_named(weights), format_named(head or weights)
    if {usual.name, last.name} & GENERAL_ONLY:
        raise FulgurError(f"{config.family}: {usual.name} weights work with the general driver only")
    d, moe = config.d_model, config.n_experts > 0
    flat = not moe and DELTA not in config.kinds and usual.name == last.name == "bf16"
    matrices: dict[str, Matrix] = {}
    offset = 0

    def add(
        name: str,
        rows_: int,
        cols: int,
        fmt: Format,
        splits: tuple[int, ...],
        copies: int = 1,
        chosen: int = 1,
        joined: bool = False,
        most: int = WARPS,
    ) -> None:
        nonlocal offset
        candidates = (
            (_flat(Matrix(name, rows_, cols, fmt, 1, WARPS, offset), ctas),)
            if flat
            else (
                Matrix(name, rows_, cols, fmt, split, kw, offset, copies, chosen, joined)
                for split in splits
                for kw in (1, 2, 4, 8, 16)
                if kw <= most and (kw >= 4 or fmt.data == 8)  # the four warps of a `wgmma` share a unit
            )
        )
        matrices[name] = best = min(candidates, key=lambda m: _cost(m, ctas))
        offset += -(-best.nbytes // ALIGN) * ALIGN

    e, k = config.n_experts + shared, config.experts_per_token + shared
    add("qkv", _qkv_rows(config), d, usual, (1,))
    if moe and DELTA not in config.kinds:
        add("router", e, d, format_named("bf16"), (2,))
    add("o", d, config.q_rows, usual, (1,))
    if moe:
        if -(-e // TILE) > ctas:
            raise FulgurError(f"{e} experts need a GPU of {-(-e // TILE)} multiprocessors, but this one has {ctas}")
        # At most one unit per CTA, while others add up o. Few blocks per warp, since every CTA waits for the experts.
        splits = tuple(n for n in (4, 2, 1) if -(-e // TILE) * n <= ctas)[:1]
        add("fold", e, config.q_rows, format_named("bf16"), splits, most=WARPS // 2)
        width = max(config.d_expert, config.dense_width)
        add("gate_up", 2 * -(-width // 8) * 8, d, usual, (1,), e, k)
        add("down", d, width, usual, (1,), e, k, True)
    else:
        add("gate_up", 2 * -(-config.d_ffn // 8) * 8, d, usual, (1,))
        add("down", d, config.d_ffn, usual, (1,))
    stride, offset = offset, offset * config.n_layers
    add("head", config.vocab_size, d, last, (1,))
    return Plan(config, ctas, rows, matrices, stride, offset)


def _qkv_rows(config: ModelConfig) -> int:
    """Rows of qkv in the widest kind of layer; other layers are padded with rows of zeros."""
    attention = config.q_rows * (2 if config.traits.gated else 1) + 2 * config.kv_rows
    delta = config.delta if DELTA in config.kinds else None
    return max(attention, delta.channels + delta.values if delta is not None else 0)


def _check_hybrid(config: ModelConfig) -> None:
    """Refuse shapes that no known hybrid has; the general driver runs them."""
    d, rotated = config.delta, config.rotated
    assert d is not None

    def refuse(unless: bool, what: str) -> None:
        if not unless:
            raise FulgurError(f"{config.family}: {what}: not supported by the decode kernels of the GPU")

    refuse(d.v_dim == BLOCK and d.k_dim in (32, 64, BLOCK), f"delta nets of {d.k_dim} x {d.v_dim}")
    refuse(2 <= d.taps <= 8, f"convolutions of {d.taps} taps")
    refuse(d.values == config.q_rows, f"delta nets with {d.values} values beside attention with {config.q_rows}")
    refuse(
        rotated == config.head_dim or (rotated <= min(64, config.head_dim // 2) and rotated & (rotated - 1) == 0),
        f"{rotated} rotary dimensions of {config.head_dim}",
    )
    refuse(not config.n_experts or config.norm_topk, "routing weights that do not sum to 1")
    refuse(any(kind != DELTA for kind in config.kinds), "no attention layers")


def _flat(matrix: Matrix, ctas: int) -> Matrix:
    """Whole tiles per CTA. The down projection of a narrow model would leave many CTAs idle: there two CTAs share every
    tile, if that takes a seventh off the longest stretch."""
    whole = replace(matrix, over=min(ctas, matrix.tiles))
    tiles, blocks = matrix.tiles, matrix.blocks
    for over in range(min(ctas, 2 * tiles), tiles, -1) if matrix.name == "down" else ():
        cuts = [j * tiles * blocks // over for j in range(1, over)]
        once = all(sum(t * blocks < cut < (t + 1) * blocks for cut in cuts) == 1 for t in range(tiles))
        if once and 7 * tiles <= 6 * over:
            return replace(matrix, over=over, parts=2)
    return whole


def _cost(matrix: Matrix, ctas: int) -> tuple[float, int, int]:
    """Blocks that the busiest warp multiplies for one row, plus the cost of rounds and splits."""
    units = -(-matrix.units(1) // ctas)
    rounds = -(-units // (WARPS // matrix.kw))
    longest = max(b - a for a, b in (matrix.slice(s, w) for s in range(matrix.split) for w in range(matrix.kw)))
    return rounds * (longest + _ROUND_COST) + 0.5 * (matrix.split - 1), matrix.split, matrix.kw
