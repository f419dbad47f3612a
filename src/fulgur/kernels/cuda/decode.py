"""The decode kernels as the runtimes use them: their buffers, the input of a launch, launches.

A single row has separate kernels, which can also run many steps by themselves; a few rows of a step have others
(drivers.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.drivers import Driver, args_of
from fulgur.kernels.cuda.header import MARKS
from fulgur.kernels.cuda.plan import KV_BLOCK, Plan
from fulgur.kernels.cuda.records import PAIRS, TURN, Mailbox, buffer_bytes, old_pair, state_record

Int = npt.NDArray[np.int32]


def _aligned(size: int) -> int:
    return -(-size // 256) * 256


class Decode:
    """`held`: tensors by their names in `Args`: weights, small vectors, embedding, cache, rope and the states of
    recurrent layers. State, counters and block tables are contiguous, so one copy sets them."""

    def __init__(
        self, plan: Plan, held: dict[str, Any], *, max_context: int, gpu: Gpu, stream: Any, driver: str = "persistent",
        profile: bool = False, **numbers: int,
    ) -> None:  # fmt: skip
        """`numbers`: fields of `Args`. With `profile`, steps of one row count the cycles of their parts in `marks`."""
        import torch

        self._torch, self.plan, self.driver, self._stream = torch, plan, driver, stream
        device, sizes = held["weights"].device, buffer_bytes(plan)
        self._records = {rows: state_record(rows) for rows in {1, plan.rows}}
        self._epoch = self._aged = 1  # epoch of the next launch; epoch when the pairs were last marked as old
        self._buffers: dict[str, Any] = {
            name: torch.zeros(-(-size // 16) * 16, dtype=torch.uint8, device=device)
            for name, size in sizes.items()
            if name != "counters"
        }
        self.logits = torch.zeros((plan.rows, plan.config.vocab_size), dtype=torch.float32, device=device)
        width = -(-max_context // KV_BLOCK)
        self._counters_at = _aligned(ctypes.sizeof(self._records[plan.rows]))
        self._tables_at = self._counters_at + _aligned(sizes["counters"])
        self._control = torch.zeros(self._tables_at + 4 * plan.rows * width, dtype=torch.uint8, device=device)
        self._staged = torch.zeros_like(self._control, device="cpu").pin_memory()
        self._tables: Int = self._staged.numpy()[self._tables_at :].view(np.int32).reshape(plan.rows, width)
        self._mail = torch.zeros(ctypes.sizeof(Mailbox), dtype=torch.uint8).pin_memory()
        self.mailbox: Any = Mailbox.from_address(self._mail.data_ptr())
        self.ring: Int = self._mail.numpy()[Mailbox.token.offset :].view(np.int32)
        given = {
            **self._buffers, **held, "state": self._control, "counters": self._control[self._counters_at :],
            "tables": self._control[self._tables_at :], "mailbox": self._mail,
        }  # fmt: skip
        self.marks: Any = None
        if profile:
            given["marks"] = self.marks = torch.zeros((plan.ctas, MARKS), dtype=torch.int64, device=device)
        args = args_of(given, table_width=width, **numbers)
        with torch.cuda.stream(stream):
            self._narrow = Driver(driver, replace(plan, rows=1), gpu, args, profile=profile)
            self._wide = Driver(driver, plan, gpu, args) if plan.rows > 1 else self._narrow

    def warm(self) -> None:
        """Load every kernel. The state says that the run is over, so they return at once."""
        for driver in (self._narrow, self._wide):
            self._records[driver.plan.rows].from_address(self._staged.data_ptr()).done = 1
            self._control.copy_(self._staged)
            self._torch.cuda.synchronize()
            driver.warm(self._stream)
            self._stream.synchronize()

    def upload(
        self, tokens: Int, positions: Int, sequences: Int, tables: Int, *, steps: int = 1,
        stops: Collection[int] = (), draw: tuple[float, int] | None = None, sampled: bool = False, slot: int = 0,
    ) -> None:  # fmt: skip
        """Upload the input of the next launch: written to pinned memory, then one copy. The device is idle. `draw`:
        sharpness and seed, for a temperature alone; `sampled`: other kernels choose the token and set up the next step.
        """
        self._age_words()
        n = len(tokens)
        record = self._records[1 if n == 1 else self.plan.rows].from_address(self._staged.data_ptr())
        ctypes.memset(self._staged.data_ptr(), 0, self._tables_at)
        ctypes.memset(self._mail.data_ptr(), 0, 16)
        record.rows, record.steps, record.stops, record.epoch = n, steps, len(stops), self._epoch
        record.sampled, record.slot = int(sampled), slot
        self.count(steps)
        record.stop[: len(stops)] = sorted(stops)
        record.token[:n], record.position[:n], record.table[:n] = (
            tokens.tolist(),
            positions.tolist(),
            sequences.tolist(),
        )
        starts = {int(s): int(positions[sequences == s].min()) for s in np.unique(sequences)}
        record.first[:n] = [starts[int(s)] for s in sequences]
        if draw is not None:
            record.sharpness = draw[0]
            record.seed[:] = (draw[1] & 0xFFFFFFFF, draw[1] >> 32)
        width = min(tables.shape[1], self._tables.shape[1])
        np.maximum(tables[:, :width], 0, out=self._tables[: len(tables), :width])
        size = self._tables_at + len(tables) * self._tables.strides[0]
        with self._torch.cuda.stream(self._stream):
            self._control[:size].copy_(self._staged[:size], non_blocking=True)

    def count(self, steps: int) -> None:
        """Count steps that will run after the queued ones."""
        self._epoch += steps * self.plan.config.n_layers

    def run(self, rows: int = 1, steps: int = 1, *, logits: bool = False) -> None:
        """Queue what was uploaded: a step over `rows` rows, or many over one; with their `logits`."""
        driver = self._narrow if rows == 1 else self._wide
        driver.run(steps, self.logits.data_ptr() if logits else 0, self._stream)

    def addresses(self) -> dict[str, int]:
        """Addresses at which the sampler finds the row of a run and sets up its next step."""
        record, state = self._records[1], self._control.data_ptr()
        fields = ("token", "position", "first", "produced", "done")
        found = {f"state_{name}": state + getattr(record, name).offset for name in fields}
        return {**found, "counter": state + self._counters_at, "mailbox": self._mail.data_ptr()}

    def close(self) -> None:
        for driver in {id(d): d for d in (self._wide, self._narrow)}.values():
            driver.close()

    def _age_words(self) -> None:
        """Values of earlier launches stay in the buffers; make them look old to the next one."""
        with self._torch.cuda.stream(self._stream):
            if self._epoch > 1 << 30:
                self._epoch = self._aged = 1
                for buffer in self._buffers.values():
                    buffer.zero_()
            elif self._epoch - self._aged > TURN:
                self._aged = self._epoch
                for name in PAIRS:
                    self._buffers[name].view(self._torch.int64).fill_(old_pair(self._epoch))
