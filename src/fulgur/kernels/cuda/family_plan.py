"""The matrices, vectors and buffers of a model of any family, for the general driver.

Layers may differ, so every matrix has its own place in the arena. Experts of a layer are copies of one matrix; a shared
expert is one more copy, which every row chooses. Names are those of `model.tensors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.formats import BLOCK, TILE, Format, format_named
from fulgur.kernels.cuda.kv_cache import bytes_per_token
from fulgur.kernels.cuda.plan import ALIGN, FEATURES, Matrix, Plan, state_floats
from fulgur.model.config import ModelConfig
from fulgur.model.family import DELTA
from fulgur.model.tensors import MTP, layer_names, tensor_shapes, vector_plans

ROWS = 8  # of a step, at most: the columns of the matrix instruction
COLUMNS = 32  # columns of a state per CTA
WARPS = 16  # of a product's CTA
ROOM, PAD, PARTS = 3136, 32, 1 << 15  # of a product's shared memory: its record, padding of rows, minimum for sums


@dataclass(frozen=True)
class Weights:
    """The formats of a model: of its matrices, its experts and its head."""

    usual: Format
    experts: Format
    head: Format

    @classmethod
    def named(cls, usual: str, experts: str | None = None, head: str | None = None) -> Weights:
        return cls(format_named(usual), format_named(experts or usual), format_named(head or usual))


@dataclass
class FamilyPlan:
    config: ModelConfig
    ctas: int
    rows: int  # at most this many in one pass
    matrices: dict[str, Matrix]
    vectors: dict[str, tuple[int, int]]  # by name: where in the small vectors it begins, and its length
    arena_bytes: int
    decode: Plan | None = None  # of the same weights, in place, for the decode kernels; None: they cannot use them

    @property
    def choices(self) -> int:
        """How many feed-forward networks a row uses: its experts and a shared one, or a dense one."""
        c = self.config
        return c.experts_per_token + (c.d_shared > 0) if c.n_experts else 1

    @property
    def width(self) -> int:
        """The width of a feed-forward network's hidden values, in whole blocks."""
        return -(-max(self.config.d_expert, self.config.dense_width) // BLOCK) * BLOCK

    @property
    def vector_floats(self) -> int:
        return max(at + size for at, size in self.vectors.values())

    @property
    def weight_bytes_per_token(self) -> int:
        """Bytes of weights of the model itself, without the drafting head."""
        return sum(m.bytes_per_row for name, m in self.matrices.items() if not name.startswith(MTP))

    @property
    def state_floats(self) -> int:
        """Floats of the state of one delta layer for one sequence; 0: there is none."""
        d = self.config.delta
        if d is None or DELTA not in self.config.kinds:
            return 0
        return state_floats(d)

    def kv_layer(self, layer: str) -> int:
        """The number of an attention layer among those that keep keys and values; the drafting head's is the last."""
        names = [to for to, _, kind in layer_names(self.config) if kind != DELTA]
        return names.index(layer)

    def delta_layer(self, layer: str) -> int:
        return [to for to, _, kind in layer_names(self.config) if kind == DELTA].index(layer)

    @property
    def kv_layers(self) -> int:
        return sum(kind != DELTA for _, _, kind in layer_names(self.config))

    @property
    def delta_layers(self) -> int:
        return self.config.kinds.count(DELTA)

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        return bytes_per_token(self.kv_layers, self.config.n_kv_heads, self.config.head_dim, kv_dtype)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the recurrent state of one sequence."""
        return 4 * self.delta_layers * self.state_floats


def check(config: ModelConfig) -> None:
    """Refuse what the kernels cannot compute, and name it."""
    config.require(FEATURES, "the GPU engine")

    def refuse(unless: bool, what: str) -> None:
        if not unless:
            raise FulgurError(f"{config.family}: {what}: not supported on the GPU")

    refuse(config.head_dim in (32, 64, 128, 256), f"heads of {config.head_dim} dimensions")
    refuse(config.n_heads // config.n_kv_heads <= 16, f"{config.n_heads} heads on {config.n_kv_heads} key/value heads")
    refuse(config.d_model % 8 == 0, f"a width of {config.d_model}")
    if config.n_experts:
        chosen = config.experts_per_token + (config.d_shared > 0)
        refuse(config.n_experts <= 512 and chosen <= 16, f"{chosen} of {config.n_experts} experts")
    if config.delta is not None:
        d = config.delta
        refuse(d.k_dim % 8 == 0 and d.k_dim <= 128, f"delta nets with keys of {d.k_dim} dimensions")
        refuse(d.v_dim % 4 == 0 and d.v_dim <= 128, f"delta nets with values of {d.v_dim} dimensions")
        refuse(d.taps <= 8, f"convolutions of {d.taps} taps")


def make_family_plan(
    config: ModelConfig, weights: Weights, *, ctas: int = 132, shared: int = 227 << 10, decode: Plan | None = None
) -> FamilyPlan:
    """Lay out a model for a GPU of `ctas` multiprocessors with `shared` bytes of shared memory per CTA. Matrices of
    `decode` come first, as that plan places them; those that only the general driver reads follow."""
    check(config)
    matrices: dict[str, Matrix] = {}
    offset = 0 if decode is None else decode.arena_bytes
    bf16 = format_named("bf16")

    def add(name: str, rows: int, cols: int, fmt: Format, copies: int = 1, chosen: int = 1) -> None:
        nonlocal offset
        added = name.endswith((".down", ".o"))
        options = [
            Matrix(name, rows, cols, fmt, 1, kw, offset, copies, chosen, added and copies > 1)
            for kw in (1, 2, 4, 8, 16)
        ]
        best = min(options, key=lambda m: _cost(m, ctas))
        layer, _, short = name.rpartition(".")
        there = decode.matrices.get(short) if decode is not None and layer != MTP[:-1] and short != "router" else None
        if decode is not None and there is not None:
            assert (there.copy_blocks, there.copies, there.format) == (best.copy_blocks, best.copies, best.format)
            assert there.tiles >= best.tiles, "what a kind of layer does not have are zeros behind it"
            number = int(layer.rpartition(".")[2]) if layer else 0
            matrices[name] = replace(best, offset=decode.address(there, number, 0, 0, 0))
            return
        matrices[name] = best
        offset += -(-best.nbytes // ALIGN) * ALIGN

    c, d = config, config.d_model
    copies, chosen = (c.n_experts + (c.d_shared > 0), c.experts_per_token + (c.d_shared > 0)) if c.n_experts else (1, 1)
    width = max(c.d_expert, c.dense_width)
    for to, _, kind in layer_names(config):
        if kind == DELTA:
            assert c.delta is not None
            add(to + "qkv", c.delta.channels + c.delta.values, d, weights.usual)
            add(to + "ba", 2 * c.delta.v_heads, d, bf16)
            add(to + "o", d, c.delta.values, weights.usual)
        else:
            add(to + "qkv", c.q_rows * (2 if c.traits.gated else 1) + 2 * c.kv_rows, d, weights.usual)
            add(to + "o", d, c.q_rows, weights.usual)
        if c.n_experts:
            add(to + "router", c.n_experts + (c.d_shared > 0), d, bf16)
        fmt = weights.experts if c.n_experts else weights.usual
        add(to + "gate_up", 2 * -(-width // 8) * 8, d, fmt, copies, chosen)
        add(to + "down", d, width, fmt, copies, chosen)
    if c.draft_vocab:
        add("mtp.fc", d, 2 * d, bf16)
        add("mtp.head", c.draft_vocab, d, format_named("int4"))
    add("head", c.vocab_size, d, weights.head)
    return FamilyPlan(config, ctas, _most_rows(matrices, shared), matrices, _vectors(config), offset, decode)


def operand_lines(matrix: Matrix) -> int:
    """Vectors of a row that a product reads: one for each of its experts, or one."""
    return matrix.chosen if matrix.joined else 1


def product_units(matrix: Matrix, rows: int) -> int:
    """Units whose partial sums shared memory holds: at least one, and the first two tasks of every warp (gemv.cuh)."""
    parts = matrix.kw * operand_lines(matrix)
    return max(PARTS // (4 * rows * TILE * parts), -(-2 * WARPS // parts))


def product_bytes(matrix: Matrix, rows: int) -> int:
    """Shared memory of a CTA that multiplies."""
    operand = 2 * rows * operand_lines(matrix) * (matrix.copy_blocks * BLOCK + PAD)
    sums = 4 * rows * TILE * matrix.kw * operand_lines(matrix) * product_units(matrix, rows)
    return ROOM + operand + sums


def _most_rows(matrices: dict[str, Matrix], shared: int) -> int:
    for rows in (ROWS, 4, 2, 1):
        if all(product_bytes(m, rows) <= shared for m in matrices.values()):
            return rows
    widest = max(matrices.values(), key=lambda m: product_bytes(m, 1))
    raise FulgurError(f"{widest.name} has {widest.cols} columns: more than shared memory holds", hint="Use the CPU.")


def _cost(m: Matrix, ctas: int) -> tuple[float, int]:
    """Blocks that the busiest warp multiplies for one row, in the groups that it loads together (gemv.cuh), plus the
    cost of rounds and reductions."""
    units = m.tiles * (m.chosen if not m.joined else 1)
    tasks = -(-units // ctas) * m.kw * (m.chosen if m.joined else 1)
    group = 1 if m.format.name == "bf16" else 2
    slice_ = -(-m.copy_blocks // m.kw)
    longest = -(-slice_ // group) * group
    return -(-tasks // WARPS) * (longest + 0.25) + 0.05 * m.kw, m.kw


def _vectors(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Every small vector and its place, aligned for 16-byte loads."""
    shapes, found, at = tensor_shapes(config), dict[str, tuple[int, int]](), 0
    for name, parts in vector_plans(config).items():
        size = int(sum(math.prod(shapes[part]) for part in parts))
        if name.endswith("gate_up_bias"):  # rows of the matrix, padding included
            size = config.n_experts * 2 * -(-config.d_expert // 8) * 8
        found[name] = at, size
        at += -(-size // 4) * 4
    return found


def bias_rows(config: ModelConfig, value: np.ndarray) -> np.ndarray:
    """Biases of gates and ups, expert by expert, in the order of the rows of their matrix: 8 of each in turn."""
    pairs = value.reshape(config.n_experts, 2, config.d_expert)
    short = -config.d_expert % 8
    padded = np.pad(pairs, ((0, 0), (0, 0), (0, short))).reshape(config.n_experts, 2, -1, 8)
    return np.ascontiguousarray(padded.transpose(0, 2, 1, 3)).reshape(-1)
