"""Long runs of prompt tokens of any family, with torch: fills the KV cache and the recurrent states that steps read.

A layer's matrices are unpacked to bf16, experts a few at a time, used for all rows at once and dropped. The last bits
depend on how a prompt was cut; every step after it keeps the rule of equal bits.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from fulgur.kernels.cuda.delta_chunks import delta_chunks
from fulgur.kernels.cuda.family_states import FamilyStates
from fulgur.kernels.cuda.family_weights import FamilyWeights
from fulgur.kernels.cuda.formats import TILE
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.pack import order
from fulgur.kernels.cuda.plan import LOG
from fulgur.kernels.cuda.prefill import rms, rotate, widen
from fulgur.model.family import DELTA, FULL, SLIDING
from fulgur.model.tensors import MTP

if TYPE_CHECKING:
    import torch

CHUNK = 2048  # rows of a prompt at once
Parts = Generator[None, None, "torch.Tensor"]
SCORES = 1 << 26  # attention scores at once: 256 MB
AT_ONCE = 1 << 27  # weights of experts that are unpacked together: 256 MB in bf16


class FamilyPrefill:
    """`rope` [context, cos + sin]; `query_scale` [context], or None if the family has none."""

    def __init__(
        self, weights: FamilyWeights, kv: KvCache, rope: Any, query_scale: Any | None, states: FamilyStates | None
    ) -> None:
        self.weights, self.plan, self.config = weights, weights.plan, weights.plan.config
        self.kv, self.rope, self.query_scale, self.states = kv, rope, query_scale, states
        self._places: dict[str, Any] = {}

    @property
    def chunk(self) -> int:
        """Rows of a prompt at once."""
        return CHUNK

    def close(self) -> None: ...

    def run(self, tokens: torch.Tensor, position: int, table: torch.Tensor, slot: int) -> torch.Tensor:
        """Store keys, values and states of `tokens`, from `position` on. Returns their hidden states."""
        return _whole(self.parts(tokens, position, table, None if self.states is None else self.states.held[slot]))

    def see(self, tokens: torch.Tensor, hidden: torch.Tensor, position: int, table: torch.Tensor) -> None:
        """Store the drafting head's keys and values of `tokens`, given the hidden states before them."""
        _whole(self.see_parts(tokens, hidden, position, table))

    def parts(self, tokens: torch.Tensor, position: int, table: torch.Tensor, state: Any | None) -> Parts:
        """Like `run`, but half a layer at a time, the token mixer and the feed-forward network in turn, so that steps
        of other sequences may run in between. `state` is that of the recurrent layers, a slot's or a copy of it."""
        x = self.weights.embed[tokens].float()
        for i, kind in enumerate(self.config.kinds):
            x = yield from self._layer(f"layers.{i}.", kind, x, position, table, state)
        return self._norm(x, "final_norm")

    def see_parts(self, tokens: torch.Tensor, hidden: torch.Tensor, position: int, table: torch.Tensor) -> Parts:
        import torch

        embedded = self._norm(self.weights.embed[tokens].float(), "mtp.embed_norm")
        both = torch.cat((embedded, self._norm(hidden, "mtp.hidden_norm")), dim=1)
        return (yield from self._layer("mtp.", FULL, self._times(both.bfloat16(), "mtp.fc"), position, table, None))

    def _layer(self, to: str, kind: str, x: torch.Tensor, position: int, table: torch.Tensor, state: Any) -> Parts:
        x = self._mix(to, kind, x, position, table, state)
        yield
        x = self._feed_forward(to, x)
        yield
        return x

    def _mix(
        self, to: str, kind: str, x: torch.Tensor, position: int, table: torch.Tensor, state: Any
    ) -> torch.Tensor:  # fmt: skip
        normed = self._norm(x, to + "attn_norm").bfloat16()
        projected = self._times(normed, to + "qkv")
        if kind == DELTA:
            mixed = self._delta(to, normed, projected, position, state)
        else:
            mixed = self._attention(to, projected, position, table, self.config.window if kind == SLIDING else 0)
        x = x + self._times(mixed.bfloat16(), to + "o")
        if to + "o_bias" in self.plan.vectors:
            x = x + self._vector(to + "o_bias")
        return x

    def _feed_forward(self, to: str, x: torch.Tensor) -> torch.Tensor:
        normed = self._norm(x, to + "ffn_norm").bfloat16()
        return x + (self._experts(to, normed) if self.config.n_experts else self._network(to, 0, normed))

    def _vector(self, name: str) -> torch.Tensor:
        at, size = self.plan.vectors[name]
        vector: torch.Tensor = self.weights.vectors[at : at + size]
        return vector

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, self._vector(name), self.config.norm_eps)

    def _matrix(self, name: str, copy: int = 0, copies: int = 1) -> torch.Tensor:
        import torch

        m = self.plan.matrices[name]
        if m.format.name not in self._places:
            place = torch.from_numpy(np.argsort(order(m.format)))
            self._places[m.format.name] = place.to(self.weights.arena.device)
        start = m.offset + copy * m.copy_bytes
        data = self.weights.arena[start : start + copies * m.copy_bytes]
        wide = widen(data, m.format, copies * m.tiles, m.copy_blocks, self._places[m.format.name])
        return wide.reshape(copies, m.tiles * TILE, -1)[:, : m.rows, : m.cols]

    def _times(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return (x @ self._matrix(name)[0].T).float()

    def _attention(self, to: str, projected: torch.Tensor, position: int, table: torch.Tensor, window: int) -> Any:
        import torch

        c, n, layer = self.config, len(projected), self.plan.kv_layer(to)
        if c.qkv_bias:
            projected = projected + self._vector(to + "qkv_bias")
        gates = c.n_heads if c.traits.gated else 0
        heads = projected.reshape(n, -1, c.head_dim)
        q, k, v, gate = heads.split((c.n_heads, c.n_kv_heads, c.n_kv_heads, gates), dim=1)
        if c.qk_norm:
            q, k = self._norm(q, to + "q_norm"), self._norm(k, to + "k_norm")
        here = torch.arange(position, position + n, device=projected.device)
        cos, sin = self.rope[here].split(c.rotated // 2, dim=1)
        q, k = (torch.cat((rotate(t[..., : c.rotated], cos, sin), t[..., c.rotated :]), dim=-1) for t in (q, k))
        if self.query_scale is not None:
            q = q * self.query_scale[here][:, None, None]
        self.kv.store(layer, k, v, position, table)
        keys, values = self.kv.gathered(layer, position + n, table)
        out = self._attend(to, q.bfloat16(), keys, values, position, window)
        return out * torch.sigmoid(gate.reshape(n, -1)) if gates else out

    def _attend(
        self, to: str, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, window: int
    ) -> torch.Tensor:
        """Attend a few rows at a time, each over the keys that it may see: with a window those are few."""
        import torch

        c, n = self.config, len(q)
        group = c.n_heads // c.n_kv_heads
        sinks = self._vector(to + "sinks").reshape(c.n_kv_heads, group, 1, 1) if c.traits.sinks else None
        step = max(min(SCORES // (c.n_heads * (position + n)), n), 1)
        step = min(step, max(window, 64)) if window else step
        out = torch.empty((n, c.n_heads * c.head_dim), dtype=torch.float32, device=q.device)
        for first in range(0, n, step):
            rows = q[first : first + step]
            end = position + first + len(rows)
            begin = max(position + first - window + 1, 0) if window else 0
            grouped = rows.reshape(len(rows), c.n_kv_heads, group, -1).permute(1, 2, 0, 3)
            scores = (grouped @ keys[:, None, begin:end].transpose(2, 3)).float() * c.head_dim**-0.5
            at = torch.arange(end - len(rows), end, device=q.device)[:, None]
            key = torch.arange(begin, end, device=q.device)[None]
            hidden = key > at if not window else (key > at) | (key <= at - window)
            if to == MTP:
                hidden = hidden | (key == 0)  # its first slot has no hidden state
            scores = scores.masked_fill(hidden, float("-inf"))
            if sinks is not None:
                scores = torch.cat((scores, sinks.expand(-1, -1, len(rows), 1)), dim=3)
            weight = scores.softmax(dim=3)[..., : end - begin].bfloat16()
            attended = weight @ values[:, None, begin:end]
            out[first : first + step] = attended.permute(2, 0, 1, 3).reshape(len(rows), -1)
        return out

    def _delta(self, to: str, x: torch.Tensor, projected: torch.Tensor, position: int, state: Any) -> torch.Tensor:
        import torch

        c, n, d = self.config, len(x), self.config.delta
        assert d is not None and self.states is not None
        held = self.states.views(state, self.plan.delta_layer(to))
        mixed, z = projected.split((d.channels, d.values), dim=1)
        b, a = self._times(x, to + "ba").split(d.v_heads, dim=1)
        decay = self._vector(to + "decay") * torch.nn.functional.softplus(a + self._vector(to + "dt_bias"))
        if position == 0:
            held.state.zero_()
        seen = torch.arange(position - d.taps + 1, position, device=x.device)
        before = held.inputs[seen % LOG] * (seen >= 0)[:, None]
        inputs = torch.cat((before, mixed))
        taps = self._vector(to + "conv").reshape(d.taps, -1)
        made = torch.zeros_like(mixed)
        for tap in range(d.taps):
            made += inputs[tap : tap + n] * taps[tap]
        kept = torch.arange(max(n - LOG, 0), n, device=x.device)
        held.inputs[(position + kept) % LOG] = mixed[kept]
        q, k, v = torch.nn.functional.silu(made).split((d.keys, d.keys, d.values), dim=1)
        q, k = (t.reshape(n, d.k_heads, d.k_dim) for t in (q, k))
        q, k = (t * (t.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for t in (q, k))
        q, k = (t.repeat_interleave(d.v_heads // d.k_heads, 1).transpose(0, 1) for t in (q * d.k_dim**-0.5, k))
        v = v.reshape(n, d.v_heads, d.v_dim).transpose(0, 1)
        out = delta_chunks(q, k, v, decay.T.contiguous(), torch.sigmoid(b).T.contiguous(), held.state)
        normed = rms(out.transpose(0, 1), self._vector(to + "delta_norm"), c.norm_eps)
        return normed.reshape(n, -1) * torch.nn.functional.silu(z)

    def _experts(self, to: str, x: torch.Tensor) -> torch.Tensor:
        import torch

        c = self.config
        chosen, routing_weight, logits = self._routed(to, x)
        out = torch.zeros((len(x), c.d_model), dtype=torch.float32, device=x.device)
        ranked = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=c.n_experts).tolist()
        m = self.plan.matrices[to + "gate_up"]
        together = max(AT_ONCE // (m.tiles * TILE * m.cols), 1)
        start = 0
        for first in range(0, c.n_experts, together):
            size = min(together, c.n_experts - first)
            gate_up, down = self._matrix(to + "gate_up", first, size), self._matrix(to + "down", first, size)
            for expert in range(first, first + size):
                part = ranked[start : start + counts[expert]]
                start += counts[expert]
                if len(part):
                    rows = part // c.experts_per_token
                    made = self._apply(to, expert, x[rows], gate_up[expert - first], down[expert - first])
                    out.index_add_(0, rows, made * routing_weight.flatten()[part][:, None])
        if c.d_shared:
            out += torch.sigmoid(logits[:, c.n_experts :]) * self._network(to, c.n_experts, x)
        return out

    def _routed(self, to: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The experts of every row, their routing weights, and the logits, the last of which is the shared expert's."""
        c = self.config
        logits = self._times(x, to + "router")
        chosen_of = logits[:, : c.n_experts]
        if c.traits.router_bias:
            chosen_of = chosen_of + self._vector(to + "router_bias")
        top, chosen = chosen_of.topk(c.experts_per_token, dim=1)
        over_all = not (c.traits.router_after or c.norm_topk)
        routing_weight = (top - chosen_of.logsumexp(1, keepdim=True)).exp() if over_all else top.softmax(dim=1)
        return chosen, routing_weight, logits

    def _network(self, to: str, copy: int, x: torch.Tensor) -> torch.Tensor:
        return self._apply(to, copy, x, self._matrix(to + "gate_up", copy)[0], self._matrix(to + "down", copy)[0])

    def _apply(self, to: str, copy: int, x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        import torch

        c = self.config
        both = (x @ gate_up.T).float()
        if c.traits.expert_bias:
            both = both + self._vector(to + "experts.gate_up_bias").reshape(c.n_experts, -1)[copy]
        pairs = both.reshape(len(x), -1, 2, 8)
        gate, up = pairs[:, :, 0].reshape(len(x), -1), pairs[:, :, 1].reshape(len(x), -1)
        if c.traits.clamped:
            gate, up = gate.clamp(max=c.swiglu_limit), up.clamp(-c.swiglu_limit, c.swiglu_limit)
            h = (up + 1) * gate * torch.sigmoid(c.swiglu_alpha * gate)
        else:
            h = torch.nn.functional.silu(gate) * up
        made = (h[:, : down.shape[1]].bfloat16() @ down.T).float()
        if c.traits.expert_bias:
            made = made + self._vector(to + "experts.down_bias").reshape(c.n_experts, -1)[copy]
        return made


def _whole(parts: Parts) -> torch.Tensor:
    """Run all parts, one after the other, and return their result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            made: torch.Tensor = end.value
            return made
