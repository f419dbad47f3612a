"""`fulgur bench engine` for mixture-of-experts models: random weights of the true shape, one model at a time.

The bytes that a token reads are counted (chosen experts, dense matrices, keys and values, recurrent states twice) and
compared with the read bandwidth measured in the same run. A step over four tokens is compared with the distinct experts
that four random choices touch.

The weights are mapped from a file, as a user's would be. Before anything is timed, the file is in the page cache and on
disk, so that nothing is written meanwhile. `start_s` is the time until the first step can run. `first.*` are the first
tokens and the first prompt after that, when their pages are not in the process's page tables yet. The other rows are
steady state, with every page touched before; `faults` counts the page faults of a token, and a page that came from the
disk is noted.

Memory holds only one model. So llama.cpp runs after ours, on a file with the same numbers, and both get two turns (with
`--quick` one). Its settings are chosen beforehand on the model's first layers.
"""

from __future__ import annotations

import mmap
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from fulgur.bench.packed_gguf import write_packed_gguf
from fulgur.bench.peer import candidates
from fulgur.bench.peer_choice import PeerChoice
from fulgur.bench.random_folder import check_free, random_bytes, write_random, written
from fulgur.bench.report import Begin, Report, cores, memory_gb
from fulgur.bench.shapes import SEED
from fulgur.bench.worker import Worker, WorkerDied
from fulgur.kernels.cpu import _native
from fulgur.kernels.cpu.native import default_threads
from fulgur.model.config import ModelConfig
from fulgur.model.family import DELTA, SLIDING
from fulgur.model.packed_folder import PACKED_FILE, load_packed

CONTEXT, DECODE, PREFILL, VERIFY = 256, 16, 256, 4
ROOM = CONTEXT + 2 * PREFILL  # tokens of the caches
PROBE = 1 << 30  # bytes over which bandwidth is measured: far beyond any cache, and little beside the model
TRIAL_LAYERS, TRIAL = 4, 64  # layers on which the peer's settings are tried, and tokens of context
PEER_FILE = "peer.gguf"


@dataclass(frozen=True)
class Files:
    """Where weights are written. If kept, they serve the next run."""

    folder: Path
    keep: bool


def read_per_token(config: ModelConfig, weight_bytes: int, context: int) -> int:
    """The bytes that the CPU reads and writes for a token after `context` others."""
    spans = [min(config.window, context) if kind == SLIDING else context for kind in config.kinds if kind != DELTA]
    keys = 2 * 2 * config.kv_rows * sum(spans)
    delta, layers = config.delta, sum(kind == DELTA for kind in config.kinds)
    states = 0 if delta is None else 2 * 4 * layers * delta.v_heads * delta.k_dim * delta.v_dim
    return weight_bytes + keys + states


def distinct(config: ModelConfig, rows: int) -> float:
    """The expected number of experts that so many rows touch, if each chooses at random."""
    return config.n_experts * (1 - (1 - config.experts_per_token / config.n_experts) ** rows)


def measure(
    model: str,
    config: ModelConfig,
    bits: int,
    files: Files,
    begin: Begin,
    report: Report,
    *,
    repeat: int,
    turns: int,
    peer: bool,
) -> None:
    """Measure with `repeat` decodes per turn; without the peer there is one turn. Skip a model that does not fit into
    memory."""
    large = _Large(f"{model}.int{bits}", config, bits, files)
    size = random_bytes(config, bits)
    if 0 < memory_gb() < size / 2**30:  # 0: unknown
        report.notes.append(
            f"{large.name}: not measured, {size / 2**30:.1f} GiB of weights do not fit into {memory_gb()} GiB of memory"
        )
        begin(f"{large.name}: skipped, too large for memory", 2 * turns if peer else 0)
        return
    files.folder.mkdir(parents=True, exist_ok=True)
    check_free(files.folder, large.missing_bytes(size, peer))
    try:
        choice = None
        if peer:
            begin(f"{large.name}: finding llama.cpp's fastest settings")
            choice = large.choose()
            report.notes += choice.notes(large.name)
        for turn in range(1, 1 + (turns if choice is not None and choice.best else 1)):
            begin(f"{large.name}: turn {turn}")
            large.write()
            large.ours(repeat)
            if choice is not None and choice.best:
                begin(f"{large.name}: llama.cpp's turn {turn}")
                large.peer(choice, repeat)
        large.add_rows(report)
    finally:
        if not files.keep:
            shutil.rmtree(large.place, ignore_errors=True)


