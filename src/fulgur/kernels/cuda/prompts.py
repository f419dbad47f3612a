"""Chunks of prompts on the device: how long they may be, what to queue and what to wait for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.kernels.cuda.prefill import Prefill
from fulgur.kernels.cuda.prefill_fast import bytes_per_row
from fulgur.model.config import ModelConfig

Int = npt.NDArray[np.int32]

CHUNK = 8192  # rows of a prompt in a step, at most: the weights are read once for all of them
LEAST = 512


def chunk_rows(config: ModelConfig, layer_bytes: int) -> int:
    """Rows of a prompt in a step: as many as fit into the free memory, beside two copies of a layer's cache, of
    `layer_bytes` each."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    rows = CHUNK
    while rows > LEAST and rows * bytes_per_row(config) + 2 * layer_bytes > free:
        rows //= 2
    return rows


class Prompts:
    def __init__(self, prefill: Prefill, stream: Any, synchronize: Callable[[], None]) -> None:
        self.prefill = prefill
        self._stream, self._synchronize = stream, synchronize
        self._queued: Any = None  # the end of a chunk that was not waited for

    def parts(self, tokens: Int, position: int, table: Int) -> Generator[None]:
        """Queue one part of a chunk after another."""
        import torch

        device = self.prefill.kv.device
        with torch.cuda.stream(self._stream):
            held = torch.from_numpy(tokens).long().to(device), torch.from_numpy(np.maximum(table, 0)).to(device)
        parts = self.prefill.parts(held[0], position, held[1])
        while True:
            with torch.cuda.stream(self._stream), torch.no_grad():
                if next(parts, self) is self:
                    return
            yield

    def rows(self, tokens: Int, position: int, table: Int, wait: bool = True) -> int:
        """Compute rows and return how many: fewer if memory is short, or none. Without `wait`, wait only for the chunk
        before this one, so that the host prepares the next while the device computes."""
        import torch

        n = len(tokens)
        while n >= 16:
            try:
                for _ in self.parts(tokens[:n], position, table):
                    pass
            except torch.cuda.OutOfMemoryError:  # fewer rows need less; the decode kernels, which come next, nothing
                torch.cuda.empty_cache()
                n //= 2
                continue
            last, self._queued = self._queued, None if wait else self._stream.record_event()
            if wait:
                self._synchronize()
            elif last is not None:
                last.synchronize()
            return n
        return 0
