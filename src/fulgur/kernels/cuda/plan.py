"""One decode step as data: matrices cut over CTAs and warps, phases in order, what each reads, writes and waits for.

Both drivers, the generated constants of the CUDA sources and the interpreter are made from this one description.
A unit of work is a tile of 16 rows (of one expert, of one K split). CTAs take equal numbers of them; where that does
not come out even, neither the first have more, which attend, nor the last quarter, which have a part in the router, as
far as there are others. Of fewer units than CTAs the last take one each. KW warps share a unit by cutting its blocks of
128 columns into slices, and 16 // KW units are worked on at a time. Slices are added in a fixed order, so a result
never depends on how many rows run together.

Dense models in bf16 are cut flat instead: blocks are counted through all tiles, a CTA takes a stretch of them (whole
tiles, or parts of tiles whose sums are sent apart), and its warps take equal shares of up to 16 tiles at a time,
wherever in a tile these begin. No warp has much more to do than another, and what a warp reads lies together. (`wgmma`
needs warps that go through K in step.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fulgur.errors import FulgurError
from fulgur.kernels.cpu.arguments import BLOCK_TOKENS
from fulgur.kernels.cuda.formats import BLOCK, TILE, WARPS, Format, format_named
from fulgur.model.config import ModelConfig

KV_BLOCK = BLOCK_TOKENS  # also the shortest attention split
MAX_ROWS = 8  # columns of the matrix instruction
ALIGN = 256
_ROUND_COST = 0.25  # of a block: what a further round of units costs in reduction


@dataclass(frozen=True)
class Matrix:
    """`copies` experts of `tiles` tiles each; `chosen` of them are used by one row. `joined`: the experts lie one after
    another along K (the down projection adds them up), otherwise each gives its own rows."""

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
    over: int = 0  # cut flat: over so many CTAs, the last ones
    parts: int = 1  # cut flat: sums of every tile, by neighbouring CTAs, that who receives them adds

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
        """What one token makes the GPU read of it."""
        return self.chosen * self.copy_bytes

    def units(self, n: int) -> int:
        """Units of a step over n rows; dense matrices serve all rows at once."""
        if self.copies == 1:
            return self.tiles * self.split
        return n * self.tiles * (1 if self.joined else self.chosen)

    def span(self, cta: int, ctas: int) -> tuple[int, int]:
        """Cut flat: the blocks of a CTA, counted through all tiles."""
        grain = 1 if self.parts > 1 else self.blocks
        total = self.tiles * self.blocks // grain
        first, last = (max(c - (ctas - self.over), 0) * total // self.over * grain for c in (cta, cta + 1))
        return first, last

    def segments(self, cta: int, ctas: int) -> Iterator[tuple[int, int, int, int]]:
        """Cut flat: (warp, tile, first block, last block) of every sum that the CTA's warps make, in order."""
        begin, end = self.span(cta, ctas)
        for chunk in range(begin, end, WARPS * self.blocks):
            n = min(end - chunk, WARPS * self.blocks)
            for warp in range(WARPS):
                at, stop = chunk + warp * n // WARPS, chunk + (warp + 1) * n // WARPS
                while at < stop:
                    tile = at // self.blocks
                    upto = min(stop, (tile + 1) * self.blocks)
                    yield warp, tile, at - tile * self.blocks, upto - tile * self.blocks
                    at = upto

    @property
    def chunks(self) -> int:
        """Cut flat: of at most 16 tiles, that a CTA goes through."""
        return 1 if self.parts > 1 else -(-self.tiles // (self.over * WARPS))

    def runs(self, ctas: int, n: int) -> int:
        """Contiguous runs of weights that a warp reads of it in a step over n rows, at most."""
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
    """Every CTA does its share; a value it reads is waited for by itself (exchange.cuh), whoever makes it."""

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

    @property
    def moe(self) -> bool:
        return self.config.n_experts > 0

    @property
    def max_splits(self) -> int:
        """Attention units of one row fill the GPU about once."""
        most = max(self.ctas // self.config.n_kv_heads, 1)
        return int(min(1 << (most.bit_length() - 1), 64))

    def split_length(self, position: int) -> int:
        """Keys of one attention split, whole blocks: a function of the position only."""
        return (position // (KV_BLOCK * self.max_splits) + 1) * KV_BLOCK

    @property
    def operand_blocks(self) -> int:
        """The widest activation vector of any matrix, in blocks: the size of the operand buffer."""
        return max(m.blocks for m in self.matrices.values())

    @property
    def weight_bytes_per_token(self) -> int:
        """Of the model's own: what is read beside them (`fold`) counts as time, not as work."""
        layers = [m.bytes_per_row for name, m in self.matrices.items() if name not in ("fold", "head")]
        return self.config.n_layers * sum(layers) + self.matrices["head"].bytes_per_row

    def address(self, matrix: Matrix, layer: int, copy: int, tile: int, block: int) -> int:
        base = matrix.offset + (0 if matrix.name == "head" else layer * self.layer_stride)
        return base + copy * matrix.copy_bytes + (tile * matrix.copy_blocks + block) * matrix.format.block_bytes

    def phases(self) -> Iterator[Phase]:
        """The step in order. `x` is the residual between layers (in front of layer 0 the token's embedding), `y` that
        between attention and feed-forward."""
        m = self.matrices
        for i in range(self.config.n_layers):
            x, kv = "x" if i else "token", f"kv.{i}"
            yield _phase("qkv", i, m["qkv"], {x}, {"qkv"})
            if self.moe:
                yield _phase("router", i, m["router"], {x}, {"router"})
            yield _phase("attention", i, None, {"qkv", kv}, {kv, "attended"})
            routed = set()
            if self.moe:  # before o: the experts are what the memory waits for
                yield _phase("fold", i, m["fold"], {"attended"}, {"folded"})
                routed = {"router", "folded"}
            yield _phase("o", i, m["o"], {"attended", x}, {"y"})
            yield _phase("gate_up", i, m["gate_up"], {"y", *routed}, {"h"})
            yield _phase("down", i, m["down"], {"h", "y", *routed}, {"x"})
        yield _phase("head", 0, m["head"], {"x"}, {"candidates", "logits"})
        yield _phase("finish", 0, None, {"candidates"}, {"token"})


def _phase(name: str, layer: int, matrix: Matrix | None, reads: set[str], writes: set[str]) -> Phase:
    return Phase(name, layer, matrix, frozenset(reads), frozenset(writes))


def make_plan(
    config: ModelConfig, *, weights: str = "bf16", head: str | None = None, ctas: int = 132, rows: int = MAX_ROWS
) -> Plan:
    """Cut a model for a GPU of `ctas` multiprocessors.

    The router R multiplies the norm of x + O a, the residual before attention and the projected heads. That is
    R W x + (R W O) a, W the norm's weight, divided by a root mean square, which changes no order of experts. So
    `router` = R W is multiplied while attention runs, `fold` = R W O beside O, and the experts are known as soon as the
    residual is. Both stay in bf16: they decide where the rest goes.
    """
    if config.head_dim not in (32, 64, 128, 256) or config.d_model % 4:
        raise FulgurError(f"heads of {config.head_dim} and a width of {config.d_model} are not supported on the GPU")
    if config.n_heads // config.n_kv_heads > 16:
        raise FulgurError(f"{config.n_heads} heads on {config.n_kv_heads} key/value heads: more than 16 share one")
    if config.n_experts > 256 or config.experts_per_token > 16:
        raise FulgurError(f"{config.experts_per_token} of {config.n_experts} experts: at most 16 of 256 on the GPU")
    usual, last = format_named(weights), format_named(head or weights)
    d, moe = config.d_model, config.n_experts > 0
    flat = not moe and usual.name == last.name == "bf16"
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

    e, k = config.n_experts, config.experts_per_token
    add("qkv", config.q_rows + 2 * config.kv_rows, d, usual, (1,))
    if moe:
        add("router", e, d, format_named("bf16"), (2,))
    add("o", d, config.q_rows, usual, (1,))
    if moe:
        if -(-e // TILE) > ctas:
            raise FulgurError(f"{e} experts need a GPU of {-(-e // TILE)} multiprocessors, this one has {ctas}")
        # A unit a CTA at most, by half of its warps while the others add up o. Few blocks a warp: all wait for experts.
        splits = tuple(n for n in (4, 2, 1) if -(-e // TILE) * n <= ctas)[:1]
        add("fold", e, config.q_rows, format_named("bf16"), splits, most=WARPS // 2)
        add("gate_up", 2 * -(-config.d_expert // 8) * 8, d, usual, (1,), e, k)
        add("down", d, config.d_expert, usual, (1,), e, k, True)
    else:
        add("gate_up", 2 * -(-config.d_ffn // 8) * 8, d, usual, (1,))
        add("down", d, config.d_ffn, usual, (1,))
    stride, offset = offset, offset * config.n_layers
    add("head", config.vocab_size, d, last, (1,))
    return Plan(config, ctas, rows, matrices, stride, offset)


def _flat(matrix: Matrix, ctas: int) -> Matrix:
    """Whole tiles to CTAs. The down projection of a narrow model would leave many CTAs idle: there every tile is made
    of two parts, if that takes a seventh off the longest share."""
    whole = replace(matrix, over=min(ctas, matrix.tiles))
    tiles, blocks = matrix.tiles, matrix.blocks
    for over in range(min(ctas, 2 * tiles), tiles, -1) if matrix.name == "down" else ():
        cuts = [j * tiles * blocks // over for j in range(1, over)]
        once = all(sum(t * blocks < cut < (t + 1) * blocks for cut in cuts) == 1 for t in range(tiles))
        if once and 7 * tiles <= 6 * over:
            return replace(matrix, over=over, parts=2)
    return whole


def _cost(matrix: Matrix, ctas: int) -> tuple[float, int, int]:
    """Blocks that the busiest warp works through for one row, plus what rounds and splits cost."""
    units = -(-matrix.units(1) // ctas)
    rounds = -(-units // (WARPS // matrix.kw))
    longest = max(b - a for a, b in (matrix.slice(s, w) for s in range(matrix.split) for w in range(matrix.kw)))
    return rounds * (longest + _ROUND_COST) + 0.5 * (matrix.split - 1), matrix.split, matrix.kw


def early_overwrites(phases: list[Phase]) -> list[str]:
    """Phases that overwrite what somebody may still read: nothing but the flow of values holds CTAs together.

    A reader is done when the writer holds, directly or through others, something made from what the reader read.
    """
    wrong: list[str] = []
    needs: list[set[int]] = []  # of every phase, the earlier ones that it cannot begin without
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for i, phase in enumerate(phases):
        direct = {writer[b] for b in phase.reads if b in writer}
        needs.append(direct.union(*(needs[j] for j in direct)))
        for buffer in sorted(phase.writes):
            late = [phases[j] for j in readers.get(buffer, []) if j not in needs[i]]
            wrong += [f"{phase.layer}.{phase.name} overwrites {buffer} read by {p.layer}.{p.name}" for p in late]
        for buffer in phase.writes:
            writer[buffer], readers[buffer] = i, []
        for buffer in phase.reads - phase.writes:  # what it overwrites itself it has read
            readers.setdefault(buffer, []).append(i)
    return wrong
