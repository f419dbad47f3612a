"""A step of a model of any family as a list of launches: one kernel per part of a layer (csrc/gemv.cuh, family.cu).

Up to 8 rows of one or several sequences. A row has the same bits whatever else is in the step.
"""

from __future__ import annotations

from typing import Any

from fulgur.kernels.cuda.batch_step import ROPE_BYTES, attend_bytes
from fulgur.kernels.cuda.family_kernels import (
    DELTA_BYTES,
    GATED,
    NORMED,
    ROUTING_BYTES,
    THREADS,
    VECTOR,
    Begin,
    Delta,
    Draft,
    Gemv,
    Hidden,
    kernel_name,
)
from fulgur.kernels.cuda.family_plan import COLUMNS, operand_lines, product_bytes, product_units
from fulgur.kernels.cuda.family_weights import FamilyWeights
from fulgur.kernels.cuda.formats import BLOCK, TILE
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.prefill_kernels import Launch, StepAttend, StepRope, fill
from fulgur.model.family import DELTA, FULL, SLIDING

MOST_SPLITS = 64  # of a row's keys


def splits(kv_heads: int, ctas: int) -> int:
    """Splits of a row's keys: as many as let one row fill the GPU about once."""
    most = max(ctas // kv_heads, 1)
    return min(1 << (most.bit_length() - 1), MOST_SPLITS)


class FamilyStep:
    """`rows` is the device's `StepRows`. `states` [slot, layer, floats] and `known` [slot] are for recurrent layers,
    the ring `hidden` is for a drafting head."""

    def __init__(
        self, weights: FamilyWeights, rows: Any, tables: Any, kv: KvCache, rope: Any, query_scale: Any | None,
        states: Any | None, known: Any | None, hidden: Any | None,
    ) -> None:  # fmt: skip
        self.weights, self.plan, self.config = weights, weights.plan, weights.plan.config
        self._rows, self._tables, self._kv, self._rope, self._query_scale = rows, tables, kv, rope, query_scale
        self._states, self._known, self._hidden = states, known, hidden
        self._splits = splits(self.config.n_kv_heads, self.plan.ctas)
        self._most = self.plan.rows  # rows of the launches that are being made
        self.buffers = self._allocate()

    def _allocate(self) -> dict[str, Any]:
        """Zeros everywhere: columns that are never written are multiplied, too."""
        import torch

        c, plan, device = self.config, self.plan, self.weights.arena.device
        n, single = plan.rows, torch.float32

        def made(*shape: int, kind: torch.dtype = single) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        projected = max(m.rows for name, m in plan.matrices.items() if name.endswith(".qkv"))
        values = c.delta.values if c.delta is not None else 0
        return {
            "x": made(n, c.d_model),
            "projected": made(n, -(-projected // 4) * 4),
            "ba": made(n, max(2 * c.delta.v_heads if c.delta is not None else 0, 1)),
            "q": made(n, c.q_rows),
            "attended": made(n, -(-max(c.q_rows, values) // BLOCK) * BLOCK, kind=torch.bfloat16),
            "attending": made(n * c.n_heads * self._splits * (c.head_dim + 2)),
            "arrived": made(n * c.n_kv_heads, kind=torch.int32),
            "delta": made(n, max(values, 1)),
            "router": made(n, c.n_experts + 1),
            "routing": made(-(-ROUTING_BYTES // 4), kind=torch.int32),
            "h": made(n * plan.choices, plan.width, kind=torch.bfloat16),
            "logits": made(n, c.vocab_size),
            "draft": made(n, 2 * c.d_model, kind=torch.bfloat16),
            "draft_logits": made(n, max(c.draft_vocab, 1)),
        }

    def _vector(self, name: str) -> int | None:
        if name not in self.plan.vectors:
            return None
        return int(self.weights.vectors.data_ptr() + 4 * self.plan.vectors[name][0])

    def product(self, name: str, outcome: str, **values: Any) -> Launch:
        m, n = self.plan.matrices[name], self._most
        arguments = fill(
            Gemv, rows=self._rows, weights=self.weights.arena.data_ptr() + m.offset, copy_bytes=m.copy_bytes,
            tiles=m.tiles, blocks=m.copy_blocks, cut=m.kw.bit_length() - 1, matrix_rows=m.rows, choices=m.chosen,
            batch=product_units(m, n), eps=self.config.norm_eps, **values,
        )  # fmt: skip
        units = m.tiles * (m.chosen * n if outcome == "chosen" else 1)
        ctas = min(units, self.plan.ctas)
        return Launch(kernel_name(outcome, m.format), arguments, ctas, THREADS, product_bytes(m, n))

    def normed(self, name: str, outcome: str, norm: str, **values: Any) -> Launch:
        c = self.config
        return self.product(
            name, outcome, operand=NORMED, x=self.buffers["x"], norm=self._vector(norm), width=c.d_model,
            in_stride=c.d_model, **values,
        )  # fmt: skip

    def launches(self, rows: int) -> list[Launch]:
        """A whole step of up to `rows` rows."""
        c, b, self._most = self.config, self.buffers, rows
        begin = fill(
            Begin, rows=self._rows, embed=self.weights.embed, x=b["x"], known=self._known, width=c.d_model,
        )  # fmt: skip
        made = [Launch("step_begin", begin, rows)]
        for i, kind in enumerate(c.kinds):
            made += self.layer(f"layers.{i}.", kind)
        if self._hidden is not None:
            made.append(self._keep_hidden("final_norm"))
        return [*made, self.normed("head", "stored", "final_norm", out=b["logits"], out_stride=c.vocab_size)]

    def draft_launches(self, guess: bool, rows: int) -> list[Launch]:
        """The drafting head: stores the keys and values of its rows and, with `guess`, computes what follows them."""
        c, b, self._most = self.config, self.buffers, rows
        begin = fill(
            Draft, rows=self._rows, embed=self.weights.embed, hidden=self._hidden, out=b["draft"], width=c.d_model,
            embed_norm=self._vector("mtp.embed_norm"), hidden_norm=self._vector("mtp.hidden_norm"), eps=c.norm_eps,
        )  # fmt: skip
        made = [
            Launch("step_draft", begin, rows, 256, 64),
            self.product("mtp.fc", "stored", operand=VECTOR, in_=b["draft"], in_stride=2 * c.d_model, out=b["x"],
                         out_stride=c.d_model),
            *self.layer("mtp.", FULL, skipped=1),
        ]  # fmt: skip
        if not guess:
            return made
        out = b["draft_logits"]
        head = self.normed("mtp.head", "stored", "mtp.final_norm", out=out, out_stride=out.shape[1])
        return [*made, self._keep_hidden("mtp.final_norm"), head]

    def _keep_hidden(self, norm: str) -> Launch:
        c = self.config
        kept = fill(
            Hidden, rows=self._rows, x=self.buffers["x"], norm=self._vector(norm), ring=self._hidden, width=c.d_model,
            eps=c.norm_eps,
        )  # fmt: skip
        return Launch("step_hidden", kept, self._most, 256, 64)

    def layer(self, to: str, kind: str, skipped: int = 0) -> list[Launch]:
        c, b = self.config, self.buffers
        mixed = self._delta(to) if kind == DELTA else self._attention(to, kind, skipped)
        operand: dict[str, Any] = {"operand": VECTOR, "in_": b["attended"], "in_stride": b["attended"].shape[1]}
        if kind == DELTA:
            assert c.delta is not None
            z = b["projected"].data_ptr() + 4 * c.delta.channels
            operand = {
                "operand": GATED, "x": b["delta"], "in_stride": c.delta.values, "width": c.delta.values,
                "norm": self._vector(to + "delta_norm"), "z": z, "z_stride": b["projected"].shape[1],
                "head": c.delta.v_dim,
            }  # fmt: skip
        o = self.product(
            to + "o", "added", out=b["x"], out_stride=c.d_model, bias=self._vector(to + "o_bias"), **operand
        )
        return [*mixed, o, *self._feed_forward(to)]

    def _project(self, to: str) -> Launch:
        out = self.buffers["projected"]
        return self.normed(to + "qkv", "stored", to + "attn_norm", out=out, out_stride=out.shape[1])

    def _attention(self, to: str, kind: str, skipped: int) -> list[Launch]:
        c, b, n = self.config, self.buffers, self._most
        layer, heads, stride = self.plan.kv_layer(to), c.n_heads + 2 * c.n_kv_heads, b["projected"].shape[1]
        common = {"rows": self._rows, "q": b["q"], "tables": self._tables, "n": n, "heads": c.n_heads,
                  "kv_heads": c.n_kv_heads, "head_dim": c.head_dim, "table_width": self._tables.shape[1],
                  **self._kv.layer(layer)}  # fmt: skip
        rope = fill(
            StepRope, parts=b["projected"], bias=self._vector(to + "qkv_bias"), q_weight=self._vector(to + "q_norm"),
            k_weight=self._vector(to + "k_norm"), rope=self._rope, query_scale=self._query_scale, splits=1,
            stride=stride, rotated=c.rotated, eps=c.norm_eps, **common,
        )  # fmt: skip
        gate = b["projected"].data_ptr() + 4 * heads * c.head_dim if c.traits.gated else None
        attend = fill(
            StepAttend, parts=b["attending"], arrived=b["arrived"], sinks=self._vector(to + "sinks"), gate=gate,
            out=b["attended"], stride=b["attended"].shape[1], gate_stride=stride, splits=self._splits,
            window=c.window if kind == SLIDING else 0, skipped=skipped, scale=c.head_dim**-0.5, **common,
        )  # fmt: skip
        return [
            self._project(to),
            Launch("step_rope", rope, n * -(-heads // 4), 128, ROPE_BYTES),
            Launch(f"step_attend_{c.head_dim}", attend, n * c.n_kv_heads * self._splits, 128, attend_bytes(c.head_dim)),
        ]

    def _delta(self, to: str) -> list[Launch]:
        c, b, plan = self.config, self.buffers, self.plan
        d = c.delta
        assert d is not None and self._states is not None
        delta = fill(
            Delta, rows=self._rows, mixed=b["projected"], ba=b["ba"], taps=self._vector(to + "conv"),
            decay=self._vector(to + "decay"), dt_bias=self._vector(to + "dt_bias"),
            state=self._states[0, plan.delta_layer(to)], out=b["delta"], slot_floats=self._states.stride(0),
            stride=b["projected"].shape[1], ba_stride=b["ba"].shape[1], k_heads=d.k_heads, v_heads=d.v_heads,
            k_dim=d.k_dim, v_dim=d.v_dim, taps_count=d.taps,
        )  # fmt: skip
        return [  # `ba` takes a few multiprocessors; on the others the first weights of `qkv` are loaded meanwhile
            self.normed(to + "ba", "stored", to + "attn_norm", out=b["ba"], out_stride=b["ba"].shape[1]),
            self._project(to),
            Launch("step_delta", delta, d.v_heads * -(-d.v_dim // COLUMNS), 256, DELTA_BYTES),
        ]

    def _feed_forward(self, to: str) -> list[Launch]:
        c, b = self.config, self.buffers
        made: list[Launch] = []
        routing, route = b["routing"] if c.n_experts else None, dict[str, Any]()
        if c.n_experts:
            route = {
                "route": routing, "logits": b["router"], "logit_stride": b["router"].shape[1],
                "route_bias": self._vector(to + "router_bias"), "experts": c.n_experts, "top": c.experts_per_token,
                "shared_expert": int(c.d_shared > 0), "over_all": int(not (c.traits.router_after or c.norm_topk)),
            }  # fmt: skip
            made.append(self.normed(
                to + "router", "stored", to + "ffn_norm", out=b["router"], out_stride=b["router"].shape[1],
            ))  # fmt: skip
        up, down = self.plan.matrices[to + "gate_up"], self.plan.matrices[to + "down"]
        assert operand_lines(down) == self.plan.choices
        outcome = "chosen" if c.n_experts else "activated"
        made.append(self.normed(
            to + "gate_up", outcome, to + "ffn_norm", h=b["h"], out_stride=b["h"].shape[1], **route,
            bias=self._vector(to + "experts.gate_up_bias"), bias_stride=up.tiles * TILE,
            limit=c.swiglu_limit if c.traits.clamped else 0.0, alpha=c.swiglu_alpha,
        ))  # fmt: skip
        made.append(self.product(
            to + "down", "added", operand=VECTOR, in_=b["h"], in_stride=b["h"].shape[1], out=b["x"],
            out_stride=c.d_model, routing=routing, bias=self._vector(to + "experts.down_bias"), bias_stride=down.rows,
        ))  # fmt: skip
        return made
