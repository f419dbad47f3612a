"""A decode step over many sequences: products for a few rows (csrc/rows.cuh), with kernels between them for rows of
different sequences (csrc/batch.cu), captured into a CUDA graph for each number of rows.

An expert that several rows chose is read once. Logits differ from those of the decode kernels in their last bits, as
after a prompt; within these kernels a row's result does not depend on the other rows of the step.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.formats import BLOCK
from fulgur.kernels.cuda.prefill import Prefill
from fulgur.kernels.cuda.prefill_fast import FastPrefill
from fulgur.kernels.cuda.prefill_kernels import (
    Launch,
    StepAttend,
    StepNorm,
    StepRope,
    StepRoute,
    fill,
    step_epilogue,
    step_splits,
)

Int = npt.NDArray[np.int32]

ROWS = 64  # of a step, at most
BUCKETS = (8, 16, 32, 64)  # numbers of rows that have a graph
SPLITS = 8  # of a row's keys
BLOCK_KEYS, MOST_HEADS = 64, 16  # as in attend.cuh
ROPE_BYTES = 4 * 4 * 256  # shared memory of a CTA: one head per warp
TILES = {8: 8, 16: 16, 32: 16, 64: 32}  # by rows of a step: how many rows of an expert are multiplied together


class StepRows(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int) for name in ("count", "done", "produced", "first")),
                *((name, ctypes.c_int * ROWS) for name in ("token", "position", "table", "slot", "fold")))  # fmt: skip


class StepInput:
    """The rows of the next step and the block tables of their sequences, on the device."""

    def __init__(self, table_width: int, device: Any, stream: Any) -> None:
        import torch

        self._stream, self._torch = stream, torch
        self._staged = torch.zeros(ctypes.sizeof(StepRows), dtype=torch.uint8).pin_memory()
        self._record = StepRows.from_address(self._staged.data_ptr())
        self._staged_tables = torch.zeros((ROWS, table_width), dtype=torch.int32).pin_memory()
        self._known: Int = self._staged_tables.numpy()
        self._used: npt.NDArray[Any] | None = None  # the tables of the rows, if there are more tables than rows
        self.rows = torch.zeros_like(self._staged, device=device)
        self.tables = torch.zeros_like(self._staged_tables, device=device)

    def upload(self, tokens: Int, positions: Int, sequences: Int, tables: Int) -> None:
        """Set the rows: written to pinned memory, then copied, since the step before has finished. `sequences` index
        `tables`, of which only changes are copied."""
        n, record = len(tokens), self._record
        self._used = None
        if len(tables) > ROWS:
            self._used, places = np.unique(sequences, return_inverse=True)
            sequences = places.astype(np.int32)
        record.count, record.done = n, 0
        record.token[:n], record.position[:n] = tokens.tolist(), positions.tolist()
        record.table[:n] = sequences.tolist()
        self.upload_tables(int(positions.max()), tables)
        with self._torch.cuda.stream(self._stream):
            self.rows.copy_(self._staged, non_blocking=True)

    def upload_tables(self, position: int, tables: Int) -> None:
        """Upload the blocks up to `position` for the current rows. A step may be under way: the part of the tables that
        its rows read does not change."""
        if self._used is not None:
            tables = tables[self._used]
        blocks = min(position // BLOCK_KEYS + 1, tables.shape[1])
        now, known = np.maximum(tables[:, :blocks], 0), self._known[: len(tables), :blocks]
        changed = (now != known).any(axis=1)
        if not changed.any():
            return
        with self._torch.cuda.stream(self._stream):
            for place in changed.nonzero()[0].tolist():
                known[place] = now[place]
                self.tables[place, :blocks].copy_(self._staged_tables[place, :blocks], non_blocking=True)


def possible(prefill: Prefill) -> TypeGuard[FastPrefill]:
    """Whether the kernels support this model's shapes."""
    if not isinstance(prefill, FastPrefill):
        return False
    c = prefill.config
    heads = c.n_heads // c.n_kv_heads
    return c.head_dim in (32, 64, 128) and heads <= MOST_HEADS and c.experts_per_token <= 16


def attend_bytes(head_dim: int) -> int:
    """Shared memory of a CTA, as `AttendRoom`."""
    row = 2 * (head_dim + 8)
    return 2 * BLOCK_KEYS * row + MOST_HEADS * (row + 2 * (BLOCK_KEYS + 8) + 4 * (BLOCK_KEYS + 4) + 12) + 16


