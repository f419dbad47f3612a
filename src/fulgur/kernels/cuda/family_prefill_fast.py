"""Prompts of any family on Hopper: products straight from the packed weights, delta nets and experts by own kernels.

The plain path (`family_prefill.py`) computes the same. Rows are sorted by expert once a layer, a shared expert counts
as one more that every row chose, and nothing waits for the host.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.family_plan import LOG, FamilyPlan
from fulgur.kernels.cuda.family_prefill import FamilyPrefill
from fulgur.kernels.cuda.family_states import FamilyStates
from fulgur.kernels.cuda.family_weights import FamilyWeights
from fulgur.kernels.cuda.formats import BLOCK, TILE
from fulgur.kernels.cuda.plan import Matrix
from fulgur.kernels.cuda.prefill_fast import LIBRARY_ROWS, LIBRARY_WORK
from fulgur.kernels.cuda.prefill_kernels import (
    TOKENS,
    Combine,
    Kernels,
    Launch,
    Swiglu,
    fill,
    kernel_name,
    structure,
)
from fulgur.model.tensors import MTP

if TYPE_CHECKING:
    import torch

CHUNK = 8192  # rows of a prompt at once, where memory holds them
LEAST = 512
DELTA_CHUNK, MOST_DIM, SCAN_COLUMNS = 64, 128, 32  # of delta_prefill.cu
SOLVE_BYTES = 4 * (2 * DELTA_CHUNK * (MOST_DIM + 4) + DELTA_CHUNK * (DELTA_CHUNK + 4) + 4 * DELTA_CHUNK)
SCAN_BYTES = 4 * (
    MOST_DIM * SCAN_COLUMNS + 3 * DELTA_CHUNK * MOST_DIM + DELTA_CHUNK * DELTA_CHUNK + DELTA_CHUNK * SCAN_COLUMNS
)
DeltaPrompt = structure(
    "DeltaPrompt",
    a=(ctypes.c_void_p, "mixed ba taps decay dt_bias norm inputs state q k v u w inner total read out"),
    b=(ctypes.c_int, "n padded position stride ba_stride out_stride k_heads v_heads k_dim v_dim taps_count"),
    c=(ctypes.c_float, "eps"),
)


def prefill_for(
    weights: FamilyWeights, kv: Any, rope: Any, query_scale: Any | None, states: FamilyStates | None, gpu: Gpu,
    stream: Any,
) -> FamilyPrefill:  # fmt: skip
    """The fastest path that this GPU has for the model."""
    plan = weights.plan
    if not gpu.wgmma or not possible(plan):
        return FamilyPrefill(weights, kv, rope, query_scale, states)
    return FastFamilyPrefill(weights, kv, rope, query_scale, states, Kernels(modules(plan), gpu, stream))


def possible(plan: FamilyPlan) -> bool:
    """Whether the kernels have these shapes."""
    d = plan.config.delta
    if d is not None and (d.k_dim % 32 or max(d.k_dim, d.v_dim) > MOST_DIM or d.v_dim % 2):
        return False
    return plan.config.d_model % 4 == 0


def _used(plan: FamilyPlan) -> dict[str, Matrix]:
    """The matrices of prompts: not the heads, which only see last rows."""
    return {name: m for name, m in plan.matrices.items() if not name.endswith("head")}


def modules(plan: FamilyPlan) -> dict[str, tuple[str, str]]:
    """What is compiled: the stem of a source and its instances.h."""
    used = _used(plan)
    dense = {m.format.name: m for m in used.values() if m.copies == 1}
    codes = sorted(name.replace("-", "_") for name in dense)
    made = {"prefill": ("prefill", "".join(f"WIDEN(widen_{code}, {code.upper()})\n" for code in codes))}
    if plan.config.delta is not None:
        made["delta"] = ("delta_prefill", "")
    wanted = [(m, "STORE_FLOAT") for m in dense.values()]
    for name, matrix in used.items():
        if name.endswith(".gate_up"):
            wanted.append((matrix, activation(plan)))
        elif name.endswith(".down") and matrix.copies > 1:
            wanted.append((matrix, "STORE_BF16"))
    for matrix, epilogue in wanted:
        for tokens in TOKENS:
            kernel, code = kernel_name(matrix, epilogue, tokens), matrix.format.name.replace("-", "_").upper()
            made[kernel] = ("wide", f"INSTANCE({kernel}, {code}, {tokens}, {epilogue})\n")
    return made


def activation(plan: FamilyPlan) -> str:
    return "CLAMPED" if plan.config.traits.clamped else "SWIGLU"


class FastFamilyPrefill(FamilyPrefill):
    def __init__(
        self, weights: FamilyWeights, kv: Any, rope: Any, query_scale: Any | None, states: FamilyStates | None,
        kernels: Kernels,
    ) -> None:  # fmt: skip
        super().__init__(weights, kv, rope, query_scale, states)
        self.kernels = kernels
        self._orders: dict[int, torch.Tensor] = {}
        self._wide: torch.Tensor | None = None  # a matrix for the library, one after another

    @property
    def chunk(self) -> int:
        """As many rows as half of the free memory holds."""
        import torch

        c, free = self.config, torch.cuda.mem_get_info()[0]
        projected = max(m.rows for name, m in self.plan.matrices.items() if name.endswith(".qkv"))
        values = c.delta.values if c.delta is not None else 0
        experts = self.plan.choices * (2 * self.plan.width + 2 * c.d_model)
        each = 8 * projected + 20 * values + 16 * c.d_model + 12 * c.q_rows + experts
        rows = CHUNK
        while rows > LEAST and rows * each > free // 2:
            rows //= 2
        return rows

    def close(self) -> None:
        self.kernels.close()

    def _address(self, name: str) -> int:
        return int(self.weights.arena.data_ptr()) + self.plan.matrices[name].offset

    def _ordered(self, x: torch.Tensor) -> torch.Tensor:
        """Whole blocks of columns in the order that packed products read (`ordered_column` of packed.cuh)."""
        import torch

        width = -(-x.shape[1] // BLOCK) * BLOCK
        if width not in self._orders:
            at = torch.arange(width, device=x.device)
            column = at & ~31 | (at >> 1 & 3) << 3 | (at >> 4 & 1) << 2 | (at >> 3 & 1) << 1 | at & 1
            self._orders[width] = column
        if width != x.shape[1]:
            x = torch.nn.functional.pad(x, (0, width - x.shape[1]))
        return x[:, self._orders[width]]

    def _by_library(self, matrix: Matrix, n: int) -> bool:
        return n * matrix.rows * matrix.cols >= LIBRARY_WORK or (n >= LIBRARY_ROWS and matrix.format.name == "bf16")

    def _widened(self, name: str) -> torch.Tensor:
        import torch

        if self._wide is None:
            most = max(m.tiles * TILE * m.copy_blocks * BLOCK for m in _used(self.plan).values() if m.copies == 1)
            self._wide = torch.empty(most, dtype=torch.bfloat16, device=self.weights.arena.device)
        m = self.plan.matrices[name]
        shape = (m.tiles * TILE, m.copy_blocks * BLOCK)
        wide = self._wide[: shape[0] * shape[1]].view(shape)
        self.kernels.run(self.kernels.widen(m, weights=self._address(name), out=wide))
        return wide[: m.rows, : m.cols]

    def _product(self, name: str, epilogue: str, x: torch.Tensor, out: torch.Tensor) -> None:
        """`x` in ordered columns."""
        m, n = self.plan.matrices[name], len(x)
        tokens = self.kernels.tile_tokens(n, m)
        self.kernels.run(self.kernels.product(
            m, epilogue, tokens, -(-n // tokens), weights=self._address(name), x=x, out=out, n=n,
            out_stride=out.shape[1],
        ))  # fmt: skip

    def _times(self, x: torch.Tensor, name: str) -> torch.Tensor:
        m, n = self.plan.matrices[name], len(x)
        if self._by_library(m, n):
            return product_in_float(x, self._widened(name))
        out = x.new_empty((n, -(-m.rows // 4) * 4), dtype=self.weights.vectors.dtype)
        self._product(name, "STORE_FLOAT", self._ordered(x), out)
        return out[:, : m.rows]

    def _network(self, to: str, copy: int, x: torch.Tensor) -> torch.Tensor:
        """The dense one."""
        up, down, n = self.plan.matrices[to + "gate_up"], self.plan.matrices[to + "down"], len(x)
        h = x.new_zeros((n, down.copy_blocks * BLOCK))
        if self._by_library(up, n):
            both = x @ self._widened(to + "gate_up").T
            self.kernels.run(self.kernels.rows(
                "swiglu_rows", Swiglu, n, both=both, h=h, width=up.rows // 2, stride=h.shape[1]
            ))  # fmt: skip
            return self._times(h[:, : down.cols], to + "down")
        self._product(to + "gate_up", "SWIGLU", self._ordered(x), h)  # h is ordered, too
        out = x.new_empty((n, down.rows), dtype=self.weights.vectors.dtype)
        self._product(to + "down", "STORE_FLOAT", h, out)
        return out

    def _experts(self, to: str, x: torch.Tensor) -> torch.Tensor:
        import torch

        c, n, m = self.config, len(x), self.plan.matrices
        chosen, share = self._choices(to, x)
        up, down, top = m[to + "gate_up"], m[to + "down"], chosen.shape[1]
        pairs = n * top
        tokens = next((t for t in TOKENS if pairs <= 1.3 * t * up.copies), TOKENS[-1])
        by_expert, order = chosen.flatten().sort(stable=True)
        row, place = (order // top).int(), torch.empty(pairs, dtype=torch.int32, device=x.device)
        place[order] = torch.arange(pairs, dtype=torch.int32, device=x.device)
        tiles, count = expert_tiles(by_expert, up.copies, tokens)
        h = x.new_zeros((pairs, down.copy_blocks * BLOCK))
        y = x.new_empty((pairs, c.d_model))
        out = torch.zeros((n, c.d_model), dtype=torch.float32, device=x.device)
        operand, sorted_share = self._ordered(x), share.flatten()[order].contiguous()
        clamped: dict[str, Any] = {}
        if c.traits.clamped:
            clamped = {"bias": self._vector(to + "experts.gate_up_bias"), "bias_stride": up.tiles * TILE,
                       "limit": c.swiglu_limit, "alpha": c.swiglu_alpha}  # fmt: skip
        run, product = self.kernels.run, self.kernels.product
        run(product(
            up, activation(self.plan), tokens, len(tiles), weights=self._address(to + "gate_up"), x=operand, out=h,
            rows=row, share=sorted_share, tiles=tiles, tile_count=count, out_stride=h.shape[1], **clamped,
        ))  # fmt: skip
        run(product(
            down, "STORE_BF16", tokens, len(tiles), weights=self._address(to + "down"), x=h, out=y, tiles=tiles,
            tile_count=count, out_stride=c.d_model,
        ))  # fmt: skip
        run(self.kernels.rows("combine_rows", Combine, n, y=y, place=place, x=out, width=c.d_model, top=top))
        if c.traits.expert_bias:  # of down: times the share, as h is
            shares = torch.zeros((n, c.n_experts), dtype=torch.float32, device=x.device).scatter_(1, chosen, share)
            out += shares @ self._vector(to + "experts.down_bias").reshape(c.n_experts, -1)
        return out

    def _choices(self, to: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts of every row and their shares, a shared expert last."""
        import torch

        chosen, share, logits = self._routed(to, x)
        if self.config.d_shared:
            shared = torch.full_like(chosen[:, :1], self.config.n_experts)
            chosen = torch.cat((chosen, shared), dim=1)
            share = torch.cat((share, torch.sigmoid(logits[:, self.config.n_experts :])), dim=1)
        return chosen, share

    def _attend(
        self, to: str, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, window: int
    ) -> torch.Tensor:
        import torch

        if to == MTP:
            if position == 0:
                return super()._attend(to, q, keys, values, position, window)
            keys, values = keys[:, 1:], values[:, 1:]  # its first slot has no hidden state
        out, log_sum = self.flash(q[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None], window)
        out = out[0]
        if self.config.traits.sinks:
            out = out * torch.sigmoid(log_sum[0].T - self._vector(to + "sinks"))[:, :, None]
        return out.reshape(len(q), -1)

    @staticmethod
    def flash(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """[1, token, head, dimension]; the causal mask ends at the last key. And the logarithm of the sum of
        exponentials, [1, head, token]."""
        import torch

        sides = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False, **sides
        )
        return found[0], found[1]

    def _delta(self, to: str, x: torch.Tensor, projected: torch.Tensor, position: int, slot: int) -> torch.Tensor:
        import torch

        c, n, d = self.config, len(x), self.config.delta
        assert d is not None and self.states is not None
        held = self.states.views(slot, self.plan.delta_layer(to))
        if position == 0:
            held.state.zero_()
        padded = -(-n // DELTA_CHUNK) * DELTA_CHUNK
        ba = self._times(x, to + "ba")

        def made(heads: int, *shape: int) -> torch.Tensor:
            return torch.empty((heads, padded, *shape), dtype=torch.float32, device=x.device)

        rooms = {"q": made(d.k_heads, d.k_dim), "k": made(d.k_heads, d.k_dim), "v": made(d.v_heads, d.v_dim),
                 "u": made(d.v_heads, d.v_dim), "w": made(d.v_heads, d.k_dim), "total": made(d.v_heads),
                 "inner": made(d.v_heads, DELTA_CHUNK), "read": made(d.v_heads, d.v_dim)}  # fmt: skip
        out = x.new_empty((n, d.values))
        arguments = fill(
            DeltaPrompt, mixed=projected, ba=ba, taps=self._vector(to + "conv"), decay=self._vector(to + "decay"),
            dt_bias=self._vector(to + "dt_bias"), norm=self._vector(to + "delta_norm"), inputs=held.inputs,
            state=held.state, out=out, n=n, padded=padded, position=position, stride=projected.stride(0),
            ba_stride=ba.stride(0), out_stride=d.values, k_heads=d.k_heads, v_heads=d.v_heads, k_dim=d.k_dim,
            v_dim=d.v_dim, taps_count=d.taps, eps=c.norm_eps, **rooms,
        )  # fmt: skip
        across, most = -(-d.v_dim // SCAN_COLUMNS), 16 * self.kernels.ctas
        for launch in (
            Launch("delta_mix", arguments, min(padded * (2 * d.k_heads + d.v_heads) // 8 + 1, most)),
            Launch("delta_solve", arguments, d.v_heads * padded // DELTA_CHUNK, shared=SOLVE_BYTES),
            Launch("delta_scan", arguments, d.v_heads * across, shared=SCAN_BYTES),
            Launch("delta_gate", arguments, min(n * d.v_heads // 8 + 1, most)),
        ):
            self.kernels.run(launch)
        kept = torch.arange(max(n - LOG, 0), n, device=x.device)
        held.inputs[(position + kept) % LOG] = projected[kept, : d.channels]
        return out


def expert_tiles(by_expert: torch.Tensor, experts: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows sorted by expert, cut into tiles of up to `tokens` rows of one expert: [tile, (expert, first, count, 0)]
    with room for as many as there can be, and how many there are."""
    import torch

    kind = {"device": by_expert.device}
    starts = torch.searchsorted(by_expert, torch.arange(experts + 1, **kind))
    counts = starts.diff()
    each = (counts + tokens - 1) // tokens
    ends = each.cumsum(0)
    tile = torch.arange(len(by_expert) // tokens + experts, **kind)
    expert = torch.searchsorted(ends, tile, right=True).clamp(max=experts - 1)
    first = starts[expert] + (tile - (ends - each)[expert]) * tokens
    count = (starts[expert + 1] - first).clamp(0, tokens)
    tiles = torch.stack((expert, first, count, torch.zeros_like(tile)), dim=1).int()
    return tiles, ends[-1:].int()


def product_in_float(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """bf16 times bf16, with sums in float32 as they are."""
    import torch

    made: torch.Tensor = torch.mm(x, matrix.T, out_dtype=torch.float32)
    return made
