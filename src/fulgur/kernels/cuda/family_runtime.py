"""The GPU runtime for models of any family: the interface of `engine.runtime`, over the general driver.

A step of up to 8 rows is one CUDA graph with one kernel per part of a layer (`family_step.py`); more rows take several
passes, and a long run of prompt tokens is prefilled at once (`family_prefill.py`). Tokens are chosen on the device
(`sampling.py`), in runs without the host. If the decode kernels can run the model too (`decode.py`), they take the
steps and runs of a single sequence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.kernels.cpu.arguments import check_step
from fulgur.kernels.cuda.alone import ROOM, trial, why_general
from fulgur.kernels.cuda.batch_step import StepRows
from fulgur.kernels.cuda.beside import Beside
from fulgur.kernels.cuda.decode import Decode
from fulgur.kernels.cuda.device import Gpu, probe
from fulgur.kernels.cuda.family_draft import DraftLogs
from fulgur.kernels.cuda.family_graphs import FamilyGraphs
from fulgur.kernels.cuda.family_kernels import FamilyKernels
from fulgur.kernels.cuda.family_prefill_fast import prefill_for
from fulgur.kernels.cuda.family_prompts import FamilyPrompts
from fulgur.kernels.cuda.family_states import FamilyStates
from fulgur.kernels.cuda.family_step import FamilyStep
from fulgur.kernels.cuda.family_weights import FamilyWeights
from fulgur.kernels.cuda.kv_cache import KvCache, check_dtype, dtype_note
from fulgur.kernels.cuda.plan import KV_BLOCK, Plan
from fulgur.kernels.cuda.prefill_run import PrefillRun
from fulgur.kernels.cuda.records import RING, STOPS, Mailbox
from fulgur.kernels.cuda.sampling import LOGPROB_RECORDS, DeviceSampler
from fulgur.kernels.cuda.stream import TokenStream, sampled_stream
from fulgur.model.rope import query_scale, rope_tables

if TYPE_CHECKING:
    from fulgur.engine.runtime import Logprob, RowChoice, Sampling

Int = npt.NDArray[np.int32]
Float = npt.NDArray[np.float32]

PREFILL_FROM = 64  # rows of a prompt that are prefilled at once
RUN = 64  # tokens of a run if layers have states: a stop may have to compute them again
SLOTS, SNAPSHOTS = 8, 16


class FamilyRuntime:
    block_tokens = KV_BLOCK
    driver, threads = "general", 1
    chained = None

    def __init__(
        self, weights: FamilyWeights, *, kv_blocks: int, kv_dtype: str = "bf16", gpu: Gpu | None = None,
        slots: int = SLOTS, snapshots: int = SNAPSHOTS,
    ) -> None:  # fmt: skip
        """`kv_dtype`: how keys and values are stored (kv_cache.py). If layers have a state, up to `slots` sequences may
        run at once, and `snapshots` states can be kept."""
        import torch

        self._torch, self.gpu = torch, gpu or probe()
        self.weights, self.plan, self.config, self.kv_blocks = weights, weights.plan, weights.plan.config, kv_blocks
        c, plan, device = self.config, self.plan, weights.arena.device
        self.vocab_size, self.max_context = c.vocab_size, min(c.max_context, kv_blocks * KV_BLOCK)
        self.isa = self._isa_of("general" if plan.decode is None else "persistent", kv_dtype)
        check_dtype(kv_dtype, self.gpu)
        self._stream = torch.cuda.Stream()
        try:
            self.cache = KvCache(plan.kv_layers, kv_blocks, c.n_kv_heads, c.head_dim, kv_dtype, device)
            self._drafts: DraftLogs | None = None
            if c.draft_vocab:
                self._drafts = DraftLogs(slots, snapshots, c.d_model, device, self._stream, self._see)
            self.states: FamilyStates | None = None
            if plan.delta_layers:
                again, drafts = self._compute_again, self._drafts
                self.states = FamilyStates(plan, slots, snapshots, device, self._stream, again, drafts)
            self._allocate(device)
        except torch.cuda.OutOfMemoryError:
            keys = kv_blocks * KV_BLOCK * plan.kv_bytes_per_token(kv_dtype)
            need = keys + (slots + 1 + snapshots) * plan.slot_bytes
            raise FulgurError(
                f"the caches of {kv_blocks * KV_BLOCK:,} tokens need {need / 1e9:.1f} GB: more than is free",
                hint="Set a smaller kv_tokens or narrower weights (bits).",
            ) from None

    def _allocate(self, device: Any) -> None:
        torch, c = self._torch, self.config
        rope = torch.from_numpy(np.concatenate(rope_tables(c, self.max_context), axis=1)).to(device)
        scales = query_scale(c, np.arange(self.max_context)) if c.query_scaling is not None else None
        query_scales = None if scales is None else torch.from_numpy(scales).to(device)
        self._staged = torch.zeros(ctypes.sizeof(StepRows), dtype=torch.uint8).pin_memory()
        self._record = StepRows.from_address(self._staged.data_ptr())
        self._rows = torch.zeros_like(self._staged, device=device)
        width = -(-self.max_context // KV_BLOCK)
        self._tables = torch.zeros((self.plan.rows, width), dtype=torch.int32, device=device)
        self._tables_held: Int = np.zeros((self.plan.rows, width), np.int32)
        self._mail = torch.zeros(ctypes.sizeof(Mailbox), dtype=torch.uint8).pin_memory()
        self.mailbox: Any = Mailbox.from_address(self._mail.data_ptr())
        self._ring: Int = self._mail.numpy()[Mailbox.token.offset :].view(np.int32)
        self._unused = torch.zeros(4, dtype=torch.int32, device=device)
        held, known = (None, None) if self.states is None else (self.states.held, self.states.known)
        kernels = FamilyKernels(self.plan, self.gpu, self._stream)
        ring = None if self._drafts is None else self._drafts.ring
        self.steps = FamilyStep(
            self.weights, self._rows, self._tables, self.cache, rope, query_scales, held, known, ring
        )
        self.graphs = FamilyGraphs(kernels, self.steps, self._stream)
        self._decode = None if self.plan.decode is None else self._decode_kernels(self.plan.decode, rope)
        self._prefill = prefill_for(
            self.weights, self.cache, rope, query_scales, self.states, self.gpu, self._stream
        )  # fmt: skip
        self._prompts = FamilyPrompts(self._prefill, self.states, self._drafts, self._stream)
        self._beside = Beside(self._stream, self._synchronize)
        self._sampler = DeviceSampler(c.vocab_size, self.plan.rows, self.gpu, device, self._stream)
        self._draft_sampler = DeviceSampler(c.draft_vocab, 1, self.gpu, device, self._stream) if c.draft_vocab else None
        self._logits = self.steps.buffers["logits"]
        torch.cuda.synchronize()  # buffers are made on another stream
        self.graphs.warm()
        if self._decode is not None:
            self._decode.warm()
        self.max_rows = self.prefill_rows = self._prefill.chunk
        self.prefill_from = PREFILL_FROM

    def _decode_kernels(self, plan: Plan, rope: Any) -> Decode:
        weights, states = self.weights, self.states
        assert states is not None
        held = {"weights": weights.arena, "norms": weights.norms, "embed": weights.embed, "rope": rope,
                "side": weights.side, "states": states.held, "known": states.known, **self.cache.tensors}  # fmt: skip
        if self._drafts is not None:
            held["hidden"] = self._drafts.ring
        return Decode(
            replace(plan, kv_dtype=self.cache.dtype), held, max_context=self.max_context, gpu=self.gpu,
            stream=self._stream, kv_blocks=self.kv_blocks, slot_floats=states.held.stride(0),
        )  # fmt: skip

    def choose_alone(self) -> None:
        """Try both ways to run a single sequence, and keep the better one (alone.py). Nothing may run yet."""
        if (decode := self._decode) is None or self.max_context < ROOM:
            return
        by_decode, self._decode = trial(self), None
        if why := why_general(by_decode, trial(self)):
            self.isa = self._isa_of(f"general: {why}", self.cache.dtype)
            decode.close()
        else:
            self._decode = decode

    def _isa_of(self, way: str, kv_dtype: str) -> str:
        return f"{self.gpu.name}, {way}, {self.plan.matrices['layers.0.qkv'].format.name}{dtype_note(kv_dtype)}"

    @property
    def streaming(self) -> FamilyRuntime:
        return self

    @property
    def prefilling(self) -> FamilyRuntime:
        return self

    @property
    def step_seconds(self) -> float:
        return self._beside.step_seconds

    @property
    def drafting(self) -> FamilyRuntime | None:
        return None if self._drafts is None else self

    @property
    def weight_bytes(self) -> int:
        return self.weights.nbytes

    @property
    def kv_bytes(self) -> int:
        return self.cache.nbytes + (0 if self.states is None else self.states.nbytes)

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
        decode = self._decode if begin < n and np.all(sequences[begin:] == sequences[begin]) else None
        most = self.plan.rows if decode is None else decode.plan.rows
        made = self._logits if decode is None else decode.logits
        long = self._before_long(positions, sequences, tables, logit_rows, begin, most)
        while begin < n:
            end = min(begin + most, n)
            here = [row - begin for row in range(begin, end) if row in place]
            chosen = [(row, None if choices is None else choices[place[begin + row]]) for row in here]
            part = tokens[begin:end], positions[begin:end], sequences[begin:end]
            self._beside.step(partial(self._queue, *part, tables, decode, chosen))
            found, said = self._sampler.chosen(chosen) if chosen else ([], [])
            for i, row in enumerate(here):
                best[place[begin + row]], logprobs[place[begin + row]] = found[i], said[i]
            if logits is not None and here:
                for row, values in zip(here, made[here].cpu().numpy(), strict=True):
                    logits[place[begin + row]] = values
            begin = end
        for slot, own in long.items():
            assert self.states is not None
            self.states.after_passes(slot, tokens[own].tolist())
        return best, logprobs

    def _queue(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, decode: Decode | None,
        chosen: list[tuple[int, RowChoice | None]],
    ) -> None:  # fmt: skip
        """Queue a pass, and the choice of the tokens that are wanted."""
        self._pass(tokens, positions, sequences, tables, decode, bool(chosen))
        if chosen:
            self._sampler.choose(chosen, (self._logits if decode is None else decode.logits).data_ptr())

    def _before_long(
        self, positions: Int, sequences: Int, tables: Int, logit_rows: Int, begin: int, most: int
    ) -> dict[int, npt.NDArray[np.int64]]:
        """Keep the states of sequences that take more than one pass of `most` rows and may be right only in the first.
        Returns these sequences with their rows."""
        if self.states is None:
            return {}
        long: dict[int, npt.NDArray[np.int64]] = {}
        for slot in np.unique(sequences[begin:]).tolist():
            own = begin + np.flatnonzero(sequences[begin:] == slot)
            last = begin + (own[-1] - begin) // most * most  # where the last pass begins
            if own[0] < last and np.any((logit_rows >= own[0]) & (logit_rows < last)):
                long[slot] = own
        begins = {slot: int(positions[own[0]]) for slot, own in long.items()}
        if begins:
            self.states.before_runs(begins, {slot: tables[slot] for slot in begins})
        return long

    def _pass(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, decode: Decode | None, head: bool
    ) -> None:  # fmt: skip
        """Queue a pass over a few rows; `decode`: the decode kernels, if all rows belong to one sequence."""
        used, starts = np.unique(sequences, return_index=True)
        if self.states is not None:
            for sequence, start in zip(used.tolist(), starts.tolist(), strict=True):
                own = int((sequences == sequence).sum())
                self.states.begin(sequence, int(positions[start]), own, tables[sequence])
        if self._drafts is not None:
            for sequence, start in zip(used.tolist(), starts.tolist(), strict=True):
                given = tokens[sequences == sequence].tolist()
                self._drafts.begin(sequence, int(positions[start]), given, tables[sequence])
        if decode is not None:
            slot = int(used[0])
            decode.upload(tokens, positions, np.zeros_like(tokens), tables[slot][None], slot=slot)
            decode.run(len(tokens), logits=True)
            return
        self._upload(tokens, positions, sequences, {int(s): tables[s] for s in used})
        self.graphs.replay("logits" if head else "hidden", len(tokens))

    def _upload(self, tokens: Int, positions: Int, sequences: Int, tables: dict[int, Int]) -> None:
        """Upload the rows of the next step: written to pinned memory, then copied. The device is idle."""
        torch, n, record = self._torch, len(tokens), self._record
        places = {sequence: place for place, sequence in enumerate(tables)}
        with torch.cuda.stream(self._stream):
            for sequence, place in places.items():
                table = np.maximum(tables[sequence][: self._tables.shape[1]], 0)
                if not np.array_equal(table, self._tables_held[place, : len(table)]):
                    self._tables_held[place, : len(table)] = table
                    self._tables[place, : len(table)].copy_(torch.from_numpy(table.copy()))
            record.count, record.done, record.produced = n, 0, 0
            record.token[:n], record.position[:n] = tokens.tolist(), positions.tolist()
            record.slot[:n] = sequences.tolist()
            record.table[:n] = [places[int(s)] for s in sequences]
            self._rows.copy_(self._staged, non_blocking=True)

    def draft(self, token: int, position: int, sequence: int, tables: Int, length: int) -> list[int]:
        """See `engine.runtime.DraftingRuntime`. Guesses are chained on the device, like the tokens of a run."""
        assert self._drafts is not None and self._draft_sampler is not None
        if not self._drafts.knows(sequence, position):
            return []
        table = np.ascontiguousarray(tables[sequence], np.int32)
        self._drafts.catch_up(sequence, table, position)
        self._begin_run(token, position, sequence, table)
        logits = self.steps.buffers["draft_logits"].data_ptr()
        self._draft_sampler.begin(None, position + 1, (), length, logits, **self._run_addresses())
        for _ in range(length):
            self.graphs.replay("guess", 1)
            self._draft_sampler.queue()
        self._synchronize()
        guesses: list[int] = self._ring[:length].tolist()
        return guesses

    def catch_up(self, sequence: int, tables: Int) -> None:
        assert self._drafts is not None
        self._drafts.catch_up(sequence, np.ascontiguousarray(tables[sequence], np.int32))

    def _see(self, slot: int, position: int, tokens: list[int], table: Int) -> None:
        every = np.array(tokens, np.int32)
        for begin in range(0, len(every), self.plan.rows):
            part = every[begin : begin + self.plan.rows]
            at = np.arange(position + begin, position + begin + len(part), dtype=np.int32)
            self._upload(part, at, np.full(len(part), slot, np.int32), {slot: table})
            self.graphs.replay("see", len(part))
            self._synchronize()

    def _begin_run(self, token: int, position: int, slot: int, table: Int) -> None:
        """Upload one row, which the device then advances."""
        ctypes.memset(self._mail.data_ptr(), 0, 16)
        first, at, sequence = (np.array([value], np.int32) for value in (token, position, slot))
        self._upload(first, at, sequence, {slot: table})

    def _run_addresses(self) -> dict[str, int]:
        """The addresses with which the sampler sets up the next step of a run."""
        rows, fields = self._rows.data_ptr(), ("token", "position", "first", "produced", "done")
        found = {f"state_{name}": rows + getattr(StepRows, name).offset for name in fields}
        return {**found, "counter": self._unused.data_ptr(), "mailbox": self._mail.data_ptr()}

    def stream(
        self, token: int, position: int, table: Int, stop: Collection[int], limit: int,
        sampling: Sampling | None = None, slot: int = 0,
    ) -> TokenStream:  # fmt: skip
        """Let the device decode by itself: see `engine.runtime.StreamingRuntime`. `slot` is the sequence's."""
        row = np.ascontiguousarray(table, np.int32)
        if not 0 < limit <= RING:
            raise ValueError(f"a run takes 1 to {RING} tokens, not {limit}")
        limit = limit if self.states is None else min(limit, RUN)
        if sampling is not None and sampling.logprobs >= 0:
            limit = min(limit, LOGPROB_RECORDS)
        first, zero = np.array([token], np.int32), np.zeros(1, np.int32)
        check_step(self, first, np.array([position + limit - 1], np.int32), zero, row[None], zero[:0])
        with self._torch.cuda.stream(self._stream):
            if self.states is not None:
                self.states.before_runs({slot: position}, {slot: row})
        if self._drafts is not None:
            self._drafts.begin(slot, position, [token] * limit, row)
        stops, grammar, decode = set(sorted(stop)[:STOPS]), sampling is not None and sampling.grammar, self._decode
        box, ring = (self.mailbox, self._ring) if decode is None else (decode.mailbox, decode.ring)

        def ended() -> None:
            self._synchronize()
            made = int(box.count)
            # Under a grammar the step after the last token is under way before its mask is known.
            steps = made + 1 if grammar and not box.finished else made
            computed = [token, *ring[:made].tolist()][:steps]
            if self.states is not None:
                self.states.after_run(slot, computed)
            if self._drafts is not None:
                self._drafts.made(slot, position, computed)

        if decode is not None:
            alone = sampling is None or sampling.plain
            draw = None if sampling is None or not alone else (sampling.sharpness, sampling.seed)
            decode.upload(
                first, np.array([position], np.int32), zero, row[None], steps=limit if alone else 1,
                stops=stops if alone else (), draw=draw, sampled=not alone, slot=slot,
            )  # fmt: skip
            if alone:
                decode.run(steps=limit)
                return TokenStream(box, ring, limit, self._busy, ended, None)
            decode.count(limit - 1)
            logits, addresses, step = decode.logits, decode.addresses(), partial(decode.run, logits=True)
        else:
            self._begin_run(token, position, slot, row)
            logits, addresses, step = self._logits, self._run_addresses(), partial(self.graphs.replay, "logits", 1)
        self._sampler.begin(sampling, position + 1, stops, limit, logits.data_ptr(), **addresses)
        return sampled_stream(box, ring, self._sampler, step, grammar, limit, self._busy, ended)

    def _compute_again(self, slot: int, position: int, tokens: list[int], table: Int) -> None:
        """Compute tokens of a run again, for the states after them; their keys and values exist already."""
        every = np.array(tokens, np.int32)
        tables = np.tile(table, (slot + 1, 1))
        most = self.plan.rows if self._decode is None else self._decode.plan.rows
        for begin in range(0, len(every), most):
            part = every[begin : begin + most]
            at = np.arange(position + begin, position + begin + len(part), dtype=np.int32)
            self._pass(part, at, np.full(len(part), slot, np.int32), tables, self._decode, False)
            self._synchronize()

    def _leading(self, tokens: Int, positions: Int, sequences: Int, tables: Int, logit_rows: Int) -> int:
        """Prefill the leading rows at once, if they are a long run of one prompt without logits; returns how many."""
        n = int(logit_rows.min()) if len(logit_rows) else len(tokens)
        n = min(n, int((sequences == sequences[0]).sum()))
        if n < self.prefill_from:
            return 0
        slot = int(sequences[0])
        done = self._prompts.rows(tokens[:n], int(positions[0]), tables[slot], slot)
        self._synchronize()
        return done

    def begin_prefill(self, tokens: Int, position: int, table: Int, slot: int = 0) -> PrefillRun:
        """Compute the next tokens of a prompt, from `position` on, in parts: see `PrefillRun`."""
        zeros = np.zeros(len(tokens), np.int32)
        positions = np.arange(position, position + len(tokens), dtype=np.int32)
        tokens, row = np.ascontiguousarray(tokens, np.int32), np.ascontiguousarray(table, np.int32)
        check_step(self, tokens, positions, zeros, row[None], zeros[:0])
        return self._beside.begin(self._prompts.begin(tokens, position, row.copy(), slot))

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
        self.graphs.close()
        if self._decode is not None:
            self._decode.close()
        self._prefill.close()
        self._sampler.close()
        if self._draft_sampler is not None:
            self._draft_sampler.close()

    def _busy(self) -> bool:
        try:
            return not self._stream.query()
        except RuntimeError as error:  # torch's error for a failed kernel
            raise _failed(error) from None

    def _synchronize(self, what: Any = None) -> None:
        """Wait for an event, or for all that is queued."""
        try:
            (what or self._stream).synchronize()
        except RuntimeError as error:
            raise _failed(error) from None


def _failed(error: RuntimeError) -> FulgurError:
    return FulgurError(f"the GPU failed: {str(error).splitlines()[0]}", hint="Start the engine again.")
