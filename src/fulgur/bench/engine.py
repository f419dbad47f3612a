"""`fulgur bench engine`: the CPU engine and llama.cpp on the same random weights, in the same run.

Both stay loaded in separate processes and are measured in turn, round by round. Values are medians over the rounds;
ratios are medians of the per-round ratios. A decode step reads the weights and the keys and values of its context; the
bandwidth share is those bytes, times tokens a second, over the read bandwidth measured at the same footprint in the
same round. Decode and verify are measured at a context of 512 tokens, prefill with 512. An edit's speed is compared
with single steps right before it. `engine.long.*`: after 8,192 tokens, with keys and values in bf16 and in 8 bits
(`bench/long_context.py`).

What the machine allows is measured in the same rounds and shown beside three figures. The bandwidth is that of the best
of many passes, a decode that of the median token, so `bandwidth_share.read` is what the median of plain passes over the
same bytes reaches. `bandwidth_share.most` is the same for passes that also unpack the weights and multiply them with
one row, on all threads but without attention, quantising or barriers. Both alternate with single steps.
`verify*.least`: the products of these tokens at the rate at which the CPU multiplies bytes in registers.
`edit.ratio_raw.most`: steps at their measured cost, with perfect foresight of which guesses are right. `of_most` is the
fraction of it that is reached.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from fulgur.bench.quiet import Watch
from fulgur.bench.report import Begin, Report, progress
from fulgur.bench.shapes import HYBRID, LARGE, SHAPES
from fulgur.errors import FulgurError, UsageError

if TYPE_CHECKING:
    from fulgur.bench.comparison import Comparison


@dataclass(frozen=True)
class Effort:
    rounds: int
    repeat: int  # decodes within a round
    turns: int = 1  # per large model and its peer


FULL, QUICK = Effort(rounds=7, repeat=5, turns=2), Effort(rounds=2, repeat=2)
_SECONDS, _FEWEST = 35.0, 3  # seconds after which a model gets no further round, if it had this many
_REPEAT_LARGE = 3
_KV_LARGE = 4096  # tokens of KV cache while the memory of a large model is measured

# The project's own targets on two AVX-512/AMX cores.
AT_LEAST = {
    "engine.decode.ratio_llama.30M.int4": 2.5,
    "engine.decode.ratio_llama.30M.int8": 2.0,
    "engine.decode.ratio_llama.60M.int4": 2.2,
    "engine.decode.ratio_llama.60M.int8": 2.0,
    "engine.decode.ratio_llama.120M.int4": 2.1,
    "engine.decode.tok_s.30M.int4": 2200.0,
    "engine.decode.tok_s.60M.int4": 1100.0,
    "engine.bandwidth_share.60M.int4": 0.75,
    "engine.bandwidth_share.60M.int8": 0.75,
    "engine.prefill.ratio_llama.60M": 3.0,
    "engine.edit.ratio_raw.60M.int4": 2.5,
}
AT_MOST = {"engine.verify8.ratio.60M.int4": 2.4, "engine.memory.ratio": 1.5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", default=",".join(SHAPES), metavar="A,B", help=f"some of {', '.join((*SHAPES, *LARGE, 'hybrid'))}"
    )
    parser.add_argument("--bits", default="4,8", metavar="A,B", help="4, 8 or both")
    parser.add_argument(
        "--quick", action="store_true", help="two short rounds, to check that it works; not to be quoted"
    )
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp")
    parser.add_argument(
        "--files",
        type=Path,
        metavar="FOLDER",
        help=f"keep the weights of {', '.join(LARGE)} here for the next run (by default in a temporary folder)",
    )


def run(args: argparse.Namespace) -> Report:
    """Measure every requested model and precision."""
    chosen = _choose(args.models, [*SHAPES, *LARGE, "hybrid"], "--models")
    models, large = [name for name in chosen if name in SHAPES], [name for name in chosen if name in LARGE]
    precisions = _choose(args.bits, ["4", "8"], "--bits")
    if importlib.util.find_spec("fulgur.kernels.cpu._native") is None:
        raise FulgurError("the CPU kernels are not built", hint="Install the package (make run) and try again.")
    missing = [name for name in ("llama_cpp", "gguf") if importlib.util.find_spec(name) is None]
    if missing and (models or large) and not args.no_peer:
        raise FulgurError(
            f"the peer is not installed: {', '.join(missing)}",
            hint="In Fulgur's checkout: pip install -e '.[bench]'; or measure without it: --no-peer.",
        )
    effort = QUICK if args.quick else FULL
    report = Report("fulgur bench engine" + (", two short rounds: not to be quoted" if args.quick else ""))
    watch = Watch()
    jobs = [(model, int(bits)) for model in models for bits in precisions]
    steps = len(jobs) * (effort.rounds + (3 if args.no_peer else 4))
    steps += (len(large) * (1 if args.no_peer else 1 + 2 * effort.turns) + 2 * ("hybrid" in chosen)) * len(precisions)
    with tempfile.TemporaryDirectory(prefix="fulgur-bench-") as folder, progress("engine", steps) as begin:
        from fulgur.bench.replay import write_tokenizer

        tokenizer = Path(folder) / "tokenizer"
        write_tokenizer(tokenizer)
        for model, bits in jobs:
            _measure(model, bits, Path(folder), tokenizer, effort, not args.no_peer, begin, report)
        for model in large:
            from fulgur.bench.large import Files, measure

            files = Files(args.files or Path(folder), keep=args.files is not None)
            repeat = min(effort.repeat, _REPEAT_LARGE)
            for width in precisions:
                measure(
                    model,
                    LARGE[model],
                    int(width),
                    files,
                    begin,
                    report,
                    repeat=repeat,
                    turns=effort.turns,
                    peer=not args.no_peer,
                )
        for width in precisions if "hybrid" in chosen else ():
            from fulgur.bench import own_drafts

            own_drafts.measure("hybrid", HYBRID, int(width), Path(folder), tokenizer, effort.rounds, begin, report)
    report.notes += watch.notes()
    report.machine["quiet"] = not any("not to be quoted" in note for note in report.notes)
    _add_smallest(report, "engine.prefill.ratio_llama.60M")
    if any(row.name == "engine.memory.ratio.60M.int4" for row in report.rows):
        _add(report, "engine.memory.ratio", report.value("engine.memory.ratio.60M.int4"), "x")
    return report


def _measure(
    model: str,
    bits: int,
    folder: Path,
    tokenizer: Path,
    effort: Effort,
    peer: bool,
    begin: Begin,
    report: Report,
) -> None:
    from fulgur.bench.comparison import Comparison
    from fulgur.bench.long_context import measure_long
    from fulgur.bench.memory import measure_memory

    label = f"{model} int{bits}"
    begin(f"{label}: random weights")
    with Comparison(model, bits, folder, tokenizer) as comparison:
        if peer:
            begin(f"{label}: finding llama.cpp's fastest settings")
            comparison.add_peer()
        rounds = _rounds(comparison, effort, lambda i: begin(f"{label}: round {i}"))
        _add_rows(report, comparison)
        begin(f"{label}: a long context", skipped=effort.rounds - rounds)
        measure_long(comparison.folder, f"{model}.int{bits}", effort.rounds, report)
        begin(f"{label}: memory")
        try:
            memory = measure_memory(comparison.folder, _KV_LARGE if comparison.large else None)
        except FulgurError as error:  # keep what was measured before
            report.notes.append(f"{label}: memory not measured: {error}")
        else:
            _add(report, f"engine.memory.ratio.{model}.int{bits}", memory.ratio, "x")
            _add(report, f"engine.memory.beyond_mb.{model}.int{bits}", memory.beyond / 1e6, "MB")
    report.notes += comparison.notes + comparison.unsteady()
    report.machine |= {"isa": comparison.about["isa"], "threads": comparison.about["threads"]}


def _rounds(comparison: Comparison, effort: Effort, begin: Callable[[int], None]) -> int:
    """Run the requested rounds, or fewer if they take long; return how many ran."""
    start = perf_counter()
    for i in range(1, effort.rounds + 1):
        begin(i)
        comparison.round(effort.repeat)
        spent = perf_counter() - start
        if _FEWEST <= i < effort.rounds and spent * (i + 1) / i > _SECONDS:
            edits = len(comparison.replays)
            comparison.notes.append(
                f"{comparison.model} int{comparison.bits}: {i} rounds instead of {effort.rounds}, "
                f"one takes {spent / i:.0f} s; edits replayed in {edits} of them"
            )
            return i
    return effort.rounds


def _add_rows(report: Report, measured: Comparison) -> None:
    name = f"{measured.model}.int{measured.bits}"
    samples = measured.samples
    share = [
        measured.bytes_per_token / seconds / 1e9 / bandwidth
        for seconds, bandwidth in zip(samples["decode"], samples["bandwidth"], strict=True)
    ]
    _add(report, f"engine.bandwidth.gb_s.{name}", median(samples["bandwidth"]), "GB/s")
    _add(report, f"engine.bandwidth_share.{name}", median(share), "of 1")
    _add(report, f"engine.bandwidth_share.read.{name}", median(share) / median(samples["read"]), "of 1")
    _add(report, f"engine.bandwidth_share.most.{name}", median(share) / median(samples["scan"]), "of 1")
    _add(report, f"engine.bandwidth_share.of_most.{name}", median(samples["scan"]), "of 1")
    _add(report, f"engine.decode.tok_s.{name}", measured.rate("decode"), "tok/s")
    if samples["single"]:
        _add(report, f"engine.decode.tok_s_one_thread.{name}", measured.rate("single"), "tok/s")
    _add(report, f"engine.prefill.tok_s.{name}", measured.rate("prefill"), "tok/s")
    if samples["llama_decode"]:
        _add(report, f"llama.decode.tok_s.{name}", measured.rate("llama_decode"), "tok/s")
        _add(report, f"llama.prefill.tok_s.{name}", measured.rate("llama_prefill"), "tok/s")
        _add(report, f"engine.decode.ratio_llama.{name}", measured.ratio("llama_decode", "decode"), "x")
        _add(report, f"engine.prefill.ratio_llama.{name}", measured.ratio("llama_prefill", "prefill"), "x")
    for width in measured.widths:
        _add(report, f"engine.verify{width}.ratio.{name}", measured.ratio(f"verify{width}", "verify1"), "x")
        _add(report, f"engine.verify{width}.least.{name}", measured.least(width), "x")
    _add(report, f"engine.edit.tok_s.{name}", measured.edit_rate, "tok/s")
    _add(report, f"engine.edit.ratio_raw.{name}", measured.edit_ratio, "x")
    _add(report, f"engine.edit.ratio_raw.most.{name}", measured.edit_most, "x")
    _add(report, f"engine.edit.ratio_raw.of_most.{name}", measured.edit_ratio / measured.edit_most, "of 1")
    _add(report, f"engine.edit.accepted.{name}", measured.edit_accepted, "of 1")


def _add(report: Report, name: str, value: float, unit: str) -> None:
    if name in AT_MOST:
        report.add(name, value, unit, bar=AT_MOST[name], at_most=True)
    else:
        report.add(name, value, unit, bar=AT_LEAST.get(name))


def _add_smallest(report: Report, name: str) -> None:
    """Add the row without a precision: the worst of those with one."""
    values = [row.value for row in report.rows if row.name.startswith(name + ".")]
    if values:
        _add(report, name, min(values), "x")


def _choose(text: str, known: list[str], option: str) -> list[str]:
    chosen = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for part in chosen:
        if part not in known:
            raise UsageError(f"{option}: {part!r} is not one of {', '.join(known)}")
    if not chosen:
        raise UsageError(f"{option}: choose from {', '.join(known)}")
    return chosen
