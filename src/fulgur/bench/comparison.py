"""One model in one precision: its files, the processes that hold it, and rounds that measure them in turn."""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import TracebackType

from fulgur.bench.peer import Settings, candidates
from fulgur.bench.peer_choice import PeerChoice
from fulgur.bench.quiet import spread, too_far
from fulgur.bench.report import cores
from fulgur.bench.shapes import SEED, SHAPES
from fulgur.bench.weights import AheadSource, write_gguf
from fulgur.bench.worker import Worker
from fulgur.kernels.cpu import _native
from fulgur.kernels.cpu.native import default_threads
from fulgur.model.packed_folder import save_packed
from fulgur.model.weights import assemble

CONTEXT, DECODE, PREFILL = 512, 64, 512
BARE = 8  # tokens per turn of bare passes and of steps
TRIAL, TRIAL_LARGE = 256, 64  # tokens of context and of prefill while settings are tried out
LARGE = 100e6  # bytes a token; a larger model is tried out on less, and its memory is measured with a smaller KV cache
_ROOM = 2048  # tokens of KV cache: the context and the longest edit of the replay
_LONG = 1.0  # seconds; anything slower runs once per round
_LONG_REPLAY = 5.0  # seconds; a slower replay runs once in all


class Comparison:
    """`samples` holds seconds (or GB/s, or bare passes relative to a step) of each round, by what was measured."""

    widths = (4, 8, 16)  # tokens verified in one step
    _between = (1, 2, 3, 6, 12, 24, 32)  # further widths, for the most that drafts can give

    def __init__(self, model: str, bits: int, folder: Path, tokenizer: Path) -> None:
        self.model, self.bits = model, bits
        self.config = SHAPES[model]
        self.samples: dict[str, list[float]] = defaultdict(list)
        self.notes: list[str] = []
        self.replays: list[list[dict[str, float]]] = []  # the edits of each round
        self.threads = default_threads()
        self.folder = folder / f"{model}-int{bits}"
        self._tokenizer = tokenizer
        self._workers: dict[str, Worker] = {}
        with AheadSource(self.config, SEED) as source:
            weights = assemble(source, bits=bits)
        save_packed(weights, self.folder, companions=tokenizer)
        kv = 2 * 2 * self.config.n_layers * self.config.kv_rows * CONTEXT
        self.bytes_per_token = weights.bytes_per_token + kv
        self.large = self.bytes_per_token > LARGE
        # The weights are bytes; keys and values are bf16, which counts double: no CPU multiplies it more than half as
        # fast.
        attention = 2 * self.config.n_layers * self.config.n_heads * self.config.head_dim * CONTEXT
        self.products_per_token = sum(m.rows * m.cols for m in weights.matrices.values()) + 2 * attention

    def __enter__(self) -> Comparison:
        options = {"folder": str(self.folder), "context": _ROOM}
        self._workers["ours"] = Worker("fulgur.bench.ours", threads=self.threads, **options)
        if self.threads > 1:
            self._workers["single"] = Worker("fulgur.bench.ours", threads=1, **options)
        self.about = self._workers["ours"].call("about")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers.values():
            worker.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add_peer(self) -> None:
        """Write the same weights for llama.cpp, try its settings, and keep the fastest for decode and for prefill."""
        path = self.folder / "peer.gguf"
        write_gguf(path, self.config, SEED, self.bits)
        length, repeat = (TRIAL_LARGE, 2) if self.large else (TRIAL, 4)
        choice = PeerChoice(path, _ROOM)
        for settings in candidates(cores()):
            choice.attempt(settings, length, repeat)
        kept = {settings for _, settings in choice.best.values()}
        for threads in {self.threads, 1} - {cores()}:  # with otherwise the best settings
            for settings in kept:
                choice.attempt(replace(settings, threads=threads), length, repeat)
        self.notes += choice.notes(f"{self.model} int{self.bits}")
        started: dict[Settings, Worker] = {}
        for kind, (_, settings) in choice.best.items():
            if settings not in started:
                started[settings] = choice.start(settings, path)
            self._workers[f"llama_{kind}"] = started[settings]

    def round(self, repeat: int) -> None:
        """Measure everything once, ours and the peer's in turn; a decode is the median of `repeat` runs of 64
        tokens."""
        self.samples["bandwidth"].append(float(_native.read_bandwidth(self.bytes_per_token, self.threads, 0.2)))
        self.samples["product"].append(1e-9 / float(_native.multiply_rate(self.threads, 0.05)))
        for name, worker in (("decode", "ours"), ("llama_decode", "llama_decode"), ("single", "single")):
            if worker in self._workers:
                decode = {"context": CONTEXT, "count": DECODE, "repeat": self._repeat(name, DECODE, repeat)}
                self._note(name, self._workers[worker].call("decode", **decode), DECODE)
        bare = {"context": CONTEXT, "count": BARE, "repeat": self._repeat("decode", 3 * BARE, 8 * repeat)}
        ratios = self._workers["ours"].call("bare", **bare)
        self.samples["read"].append(median(read for read, _ in ratios))
        self.samples["scan"].append(median(scan for _, scan in ratios))
        for name, worker in (("prefill", "ours"), ("llama_prefill", "llama_prefill")):
            if worker in self._workers:
                prefill = {"count": PREFILL, "repeat": self._repeat(name, PREFILL, 2)}
                self._note(name, self._workers[worker].call("prefill", **prefill), PREFILL)
        for width in sorted((*self._between, *self.widths)):
            step = {"context": CONTEXT, "width": width, "repeat": self._repeat("decode", width, 4 * repeat)}
            self._note(f"verify{width}", self._workers["ours"].call("verify", **step), 1)
        if not self.replays or sum(edit["seconds"] for edit in self.replays[0]) < _LONG_REPLAY:
            self.replays.append(self._workers["ours"].call("replay", tokenizer=str(self._tokenizer), speculate=True))

    def _repeat(self, name: str, count: int, repeat: int) -> int:
        """Return `repeat`, or less if one run of `count` tokens is known to take long."""
        known = self.samples[name]
        return max(1, min(repeat, int(_LONG / (known[-1] * count)))) if known else 1

    def _note(self, name: str, seconds: list[float], count: int) -> None:
        self.samples[name].append(median(seconds) / count)

    def rate(self, name: str) -> float:
        """How many per second: the median over the rounds."""
        return median(1 / seconds for seconds in self.samples[name])

    def ratio(self, name: str, other: str) -> float:
        """How long `name` takes relative to `other`: the median of the per-round ratios."""
        return median(a / b for a, b in zip(self.samples[name], self.samples[other], strict=False))

    def least(self, width: int) -> float:
        """The least that a step of `width` tokens can cost relative to a step of one: as much as one, and its products
        at the rate at which this CPU multiplies bytes in registers."""
        products = width * self.products_per_token
        pairs = zip(self.samples["product"], self.samples["verify1"], strict=True)
        return max(1.0, median(products * product / one for product, one in pairs))

    @property
    def edit_rate(self) -> float:
        """Tokens a second of the edits, each at the median of its rounds, so that a pause of the machine affects only
        one round."""
        edits = list(zip(*self.replays, strict=True))
        seconds = sum(median(run["seconds"] for run in edit) for edit in edits)
        return sum(edit[0]["tokens"] for edit in edits) / seconds

    @property
    def edit_ratio(self) -> float:
        """Like `edit_rate`, relative to the single steps measured right before each edit."""
        edits = list(zip(*self.replays, strict=True))
        work = sum(median(run["seconds"] / run["raw"] for run in edit) for edit in edits)
        return sum(edit[0]["tokens"] for edit in edits) / work

    @property
    def edit_most(self) -> float:
        """What `edit_ratio` would be with the measured steps, perfect foresight and no overhead around the steps."""
        from fulgur.bench.foresight import edits_known, least_seconds

        known = edits_known(self._tokenizer)
        tokens = sum(len(right) for right in known)
        ratios = []
        for i, replay in enumerate(self.replays):
            seconds = {width: self.samples[f"verify{width}"][i] for width in (*self._between, *self.widths)}
            seconds[1] = median(run["raw"] for run in replay)  # the steps that the edits are compared with
            ratios.append(tokens * seconds[1] / sum(least_seconds(right, seconds) for right in known))
        return median(ratios)

    @property
    def edit_accepted(self) -> float:
        """The fraction of drafted tokens that were accepted."""
        runs = [run for edits in self.replays for run in edits]
        return sum(run["accepted"] for run in runs) / max(sum(run["drafted"] for run in runs), 1)

    def unsteady(self) -> list[str]:
        """Notes on what varied too much between rounds to be quoted."""
        return [
            f"{self.model} int{self.bits}: {name} differs by {spread(values):.0%} from round to round: not to be quoted"
            for name, values in self.samples.items()
            if name in ("decode", "llama_decode", "prefill", "llama_prefill", "bandwidth") and too_far(values)
        ]
