"""Prefill on Hopper: products straight from the packed weights (csrc/wide.cuh), and nothing waits for the host.

The plain path (`prefill.py`) computes the same. Rows are sorted by expert once per layer; one product computes gate and
up of all experts, one computes down. Scales multiply sums, so weights stay exact. With enough rows, a dense matrix is
converted to plain bf16 rows for the library's product, which is faster; there weights times scales are rounded, as on
the plain path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.formats import BLOCK
from fulgur.kernels.cuda.header import norm_stride
from fulgur.kernels.cuda.kv_cache import KvCache
from fulgur.kernels.cuda.prefill import Prefill
from fulgur.kernels.cuda.prefill_attention import Attention
from fulgur.kernels.cuda.prefill_kernels import (
    ROPE_WARPS,
    TOKENS,
    Combine,
    Kernels,
    Launch,
    Norm,
    Rope,
    Route,
    Sort,
    Swiglu,
    epilogues,
    fill,
    modules,
)
from fulgur.kernels.cuda.weights import GpuWeights
from fulgur.model.config import ModelConfig

if TYPE_CHECKING:
    import torch

# Multiply-adds of a dense matrix from which on converting it and using the library's product is faster (H200: the
# library reaches 700 to 760 TFLOPS, our product 440 to 550; below this, launches cost more than they save).
LIBRARY_WORK = 8e10
LIBRARY_ROWS = 3072  # rows from which on it is faster for any dense bf16 matrix, which needs no conversion


def prefill_for(weights: GpuWeights, kv: KvCache, rope: Any, gpu: Gpu, stream: Any) -> Prefill:
    """The fastest path on this GPU."""
    if not gpu.wgmma or weights.plan.config.d_model % 8:
        return Prefill(weights, kv, rope)
    return FastPrefill(weights, kv, rope, Kernels(modules(weights.plan), gpu, stream))


def _dtype(name: str) -> torch.dtype:
    import torch

    kind: torch.dtype = getattr(torch, name)
    return kind


def bytes_per_row(config: ModelConfig) -> int:
    """Bytes that a row of a chunk needs at most, besides the cache: residual, operands, queries, expert results."""
    c = config
    each = c.experts_per_token * (2 * c.d_expert + 2 * c.d_model + 16) if c.n_experts else 6 * c.d_ffn
    return 12 * c.d_model + 12 * c.q_rows + 8 * c.kv_rows + each


class FastPrefill(Prefill):
    def __init__(self, weights: GpuWeights, kv: KvCache, rope: Any, kernels: Kernels) -> None:
        super().__init__(weights, kv, rope)
        self.kernels = kernels
        self.attention = Attention(weights.plan.config, kernels, kv.device)
        self.finished = kv.held.new_zeros(1, dtype=_dtype("int32"))

    def vector(self, at: int) -> tuple[int, int]:
        """The address of a small vector of layer 0, and the bytes to that of the next layer."""
        return self.weights.norms.data_ptr() + 4 * at, 4 * norm_stride(self.plan)

    def parts(self, tokens: torch.Tensor, position: int, table: torch.Tensor) -> Iterator[None]:
        chunk = Chunk(self, tokens, position, table.int())
        for i in range(self.config.n_layers):
            chunk.attend(i)
            yield
            chunk.feed_forward(i)
            yield

    def warm(self, rows: int, context: int) -> None:
        self.attention.warm(rows, context)

    def close(self) -> None:
        self.kernels.close()


class Chunk:
    """The buffers of one chunk of a prompt and the launches of a layer, made once."""

    def __init__(self, prefill: FastPrefill, tokens: torch.Tensor, position: int, table: torch.Tensor) -> None:
        self.n, self.position, self.table = len(tokens), position, table
        self._prefill, self._kernels = prefill, prefill.kernels
        self._plan, self._config = prefill.plan, prefill.config
        self._epilogues = epilogues(self._plan)
        self._x = prefill.weights.embed[tokens].float()
        self._wide: torch.Tensor | None = None  # a matrix for the library, one after another
        self._widening: dict[str, Launch] = {}
        self._attention_launches()
        if self._plan.moe:
            self._expert_launches()
        else:
            self._dense_launches()

    def attend(self, layer: int) -> None:
        self._run(layer, self._before)
        self._multiply(layer, "qkv", self._normed, self._qkv)
        self._run(layer, [self._rope])
        attended = self._prefill.attention.run(
            self._q, self._prefill.kv.layer(layer), self.table, self.n, self.position, not self._by_library("o")
        )
        self._multiply(layer, "o", attended, self._x)

    def feed_forward(self, layer: int) -> None:
        self._run(layer, self._after)
        if not self._plan.moe:
            self._multiply(layer, "gate_up", self._normed, self._h)
            self._multiply(layer, "down", self._h, self._x)

    def _run(self, layer: int, launches: list[Launch]) -> None:
        for launch in launches:
            self._kernels.run(launch.at(layer))

    def _empty(self, *shape: int, kind: str = "bfloat16", zeros: bool = False) -> torch.Tensor:
        made = self._x.new_empty(shape, dtype=_dtype(kind))
        return made.zero_() if zeros else made

    def _by_library(self, name: str) -> bool:
        """Whether the library multiplies. Down follows gate and up: their product sets the order of h's columns."""
        matrix = self._plan.matrices["gate_up" if name == "down" else name]
        enough = self.n >= LIBRARY_ROWS and matrix.format.name == "bf16"
        return matrix.copies == 1 and (enough or self.n * matrix.rows * matrix.cols >= LIBRARY_WORK)

    def _weights(self, name: str) -> tuple[int, int]:
        start = self._plan.address(self._plan.matrices[name], 0, 0, 0, 0)
        return self._prefill.weights.arena.data_ptr() + start, self._plan.layer_stride

    def _vector(self, at: int) -> tuple[int, int]:
        return self._prefill.vector(at)

    def _norm(self, at: int, ordered: bool, plain: torch.Tensor | None = None) -> Launch:
        width = self._config.d_model
        launch = self._kernels.rows(
            "norm_rows", Norm, self.n, x=self._x, out=self._normed, plain=plain, width=width,
            stride=self._normed.shape[1], ordered=int(ordered), eps=self._config.norm_eps,
        )  # fmt: skip
        return launch.moving(weight=self._vector(at))

    def _attention_launches(self) -> None:
        c, n = self._config, self.n
        width, vectors = c.q_rows + 2 * c.kv_rows, 2 * c.d_model
        self._normed = self._empty(n, -(-c.d_model // BLOCK) * BLOCK)
        self._qkv = self._empty(n, width)
        self._q = self._empty(self._prefill.attention.padded(n, self.position), c.n_heads, c.head_dim, zeros=True)
        self._before = [self._norm(0, not self._by_library("qkv"))]
        self._rope = self._kernels.rows(
            "rope_store", Rope, n, ROPE_WARPS, qkv=self._qkv, rope=self._prefill.rope,
            table=self.table, q=self._q, position=self.position, heads=c.n_heads, kv_heads=c.n_kv_heads,
            head_dim=c.head_dim, qkv_stride=width, eps=c.norm_eps,
        )  # fmt: skip
        self._rope.moving(**self._prefill.kv.addresses())
        if c.qk_norm:
            self._rope.moving(q_weight=self._vector(vectors), k_weight=self._vector(vectors + c.head_dim))
        if c.qkv_bias:
            self._rope.moving(bias=self._vector(vectors + 2 * c.head_dim))
        self._products = {name: self._product(name) for name in ("qkv", "o")}

    def _product(self, name: str) -> tuple[Launch, int]:
        """The launch, without its operand and result; and its tokens per tile."""
        matrix, n = self._plan.matrices[name], self.n
        tokens = self._kernels.tile_tokens(n, matrix)
        launch = self._kernels.product(matrix, self._epilogues[name], tokens, -(-n // tokens), n=n)
        return launch.moving(weights=self._weights(name)), tokens

    def _multiply(self, layer: int, name: str, x: torch.Tensor, out: torch.Tensor) -> None:
        """Write `out`, or add to it if the epilogue adds."""
        if self._by_library(name):
            self._multiply_by_library(layer, name, x, out)
            return
        launch = self._products[name][0].at(layer)
        launch.arguments.x, launch.arguments.out = x.data_ptr(), out.data_ptr()
        launch.arguments.out_stride = out.shape[1]
        self._kernels.run(launch)

    def _multiply_by_library(self, layer: int, name: str, x: torch.Tensor, out: torch.Tensor) -> None:
        import torch

        matrix, epilogue = self._plan.matrices[name], self._epilogues[name]
        if self._wide is None:
            dense = [m for name, m in self._plan.matrices.items() if m.copies == 1 and name in self._epilogues]
            self._wide = self._empty(max(m.tiles * 16 * m.copy_blocks * BLOCK for m in dense))
        shape = (matrix.tiles * 16, matrix.copy_blocks * BLOCK)
        wide = self._wide[: shape[0] * shape[1]].view(shape)[: matrix.rows]
        if name not in self._widening:
            self._widening[name] = self._kernels.widen(matrix, out=wide).moving(weights=self._weights(name))
        self._kernels.run(self._widening[name].at(layer))
        if epilogue == "ADD_FLOAT":
            torch.addmm(out, x, wide.T, out_dtype=torch.float32, out=out)
        elif epilogue == "STORE_BF16":
            torch.mm(x, wide.T, out=out)
        else:
            both, width = x @ wide.T, matrix.rows // 2
            self._kernels.run(
                self._kernels.rows("swiglu_rows", Swiglu, self.n, both=both, h=out, width=width, stride=out.shape[1])
            )

    def _hidden(self, rows: int) -> torch.Tensor:
        """Memory for h; columns that no tile writes are zeros, since they are multiplied by weights of 0."""
        m = self._plan.matrices["down"]
        width = m.copy_blocks * BLOCK
        return self._empty(rows, width, zeros=m.cols != width)

    def _dense_launches(self) -> None:
        self._h = self._hidden(self.n)
        self._after = [self._norm(self._config.d_model, not self._by_library("gate_up"))]
        self._products |= {name: self._product(name) for name in ("gate_up", "down")}

    def _expert_launches(self) -> None:
        c, n, k = self._config, self.n, self._config.experts_per_token
        kernels, m, pairs = self._kernels, self._plan.matrices, n * k
        tokens = next((t for t in TOKENS if pairs <= 1.3 * t * c.n_experts), TOKENS[-1])
        most = pairs // tokens + c.n_experts
        plain, h, y = self._empty(*self._normed.shape), self._hidden(pairs), self._empty(pairs, c.d_model)
        logits = self._empty(n, -(-c.n_experts // 4) * 4, kind="float32")
        weight, sorted_weight = (self._empty(pairs, kind="float32") for _ in range(2))
        chosen, row, place, starts, tiles, count = (
            self._empty(size, kind="int32") for size in (pairs, pairs, pairs, c.n_experts + 1, 4 * most, 1)
        )
        router, _ = self._product("router")
        router.arguments.x, router.arguments.out = plain.data_ptr(), logits.data_ptr()
        router.arguments.out_stride = logits.shape[1]
        route = kernels.rows(
            "route_rows", Route, n, logits=logits, chosen=chosen, routing_weight=weight, experts=c.n_experts, top=k,
            stride=logits.shape[1], normalise=int(c.norm_topk),
        )  # fmt: skip
        sort = fill(
            Sort, chosen=chosen, routing_weight=weight, row=row, place=place, sorted_routing_weight=sorted_weight,
            starts=starts, tiles=tiles, tile_count=count, finished=self._prefill.finished, choices=pairs, top=k,
            experts=c.n_experts, tokens=tokens,
        )  # fmt: skip
        gate_up = kernels.product(
            m["gate_up"], "SWIGLU", tokens, most, x=self._normed, out=h, rows=row, routing_weight=sorted_weight,
            tiles=tiles, tile_count=count, out_stride=h.shape[1],
        )  # fmt: skip
        down = kernels.product(
            m["down"], "STORE_BF16", tokens, most, x=h, out=y, tiles=tiles, tile_count=count, out_stride=c.d_model
        )
        self._after = [
            self._norm(c.d_model, True, plain), router, route, Launch("sort_by_expert", sort, c.n_experts, 512, 2048),
            gate_up.moving(weights=self._weights("gate_up")), down.moving(weights=self._weights("down")),
            kernels.rows("combine_rows", Combine, n, y=y, place=place, x=self._x, width=c.d_model, top=k),
        ]  # fmt: skip
        self._held = (plain, h, y, logits, weight, sorted_weight, chosen, row, place, starts, tiles, count)
