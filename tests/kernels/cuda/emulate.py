"""Build the CUDA sources for the CPU (emulator/) and drive them as the GPU runtime does."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fulgur.kernels.cuda.build import sources
from fulgur.kernels.cuda.drivers import FEEDER, THREADS, persistent_threads
from fulgur.kernels.cuda.header import header, layout
from fulgur.kernels.cuda.plan import Plan
from fulgur.kernels.cuda.records import PAIRS, Args, Mailbox, buffer_bytes, old_pair, state_record
from fulgur.kernels.cuda.weights import GpuWeights
from fulgur.model.rope import rope_tables

HERE = Path(__file__).parent / "emulator"
COMPILER = shutil.which("g++") or shutil.which("clang++")


def compiled(name: str, texts: dict[str, str], main: str, folder: Path, *flags: str) -> Path:
    """The library that `main` of these sources makes. It is built once in `folder`, which several workers share."""
    if COMPILER is None:
        pytest.skip("no C++ compiler (g++ or clang++) to build the sources with")
    key = hashlib.sha256(repr((sorted(texts.items()), flags)).encode()).hexdigest()[:16]
    library = folder / f"{name}-{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as build_folder:
            for file, text in texts.items():
                (Path(build_folder) / file).write_text(text, encoding="utf-8")
            command = [COMPILER, "-O1", "-w", "-U_FORTIFY_SOURCE", "-std=c++17", "-shared", "-fPIC", *flags, main]
            done = subprocess.run([*command, "-o", "built.so"], cwd=build_folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[:3000]
            Path(build_folder, "built.so").replace(library)
    return library


def emulator() -> dict[str, str]:
    """The sources that stand in for the GPU."""
    return {path.name: path.read_text(encoding="utf-8") for path in HERE.iterdir()}


def build(plan: Plan, driver: str, folder: Path, wgmma: bool = True, profile: bool = False) -> ctypes.CDLL:
    constants = header(plan, driver, layout(plan, driver, wgmma=wgmma), profile)
    texts = {**sources(driver), "constants.h": constants, **emulator()}
    return ctypes.CDLL(str(compiled(driver, texts, "run.cpp", folder, f'-DDRIVER="{driver}.cu"')))


def fenced(values: np.ndarray) -> np.ndarray:
    """A copy that ends at a guard page: a read or write beyond it ends the process."""
    whole = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
    end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + whole
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), mmap.PAGESIZE, 0) == 0
    begin = (whole - values.nbytes) // 16 * 16  # as aligned as vectors need it
    out = np.frombuffer(memory, values.dtype, values.size, begin).reshape(values.shape)
    out[...] = values
    return out


class Emulated:
    """One driver over numpy buffers with fences. Activations start as NaN where the sources must write before they
    read."""

    def __init__(
        self, weights: GpuWeights, driver: str, folder: Path, *, context: int = 512, seed: int = 1, epoch: int = 1,
        wgmma: bool = True,
    ) -> None:  # fmt: skip
        self.plan, self.driver, self.seed, self._epoch = weights.plan, driver, seed, epoch
        plan, c = self.plan, self.plan.config
        self.memory = layout(plan, driver, wgmma=wgmma)
        self.library = build(plan, driver, folder, wgmma)
        self._record = state_record(plan.rows)
        self.buffers = {name: fenced(np.zeros(size // 4, np.float32)) for name, size in buffer_bytes(plan).items()}
        for name in PAIRS:
            self.buffers[name].view(np.int64).fill(old_pair(epoch))
        self.buffers["best"].fill(np.nan)
        cos, sin = rope_tables(c, context)
        blocks = -(-context // 64)
        self.buffers["rope"] = fenced(np.concatenate((cos, sin), axis=1))
        heads, narrow = (c.n_layers, 2, blocks, c.n_kv_heads, 64), plan.kv_dtype == "fp8"
        self.buffers["kv"] = fenced(np.zeros((*heads, c.head_dim), np.uint8 if narrow else np.uint16))
        if narrow:
            self.buffers["exponents"] = fenced(np.zeros(heads, np.uint8))
        self.buffers["logits"] = fenced(np.full((plan.rows, c.vocab_size), np.nan, np.float32))
        # Blocks in an order of their own, so that a table that is not used shows.
        self.buffers["tables"] = fenced(np.random.default_rng(5).permutation(blocks).astype(np.int32)[None])
        self.state, self.mailbox = self._record(), Mailbox()
        self.args = Args(kv_blocks=blocks, table_width=blocks)
        for name, array in self.buffers.items():
            setattr(self.args, name, array.ctypes.data)
        tensors = {"weights": weights.arena, "norms": weights.norms, "embed": weights.embed.view(torch.uint16)}
        self._weights = {name: fenced(tensor.numpy()) for name, tensor in tensors.items()}
        for name, array in self._weights.items():
            setattr(self.args, name, array.ctypes.data)
        self.args.state, self.args.mailbox = ctypes.addressof(self.state), ctypes.addressof(self.mailbox)

    def _launch(self, kernel: str, ctas: int, threads: int, shared: int) -> None:
        self.seed += 1
        function = ctypes.cast(getattr(self.library, kernel), ctypes.c_void_p)
        hung = self.library.emulate(function, ctypes.byref(self.args), ctas, threads, shared, self.seed)
        assert hung == 0, f"{kernel}: {hung} threads hang (or, if negative, shared memory was overrun)"

    def run(self, tokens: list[int], position: int, steps: int = 1, stop: tuple[int, ...] = ()) -> list[int]:
        """The tokens of one launch: the argmax of each row, or of each step."""
        n, state = len(tokens), self.state
        ctypes.memset(ctypes.byref(state), 0, ctypes.sizeof(state))
        cancel, self.mailbox = self.mailbox.cancel, Mailbox()
        self.mailbox.cancel, self.args.mailbox = cancel, ctypes.addressof(self.mailbox)
        state.rows, state.steps, state.stops, state.epoch = n, steps, len(stop), self._epoch
        self._epoch += steps * self.plan.config.n_layers
        state.stop[: len(stop)] = stop
        state.token[:n], state.position[:n] = tokens, range(position, position + n)
        state.first[:n] = [position] * n
        self.buffers["counters"].fill(0)
        if self.driver == "persistent":
            self._launch(
                "decode_persistent", self.plan.ctas, persistent_threads(self.plan, self.memory), self.memory.total
            )
        else:
            for _ in range(steps):
                for phase in self.plan.phases():
                    self.args.layer = phase.layer
                    ctas = 1 if phase.name == "finish" else self.plan.ctas
                    shared = self.memory.attention_only if phase.name == "attention" else self.memory.total
                    threads = THREADS + (FEEDER if phase.matrix else 0)
                    self._launch(f"step_{phase.name}", ctas, threads, shared)
        return list(self.mailbox.token[: self.mailbox.count])

    @property
    def logits(self) -> np.ndarray:
        return self.buffers["logits"]
