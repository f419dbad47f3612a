"""The truth in numpy: what every kernel must compute, slowly and plainly.

`Runtime` is the quantised model as the engine drives it. Its arithmetic, which the fast kernels follow:
    - before each matrix product the activations are cut into the groups of that matrix and rounded to int8:
      scale = absmax / 127 in fp32, q = rint(x * (127 / absmax)), ties to even; a group of zeros has scale 0
    - the integer dot product of a group is exact; its contribution is float(dot) * (weight scale * activation scale),
      added in fp32 over the groups in ascending order
    - keys (after norm and rope) and values are stored as bf16, rounded to nearest even; norms, softmax, SwiGLU and the
      residual stay in fp32
A row's result does not depend on what else is in the step: integer dots are exact in any order, everything else is
computed row by row along a fixed axis.

`FloatModel` is the same network in fp32 without quantisation, for parity with other implementations. Both run the one
`Network`; what a family computes is read from `ModelConfig.traits` and the kinds of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.cpu.arguments import BLOCK_TOKENS, check_step
from fulgur.kernels.reference_states import DeltaStates
from fulgur.model.bfloat16 import from_bfloat16, to_bfloat16
from fulgur.model.config import ModelConfig
from fulgur.model.family import DELTA, SLIDING
from fulgur.model.pack import Packed, unpack, unpack_rows
from fulgur.model.rope import query_scale, rope_tables
from fulgur.model.tensors import (
    EMBED,
    MatrixPlan,
    TensorSource,
    delta_of,
    expert_plan,
    kernel_vector,
    layer_names,
    matrix_plans,
    plain_plans,
    vector_plans,
)
from fulgur.model.weights import Weights, gather

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int32]


def rms_norm(x: Float, weight: Float, eps: float) -> Float:
    """Along the last axis."""
    x = np.ascontiguousarray(x, np.float32)
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    inverse: Float = np.reciprocal(np.sqrt(mean + np.float32(eps)))
    return x * inverse * weight


def rotate(x: Float, cos: Float, sin: Float) -> Float:
    """Rope on [n, heads, head_dim] with cos and sin [n, half]: pairs are (i, i + half), later dimensions stay."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin, rest), axis=-1)


def sigmoid(x: Float) -> Float:
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.exp(-x) + np.float32(1))


def clamped_swiglu(gate: Float, up: Float, limit: float, alpha: float) -> Float:
    """The SwiGLU of gpt-oss: gate and up are bounded, and 1 is added to up."""
    gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, np.float32(-limit), np.float32(limit))
    return (up + np.float32(1)) * gate * sigmoid(np.float32(alpha) * gate)


def silu(x: Float) -> Float:
    with np.errstate(over="ignore"):  # a large negative x: exp is infinite, the quotient is 0 as it should be
        tail: Float = np.exp(-x)
    return x / (tail + np.float32(1))


def quantise_activations(x: Float, group: int) -> tuple[Float, Float]:
    """int8 values (held as float32) [n, groups, group] and fp32 scales [n, groups]."""
    grouped = x.reshape(len(x), -1, group)
    peak = np.abs(grouped).max(axis=2)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak != 0)
    return np.rint(grouped * inverse[:, :, None]), peak / np.float32(127)


@dataclass
class _Matrix:
    """A packed matrix opened for numpy: integers as float32 [groups, group, rows], scales [groups, rows]."""

    q: Float
    scale: Float
    group: int

    @classmethod
    def open(cls, packed: Packed) -> _Matrix:
        # A float32 product of integers is exact while the sum stays below 2**24.
        if packed.group * 127 * 128 >= 1 << 24:
            raise FulgurError(f"groups of {packed.group} are too long for an exact float32 sum")
        matrix = unpack(packed)
        q = matrix.q.reshape(matrix.rows, -1, matrix.group).astype(np.float32)
        scale = matrix.scale.astype(np.float32)
        return cls(np.ascontiguousarray(q.transpose(1, 2, 0)), np.ascontiguousarray(scale.T), matrix.group)

    def __call__(self, x: Float) -> Float:
        q, scale = quantise_activations(x, self.group)
        out = np.zeros((len(x), self.q.shape[2]), np.float32)
        for g in range(len(self.q)):
            dots = q[:, g] @ self.q[g]
            out += dots * (self.scale[g][None, :] * scale[:, g, None])
        return out


Product = Callable[[Float], Float]
_ALL_BUT_FIRST = "all but the first"  # what the drafting head attends to: its first slot has no hidden state