class _Large:
    def __init__(self, name: str, config: ModelConfig, bits: int, files: Files) -> None:
        self.name, self.config, self.bits = name, config, bits
        self.place = files.folder / name
        self.samples: dict[str, list[float]] = defaultdict(list)  # one per turn
        self.notes: list[str] = []

    def missing_bytes(self, size: int, peer: bool) -> int:
        """The bytes still to be written: ours, and the peer's file of about the same size."""
        ours = 0 if _is_there(self.place, self.config) else size
        theirs = size if peer and not (self.place / PEER_FILE).exists() else 0
        return ours + theirs

    def write(self) -> None:
        if not _is_there(self.place, self.config):
            write_random(self.config, self.place, self.bits, SEED)
        weights = load_packed(self.place, None)
        experts, config = sum(e.data.nbytes for e in weights.experts.values()), self.config
        self.chosen_bytes = experts * config.experts_per_token // config.n_experts
        self.read_bytes = read_per_token(config, weights.bytes_per_token, CONTEXT)

    def choose(self) -> PeerChoice:
        """Try llama.cpp's settings on the first layers only."""
        layers = min(TRIAL_LAYERS, self.config.n_layers)
        cut = replace(self.config, n_layers=layers, layer_kinds=self.config.layer_kinds[:layers])
        place = self.place / "cut"
        if not _is_there(place, cut):
            write_random(cut, place, self.bits, SEED)
            _write_peer(place)
        choice = PeerChoice(place / PEER_FILE, ROOM)
        for settings in candidates(cores()):
            choice.attempt(settings, TRIAL, 4)
        return choice

    def ours(self, repeat: int) -> None:
        with _mapped(self.place / PACKED_FILE):
            self._ours(repeat)

    def _ours(self, repeat: int) -> None:
        threads = default_threads()
        self.samples["bandwidth"].append(float(_native.read_bandwidth(PROBE, threads, 1.0)))
        start = perf_counter()
        worker = Worker("fulgur.bench.ours", folder=str(self.place), threads=threads, context=ROOM)
        try:
            self.samples["start"].append(perf_counter() - start)
            before = worker.call("faults")
            begun = worker.call("decode", context=0, count=DECODE, repeat=1)
            after = worker.call("faults")
            prompt = worker.call("prefill", count=PREFILL, repeat=1)
            self.samples["first.decode"] += [seconds / DECODE for seconds in begun]
            self.samples["first.faults"].append((after[0] - before[0]) / DECODE)
            self.samples["first.prefill"] += [seconds / PREFILL for seconds in prompt]
            worker.call("decode", context=CONTEXT, count=DECODE, repeat=1)  # warms up the very tokens that are timed
            before = worker.call("faults")
            decode = worker.call("decode", context=CONTEXT, count=DECODE, repeat=repeat)
            after = worker.call("faults")
            self.samples["faults"].append((after[0] - before[0]) / (DECODE * repeat))
            self.samples["decode"].append(median(decode) / DECODE)
            self.samples["prefill"].append(median(worker.call("prefill", count=PREFILL, repeat=2)) / PREFILL)
            bare = worker.call("bare", context=CONTEXT, count=2, repeat=repeat)
            self.samples["read"].append(median(read for read, _ in bare))
            one, four = (
                worker.call("verify", context=CONTEXT, width=width, repeat=4 * repeat)[1:] for width in (1, VERIFY)
            )
            self.samples["verify"].append(median(four) / median(one))
            end = worker.call("faults")
            if end[1] > before[1]:
                self.notes.append(f"{end[1] - before[1]} pages came from the disk in steady steps: not to be quoted")
        finally:
            worker.close()

    def peer(self, choice: PeerChoice, repeat: int) -> None:
        if not (self.place / PEER_FILE).exists():  # only now, because it displaces our file from the page cache
            _write_peer(self.place)
        settings = {kind: best for kind, (_, best) in choice.best.items()}
        for one in dict.fromkeys(settings.values()):
            try:
                worker = choice.start(one, self.place / PEER_FILE)
                try:
                    worker.call("prefill", count=PREFILL, repeat=1)  # touches every page once
                    if settings["decode"] == one:
                        worker.call("decode", context=CONTEXT, count=DECODE, repeat=1)
                        decode = worker.call("decode", context=CONTEXT, count=DECODE, repeat=repeat)
                        self.samples["llama_decode"].append(median(decode) / DECODE)
                    if settings["prefill"] == one:
                        prefill = worker.call("prefill", count=PREFILL, repeat=2)
                        self.samples["llama_prefill"].append(median(prefill) / PREFILL)
                finally:
                    worker.close()
            except WorkerDied as error:
                self.notes.append(f"llama.cpp died with {one}: {error}")

    def add_rows(self, report: Report) -> None:
        value = {name: median(values) for name, values in self.samples.items()}
        report.notes += [f"{self.name}: {note}" for note in self.notes]

        def add(row: str, number: float, unit: str, bar: float | None = None, *, at_most: bool = False) -> None:
            report.add(f"{row}.{self.name}", number, unit, bar=bar, at_most=at_most)

        share = self.read_bytes / value["decode"] / 1e9 / value["bandwidth"]
        add("engine.start_s", value["start"], "s", 3.0, at_most=True)
        add("engine.first.decode.tok_s", 1 / value["first.decode"], "tok/s")
        add("engine.first.faults", value["first.faults"], "a token")
        add("engine.first.prefill.tok_s", 1 / value["first.prefill"], "tok/s")
        add("engine.decode.tok_s", 1 / value["decode"], "tok/s")
        add("engine.decode.faults", value["faults"], "a token")
        add("engine.bandwidth.gb_s", value["bandwidth"], "GB/s")
        add("engine.bandwidth_share", share, "of 1", 0.65)
        add("engine.bandwidth_share.read", share / value["read"], "of 1")
        add("engine.read_mb_per_token", self.read_bytes / 1e6, "MB")
        add("engine.prefill.tok_s", 1 / value["prefill"], "tok/s")
        more = distinct(self.config, VERIFY) / self.config.experts_per_token - 1
        least = (self.read_bytes + self.chosen_bytes * more) / self.read_bytes
        add(f"engine.verify{VERIFY}.ratio", value["verify"], "x", 1.25 * least, at_most=True)
        add(f"engine.verify{VERIFY}.least", least, "x")
        for kind, bar in (("decode", 1.15), ("prefill", 2.0)):
            if f"llama_{kind}" in value:
                pairs = zip(self.samples[f"llama_{kind}"], self.samples[kind], strict=False)
                add(f"llama.{kind}.tok_s", 1 / value[f"llama_{kind}"], "tok/s")
                add(f"engine.{kind}.ratio_llama", median(theirs / ours for theirs, ours in pairs), "x", bar)


def _is_there(place: Path, config: ModelConfig) -> bool:
    """Whether an earlier run has written this folder completely: its config comes last."""
    return (place / "config.json").exists() and ModelConfig.from_folder(place).parameters == config.parameters


def _write_peer(place: Path) -> None:
    part = place / "peer.part"
    write_packed_gguf(place, part, SEED)
    written(part)
    part.replace(place / PEER_FILE)


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    """Hold a file in the page cache, mapped as the engine maps it: some systems drop what no process has mapped, long
    before memory is short."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        one_a_page = np.frombuffer(pages, np.uint8)[:: mmap.PAGESIZE]
        one_a_page.max()
        del one_a_page
        yield