class BatchStep:
    most = ROWS

    def __init__(self, prefill: FastPrefill, given: StepInput, stream: Any, *, graphs: bool = True) -> None:
        import torch

        self._prefill, self.kernels, self._stream = prefill, prefill.kernels, stream
        self._plan, self._config, self._given = prefill.plan, prefill.config, given
        self._made: dict[int, list[tuple[Launch, int]]] = {}
        self._graphs: dict[int, Any] | None = {} if graphs else None
        c, device = self._config, prefill.kv.device
        self._rows, self._tables, self._width = given.rows, given.tables, given.tables.shape[1]
        self.logits = torch.zeros((ROWS, -(-c.vocab_size // 4) * 4), dtype=torch.float32, device=device)
        self._buffers = self._allocate()

    def run(self, tokens: Int, positions: Int, sequences: Int, tables: Int) -> None:
        """Queue the step; `logits` has a row for each. `sequences` index `tables`."""
        self._given.upload(tokens, positions, sequences, tables)
        self.again(len(tokens))

    def again(self, rows: int) -> None:
        """Queue a step over the rows that are on the device."""
        import torch

        bucket = next(size for size in BUCKETS if rows <= size)
        with torch.cuda.stream(self._stream):
            if self._graphs is None:
                self._launch(bucket)
                return
            self._graph(bucket).replay()

    def warm(self, rows: int) -> None:
        """Compile, load and capture everything for steps of up to `rows`."""
        for bucket in (size for size in BUCKETS if size <= max(rows, BUCKETS[0])):
            if self._graphs is not None:
                self._graph(bucket)

    def close(self) -> None:
        if self._graphs is not None:
            self._graphs.clear()

    def _graph(self, bucket: int) -> Any:
        import torch

        assert self._graphs is not None
        if bucket not in self._graphs:
            self._launch(bucket)  # loads the kernels, which a capture cannot
            graph = torch.cuda.CUDAGraph()
            self._stream.synchronize()
            with torch.cuda.graph(graph, stream=self._stream):
                for launch, layer in self._made[bucket]:
                    self.kernels.run_dependent(launch.at(layer))
            self._graphs[bucket] = graph
        return self._graphs[bucket]

    def _launch(self, bucket: int) -> None:
        if bucket not in self._made:
            self._made[bucket] = self._launches(bucket)
        for launch, layer in self._made[bucket]:
            self.kernels.run(launch.at(layer))

    def _splits(self, name: str) -> int:
        return step_splits(self._plan.matrices[name], self.kernels.ctas)

    def _allocate(self) -> dict[str, Any]:
        """Zeros everywhere: columns and rows that are never written are multiplied, too."""
        import torch

        c, plan, device = self._config, self._plan, self._prefill.kv.device

        def made(*shape: int, kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        parts = {name: plan.matrices[name] for name in ("qkv", "o", "down", "router") if name in plan.matrices}
        single, whole = torch.float32, torch.int32
        down, k = plan.matrices["down"], c.experts_per_token if plan.moe else 1
        most = ROWS * k
        found = {
            "x": made(ROWS, c.d_model, kind=single),
            **{name: made(ROWS, -(-c.d_model // BLOCK) * BLOCK) for name in ("normed", "plain")},
            "q": made(ROWS, c.q_rows, kind=single),
            "attended": made(ROWS, -(-c.q_rows // BLOCK) * BLOCK),
            "attending": made(ROWS * c.n_heads * SPLITS * (c.head_dim + 2), kind=single),
            "arrived": made(ROWS * c.n_kv_heads, kind=whole),
            "h": made(most, down.copy_blocks * BLOCK),
            "parts": made(max(self._splits(n) * ROWS * m.tiles * 16 for n, m in parts.items()), kind=single),
        }
        if plan.moe:
            found |= {
                "y": made(most, c.d_model), "place": made(most, kind=whole), "row": made(most, kind=whole),
                "routing_weight": made(most, kind=single), "tiles": made(4 * (c.n_experts + most), kind=whole),
                "tile_count": made(4, kind=whole),
            }  # fmt: skip
        return found

    def _address(self, name: str) -> tuple[int, int]:
        plan = self._plan
        start = self._prefill.weights.arena.data_ptr() + plan.address(plan.matrices[name], 0, 0, 0, 0)
        return start, 0 if name == "head" else plan.layer_stride

    def _product(self, name: str, n: int, x: str, **values: Any) -> Launch:
        """Without an output in `values`, the sums of every split are stored separately."""
        matrix, b, splits = self._plan.matrices[name], self._buffers, 1
        if "out" not in values:
            stride, splits = -(-matrix.rows // 4) * 4, self._splits(name)
            values |= {"out": b["parts"], "out_stride": stride, "out_split": n * stride}
        tokens = TILES[n] if "tiles" in values else n
        epilogue = step_epilogue(self._plan, name)
        launch = self.kernels.step_product(matrix, epilogue, tokens, splits, n=n, x=b[x], **values)
        return launch.moving(weights=self._address(name))

    def _norm(self, n: int, at: int, after: str | None, plain: bool = False) -> Launch:
        """`after`: the matrix whose parts are added to the residual; None: the residual begins with the embedding."""
        c, b = self._config, self._buffers
        values: dict[str, Any] = {"embed": self._prefill.weights.embed} if after is None else {}
        if after == "experts":
            values = {"y": b["y"], "place": b["place"], "top": c.experts_per_token}
        elif after is not None:
            values = {"parts": b["parts"], "splits": self._splits(after)}
        threads = min(-(-c.d_model // 128) * 32, 1024)
        made = fill(
            StepNorm, rows=self._rows, x=b["x"], out=b["normed"], plain=b["plain"] if plain else None, n=n,
            width=c.d_model, stride=b["normed"].shape[1], threads=threads, eps=c.norm_eps, **values,
        )  # fmt: skip
        launch = Launch("step_norm", made, n, threads, 4 * (32 + c.d_model))
        return launch.moving(weight=self._prefill.vector(at))

    def _launches(self, n: int) -> list[tuple[Launch, int]]:
        """A step of up to `n` rows: every launch with its layer."""
        c, b, plan = self._config, self._buffers, self._plan
        cache, vectors, heads = self._prefill.kv.addresses(), 2 * c.d_model, c.n_heads + 2 * c.n_kv_heads
        rope = Launch("step_rope", fill(
            StepRope, rows=self._rows, parts=b["parts"], rope=self._prefill.rope, tables=self._tables, q=b["q"], n=n,
            splits=self._splits("qkv"), stride=-(-plan.matrices["qkv"].rows // 4) * 4, heads=c.n_heads,
            kv_heads=c.n_kv_heads, head_dim=c.head_dim, rotated=c.rotated, table_width=self._width, eps=c.norm_eps,
        ), n * -(-heads // 4), 128, ROPE_BYTES).moving(**cache)  # fmt: skip
        if c.qk_norm:
            rope.moving(q_weight=self._prefill.vector(vectors), k_weight=self._prefill.vector(vectors + c.head_dim))
        if c.qkv_bias:
            rope.moving(bias=self._prefill.vector(vectors + 2 * c.head_dim))
        attend = Launch(
            f"step_attend_{c.head_dim}",
            fill(
                StepAttend,
                rows=self._rows,
                q=b["q"],
                tables=self._tables,
                parts=b["attending"],
                arrived=b["arrived"],
                out=b["attended"],
                n=n,
                heads=c.n_heads,
                kv_heads=c.n_kv_heads,
                head_dim=c.head_dim,
                table_width=self._width,
                stride=b["attended"].shape[1],
                splits=SPLITS,
                scale=c.head_dim**-0.5,
                ordered=1,
            ),
            n * c.n_kv_heads * SPLITS,
            128,
            attend_bytes(c.head_dim),
        )
        attend.moving(**cache)
        before = [self._product("qkv", n, "normed"), rope, attend, self._product("o", n, "attended")]
        after = self._experts(n) if plan.moe else [
            self._product("gate_up", n, "normed", out=b["h"], out_stride=b["h"].shape[1]),
            self._product("down", n, "h"),
        ]  # fmt: skip
        feed = self._norm(n, c.d_model, "o", plain=plan.moe)
        follows = "experts" if plan.moe else "down"
        made: list[tuple[Launch, int]] = []
        for i in range(c.n_layers):
            made += [(self._norm(n, 0, follows if i else None), i), *((launch, i) for launch in before), (feed, i)]
            made += [(launch, i) for launch in after]
        head = self._product("head", n, "normed", out=self.logits, out_stride=self.logits.shape[1])
        return [*made, (self._norm(n, 0, follows), c.n_layers), (head, 0)]

    def _experts(self, n: int) -> list[Launch]:
        c, b = self._config, self._buffers
        k, stride = c.experts_per_token, -(-c.n_experts // 4) * 4
        route = Launch(
            "step_route",
            fill(
                StepRoute,
                rows=self._rows,
                parts=b["parts"],
                row=b["row"],
                place=b["place"],
                routing_weight=b["routing_weight"],
                tiles=b["tiles"],
                tile_count=b["tile_count"],
                n=n,
                splits=self._splits("router"),
                stride=stride,
                experts=c.n_experts,
                top=k,
                tokens=TILES[n],
                normalise=int(c.norm_topk),
            ),
            1,
            1024,
            4 * (2 * ROWS * 16 + 257),
        )
        sorted_rows = {"tiles": b["tiles"], "tile_count": b["tile_count"]}
        return [
            self._product("router", n, "plain"), route,
            self._product("gate_up", n, "normed", out=b["h"], out_stride=b["h"].shape[1], rows=b["row"],
                          routing_weight=b["routing_weight"], **sorted_rows),
            self._product("down", n, "h", out=b["y"], out_stride=c.d_model, **sorted_rows),
        ]  # fmt: skip
