"""Grade the shipped models on held-out packages, beside the baselines, with 95% intervals.

    fulgur train evaluate --json F [--archive corpus.jsonl.xz | --source FOLDER] [--models 60M,30M] [--per-op 6]
                          [--only edits|completions]
The answers come from the quantised artefact through the engine, without any gate. `--float 60M=FOLDER` adds the same
figures for the model before quantisation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from fulgur.edit.embedded import Ask, Embedded, model_folder
from fulgur.errors import FulgurError, UsageError
from fulgur.text.edit_format import NOEDIT, answer_pieces, encode_pieces
from fulgur.workspace.folders import embedded_models
from lab.train.edits import EditExample, check
from lab.train.evaluate_baselines import Copy, Lookup, Ngram
from lab.train.evaluate_codemod import Codemod
from lab.train.evaluate_score import Answers, Scores, Share, score
from lab.train.evaluate_tasks import Hole, Tasks, make_tasks, read_files

BARS: dict[str, tuple[float, bool]] = {  # for the 60M model: the bar, and whether it is a most
    "ops.heldout_phrasing": (85, False),
    "stray": (1, True),
    "false_edit": (3, True),
    "parse": (98, False),
    "fim.single": (30, False),
    "fim.multi": (8, False),
}
MAIN = ("ops.seen", "ops.heldout_phrasing", "ops.heldout_op", "stray", "false_edit", "parse", "fim.single", "fim.multi")
MORE = ("unedited", "exact", "stray_examples", "next.location", "next.content")
BATCH = 24
FILLED = 96  # tokens a completion may have


class Baseline(Protocol):
    name: str

    def edit(self, example: EditExample) -> str: ...
    def fill(self, hole: Hole, several: bool) -> str: ...


def prompts(model: Embedded, tasks: Tasks) -> list[Ask | None]:
    """Every prompt in a fixed order; None where the region does not fit the context, which counts as no edit."""
    asks: list[Ask | None] = []
    for e in [*(e for found in tasks.edits.values() for e in found), *tasks.noops, *tasks.next_edits]:
        try:
            asks.append(model.edit(e.path, e.above, e.region, e.below, e.instruction, e.recent))
        except FulgurError:
            asks.append(None)
    for hole in tasks.single:
        asks.append(model.completion(hole.path, hole.prefix, hole.suffix, FILLED, one_line=True))
    return [*asks, *(model.completion(hole.path, hole.prefix, hole.suffix, FILLED) for hole in tasks.multi)]


def sorted_out(tasks: Tasks, written: list[str]) -> Answers:
    """Answers in the order of `prompts`, back where they belong."""
    rest = iter(written)

    def take(count: int) -> list[str]:
        return [next(rest) for _ in range(count)]

    edits = {split: take(len(found)) for split, found in tasks.edits.items()}
    noops, following = take(len(tasks.noops)), take(len(tasks.next_edits))
    return Answers(edits, noops, following, take(len(tasks.single)), take(len(tasks.multi)))


def ask_model(model: Embedded, tasks: Tasks, say: Callable[[str], None]) -> tuple[Answers, dict[str, float]]:
    """Everything through the engine, many prompts at once."""
    asked = prompts(model, tasks)
    written: list[str] = []
    tokens = accepted = 0
    began = time.perf_counter()
    for start in range(0, len(asked), BATCH):
        part = asked[start : start + BATCH]
        replies = iter(model.ask([ask for ask in part if ask is not None]))
        for ask in part:
            if ask is None:
                written.append(NOEDIT)
                continue
            reply = next(replies)
            written.append(reply.text)
            tokens += reply.tokens
            accepted += reply.accepted
        done = len(written)
        say(f"{model.folder.name}: {done}/{len(asked)} answers, {time.perf_counter() - began:.0f} s")
    seconds = time.perf_counter() - began
    return sorted_out(tasks, written), {
        "answers_per_second": len(asked) / seconds,
        "drafted_share": accepted / max(tokens, 1),
    }


def ask_float(folder: Path, model: Embedded, tasks: Tasks, quantised: Answers, say: Callable[[str], None]) -> Answers:
    """The same prompts for the float model, with the quantised answers as drafts."""
    from lab.train.evaluate_float import FloatModel

    reference = FloatModel(folder)
    tokenizer = model.engine.tokenizer
    drafts = [*(t for found in quantised.edits.values() for t in found), *quantised.noops, *quantised.next_edits]
    drafts += [*quantised.single, *quantised.multi]
    written: list[str] = []

    def answer(asked: Ask, draft: str) -> str:
        guess = [*tokenizer.encode(draft), model.stops[0]]
        tokens = reference.answer(encode_pieces(tokenizer, asked.pieces), guess, asked.max_tokens)
        return tokenizer.decode([t for t in tokens if t not in model.stops], skip_special=False)

    for ask, draft in zip(prompts(model, tasks), drafts, strict=True):
        if ask is None:
            written.append(NOEDIT)
            continue
        text = answer(ask, ask.begins + draft)
        if ask.plain is not None:
            text = text[len(ask.begins) :] if text.startswith(ask.begins) else answer(ask.plain, draft)
        written.append(text)
        say(f"{folder.name} (float): {len(written)}/{len(drafts)} answers")
    return sorted_out(tasks, written)


def told(label: str, tasks: Tasks, answers: Answers) -> Iterator[dict[str, Any]]:
    """Every task with what was written, to be read by people."""
    edits = [(split, tasks.edits[split], answers.edits[split]) for split in tasks.edits]
    for split, examples, texts in [
        *edits, ("noop", tasks.noops, answers.noops), ("next", tasks.next_edits, answers.next_edits)
    ]:  # fmt: skip
        for example, written in zip(examples, texts, strict=True):
            wanted = "".join(str(getattr(piece, "token", piece)) for piece in answer_pieces(example.answer))
            yield {"model": label, "split": split, "op": example.op, "passed": check(example, written),
                   "instruction": example.instruction, "recent": [[e.before, e.after] for e in example.recent],
                   "path": example.path, "above": example.above, "region": example.region, "below": example.below,
                   "wanted": wanted, "written": written}  # fmt: skip
    for split, holes, texts in (("single", tasks.single, answers.single), ("multi", tasks.multi, answers.multi)):
        for hole, written in zip(holes, texts, strict=True):
            yield {"model": label, "split": split, "path": hole.path, "prefix": hole.prefix, "suffix": hole.suffix,
                   "wanted": hole.middle, "written": written}  # fmt: skip


def ask_baseline(baseline: Baseline, tasks: Tasks) -> Answers:
    return Answers(
        {split: [baseline.edit(example) for example in found] for split, found in tasks.edits.items()},
        [baseline.edit(example) for example in tasks.noops],
        [baseline.edit(example) for example in tasks.next_edits],
        [baseline.fill(hole, False) for hole in tasks.single],
        [baseline.fill(hole, True) for hole in tasks.multi],
    )


def rows(label: str, scores: Scores) -> list[dict[str, Any]]:
    found = []
    for name in (*MAIN, *MORE):
        share = scores.shares.get(name)
        if share is not None and share.total:
            low, high = share.interval
            found.append(
                {"name": f"model.{name}.{label}", "value": round(share.value, 2), "unit": "%",
                 "low": round(low, 2), "high": round(high, 2), "n": share.total}
            )  # fmt: skip
    for kind, values in scores.similarity.items():
        if values:
            mean = 100 * sum(values) / len(values)
            found.append(
                {"name": f"model.fim.{kind}.similarity.{label}", "value": round(mean, 2), "unit": "%", "n": len(values)}
            )
    return found


def show(results: dict[str, Scores], bars_for: str | None) -> None:
    """One table of all answerers, then the operations one by one for the first model."""
    labels = list(results)
    print("\n" + f"{'':24}" + "".join(f"{label:>22}" for label in labels) + f"{'bar':>8}")
    for name in (*MAIN, *MORE):
        cells = []
        for label in labels:
            share = results[label].shares.get(name, Share())
            low, high = share.interval
            cells.append(f"{share.value:6.1f} [{low:5.1f}-{high:5.1f}]" if share.total else "-")
        bar, most = BARS.get(name, (None, False))
        mark = "" if bar is None else f"{'≤' if most else '≥'} {bar:g}"
        print(f"{name:24}" + "".join(f"{cell:>22}" for cell in cells) + f"{mark:>8}")
    if bars_for is None:
        return
    print(f"\n{'operation (' + bars_for + ')':28}{'seen':>10}{'phrasing':>10}{'new op':>10}")
    for op, found in sorted(results[bars_for].by_op.items()):
        cells = [
            f"{found[s].hits}/{found[s].total}" if found[s].total else "-"
            for s in ("seen", "heldout_phrasing", "heldout_op")
        ]
        print(f"{op:28}" + "".join(f"{cell:>10}" for cell in cells))


def wanted_models(names: str | None) -> list[tuple[str, Path]]:
    """(label, folder) of the models to grade: named ones, or all that are installed."""
    if names:
        return [(label_of(folder), folder) for folder in (model_folder(name) for name in names.split(",") if name)]
    folders = sorted(embedded_models())
    if not folders:
        raise FulgurError("no embedded model is installed", hint="Name folders with --models, or train one first.")
    return [(label_of(folder), folder) for folder in folders]


def label_of(folder: Path) -> str:
    """60M or 30M, by the number of parameters."""
    from fulgur.model.config import ModelConfig

    millions = ModelConfig.from_folder(folder).parameters / 1e6
    return next((f"{size}M" for size in (30, 60, 120) if 0.6 * size <= millions <= 1.4 * size), f"{millions:.0f}M")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fulgur train evaluate", description="Grade the shipped models.")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--archive", type=Path, help="held-out files of this archive (.jsonl.xz) or corpus folder")
    parser.add_argument("--source", type=Path, help="any folder of Python code instead")
    parser.add_argument("--models", help="embedded models by name or folder, with commas (default: all installed)")
    parser.add_argument("--float", action="append", default=[], metavar="LABEL=FOLDER", help="float weights to compare")
    parser.add_argument("--per-op", type=int, default=6, help="examples of each operation and column (default 6)")
    parser.add_argument("--holes", type=int, default=300, help="single-line completions; half as many of several lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", choices=("edits", "completions"), help="one half; --json then keeps the rows of the other one"
    )
    parser.add_argument("--answers", type=Path, help="write every edit, hole and answer of the models to this file")
    parser.add_argument("--baselines-only", action="store_true", help="no model, only the baselines")
    args = parser.parse_args(argv)
    floats = dict(pair.split("=", 1) for pair in args.float if "=" in pair)
    if len(floats) != len(args.float):
        raise UsageError("--float takes LABEL=FOLDER, for example 60M=out/float")
    models = [] if args.baselines_only else wanted_models(args.models)
    say = status_line()
    tasks = make_tasks(read_files(args.archive, args.source), args.per_op, args.holes, args.seed)
    if args.only == "edits":
        tasks.single, tasks.multi = [], []
    elif args.only == "completions":
        tasks.edits, tasks.noops, tasks.next_edits = {}, [], []
    counted = [f"{len(found)} edits ({split})" for split, found in tasks.edits.items()]
    counted += [f"{len(tasks.noops)} no-ops", f"{len(tasks.next_edits)} next edits"]
    counted += [f"{len(tasks.single)} + {len(tasks.multi)} completions"]
    print(f"{tasks.size} tasks: {', '.join(counted)}")
    results: dict[str, Scores] = {}
    extra: list[dict[str, Any]] = []
    for label, folder in models:
        model = Embedded.open(str(folder), kv_tokens=BATCH * 1536)
        answers, speeds = ask_model(model, tasks, say)
        results[label] = score(tasks, answers)
        if args.answers:
            with args.answers.open("a" if label != models[0][0] else "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in told(label, tasks, answers))
        extra += [
            {"name": f"model.{name}.{label}", "value": round(value, 3), "unit": ""} for name, value in speeds.items()
        ]
        if label in floats:
            results[f"{label}-float"] = score(tasks, ask_float(Path(floats[label]), model, tasks, answers, say))
    for baseline in (Copy(), Lookup(), Ngram(), Codemod()):
        say(f"baseline {baseline.name}")
        results[baseline.name] = score(tasks, ask_baseline(baseline, tasks))
    say("")
    show(results, models[0][0] if models else None)
    if args.json:
        from fulgur.bench.report import machine

        found = [row for label, scores in results.items() for row in rows(label, scores)]
        earlier = json.loads(args.json.read_text())["rows"] if args.only and args.json.exists() else []
        args.json.write_text(
            json.dumps({"machine": machine(), "rows": merged(earlier, found + extra)}, indent=1) + "\n",
            encoding="utf-8",
        )
    return 0


def merged(earlier: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the other half stay, rows made again are replaced."""
    made = {row["name"] for row in found}
    return [row for row in earlier if row["name"] not in made] + found


def status_line() -> Callable[[str], None]:
    """Progress on one line of a terminal's standard error; nothing elsewhere."""
    live = sys.stderr.isatty()

    def say(text: str) -> None:
        if live:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()

    return say


if __name__ == "__main__":
    raise SystemExit(main())
