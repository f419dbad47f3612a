"""The GPU runtime: the interface of `kernels.native.Runtime`, with the decode loop on the device.

A step of up to 8 rows is one pass of the decode kernels; more rows take passes of 8, and a long run of prompt tokens is
prefilled at once (`prefill.py`). Rows of several sequences have separate kernels (`together.py`). Greedy decoding, and
sampling with a temperature alone, run on the device by themselves; tokens arrive in pinned memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.cpu.arguments import check_step
from fulgur.kernels.cuda.batch_step import BatchStep
from fulgur.kernels.cuda.chained import ChainedSteps
from fulgur.kernels.cuda.decode import Decode
from fulgur.kernels.cuda.device import Gpu, probe
from fulgur.kernels.cuda.few_step import FewStep
from fulgur.kernels.cuda.fit import kv_bytes_per_token, widest
from fulgur.kernels.cuda.kv_cache import KvCache, check_dtype, dtype_note
from fulgur.kernels.cuda.plan import KV_BLOCK
from fulgur.kernels.cuda.prefill_fast import prefill_for
from fulgur.kernels.cuda.prefill_run import PrefillRun
from fulgur.kernels.cuda.prompts import Prompts, chunk_rows
from fulgur.kernels.cuda.records import RING, STOPS
from fulgur.kernels.cuda.sampling import LOGPROB_RECORDS, DeviceSampler
from fulgur.kernels.cuda.stream import TokenStream, sampled_stream
from fulgur.kernels.cuda.together import Together
from fulgur.kernels.cuda.weights import GpuWeights, random_weights
from fulgur.model.config import ModelConfig
from fulgur.model.rope import rope_tables

if TYPE_CHECKING:
    from fulgur.engine.runtime import Logprob, RowChoice, Sampling

Int = npt.NDArray[np.int32]
Float = npt.NDArray[np.float32]

PREFILL_FROM: int | None = None  # rows of a prompt that are prefilled at once; None: measured when the model opens
WARM_CONTEXT = 32768  # up to this many tokens, the first prompt finds everything ready
WARM_ROWS = (1024, 2048)  # together with TRIAL and the longest chunk, they run every kernel once
TRIAL = 256  # rows of the prompt that is timed for PREFILL_FROM


class Runtime:
    block_tokens = KV_BLOCK
    states = drafting = None

    def __init__(
        self,
        weights: GpuWeights,
        *,
        kv_blocks: int,
        kv_dtype: str = "bf16",
        driver: str = "persistent",
        gpu: Gpu | None = None,
        profile: bool = False,
    ) -> None:
        """`kv_dtype`: how keys and values are stored (kv_cache.py). With `profile`, steps of one row count the cycles
        of their parts in `marks` (header.py names them)."""
        import torch

        self._torch = torch
        self.gpu = gpu or probe()
        self.weights, self.config, self.kv_blocks = weights, weights.plan.config, kv_blocks
        c = self.config
        self.vocab_size, self.max_context = c.vocab_size, min(c.max_context, kv_blocks * KV_BLOCK)
        self.driver, self.threads = driver, 1
        self.isa = f"{self.gpu.name}, {driver}, {weights.plan.matrices['qkv'].format.name}{dtype_note(kv_dtype)}"
        check_dtype(kv_dtype, self.gpu)
        self._stream = torch.cuda.Stream()
        self._beside: PrefillRun | None = None  # a prompt under way
        self.step_seconds = 0.0  # of the last step beside it, on the device
        try:
            device = weights.arena.device
            self.cache = KvCache(c.n_layers, kv_blocks, c.n_kv_heads, c.head_dim, kv_dtype, device)
            rope = torch.from_numpy(np.concatenate(rope_tables(c, self.max_context), axis=1)).to(device)
            held = {"weights": weights.arena, "norms": weights.norms, "embed": weights.embed, "rope": rope,
                    **self.cache.tensors}  # fmt: skip
            self._decode = Decode(
                replace(weights.plan, kv_dtype=kv_dtype), held, max_context=self.max_context, gpu=self.gpu,
                stream=self._stream, driver=driver, profile=profile, kv_blocks=kv_blocks,
            )  # fmt: skip
            self.mailbox, self.marks = self._decode.mailbox, self._decode.marks
            prefill = prefill_for(weights, self.cache, rope, self.gpu, self._stream)
            self._prompts = Prompts(prefill, self._stream, self._synchronize)
            width = -(-self.max_context // KV_BLOCK)
            self.together = Together(weights, prefill, width, self.gpu, self._stream)
            rows = self.together.rows
            self._sampler = DeviceSampler(c.vocab_size, rows, self.gpu, weights.arena.device, self._stream)
            self._chained = ChainedSteps(self.together, self._sampler, self._stream, _failed)
            self._decode.warm()
            self.max_rows = self.prefill_rows = chunk_rows(c, self.cache.layer_bytes)
            self.prefill_from = PREFILL_FROM or self._crossover()
            self.together.measure(self.step, c.vocab_size, min(kv_blocks * KV_BLOCK, self.max_context))
        except torch.cuda.OutOfMemoryError:
            need = kv_blocks * KV_BLOCK * kv_bytes_per_token(c, kv_dtype)
            raise FulgurError(
                f"the KV cache of {kv_blocks * KV_BLOCK:,} tokens needs {need / 1e9:.1f} GB: more than is free",
                hint="Set a smaller kv_tokens or narrower weights (bits).",
            ) from None

    def _crossover(self) -> int:
        """Measure from how many rows on a prompt is faster at once than in passes of 8. Runs every kernel and every
        import that the first prompt needs, on cache blocks that are not in use yet."""
        rows = min(TRIAL, self.kv_blocks * KV_BLOCK, self.max_context)
        longest = min(self.prefill_rows, self.kv_blocks * KV_BLOCK, self.max_context)
        table = np.arange(-(-longest // KV_BLOCK), dtype=np.int32)[None]
        at_once, by_pass = [], []
        for _ in range(3):
            start = time.perf_counter()
            self._prompts.rows(np.zeros(rows, np.int32), 0, table[0])
            at_once.append(time.perf_counter() - start)
            eight = np.arange(min(8, self._decode.plan.rows), dtype=np.int32)
            start = time.perf_counter()
            self._pass(eight, eight, np.zeros_like(eight), table, False)
            by_pass.append((time.perf_counter() - start) / len(eight))
        with self._torch.cuda.stream(self._stream):
            self._prompts.prefill.warm(self.prefill_rows, min(self.max_context, WARM_CONTEXT))
        for more in sorted({min(size, longest) for size in (*WARM_ROWS, longest)}):
            self._prompts.rows(np.zeros(more, np.int32), 0, table[0])
        return int(min(max(min(at_once) / min(by_pass), 16), 4 * TRIAL))

    @property
    def weight_bytes(self) -> int:
        return self.weights.nbytes

    @property
    def kv_bytes(self) -> int:
        return self.cache.nbytes

    def step(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, logit_rows: Int, logits: Float | None = None
    ) -> Int:
        """See `reference.Runtime.step`."""
        return self._step(tokens, positions, sequences, tables, logit_rows, None, logits)[0]

    def choose(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, logit_rows: Int,
        choices: Sequence[RowChoice | None],
    ) -> tuple[Int, list[Logprob | None]]:  # fmt: skip
        """Like `step`, but the device chooses the token of every row of `logit_rows` (None: the likeliest)."""
        return self._step(tokens, positions, sequences, tables, logit_rows, choices, None)

    def _step(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, logit_rows: Int,
        choices: Sequence[RowChoice | None] | None, logits: Float | None,
    ) -> tuple[Int, list[Logprob | None]]:  # fmt: skip
        tokens, positions, sequences, tables, logit_rows = (
            np.ascontiguousarray(a, np.int32) for a in (tokens, positions, sequences, tables, logit_rows)
        )
        check_step(self, tokens, positions, sequences, tables, logit_rows)
        n, begin = len(tokens), self._leading(tokens, positions, sequences, tables, logit_rows)
        best: Int = np.zeros(len(logit_rows), np.int32)
        logprobs: list[Logprob | None] = [None] * len(logit_rows)
        place = {row: i for i, row in enumerate(logit_rows.tolist())}
        while begin < n:
            together = self.together.choose(sequences[begin:])
            most = together.most if together is not None else self._decode.plan.rows
            end = min(begin + most, n)
            here = [row - begin for row in range(begin, end) if row in place]
            chosen = [(row, choices[place[begin + row]]) for row in here] if choices is not None else []
            arrays = (tokens[begin:end], positions[begin:end], sequences[begin:end], tables)
            if together is not None:
                chosen = chosen or [(row, None) for row in here]
                self._pass_together(together, arrays, chosen)
            else:
                self._pass(*arrays, bool(here) and (logits is not None or bool(chosen)), chosen)
            found, said = self._sampler.chosen(chosen) if chosen else ([self.mailbox.token[row] for row in here], [])
            for i, row in enumerate(here):
                at = place[begin + row]
                best[at], logprobs[at] = found[i], said[i] if said else None
            if logits is not None and here:
                made = self._decode.logits if together is None else together.logits
                rows = made[here].cpu().numpy()
                for row, values in zip(here, rows, strict=True):
                    logits[place[begin + row]] = values[: self.vocab_size]
            begin = end
        return best, logprobs

    def decode(self, token: int, position: int, table: Int, stop: Int, cancel: Int | None, limit: int) -> Iterator[int]:
        """Tokens as the device makes them, until a stop token, `limit` tokens, or soon after cancel[0] is set."""
        stops = {int(s) for s in stop}
        limit = min(limit, self.max_context - position, len(table) * KV_BLOCK - position)
        while limit > 0 and not (cancel is not None and cancel[0]):
            run = self.stream(token, position, table, stops, min(limit, RING))
            try:
                while not run.ended:
                    for token in run.read():
                        yield token
                        position, limit = position + 1, limit - 1
                        if token in stops:
                            return
                    if cancel is not None and cancel[0]:
                        yield from run.stop()
                        return
            finally:
                run.stop()

    @property
    def streaming(self) -> Runtime:
        return self

    @property
    def chained(self) -> ChainedSteps:
        return self._chained

    def stream(
        self,
        token: int,
        position: int,
        table: Int,
        stop: Collection[int],
        limit: int,
        sampling: Sampling | None = None,
        slot: int = 0,
    ) -> TokenStream:
        """Let the device decode by itself from `token` at `position`, for at most `limit` (up to RING) tokens. Until
        the run has ended or was stopped, nothing else on the runtime may be called. No layer has a state, so `slot` is
        ignored.

        With a temperature alone, tokens are sampled while the logits are computed; for everything else the kernels of
        `sampling.py` run between steps, which are queued a few ahead. Up to 16 stop tokens end the run on the device;
        the reader has to check for the others.
        """
        row = np.ascontiguousarray(table, np.int32)
        last = position + limit - 1
        if not 0 < limit <= RING:
            raise ValueError(f"a run takes 1 to {RING} tokens, not {limit}")
        first, zero = np.array([token], np.int32), np.zeros(1, np.int32)
        check_step(self, first, np.array([last], np.int32), zero, row[None], zero[:0])
        stops = set(sorted(stop)[:STOPS])
        at = np.array([position], np.int32)
        if sampling is not None and not sampling.plain:
            return self._stream_sampled(first, at, row, stops, limit, sampling)
        draw = None if sampling is None else (sampling.sharpness, sampling.seed)
        self._decode.upload(first, at, zero, row[None], steps=limit, stops=stops, draw=draw)

        def enqueue(steps: int) -> None:
            self._decode.run(steps=steps)

        if self.driver == "persistent":
            enqueue(limit)
        more = None if self.driver == "persistent" else enqueue
        return TokenStream(self.mailbox, self._decode.ring, limit, self._busy, self._synchronize, more)

    def _stream_sampled(
        self, token: Int, position: Int, table: Int, stops: set[int], limit: int, sampling: Sampling
    ) -> TokenStream:
        """A run whose steps are separate launches, each followed by a choice that sets up the next."""
        if sampling.logprobs >= 0:
            limit = min(limit, LOGPROB_RECORDS)
        decode = self._decode
        decode.upload(token, position, np.zeros(1, np.int32), table[None], sampled=True)
        decode.count(limit - 1)
        self._sampler.begin(
            sampling, int(position[0]) + 1, stops, limit, decode.logits.data_ptr(), **decode.addresses()
        )  # fmt: skip

        def step() -> None:
            decode.run(logits=True)

        return sampled_stream(
            decode.mailbox, decode.ring, self._sampler, step, sampling.grammar, limit, self._busy, self._synchronize
        )  # fmt: skip

    def _busy(self) -> bool:
        try:
            return not self._stream.query()
        except RuntimeError as error:  # torch's error for a failed kernel
            raise _failed(error) from None

    def copy_block(self, source: int, target: int) -> None:
        for block in (source, target):
            if not 0 <= block < self.kv_blocks:
                raise ValueError(f"KV block {block} does not exist; there are {self.kv_blocks}")
        with self._torch.cuda.stream(self._stream):
            self.cache.copy_block(source, target)

    def randomize_cache(self) -> None:
        """Random keys and values at every position."""
        with self._torch.cuda.stream(self._stream):
            self.cache.randomize()

    def close(self) -> None:
        self._synchronize()
        self._prompts.prefill.close()
        self._sampler.close()
        self._chained.close()
        self.together.close()
        self._decode.close()

    def _pass_together(
        self,
        together: FewStep | BatchStep,
        arrays: tuple[Int, Int, Int, Int],
        choices: Sequence[tuple[int, RowChoice | None]],
    ) -> None:
        """A pass over rows of several sequences. If no row's result is wanted, it still stores keys and values."""

        def run() -> None:
            together.run(*arrays)
            if choices:
                self._sampler.choose(choices, together.logits.data_ptr(), together.logits.shape[1])

        self._timed(run)

    def _pass(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, logits: bool,
        choices: Sequence[tuple[int, RowChoice | None]] = (),
    ) -> None:  # fmt: skip
        used, local = np.unique(sequences, return_inverse=True)
        decode = self._decode
        decode.upload(tokens, positions, local.astype(np.int32), tables[used])

        def run() -> None:
            decode.run(len(tokens), logits=logits)
            if choices:
                self._sampler.choose(choices, decode.logits.data_ptr())

        self._timed(run)

    def _timed(self, run: Callable[[], None]) -> None:
        """Queue a pass and wait for it. After it, queue parts of a prompt, within its fraction of the device's time."""
        beside = self._beside if self._beside is not None and self._beside.time_fraction is not None else None
        if beside is not None:
            self._started.record(self._stream)
        run()
        if beside is None:
            self._synchronize()
            return
        self._ended.record(self._stream)
        beside.queue(self.step_seconds)
        try:
            self._ended.synchronize()
        except RuntimeError as error:  # torch's error for a failed kernel
            raise _failed(error) from None
        self.step_seconds = self._started.elapsed_time(self._ended) / 1e3

    @property
    def prefilling(self) -> Runtime:
        return self

    def begin_prefill(self, tokens: Int, position: int, table: Int, slot: int = 0) -> PrefillRun:
        """Store keys and values of a prompt's `tokens`, from `position` on, in parts: see `PrefillRun`."""
        zeros = np.zeros(len(tokens), np.int32)
        positions = np.arange(position, position + len(tokens), dtype=np.int32)
        tokens, row = np.ascontiguousarray(tokens, np.int32), np.ascontiguousarray(table, np.int32)
        check_step(self, tokens, positions, zeros, row[None], zeros[:0])
        self._beside = PrefillRun(self._prompts.parts(tokens, position, row), self._stream)
        self._started, self._ended = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.step_seconds = 0.0
        return self._beside

    def _leading(self, tokens: Int, positions: Int, sequences: Int, tables: Int, logit_rows: Int) -> int:
        """Prefill the leading rows at once, if they are a long run of one prompt without logits; returns how many."""
        n = int(logit_rows.min()) if len(logit_rows) else len(tokens)
        n = min(n, int((sequences == sequences[0]).sum()))
        if n < self.prefill_from:
            return 0
        more = n == len(tokens)  # of the prompt, in further steps
        return self._prompts.rows(tokens[:n], int(positions[0]), tables[sequences[0]], wait=not more)

    def _synchronize(self) -> None:
        try:
            self._stream.synchronize()
        except RuntimeError as error:  # torch's error for a failed kernel
            raise _failed(error) from None


def _failed(error: RuntimeError) -> FulgurError:
    return FulgurError(f"the GPU failed: {str(error).splitlines()[0]}", hint="Start the engine again.")


def open_random(
    config: ModelConfig,
    *,
    weights: str,
    head: str | None = None,
    kv_blocks: int,
    kv_dtype: str = "bf16",
    driver: str = "persistent",
    seed: int = 0,
) -> Runtime:
    """A random model, generated on the GPU, for benchmarks."""
    gpu = probe()
    plan = widest(config, weights, head, gpu)
    made = random_weights(plan, "cuda", seed)
    return Runtime(made, kv_blocks=kv_blocks, kv_dtype=kv_dtype, driver=driver, gpu=gpu)