class Network:
    """A network whose matrices are functions, with its keys, values and recurrent states."""

    def __init__(
        self,
        config: ModelConfig,
        matrices: Mapping[str, Product],
        plain: Mapping[str, Float],
        vectors: Mapping[str, Float],
        blocks: int,
        round_kv: bool,
    ) -> None:
        self.config, self.blocks = config, blocks
        self._matrices, self._plain, self._vectors = dict(matrices), plain, vectors
        self.max_context = min(config.max_context, blocks * BLOCK_TOKENS)
        self._cos, self._sin = rope_tables(config, self.max_context)
        self._round: Callable[[Float], Float] = (lambda x: from_bfloat16(to_bfloat16(x))) if round_kv else (lambda x: x)
        # [layer, the drafting head's last; key or value, block, slot, kv head, head_dim]
        self._cache = np.zeros(
            (config.n_layers + 1, 2, blocks, BLOCK_TOKENS, config.n_kv_heads, config.head_dim), np.float32
        )
        self.states = DeltaStates(config)

    def logits(self, hidden: Float) -> Float:
        return self._matrices["head"](hidden)

    def hidden(self, x: Float, position: Int, sequence: Int, table: Int) -> Float:
        """The input of the output head, for every row."""
        self.states.begin(position, sequence)
        for i, kind in enumerate(self.config.kinds):
            x = self._layer(f"layers.{i}.", i, kind, x, position, sequence, table)
        return rms_norm(x, self._vectors["final_norm"], self.config.norm_eps)

    def predict(self, embedded: Float, hidden: Float, position: Int, sequence: Int, table: Int) -> Float:
        """Run the drafting head (MTP) on rows of a token and the hidden state before it. `draft_logits` reads the
        result, and the next draft uses it as the hidden state."""
        vectors, eps = self._vectors, self.config.norm_eps
        both = rms_norm(embedded, vectors["mtp.embed_norm"], eps), rms_norm(hidden, vectors["mtp.hidden_norm"], eps)
        x = self._matrices["mtp.fc"](np.concatenate(both, axis=1))
        x = self._layer("mtp.", self.config.n_layers, _ALL_BUT_FIRST, x, position, sequence, table)
        return rms_norm(x, vectors["mtp.final_norm"], eps)

    def draft_logits(self, predicted: Float) -> Float:
        return self._matrices["mtp.head"](predicted)

    def _layer(self, layer: str, i: int, kind: str, x: Float, position: Int, sequence: Int, table: Int) -> Float:
        """`layer` names its weights, `i` its keys and values or states."""
        config, vectors, eps = self.config, self._vectors, self.config.norm_eps
        normed = rms_norm(x, vectors[layer + "attn_norm"], eps)
        if kind == DELTA:
            mixed = self._delta(i, normed, position, sequence)
        else:
            mixed = self._attention(layer, i, kind, normed, position, sequence, table)
        x = x + self._matrices[layer + "o"](mixed)
        if config.traits.o_bias:
            x = x + vectors[layer + "o_bias"]
        normed = rms_norm(x, vectors[layer + "ffn_norm"], eps)
        return x + self._feed_forward(layer, normed)

    def copy_block(self, source: int, target: int) -> None:
        self._cache[:, :, target] = self._cache[:, :, source]

    def close(self) -> None:
        self._matrices = {}
        self._cache = self._cache[:, :, :0]

    def _attention(self, layer: str, i: int, kind: str, x: Float, position: Int, sequence: Int, table: Int) -> Float:
        config, vectors, n = self.config, self._vectors, len(x)
        block, slot = table[sequence, position // BLOCK_TOKENS], position % BLOCK_TOKENS
        qkv = self._matrices[layer + "qkv"](x)
        if config.qkv_bias:
            qkv = qkv + vectors[layer + "qkv_bias"]
        heads = qkv.reshape(n, -1, config.head_dim)
        q, k, v, gate = np.split(heads, np.cumsum((config.n_heads, config.n_kv_heads, config.n_kv_heads)), axis=1)
        if config.qk_norm:
            q = rms_norm(q, vectors[layer + "q_norm"], config.norm_eps)
            k = rms_norm(k, vectors[layer + "k_norm"], config.norm_eps)
        cos, sin = self._cos[position], self._sin[position]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q = q * query_scale(config, position)[:, None, None]
        self._cache[i, 0, block, slot] = self._round(k)
        self._cache[i, 1, block, slot] = self._round(v)
        seen = (
            position if kind == _ALL_BUT_FIRST else np.full(n, config.window if kind == SLIDING else config.max_context)
        )
        rows = [self._attend(i, q[r], table[sequence[r]], int(position[r]) + 1, int(seen[r])) for r in range(n)]
        out = np.stack(rows).reshape(n, -1)
        return out * sigmoid(gate.reshape(n, -1)) if config.traits.gated else out

    def _attend(self, i: int, q: Float, blocks: Int, length: int, window: int) -> Float:
        """One row's attention over the last `window` of `length` positions of its sequence: [heads, head_dim]."""
        config = self.config
        used, first = blocks[: -(-length // BLOCK_TOKENS)], max(length - window, 0)
        shape = (-1, config.n_kv_heads, config.head_dim)
        keys, values = (self._cache[i, kind, used].reshape(shape)[first:length] for kind in (0, 1))
        grouped = q.reshape(config.n_kv_heads, -1, config.head_dim)  # heads that share a key/value head
        # Sums of products along one axis rather than a BLAS call: the order of addition is fixed.
        scores = (grouped[:, :, None, :] * keys.transpose(1, 0, 2)[:, None]).sum(axis=-1, dtype=np.float32)
        scores *= np.float32(config.head_dim**-0.5)
        top = scores.max(axis=-1, keepdims=True)
        if config.traits.sinks:
            sinks = self._vectors[f"layers.{i}.sinks"].reshape(config.n_kv_heads, -1, 1)
            top = np.maximum(top, sinks)
        weight = np.exp(scores - top)
        total = weight.sum(axis=-1, keepdims=True, dtype=np.float32)
        if config.traits.sinks:
            total = total + np.exp(sinks - top)
        weight /= total
        return (weight[:, :, :, None] * values.transpose(1, 0, 2)[:, None]).sum(axis=2, dtype=np.float32)

    def _delta(self, i: int, x: Float, position: Int, sequence: Int) -> Float:
        """The gated delta net: one state [k_dim, v_dim] per value head, decayed, corrected and read by every row."""
        config, vectors, layer, shape = self.config, self._vectors, f"layers.{i}.", delta_of(self.config)
        projected = self._matrices[layer + "qkv"](x)
        mixed, z = projected[:, : shape.channels], projected[:, shape.channels :]
        b, a = np.split(_plain_product(self._plain[layer + "ba"], x), 2, axis=1)
        beta = sigmoid(b)
        decay = np.exp(vectors[layer + "decay"] * softplus(a + vectors[layer + "dt_bias"]))
        taps = vectors[layer + "conv"].reshape(shape.taps, -1)
        out = np.empty((len(x), shape.v_heads, shape.v_dim), np.float32)
        for r in range(len(x)):
            before, state = self.states.before(i, int(sequence[r]), int(position[r]))
            inputs = np.concatenate([before, mixed[r][None]])
            q, k, v = np.split(silu((inputs * taps).sum(axis=0)), (shape.keys, 2 * shape.keys))
            q, k = (_unit(part.reshape(shape.k_heads, -1)) for part in (q, k))
            q = q * np.float32(shape.k_dim**-0.5)
            q, k = (np.repeat(part, shape.v_heads // shape.k_heads, axis=0) for part in (q, k))
            state = state * decay[r][:, None, None]
            error = (v.reshape(shape.v_heads, -1) - (state * k[:, :, None]).sum(axis=1)) * beta[r][:, None]
            state = state + k[:, :, None] * error[:, None, :]
            out[r] = (state * q[:, :, None]).sum(axis=1)
            self.states.put(i, int(sequence[r]), int(position[r]), inputs[1:], state)
        normed = rms_norm(out, vectors[layer + "delta_norm"], config.norm_eps)
        return normed.reshape(len(x), -1) * silu(z)

    def _feed_forward(self, layer: str, x: Float) -> Float:
        config, traits = self.config, self.config.traits
        if not config.n_experts:
            return self._dense(layer, x)
        logits = _plain_product(self._plain[layer + "router"], x)
        out = self._experts(layer, x, logits[:, : config.n_experts])
        if traits.shared_expert:
            out = out + sigmoid(logits[:, config.n_experts :]) * self._dense(layer, x)
        return out

    def _dense(self, layer: str, x: Float) -> Float:
        both = self._matrices[layer + "gate_up"](x).reshape(len(x), -1, 2, 16)
        return self._matrices[layer + "down"]((silu(both[:, :, 0]) * both[:, :, 1]).reshape(len(x), -1))

    def _experts(self, layer: str, x: Float, logits: Float) -> Float:
        config, vectors, traits = self.config, self._vectors, self.config.traits
        if traits.router_bias:
            logits = logits + vectors[layer + "router_bias"]
        chosen, weights = route(logits, config)
        out = np.zeros_like(x)
        for e in np.unique(chosen):
            rows, rank = np.nonzero(chosen == e)
            both = self._matrices[f"{layer}experts.{e}.gate_up"](x[rows])
            if traits.expert_bias:
                both = both + vectors[layer + "experts.gate_up_bias"].reshape(config.n_experts, -1)[e]
            pairs = both.reshape(len(rows), -1, 2, 16)
            gate, up = pairs[:, :, 0].reshape(len(rows), -1), pairs[:, :, 1].reshape(len(rows), -1)
            hidden = (
                clamped_swiglu(gate, up, config.swiglu_limit, config.swiglu_alpha)
                if traits.clamped
                else silu(gate) * up
            )
            result = self._matrices[f"{layer}experts.{e}.down"](hidden)
            if traits.expert_bias:
                result = result + vectors[layer + "experts.down_bias"].reshape(config.n_experts, -1)[e]
            out[rows] += result * weights[rows, rank][:, None]
        return out


def softplus(x: Float) -> Float:
    return np.logaddexp(np.float32(0), x)


def route(logits: Float, config: ModelConfig) -> tuple[Int, Float]:
    """The experts of each row, best first (the lowest index wins ties), and their weights."""
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, : config.experts_per_token].astype(np.int32)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    if not config.traits.router_after and not config.norm_topk:
        weights /= weights.sum(axis=1, keepdims=True)
    weights = np.take_along_axis(weights, chosen, axis=1)
    if config.traits.router_after or config.norm_topk:
        weights /= weights.sum(axis=1, keepdims=True)
    return chosen, weights


def _unit(x: Float) -> Float:
    """Rows of length 1; the sum of squares, not their mean."""
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + np.float32(1e-6))


def _plain_product(matrix: Float, x: Float) -> Float:
    """Row by row in a fixed order, whatever else is in the step."""
    return np.stack([(matrix * row).sum(axis=1, dtype=np.float32) for row in x])


class Runtime:
    """One quantised model and its KV cache, a step at a time."""

    block_tokens = BLOCK_TOKENS
    max_rows = prefill_rows = 256
    streaming = prefilling = None
    isa, threads = "reference", 1

    def __init__(self, weights: Weights, *, kv_blocks: int, threads: int | None = None, isa: str | None = None) -> None:
        if isa not in (None, "reference"):
            raise FulgurError(f"the reference runtime has no instruction set {isa!r}")
        if threads not in (None, 1):
            raise FulgurError(f"the reference runtime has one thread, but {threads} were requested")
        config = weights.config
        self.config, self.weights, self.kv_blocks = config, weights, kv_blocks
        self.vocab_size = config.vocab_size
        matrices: dict[str, Product] = {name: _Matrix.open(packed) for name, packed in weights.matrices.items()}
        for name, packed in weights.experts.items():
            layer, _, short = name.rpartition(".")
            matrices |= {f"{layer}.{e}.{short}": _Matrix.open(packed.expert(e)) for e in range(config.n_experts)}
        plain = {name: from_bfloat16(value) for name, value in weights.plain.items()}
        self._network = Network(config, matrices, plain, weights.vectors, kv_blocks, round_kv=True)
        self.max_context = self._network.max_context

    def step(
        self,
        tokens: npt.ArrayLike,
        positions: npt.ArrayLike,
        sequences: npt.ArrayLike,
        tables: npt.ArrayLike,
        logit_rows: npt.ArrayLike,
        logits: Float | None = None,
    ) -> Int:
        """Run `tokens` through the model; returns the argmax of the rows in `logit_rows` (the lowest index wins ties).

        Row i is token tokens[i] of sequence sequences[i] at positions[i]; tables[s] lists the KV blocks of sequence s.
        Keys and values of every row are stored first, then each row attends to positions 0 up to its own. `logits`,
        float32 [>= len(logit_rows), vocab], is filled when given.
        """
        token, position, sequence, table, wanted = (
            np.asarray(a, np.int32) for a in (tokens, positions, sequences, tables, logit_rows)
        )
        check_step(self, token, position, sequence, table, wanted)
        hidden = self._network.hidden(self._embed(token), position, sequence, table)
        if self.drafting is not None:
            self._network.states.hidden.put(sequence, position, token, hidden)
        if not len(wanted):
            return np.empty(0, np.int32)
        scores = self._network.logits(hidden[wanted])
        if logits is not None:
            logits[: len(wanted)] = scores
        return scores.argmax(axis=1).astype(np.int32)

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block (a sequence that forks in the middle of a block)."""
        for block in (source, target):
            if not 0 <= block < self.kv_blocks:
                raise ValueError(f"KV block {block} does not exist; there are {self.kv_blocks}")
        self._network.copy_block(source, target)

    @property
    def states(self) -> DeltaStates | None:
        """The recurrent states, if the model has layers with one."""
        return self._network.states if DELTA in self.config.kinds else None

    @property
    def drafting(self) -> Runtime | None:
        """This runtime if the model has a head that drafts, else None."""
        return self if self.config.draft_vocab else None

    def draft(self, token: int, position: int, sequence: int, tables: Int, length: int) -> list[int]:
        """See `engine.runtime.DraftingRuntime`."""
        hidden = self._network.states.hidden.before(sequence, position)
        if hidden is None:
            return []
        self._see(sequence, tables, position)
        guesses = [token]
        for at in range(position, position + length):
            hidden = self._predict([at], guesses[-1:], [hidden], sequence, tables)[0]
            guesses.append(int(self._network.draft_logits(hidden[None])[0].argmax()))
        return guesses[1:]

    def catch_up(self, sequence: int, tables: Int) -> None:
        self._see(sequence, tables, self._network.states.hidden.end(sequence))

    def _see(self, sequence: int, tables: Int, end: int) -> None:
        positions, tokens, hidden = self._network.states.hidden.take(sequence, end)
        if positions:
            self._predict(positions, tokens, hidden, sequence, tables)

    def _predict(
        self, positions: list[int], tokens: list[int], hidden: list[Float], sequence: int, tables: Int
    ) -> Float:
        owner = np.full(len(tokens), sequence, np.int32)
        embedded = self._embed(np.array(tokens, np.int32))
        return self._network.predict(embedded, np.stack(hidden), np.array(positions, np.int32), owner, tables)

    def close(self) -> None:
        self._network.close()

    def _embed(self, token: Int) -> Float:
        if self.weights.embed is None:
            return unpack_rows(self.weights.matrices["head"], token)
        return self.weights.embed[token].astype(np.float32)


class FloatModel:
    """The network in fp32 from Hugging Face tensors: whole sequences, nothing rounded."""

    def __init__(self, source: TensorSource) -> None:
        config = self.config = source.config
        self._embed = source.rows(EMBED, np.arange(config.vocab_size))

        def product(plan: MatrixPlan) -> Product:
            transposed = gather(source, plan).T
            return lambda x: x @ transposed

        self._matrices = {name: product(plan) for name, plan in matrix_plans(config).items()}
        for to, layer, _ in layer_names(config):
            for e in range(config.n_experts):
                for name in ("gate_up", "down"):
                    self._matrices[f"{to}experts.{e}.{name}"] = product(expert_plan(config, layer, e, name))
        self._plain = {name: gather(source, plan) for name, plan in plain_plans(config).items()}
        self._vectors = {
            name: kernel_vector(config, name, np.concatenate([source.vector(part) for part in parts]))
            for name, parts in vector_plans(config).items()
        }

    def logits(self, tokens: npt.ArrayLike) -> Float:
        """float32 [len(tokens), vocab]."""
        network, where = self._network(len(np.asarray(tokens)))
        return network.logits(network.hidden(self._embed[np.asarray(tokens, np.int64)], *where))

    def draft_logits(self, tokens: npt.ArrayLike) -> Float:
        """What the drafting head expects two tokens after each but the last: [len(tokens) - 1, draft_vocab]."""
        embedded = self._embed[np.asarray(tokens, np.int64)]
        network, (rows, owner, table) = self._network(len(embedded))
        hidden = network.hidden(embedded, rows, owner, table)
        return network.draft_logits(network.predict(embedded[1:], hidden[:-1], rows[1:], owner[1:], table))

    def _network(self, length: int) -> tuple[Network, tuple[Int, Int, Int]]:
        rows, blocks = np.arange(length, dtype=np.int32), -(-length // BLOCK_TOKENS)
        network = Network(self.config, self._matrices, self._plain, self._vectors, blocks, round_kv=False)
        return network, (rows, np.zeros(length, np.int32), np.arange(blocks, dtype=np.int32)[None])
