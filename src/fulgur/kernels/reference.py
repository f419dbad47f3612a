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

`FloatModel` is the same network in fp32 without quantisation, for parity with other implementations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.cpu.arguments import BLOCK_TOKENS, check_step
from fulgur.model.bfloat16 import from_bfloat16, to_bfloat16
from fulgur.model.config import ModelConfig
from fulgur.model.pack import Packed, unpack, unpack_rows
from fulgur.model.rope import rope_tables
from fulgur.model.tensors import EMBED, HEAD, TensorSource, tensor_shapes
from fulgur.model.weights import Weights

Float = npt.NDArray[np.float32]
Int = npt.NDArray[np.int32]


def rms_norm(x: Float, weight: Float, eps: float) -> Float:
    """Along the last axis."""
    x = np.ascontiguousarray(x, np.float32)
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    inverse: Float = np.reciprocal(np.sqrt(mean + np.float32(eps)))
    return x * inverse * weight


def rotate(x: Float, cos: Float, sin: Float) -> Float:
    """Rope on [n, heads, head_dim] with cos and sin [n, head_dim // 2]: pairs are (i, i + head_dim / 2)."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


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
            raise FulgurError(f"the reference runtime has one thread, {threads} were asked for")
        config = weights.config
        self.config, self.weights, self.kv_blocks = config, weights, kv_blocks
        self.vocab_size = config.vocab_size
        self.max_context = min(config.max_context, kv_blocks * BLOCK_TOKENS)
        self._matrices = {name: _Matrix.open(packed) for name, packed in weights.matrices.items()}
        self._cos, self._sin = rope_tables(config, self.max_context)
        # bf16 as uint16: [layer, key or value, block, slot, kv head, head_dim]
        self._cache = np.zeros(
            (config.n_layers, 2, kv_blocks, BLOCK_TOKENS, config.n_kv_heads, config.head_dim), np.uint16
        )

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
        config, weights, eps = self.config, self.weights, self.config.norm_eps
        block, slot = table[sequence, position // BLOCK_TOKENS], position % BLOCK_TOKENS
        x = self._embed(token)
        for i in range(config.n_layers):
            layer = f"layers.{i}."
            normed = rms_norm(x, weights.vectors[layer + "attn_norm"], eps)
            attended = self._attention(i, normed, position, sequence, table, block, slot)
            x = x + self._matrices[layer + "o"](attended)
            normed = rms_norm(x, weights.vectors[layer + "ffn_norm"], eps)
            x = x + self._matrices[layer + "down"](self._feed_forward(layer, normed))
        if not len(wanted):
            return np.empty(0, np.int32)
        final = rms_norm(x[wanted], weights.vectors["final_norm"], eps)
        scores = self._matrices["head"](final)
        if logits is not None:
            logits[: len(wanted)] = scores
        return scores.argmax(axis=1).astype(np.int32)

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block (a sequence that forks in the middle of a block)."""
        for block in (source, target):
            if not 0 <= block < self.kv_blocks:
                raise ValueError(f"block {block} is not one of {self.kv_blocks}")
        self._cache[:, :, target] = self._cache[:, :, source]

    def close(self) -> None:
        self._matrices = {}
        self._cache = self._cache[:, :, :0]

    def _embed(self, token: Int) -> Float:
        if self.weights.embed is None:
            return unpack_rows(self.weights.matrices["head"], token)
        return self.weights.embed[token].astype(np.float32)

    def _attention(self, i: int, x: Float, position: Int, sequence: Int, table: Int, block: Int, slot: Int) -> Float:
        config, vectors, layer, n = self.config, self.weights.vectors, f"layers.{i}.", len(x)
        qkv = self._matrices[layer + "qkv"](x)
        if config.qkv_bias:
            qkv = qkv + vectors[layer + "qkv_bias"]
        heads = qkv.reshape(n, -1, config.head_dim)
        q, k, v = np.split(heads, (config.n_heads, config.n_heads + config.n_kv_heads), axis=1)
        if config.qk_norm:
            q = rms_norm(q, vectors[layer + "q_norm"], config.norm_eps)
            k = rms_norm(k, vectors[layer + "k_norm"], config.norm_eps)
        cos, sin = self._cos[position], self._sin[position]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self._cache[i, 0, block, slot] = to_bfloat16(k)
        self._cache[i, 1, block, slot] = to_bfloat16(v)
        rows = [self._attend(i, q[r], table[sequence[r]], int(position[r]) + 1) for r in range(n)]
        return np.stack(rows).reshape(n, -1)

    def _attend(self, i: int, q: Float, blocks: Int, length: int) -> Float:
        """One row's attention over the first `length` positions of its sequence: [heads, head_dim]."""
        config = self.config
        used = blocks[: -(-length // BLOCK_TOKENS)]
        shape = (-1, config.n_kv_heads, config.head_dim)
        keys, values = (from_bfloat16(self._cache[i, kind, used]).reshape(shape)[:length] for kind in (0, 1))
        grouped = q.reshape(config.n_kv_heads, -1, config.head_dim)  # heads that share a key/value head
        # Sums of products along one axis rather than a BLAS call: the order of addition is fixed.
        scores = (grouped[:, :, None, :] * keys.transpose(1, 0, 2)[:, None]).sum(axis=-1, dtype=np.float32)
        scores *= np.float32(config.head_dim**-0.5)
        weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True, dtype=np.float32)
        return (weight[:, :, :, None] * values.transpose(1, 0, 2)[:, None]).sum(axis=2, dtype=np.float32)

    def _feed_forward(self, layer: str, x: Float) -> Float:
        both = self._matrices[layer + "gate_up"](x).reshape(len(x), -1, 2, 16)
        return (silu(both[:, :, 0]) * both[:, :, 1]).reshape(len(x), -1)


class FloatModel:
    """The network in fp32 from Hugging Face tensors: whole sequences, no cache."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Float]) -> None:
        self.config, self.tensors = config, tensors

    @classmethod
    def from_source(cls, source: TensorSource) -> FloatModel:
        shapes = tensor_shapes(source.config)
        tensors = {
            name: source.vector(name) if len(shape) == 1 else source.rows(name, np.arange(shape[0]))
            for name, shape in shapes.items()
        }
        return cls(source.config, tensors)

    def logits(self, tokens: npt.ArrayLike) -> Float:
        """float32 [len(tokens), vocab]."""
        config, tensors, eps = self.config, self.tensors, self.config.norm_eps
        token = np.asarray(tokens, np.int64)
        x = tensors[EMBED][token]
        cos, sin = rope_tables(config, len(token))
        for i in range(config.n_layers):
            layer = f"model.layers.{i}."
            normed = rms_norm(x, tensors[layer + "input_layernorm.weight"], eps)
            x = x + self._attention(layer + "self_attn.", normed, cos, sin)
            normed = rms_norm(x, tensors[layer + "post_attention_layernorm.weight"], eps)
            x = x + self._feed_forward(layer + "mlp.", normed)
        return rms_norm(x, tensors["model.norm.weight"], eps) @ tensors[EMBED if config.tied else HEAD].T

    def _feed_forward(self, name: str, x: Float) -> Float:
        gate, up, down = (self.tensors[f"{name}{short}_proj.weight"] for short in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _attention(self, name: str, x: Float, cos: Float, sin: Float) -> Float:
        config, n = self.config, len(x)

        def project(short: str) -> Float:
            out = x @ self.tensors[f"{name}{short}_proj.weight"].T
            if config.qkv_bias:
                out = out + self.tensors[f"{name}{short}_proj.bias"]
            return out.reshape(n, -1, config.head_dim)

        q, k, v = project("q"), project("k"), project("v")
        if config.qk_norm:
            q = rms_norm(q, self.tensors[name + "q_norm.weight"], config.norm_eps)
            k = rms_norm(k, self.tensors[name + "k_norm.weight"], config.norm_eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        share = config.n_heads // config.n_kv_heads
        keys, values = (np.repeat(a, share, axis=1).transpose(1, 0, 2) for a in (k, v))
        scores = q.transpose(1, 0, 2) @ keys.transpose(0, 2, 1) * np.float32(config.head_dim**-0.5)
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, np.float32(-np.inf))
        weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        return (weight @ values).transpose(1, 0, 2).reshape(n, -1) @ self.tensors[name + "o_proj.weight"].T
