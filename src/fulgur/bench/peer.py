"""llama.cpp's side of a comparison: the same weights as a GGUF file, through llama-cpp-python, in one process.

Its low-level interface is called directly, as its own benchmark does, so its time includes no sampling and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The settings to try: threads, flash attention, and weights repacked for the CPU at load."""

    threads: int
    flash: bool
    repack: bool

    def __str__(self) -> str:
        flags = [name for name, on in (("flash attention", self.flash), ("repacked weights", self.repack)) if on]
        return f"{self.threads} threads" + "".join(f", {flag}" for flag in flags)


def candidates(threads: int) -> Iterator[Settings]:
    """Every combination of the other settings."""
    for repack in (True, False):
        for flash in (True, False):
            yield Settings(threads, flash, repack)


def open_worker(path: str, context: int, threads: int, flash: bool, repack: bool) -> dict[str, Callable[..., Any]]:
    bench = Peer(path, context, Settings(threads, flash, repack))
    return {"decode": bench.decode, "prefill": bench.prefill, "verify": bench.verify, "about": bench.about}


class Peer:
    def __init__(self, path: str, context: int, settings: Settings) -> None:
        import llama_cpp

        self.lib, self.settings = llama_cpp, settings
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.use_extra_bufts = settings.repack
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = context
        params.n_ubatch = min(512, context)
        params.n_threads = params.n_threads_batch = settings.threads
        params.flash_attn_type = 1 if settings.flash else 0
        params.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp refuses {settings}")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(context, 0, 1)
        vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.tokens = [(i * 7919 + 13) % vocab for i in range(context)]
        self.filled = 0

    def about(self) -> dict[str, Any]:
        info = self.lib.llama_print_system_info().decode()
        return {"version": self.lib.__version__, "system": info.strip(), "settings": asdict(self.settings)}

    def decode(self, context: int, count: int, repeat: int) -> list[float]:
        """Seconds for `count` single-token steps from position `context` on; `repeat` times."""
        seconds = []
        for _ in range(repeat):
            self._fill(context)
            start = perf_counter()
            for at in range(context, context + count):
                self._run(at, 1, 1)
            seconds.append(perf_counter() - start)
        return seconds

    def prefill(self, count: int, repeat: int) -> list[float]:
        """Seconds until `count` tokens are in the cache and the logits after them are known."""
        seconds = []
        for _ in range(repeat):
            self._forget(0)
            start = perf_counter()
            self._run(0, count, 1)
            seconds.append(perf_counter() - start)
        self.filled = count
        return seconds

    def verify(self, context: int, width: int, repeat: int) -> list[float]:
        """Seconds per step over `width` tokens with logits for each."""
        seconds = []
        for _ in range(repeat):
            self._fill(context)
            start = perf_counter()
            self._run(context, width, width)
            seconds.append(perf_counter() - start)
        return seconds

    def _fill(self, context: int) -> None:
        """Have exactly `context` positions in the cache."""
        self._forget(context)
        if self.filled < context:
            self._forget(0)
            self._run(0, context, 1)
            self.filled = context

    def _forget(self, start: int) -> None:
        """Drop every position from `start` on; all of them where a recurrent state cannot go back."""
        if not self.lib.llama_memory_seq_rm(self.memory, 0, start, -1):
            self.lib.llama_memory_clear(self.memory, False)
            start = 0
        self.filled = min(self.filled, start)

    def _run(self, at: int, count: int, outputs: int) -> None:
        batch = self.batch
        batch.n_tokens = count
        for i in range(count):
            batch.token[i] = self.tokens[at + i]
            batch.pos[i] = at + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i >= count - outputs
        if self.lib.llama_decode(self.context, batch) != 0:
            raise RuntimeError(f"llama.cpp could not run {count} tokens at {at}")
        self.lib.llama_synchronize(self.context)
