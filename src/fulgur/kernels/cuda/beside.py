"""Steps beside a prompt under way: its parts are queued after them, within its fraction of the device's time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from fulgur.kernels.cuda.prefill_run import PrefillRun


class Beside:
    """`wait` waits for a stream or an event, and raises an error that says what failed."""

    def __init__(self, stream: Any, wait: Callable[[Any], None]) -> None:
        self.step_seconds = 0.0  # of the last step beside a prompt, on the device
        self._stream, self._wait = stream, wait
        self._run: PrefillRun | None = None

    def begin(self, parts: Generator[None]) -> PrefillRun:
        """Begin with a prompt; the one before it is done or was dropped."""
        self._run, self.step_seconds = PrefillRun(parts, self._stream), 0.0
        return self._run

    def step(self, queue: Callable[[], None]) -> None:
        """Queue a pass and wait for it, but not for the parts of the prompt that are queued after it."""
        import torch

        if self._run is None or self._run.time_fraction is None:
            queue()
            self._wait(self._stream)
            return
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record(self._stream)
        queue()
        ended.record(self._stream)
        self._run.queue(self.step_seconds)
        self._wait(ended)
        self.step_seconds = started.elapsed_time(ended) / 1e3
