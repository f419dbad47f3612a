"""Chooses tokens on the device: the kernels of csrc/sample.cu, their input and output.

For the rows of a step (`choose`), or for a run of steps in which every choice sets up the next step (`begin`, then
`queue`).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.build import architecture, cubin_of, sources
from fulgur.kernels.cuda.device import Gpu, Module
from fulgur.kernels.cuda.records import STOPS

if TYPE_CHECKING:
    from fulgur.engine.runtime import Bits, History, Logprob, RowChoice, Sampling

SLICE, THREADS, CHOOSE, CHOOSE_ALL = 2048, 256, 256, 512
LOGPROB_RECORDS, ALTERNATIVES = 512, 100  # records of log-probabilities; tokens in one
RECORD = 2 + 2 * ALTERNATIVES
MOST = 128  # tokens that a slice passes on, at most
ROOM = 2048  # bytes of choose_token's record in shared memory
BINS = 8 * 1024  # bytes of choose_among_all's bins
LISTS = 160 << 10  # bytes of lists in shared memory
EXTRAS = 80  # tokens of a row that are not in its counts yet, at most

_P, _I, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_float


class SampleRow(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("counts", "bias", "mask")),
        ("top_p", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        *((name, _F) for name in ("sharpness", "floor", "repetition", "frequency", "presence")),
        *((name, _I) for name in ("position", "top_k", "kept", "alternatives", "logits")),
        *((name, _I) for name in ("extra", "extras", "commit", "pad")),
    )

    @property
    def narrows(self) -> bool:
        """As in sample.cu."""
        return self.sharpness > 0 and (self.top_k > 0 or self.top_p < 1 or self.floor > -math.inf)


class Sample(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("logits", "work", "rows", "extra", "parts", "best", "likely", "logprobs", "tokens")),
        *((name, _P) for name in ("ended", "state_token", "state_position", "state_first", "state_produced")),
        *((name, _P) for name in ("state_done", "counter", "mailbox", "stop")),
        *((name, _I) for name in ("stops", "limit", "vocab", "slices", "most", "stride")),
    )


class DeviceSampler:
    """`rows` of logits at a time, on torch's `stream`."""

    def __init__(self, vocab: int, rows: int, gpu: Gpu, device: Any, stream: Any) -> None:
        import torch

        self.rows, self._vocab, self._device, self._stream = rows, vocab, device, stream
        self._slices, self._words = -(-vocab // SLICE), -(-vocab // 32)
        self._most = min(MOST, min(LISTS, gpu.shared - ROOM - BINS) // (12 * self._slices))
        self._module = Module(cubin_of("sample", sources("sample"), architecture(gpu.capability)))
        sizes = (ctypes.sizeof(SampleRow) * rows, 4 * EXTRAS * rows, 4 * STOPS, 4 * self._words * rows)
        self._at = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes)]).tolist()
        self._staged = torch.zeros(self._at[-1], dtype=torch.uint8).pin_memory()
        self._control = torch.zeros(self._at[-1], dtype=torch.uint8, device=device)
        self._records = (SampleRow * rows).from_address(self._staged.data_ptr())
        staged = self._staged.numpy()
        self._extra: npt.NDArray[np.int32] = staged[self._at[1] : self._at[2]].view(np.int32)
        self._stops: npt.NDArray[np.int32] = staged[self._at[2] : self._at[3]].view(np.int32)
        self._masks: Bits = staged[self._at[3] : self._at[3] + sizes[3]].view(np.uint32).reshape(rows, -1)
        self._logprobs = torch.zeros((max(LOGPROB_RECORDS, rows), RECORD)).pin_memory()
        self._tokens = torch.zeros((2, rows), dtype=torch.int32).pin_memory()
        lists = 8 * rows * self._slices * self._most
        self._buffers = {
            name: torch.zeros(size, dtype=torch.uint8, device=device)
            for name, size in (
                ("work", 4 * rows * vocab), ("parts", 32 * rows * self._slices), ("best", lists), ("likely", lists),
                ("ended", 16), ("counts", 4 * vocab), ("bias", 4 * vocab),
            )
        }  # fmt: skip
        self._bias: dict[int, Any] = {}  # of the rows under way
        self._described: dict[int, tuple[Sampling | None, bytes]] = {}  # records of the last step, by their sampling
        self._likeliest: list[int] = []  # rows whose records on the device ask for the likeliest token already
        self._made: dict[tuple[int, int, int], Sample] = {}  # arguments by logits, stride and place of the tokens

    def choose(self, choices: Sequence[tuple[int, RowChoice | None]], logits: int, stride: int = 0) -> None:
        """Queue the choices of a step: for each, its row of the logits and how to choose (None: the likeliest token).

        `stride`: floats per row of the logits, if not the vocabulary's size."""
        rows = [row for row, choice in choices if choice is None]
        if len(rows) == len(choices) and rows == self._likeliest:
            self._launch(self._arguments(logits, stride), len(rows))
            return
        self._likeliest = rows if len(rows) == len(choices) else []
        extra, committed = 0, set()
        self._bias.clear()
        kept: dict[int, tuple[Sampling | None, bytes]] = {}
        for i, (row, choice) in enumerate(choices):
            record = self._records[i]
            sampling = None if choice is None else choice.sampling
            same = self._described.get(id(sampling))
            if same is None or same[0] is not sampling:
                self._describe(record, sampling)
                same = sampling, bytes(record)
            else:
                ctypes.memmove(ctypes.addressof(record), same[1], len(same[1]))
            kept[id(sampling)] = same
            record.logits = row
            if choice is None:
                continue
            record.position = choice.position
            assert sampling is not None
            if sampling.bias is not None:
                record.bias = self._bias_of(sampling)
            if choice.mask is not None:
                self._masks[i] = choice.mask[: self._words]
                record.mask = self._control.data_ptr() + self._at[3] + 4 * self._words * i
            if sampling.history is not None:
                record.counts = self._counts_of(sampling.history)
                missing = [*sampling.history.pending, *choice.draft]
                record.extra, record.extras = extra, len(missing)
                if id(sampling.history) not in committed:
                    committed.add(id(sampling.history))
                    record.commit = len(sampling.history.pending)
                self._extra[extra : extra + len(missing)] = missing
                extra += len(missing)
        self._described = kept
        for _, choice in choices:
            if choice is not None and choice.sampling.history is not None:
                choice.sampling.history.pending.clear()
        masked = [i for i, (_, choice) in enumerate(choices) if choice is not None and choice.mask is not None]
        self._upload(masked[-1] + 1 if masked else 0)
        self._launch(self._arguments(logits, stride), len(choices))

    def again(self, rows: int, logits: int, stride: int, place: int) -> None:
        """Queue the last choices again, one position further (`positions` says where it is kept); the tokens go to
        `place`, 0 or 1. Those of `choose` are at 0."""
        self._launch(self._arguments(logits, stride, place), rows)

    def tokens(self, rows: int, place: int) -> list[int]:
        """The tokens of a place, after waiting for them."""
        found: list[int] = self._tokens[place, :rows].tolist()
        return found

    def place(self, place: int) -> int:
        """The address at which the device finds the tokens of `place`."""
        address: int = self._tokens[place].data_ptr()
        return address

    @property
    def positions(self) -> tuple[int, int]:
        """The address of the first choice's position, and the bytes from each to the next."""
        return self._control.data_ptr() + SampleRow.position.offset, ctypes.sizeof(SampleRow)

    def chosen(self, choices: Sequence[tuple[int, RowChoice | None]]) -> tuple[list[int], list[Logprob | None]]:
        """After waiting for the stream: the tokens, and log-probabilities where they were requested."""
        logprobs = [
            self._logprob_at(i) if choice is not None and choice.sampling.logprobs >= 0 else None
            for i, (_, choice) in enumerate(choices)
        ]
        return self.tokens(len(choices), 0), logprobs

    def begin(
        self, sampling: Sampling | None, position: int, stops: Collection[int], limit: int, logits: int, **state: int
    ) -> None:
        """Begin a run: tokens of one row, from `position` on (None: the likeliest). `state` holds the addresses that
        set up a step."""
        import torch

        self._likeliest = []
        record = self._records[0]
        self._describe(record, sampling)
        record.position = position
        with torch.cuda.stream(self._stream):
            self._buffers["ended"].zero_()
            if sampling is not None and sampling.history is not None:
                held = torch.from_numpy(sampling.history.held.view(np.uint8))
                self._buffers["counts"].copy_(held)
                record.counts = self._buffers["counts"].data_ptr()
                sampling.history.device = None  # the run is ahead of it
                sampling.history.pending.clear()
            if sampling is not None and sampling.bias is not None:
                self._buffers["bias"].copy_(torch.from_numpy(sampling.bias.view(np.uint8)))
                record.bias = self._buffers["bias"].data_ptr()
        if sampling is not None and sampling.grammar:
            record.mask = self._control.data_ptr() + self._at[3]
        self._stops[: len(stops)] = sorted(stops)
        self._upload()
        self._run = Sample.from_buffer_copy(self._arguments(logits))
        self._run.ended = self._buffers["ended"].data_ptr()
        self._run.stop, self._run.stops = self._control.data_ptr() + self._at[2], len(stops)
        self._run.limit = limit
        for name, address in state.items():
            setattr(self._run, name, address)

    def allow(self, mask: Bits) -> None:
        """Set the mask of the next choice of the run. The last choice has been made."""
        import torch

        self._masks[0] = mask[: self._words]
        begin, end = self._at[3], self._at[3] + 4 * self._words
        with torch.cuda.stream(self._stream):
            self._control[begin:end].copy_(self._staged[begin:end], non_blocking=True)

    def queue(self) -> None:
        """Queue the next choice of the run."""
        self._launch(self._run, 1)

    def logprobs(self, first: int, count: int) -> list[Logprob]:
        """The log-probabilities of `count` tokens of the run, from `first` on; the last LOGPROB_RECORDS are kept."""
        return [self._logprob_at(i % LOGPROB_RECORDS) for i in range(first, first + count)]

    def close(self) -> None:
        self._module.close()

    def _describe(self, record: SampleRow, sampling: Sampling | None) -> None:
        ctypes.memset(ctypes.addressof(record), 0, ctypes.sizeof(record))
        record.alternatives, record.repetition, record.top_p = -1, 1.0, 1.0
        if sampling is None:
            return
        record.sharpness, record.seed, record.floor = sampling.sharpness, sampling.seed, sampling.floor
        record.top_k, record.top_p = min(sampling.top_k, self._vocab), sampling.top_p
        record.kept = sampling.top_k if sampling.top_k <= self._most else 0
        record.repetition, record.frequency = sampling.repetition, sampling.frequency
        record.presence, record.alternatives = sampling.presence, min(sampling.logprobs, ALTERNATIVES)

    def _arguments(self, logits: int, stride: int = 0, place: int = 0) -> Sample:
        if (logits, stride, place) in self._made:
            return self._made[logits, stride, place]
        made = self._made[logits, stride, place] = Sample(
            logits=logits, vocab=self._vocab, slices=self._slices, most=self._most, stride=stride or self._vocab
        )
        for name in ("work", "parts", "best", "likely"):
            setattr(made, name, self._buffers[name].data_ptr())
        made.rows, made.extra = self._control.data_ptr(), self._control.data_ptr() + self._at[1]
        made.logprobs, made.tokens = self._logprobs.data_ptr(), self.place(place)
        return made

    def _launch(self, arguments: Sample, rows: int) -> None:
        stream = self._stream.cuda_stream
        self._module.launch(
            "scan_logits", arguments, ctas=rows * self._slices, threads=THREADS, shared=256, stream=stream
        )
        shared = ROOM + 12 * self._slices * self._most
        all_tokens = not self._likeliest and any(r.narrows and not r.kept for r in self._records[:rows])
        name, threads = ("choose_among_all", CHOOSE_ALL) if all_tokens else ("choose_token", CHOOSE)
        shared += BINS if all_tokens else 0
        self._module.launch(name, arguments, ctas=rows, threads=threads, shared=shared, stream=stream)

    def _upload(self, masks: int = 0) -> None:
        """Copy the records and the first `masks` masks to the device."""
        import torch

        end = self._at[3] + 4 * self._words * masks
        with torch.cuda.stream(self._stream):
            self._control[:end].copy_(self._staged[:end], non_blocking=True)

    def _bias_of(self, sampling: Sampling) -> int:
        import torch

        if id(sampling) not in self._bias:
            assert sampling.bias is not None
            self._bias[id(sampling)] = torch.from_numpy(sampling.bias).to(self._device)
        address: int = self._bias[id(sampling)].data_ptr()
        return address

    def _counts_of(self, history: History) -> int:
        import torch

        if history.device is None or len(history.pending) > EXTRAS // 2:
            history.device = torch.from_numpy(history.held.view(np.int32)).to(self._device, copy=True)
            history.pending.clear()
        address: int = history.device.data_ptr()
        return address

    def _logprob_at(self, place: int) -> Logprob:
        record = self._logprobs[place].numpy()
        count = int(record[1:2].view(np.int32)[0])
        tokens, values = record[2 : 2 + 2 * count : 2].view(np.int32), record[3 : 3 + 2 * count : 2]
        return float(record[0]), tuple(zip(tokens.tolist(), values.tolist(), strict=True))
