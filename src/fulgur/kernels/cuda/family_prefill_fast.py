"""Prompts of any family on Hopper: products straight from the packed weights, and our own kernels for delta nets and
experts.

The plain path (`family_prefill.py`) computes the same. Rows are sorted by expert once per layer, a shared expert counts
as one more that every row chose, and nothing waits for the host.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.family_plan import FamilyPlan
from fulgur.kernels.cuda.family_prefill import FamilyPrefill
from fulgur.kernels.cuda.family_states import FamilyStates
from fulgur.kernels.cuda.family_weights import FamilyWeights
from fulgur.kernels.cuda.formats import BLOCK, TILE
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.plan import Matrix
from fulgur.kernels.cuda.prefill_fast import LIBRARY_ROWS, LIBRARY_WORK
from fulgur.kernels.cuda.prefill_kernels import (
    TOKENS,
    Combine,
    Gather,
    Kernels,
    Launch,
    Norm,
    Sort,
    Swiglu,
    fill,
    kernel_name,
    structure,
)
from fulgur.model.family import DELTA, SLIDING
from fulgur.model.tensors import MTP

if TYPE_CHECKING:
    import torch

CHUNK = 8192  # rows of a prompt at once, if they fit into memory
LEAST = 512
DELTA_CHUNK, MOST_DIM, SCAN_COLUMNS = 64, 128, 32  # of delta_prefill.cu
SOLVE_BYTES = 4 * (2 * DELTA_CHUNK * (MOST_DIM + 4) + DELTA_CHUNK * (DELTA_CHUNK + 4) + 4 * DELTA_CHUNK)
SCAN_BYTES = 4 * (MOST_DIM * SCAN_COLUMNS + 3 * DELTA_CHUNK * MOST_DIM + DELTA_CHUNK * (DELTA_CHUNK + SCAN_COLUMNS + 2))
_P, _I, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
DeltaPrompt = structure(
    "DeltaPrompt", a=(_P, "mixed ba taps decay dt_bias norm inputs state q k v u w inner total read out"),
    b=(_I, "n padded position stride ba_stride out_stride k_heads v_heads k_dim v_dim taps_count ordered"),
    c=(_F, "eps"),
)  # fmt: skip
PromptRope = structure(
    "PromptRope",
    a=(_P, "projected bias q_weight k_weight rope query_scale table q keys values key_exponents value_exponents"),
    b=(_I, "n position heads kv_heads head_dim stride rotated"), c=(_F, "eps"),
)  # fmt: skip
PromptAttended = structure(
    "PromptAttended", a=(_P, "attended gate log_sum sinks out"), b=(_I, "n heads head_dim gate_stride stride ordered")
)
PromptRoute = structure(
    "PromptRoute", a=(_P, "logits bias chosen routing_weight"), b=(_I, "n experts top stride shared over_all")
)
STRUCTURES = (DeltaPrompt, PromptRope, PromptAttended, PromptRoute)  # as run_prefill.cpp counts


def prefill_for(
    weights: FamilyWeights, kv: KvCache, rope: Any, query_scale: Any | None, states: FamilyStates | None, gpu: Gpu,
    stream: Any,
) -> FamilyPrefill:  # fmt: skip
    """The fastest path for the model on this GPU."""
    plan = weights.plan
    if not gpu.wgmma or not possible(plan):
        return FamilyPrefill(weights, kv, rope, query_scale, states)
    return FastFamilyPrefill(weights, kv, rope, query_scale, states, Kernels(modules(plan), gpu, stream))


def possible(plan: FamilyPlan) -> bool:
    """Whether the kernels support these shapes."""
    d = plan.config.delta
    if d is not None and (d.k_dim % 32 or max(d.k_dim, d.v_dim) > MOST_DIM or d.v_dim % 2):
        return False
    return plan.config.d_model % 4 == 0


def _used(plan: FamilyPlan) -> dict[str, Matrix]:
    """The matrices that prompts need: not the heads, which only see last rows."""
    return {name: m for name, m in plan.matrices.items() if not name.endswith("head")}


def modules(plan: FamilyPlan) -> dict[str, tuple[str, str]]:
    """What is compiled: the stem of a source and its instances.h."""
    used = _used(plan)
    dense = {m.format.name: m for m in used.values() if m.copies == 1}
    codes = sorted(name.replace("-", "_") for name in dense)
    made = {"prefill": ("prefill", "".join(f"WIDEN(widen_{code}, {code.upper()})\n" for code in codes))}
    made["prompt"] = ("prompt", "")
    if plan.config.delta is not None:
        made["delta"] = ("delta_prefill", "")
    wanted = [(m, "STORE_FLOAT") for m in dense.values()]
    for name, matrix in used.items():
        if name.endswith(".gate_up"):
            wanted.append((matrix, activation(plan)))
        elif name.endswith((".down", ".o")):
            wanted.append((matrix, "STORE_BF16" if matrix.copies > 1 else "ADD_FLOAT"))
    for matrix, epilogue in wanted:
        for tokens in TOKENS:
            kernel, code = kernel_name(matrix, epilogue, tokens), matrix.format.name.replace("-", "_").upper()
            made[kernel] = ("wide", f"INSTANCE({kernel}, {code}, {tokens}, {epilogue})\n")
    return made


def activation(plan: FamilyPlan) -> str:
    return "CLAMPED" if plan.config.traits.clamped else "SWIGLU"


class FastFamilyPrefill(FamilyPrefill):
    def __init__(
        self, weights: FamilyWeights, kv: KvCache, rope: Any, query_scale: Any | None, states: FamilyStates | None,
        kernels: Kernels,
    ) -> None:  # fmt: skip
        super().__init__(weights, kv, rope, query_scale, states)
        self.kernels = kernels
        self._wide: torch.Tensor | None = None  # a matrix for the library, one after another
        self._finished = kv.held.new_zeros(1).int()

    @property
    def chunk(self) -> int:
        """Rows of a prompt at once: as many as half of the free memory holds."""
        import torch

        c, free = self.config, torch.cuda.mem_get_info()[0]
        projected = max(m.rows for name, m in self.plan.matrices.items() if name.endswith(".qkv"))
        values = c.delta.values if c.delta is not None else 0
        experts = self.plan.choices * (2 * self.plan.width + 2 * c.d_model)
        each = 4 * projected + 20 * values + 16 * c.d_model + 12 * c.q_rows + experts
        rows = CHUNK
        while rows > LEAST and rows * each > free // 2:
            rows //= 2
        return rows

    def close(self) -> None:
        self.kernels.close()

    def _mix(
        self, to: str, kind: str, x: torch.Tensor, position: int, table: torch.Tensor, state: Any
    ) -> torch.Tensor:  # fmt: skip
        """Updates `x` in place."""
        projected = self._normed_times(x, to + "attn_norm", to + "qkv")
        if kind == DELTA:
            mixed = self._delta(to, x, projected, position, state)
        else:
            mixed = self._attended(to, projected, position, table, self.config.window if kind == SLIDING else 0)
        if to + "o_bias" in self.plan.vectors:
            x += self._vector(to + "o_bias")
        self._add(to + "o", mixed, x)
        return x

    def _feed_forward(self, to: str, x: torch.Tensor) -> torch.Tensor:
        if self.config.n_experts:
            self._add_experts(to, x)
        else:
            self._add_network(to, x)
        return x

    # Products. Operands are in the order that packed products read, or in plain order where the library multiplies.

    def _by_library(self, name: str, n: int) -> bool:
        m = self.plan.matrices[name]
        return n * m.rows * m.cols >= LIBRARY_WORK or (n >= LIBRARY_ROWS and m.format.name == "bf16")

    def _address(self, name: str) -> int:
        return int(self.weights.arena.data_ptr()) + self.plan.matrices[name].offset

    def _empty(self, *shape: int, kind: str = "bfloat16") -> torch.Tensor:
        import torch

        return torch.empty(shape, dtype=getattr(torch, kind), device=self.weights.arena.device)

    def _operand(self, x: torch.Tensor, norm: str, ordered: bool) -> torch.Tensor:
        """The norm of the residual."""
        c, n = self.config, len(x)
        out = self._empty(n, -(-c.d_model // BLOCK) * BLOCK)
        self.kernels.run(self.kernels.rows(
            "norm_rows", Norm, n, x=x, weight=self._vector(norm), out=out, plain=None, width=c.d_model,
            stride=out.shape[1], ordered=int(ordered), eps=c.norm_eps,
        ))  # fmt: skip
        return out

    def _widened(self, name: str) -> torch.Tensor:
        """The matrix in bf16 for the library, in whole blocks of columns."""
        if self._wide is None:
            dense = [m for m in _used(self.plan).values() if m.copies == 1]
            self._wide = self._empty(max(m.tiles * TILE * m.copy_blocks * BLOCK for m in dense))
        m = self.plan.matrices[name]
        shape = (m.tiles * TILE, m.copy_blocks * BLOCK)
        wide = self._wide[: shape[0] * shape[1]].view(shape)
        self.kernels.run(self.kernels.widen(m, weights=self._address(name), out=wide))
        return wide[: m.rows]

    def _product(self, name: str, epilogue: str, x: torch.Tensor, out: torch.Tensor) -> None:
        m, n = self.plan.matrices[name], len(x)
        tokens = self.kernels.tile_tokens(n, m)
        self.kernels.run(self.kernels.product(
            m, epilogue, tokens, -(-n // tokens), weights=self._address(name), x=x, out=out, n=n,
            out_stride=out.shape[1],
        ))  # fmt: skip

    def _normed_times(self, x: torch.Tensor, norm: str, name: str) -> torch.Tensor:
        m, n = self.plan.matrices[name], len(x)
        library = self._by_library(name, n)
        operand = self._operand(x, norm, not library)
        if library:
            return product_in_float(operand, self._widened(name))
        out = self._empty(n, -(-m.rows // 4) * 4, kind="float32")
        self._product(name, "STORE_FLOAT", operand, out)
        return out[:, : m.rows]

    def _add(self, name: str, operand: torch.Tensor, x: torch.Tensor) -> None:
        if self._by_library(name, len(x)):
            add_product(x, operand, self._widened(name))
        else:
            self._product(name, "ADD_FLOAT", operand, x)

    # Attention

    def _attended(
        self, to: str, projected: torch.Tensor, position: int, table: torch.Tensor, window: int
    ) -> torch.Tensor:  # fmt: skip
        c, n, layer, run = self.config, len(projected), self.plan.kv_layer(to), self.kernels.run
        vectors = {
            field: self._vector(to + name) if to + name in self.plan.vectors else None
            for field, name in (("bias", "qkv_bias"), ("q_weight", "q_norm"), ("k_weight", "k_norm"))
        }
        length, cache = position + n, self.kv.layer(layer)
        q, heads = self._empty(n, c.n_heads, c.head_dim), c.n_heads + 2 * c.n_kv_heads
        run(self.kernels.rows(
            "prompt_rope", PromptRope, n, heads, projected=projected, rope=self.rope, query_scale=self.query_scale,
            table=table, q=q, position=position, heads=c.n_heads, kv_heads=c.n_kv_heads, head_dim=c.head_dim,
            stride=projected.stride(0), rotated=c.rotated, eps=c.norm_eps, **vectors, **cache,
        ))  # fmt: skip
        both = self._empty(2, length, c.n_kv_heads, c.head_dim)
        gather = fill(
            Gather, table=table, to_keys=both[0], to_values=both[1], n=length, kv_heads=c.n_kv_heads,
            head_dim=c.head_dim, **cache,
        )  # fmt: skip
        run(Launch("gather_cache", gather, min(-(-length * c.kv_rows // 2048), 4096)))
        seen = both[:, 1:] if to == MTP else both  # its first slot has no hidden state
        found = self.flash(q[None], seen[0][None], seen[1][None], window)
        attended, log_sum = (t.contiguous() for t in found)
        out = self._empty(n, -(-c.q_rows // BLOCK) * BLOCK)
        gate = projected.data_ptr() + 4 * heads * c.head_dim if c.traits.gated else None
        sinks = {"log_sum": log_sum, "sinks": self._vector(to + "sinks")} if c.traits.sinks else {}
        run(self.kernels.rows(
            "prompt_attended", PromptAttended, n, attended=attended, gate=gate, out=out, heads=c.n_heads,
            head_dim=c.head_dim, gate_stride=projected.stride(0), stride=out.shape[1],
            ordered=int(not self._by_library(to + "o", n)), **sinks,
        ))  # fmt: skip
        return out

    @staticmethod
    def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, token, head, dimension]; the causal mask is aligned to the last key. Also returns the logarithms of the
        sums of exponentials, [1, head, token]."""
        import torch

        sides = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False, **sides
        )
        return found[0], found[1]

    # Delta nets

    def _delta(self, to: str, x: torch.Tensor, projected: torch.Tensor, position: int, state: Any) -> torch.Tensor:
        c, n, d = self.config, len(x), self.config.delta
        assert d is not None and self.states is not None
        held = self.states.views(state, self.plan.delta_layer(to))
        padded = -(-n // DELTA_CHUNK) * DELTA_CHUNK
        ba = self._normed_times(x, to + "attn_norm", to + "ba")

        def made(heads: int, *shape: int) -> torch.Tensor:
            return self._empty(heads, padded, *shape, kind="float32")

        rooms = {"q": made(d.k_heads, d.k_dim), "k": made(d.k_heads, d.k_dim), "v": made(d.v_heads, d.v_dim),
                 "u": made(d.v_heads, d.v_dim), "w": made(d.v_heads, d.k_dim), "total": made(d.v_heads),
                 "inner": made(d.v_heads, DELTA_CHUNK), "read": made(d.v_heads, d.v_dim)}  # fmt: skip
        out = self._empty(n, -(-d.values // BLOCK) * BLOCK)
        arguments = fill(
            DeltaPrompt, mixed=projected, ba=ba, taps=self._vector(to + "conv"), decay=self._vector(to + "decay"),
            dt_bias=self._vector(to + "dt_bias"), norm=self._vector(to + "delta_norm"), inputs=held.inputs,
            state=held.state, out=out, n=n, padded=padded, position=position, stride=projected.stride(0),
            ba_stride=ba.stride(0), out_stride=out.shape[1], k_heads=d.k_heads, v_heads=d.v_heads, k_dim=d.k_dim,
            v_dim=d.v_dim, taps_count=d.taps, ordered=int(not self._by_library(to + "o", n)), eps=c.norm_eps, **rooms,
        )  # fmt: skip
        across, most = -(-d.v_dim // SCAN_COLUMNS), 16 * self.kernels.ctas
        for launch in (
            Launch("delta_mix", arguments, min(padded // 64 * (2 * d.k_heads + d.v_heads), most)),
            Launch("delta_solve", arguments, d.v_heads * padded // DELTA_CHUNK, shared=SOLVE_BYTES),
            Launch("delta_scan", arguments, d.v_heads * across, shared=SCAN_BYTES),
            Launch("delta_gate", arguments, min(-(-n // 8), most), shared=32 * d.v_heads),
        ):
            self.kernels.run(launch)
        return out

    # Feed-forward networks

    def _add_network(self, to: str, x: torch.Tensor) -> None:
        up, down, n = self.plan.matrices[to + "gate_up"], self.plan.matrices[to + "down"], len(x)
        library, width = self._by_library(to + "gate_up", n), down.copy_blocks * BLOCK
        operand = self._operand(x, to + "ffn_norm", not library)
        h = self._empty(n, width) if down.cols == width else self._empty(n, width).zero_()
        if not library:
            self._product(to + "gate_up", "SWIGLU", operand, h)  # h is ordered, too
            self._product(to + "down", "ADD_FLOAT", h, x)
            return
        both = operand @ self._widened(to + "gate_up").T
        self.kernels.run(self.kernels.rows(
            "swiglu_rows", Swiglu, n, both=both, h=h, width=up.rows // 2, stride=width
        ))  # fmt: skip
        add_product(x, h, self._widened(to + "down"))

    def _add_experts(self, to: str, x: torch.Tensor) -> None:
        import torch

        c, n, m, kernels = self.config, len(x), self.plan.matrices, self.kernels
        up, down, shared = m[to + "gate_up"], m[to + "down"], int(c.d_shared > 0)
        top = c.experts_per_token + shared
        pairs = n * top
        tokens = next((t for t in TOKENS if pairs <= 1.3 * t * up.copies), TOKENS[-1])
        most, width = pairs // tokens + up.copies, down.copy_blocks * BLOCK
        logits = self._normed_times(x, to + "ffn_norm", to + "router")
        weight, sorted_weight = (self._empty(pairs, kind="float32") for _ in range(2))
        chosen, row, place, starts, tiles, count = (
            self._empty(size, kind="int32") for size in (pairs, pairs, pairs, up.copies + 1, 4 * most, 1)
        )
        bias = self._vector(to + "router_bias") if c.traits.router_bias else None
        kernels.run(kernels.rows(
            "prompt_route", PromptRoute, n, logits=logits, bias=bias, chosen=chosen, routing_weight=weight,
            experts=c.n_experts, top=c.experts_per_token, stride=logits.stride(0), shared=shared,
            over_all=int(not (c.traits.router_after or c.norm_topk)),
        ))  # fmt: skip
        sort = fill(
            Sort, chosen=chosen, routing_weight=weight, row=row, place=place, sorted_routing_weight=sorted_weight,
            starts=starts, tiles=tiles, tile_count=count, finished=self._finished, choices=pairs, top=top,
            experts=up.copies, tokens=tokens,
        )  # fmt: skip
        kernels.run(Launch("sort_by_expert", sort, up.copies, 512, 4 * max(up.copies, 32)))
        clamped: dict[str, Any] = {}
        if c.traits.clamped:
            clamped = {"bias": self._vector(to + "experts.gate_up_bias"), "bias_stride": up.tiles * TILE,
                       "limit": c.swiglu_limit, "alpha": c.swiglu_alpha}  # fmt: skip
        h = self._empty(pairs, width) if down.cols == width else self._empty(pairs, width).zero_()
        y, operand = self._empty(pairs, c.d_model), self._operand(x, to + "ffn_norm", True)
        kernels.run(kernels.product(
            up, activation(self.plan), tokens, most, weights=self._address(to + "gate_up"), x=operand, out=h,
            rows=row, routing_weight=sorted_weight, tiles=tiles, tile_count=count, out_stride=width, **clamped,
        ))  # fmt: skip
        kernels.run(kernels.product(
            down, "STORE_BF16", tokens, most, weights=self._address(to + "down"), x=h, out=y, tiles=tiles,
            tile_count=count, out_stride=c.d_model,
        ))  # fmt: skip
        kernels.run(kernels.rows("combine_rows", Combine, n, y=y, place=place, x=x, width=c.d_model, top=top))
        if c.traits.expert_bias:  # of down: times the routing weight, like h
            weights = torch.zeros((n, c.n_experts), dtype=torch.float32, device=x.device)
            weights.scatter_(1, chosen.view(n, top).long(), weight.view(n, top))
            x += weights @ self._vector(to + "experts.down_bias").reshape(c.n_experts, -1)


def product_in_float(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """bf16 times bf16, with sums in float32 that are not rounded."""
    import torch

    made: torch.Tensor = torch.mm(x, matrix.T, out_dtype=torch.float32)
    return made


def add_product(x: torch.Tensor, operand: torch.Tensor, matrix: torch.Tensor) -> None:
    """x += operand times matrix, with sums in float32."""
    import torch

    torch.addmm(x, operand, matrix.T, out_dtype=torch.float32, out=x)
