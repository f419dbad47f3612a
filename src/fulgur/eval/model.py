"""Grade the embedded models and the baselines on held-out code, with 95% intervals.

The answers come from the quantised models as shipped, through the engine, without the checks of `fulgur edit`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError
from fulgur.eval.answers import KV_TOKENS, ask_baseline, ask_model, transcript
from fulgur.eval.asker import Asker, find_model
from fulgur.eval.baselines import Copy, Lookup, Ngram
from fulgur.eval.changes import ROWS as CHANGES
from fulgur.eval.changes import score_all_changes
from fulgur.eval.codemod import Codemod
from fulgur.eval.cursors import KINDS, Suggest, by_baseline, by_model, score_cursors
from fulgur.eval.cursors import SHIPPED as SHIPPED_CURSORS
from fulgur.eval.humaneval import Line, read_problems, score_humaneval, single_lines
from fulgur.eval.score import Scores, Share, score
from fulgur.eval.tasks import SHIPPED, Tasks, read_tasks
from fulgur.workspace.folders import embedded_models

Row = dict[str, Any]
BARS: dict[str, tuple[float, bool]] = {  # for the 60M model: the bar, and whether it is an upper bound
    "ops.heldout_phrasing": (85, False),
    "stray": (1, True),
    "false_edit": (3, True),
    "parse": (98, False),
    "fim.single": (30, False),
    "fim.multi": (8, False),
    "complete.word": (50, False),
    "complete.inside_word": (48, False),
    "complete.line_start": (30, False),
    "complete.saved": (45, False),
    "complete.wrong_per_line": (1, True),
    "humaneval.single.pass1.indented": (40, False),
    "humaneval.single.pass1.column0": (40, False),
    "edits.own_words.right": (80, False),
    "edits.own_words.wrong": (2, True),
    "edits.commits.wrong": (3.4, True),
    "next.right": (55, False),
    "next.wrong": (5, True),
    "next.confirm.right": (55, False),
    "next.confirm.wrong": (5, True),
}
MAIN = ("ops.seen", "ops.heldout_phrasing", "ops.heldout_op", "stray", "false_edit", "parse", "fim.single", "fim.multi")
CURSORS = tuple(f"complete.{kind}" for kind in (*KINDS, "saved")) + tuple(
    f"humaneval.single.pass1.{column}" for column in ("indented", "column0")
)
MORE = (*CHANGES, "unedited", "exact", "stray_examples", "next.location", "next.content")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=Path, default=SHIPPED, metavar="FILE", help="another set of tasks")
    parser.add_argument(
        "--models", help="embedded models by name or folder, separated by commas (default: all installed)"
    )
    parser.add_argument(
        "--only",
        choices=("edits", "completions", "changes"),
        help="run one part; --json keeps the rows of the others. changes: in packages that are downloaded",
    )
    parser.add_argument("--answers", type=Path, metavar="FILE", help="write every task and the models' answers")
    parser.add_argument("--baselines-only", action="store_true", help="no model, only the baselines")


def run(args: argparse.Namespace) -> list[Row]:
    models = [] if args.baselines_only else wanted_models(args.models)
    say = status_line()
    if args.only == "changes":
        found: dict[str, Scores] = {}
        score_all_changes(found, models, say)
        say("")
        show(found, None)
        return [row for label, scores in found.items() for row in rows(label, scores)]
    tasks = read_tasks(args.tasks)
    lines: list[Line] = []
    if args.tasks == SHIPPED:
        tasks.cursors = read_tasks(SHIPPED_CURSORS).cursors
        lines = single_lines(read_problems()) if args.only != "edits" else []
    tasks.only(args.only)
    counted = [f"{len(found)} edits ({split})" for split, found in tasks.edits.items()]
    counted += [f"{len(tasks.noops)} no-ops", f"{len(tasks.next_edits)} next edits"]
    counted += [f"{len(tasks.single)} + {len(tasks.multi)} completions"]
    counted += [f"{sum(map(len, tasks.cursors.values()))} cursors", f"{len(lines)} lines of HumanEval"]
    print(f"{tasks.size} tasks: {', '.join(counted)}")
    results: dict[str, Scores] = {}
    speeds: list[Row] = []
    for label, folder in models:
        asker = Asker(folder, kv_tokens=KV_TOKENS)
        answers, measured = ask_model(asker, tasks, say)
        results[label] = score(tasks, answers)
        say(f"{label}: cursors")
        score_suggestions(results[label], tasks, lines, by_model(asker), by_model(asker, search=False))
        if args.answers:
            with args.answers.open("a" if label != models[0][0] else "w", encoding="utf-8") as file:
                told = transcript(label, tasks, answers)
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in told)
        for name, value in measured.items():
            speeds.append({"name": f"model.{name}.{label}", "value": round(value, 3), "unit": ""})
    for baseline in (Copy(), Lookup(), Ngram(), Codemod()):
        say(f"baseline {baseline.name}")
        results[baseline.name] = score(tasks, ask_baseline(baseline, tasks))
        score_suggestions(results[baseline.name], tasks, lines, by_baseline(baseline))
    if args.tasks == SHIPPED and args.only is None:
        try:
            score_all_changes(results, models, say)
        except FulgurError as error:  # fetching the packages may fail
            print(f"no rows on changes of packages: {error.message}")
    say("")
    show(results, models[0][0] if models else None)
    return [row for label, scores in results.items() for row in rows(label, scores)] + speeds


def score_suggestions(
    scores: Scores, tasks: Tasks, lines: list[Line], suggest: Suggest, typed: Suggest | None = None
) -> None:
    if tasks.cursors:
        score_cursors(scores, tasks.cursors, suggest, typed)
    if lines:
        score_humaneval(scores, lines, suggest)


def rows(label: str, scores: Scores) -> list[Row]:
    found: list[Row] = []
    for name in (*MAIN, *CURSORS, *MORE):
        share = scores.shares.get(name)
        if share is not None and share.total:
            low, high = (round(bound, 2) for bound in share.interval)
            row = {"name": f"model.{name}.{label}", "value": round(share.value, 2), "unit": "%"}
            found.append({**row, "low": low, "high": high, "n": share.total})
    for name, value in scores.numbers.items():
        found.append({"name": f"model.{name}.{label}", "value": round(value, 2), "unit": ""})
    for kind, values in scores.similarity.items():
        if values:
            mean = round(100 * sum(values) / len(values), 2)
            name = f"model.fim.{kind}.similarity.{label}"
            found.append({"name": name, "value": mean, "unit": "%", "n": len(values)})
    return found


def show(results: dict[str, Scores], first: str | None) -> None:
    """Print a table of all answerers, then each operation for the first model."""
    labels = list(results)
    print("\n" + f"{'':32}" + "".join(f"{label:>22}" for label in labels) + f"{'bar':>8}")
    for name in (*MAIN, *CURSORS, "complete.wrong_per_line", "complete.taken_per_line", *MORE):
        cells = []
        for label in labels:
            if name in results[label].numbers:
                cells.append(f"{results[label].numbers[name]:.2f}")
                continue
            share = results[label].shares.get(name, Share())
            low, high = share.interval
            cells.append(f"{share.value:6.1f} [{low:5.1f}-{high:5.1f}]" if share.total else "-")
        bar, most = BARS.get(name, (None, False))
        mark = "" if bar is None else f"{'≤' if most else '≥'} {bar:g}"
        print(f"{name:32}" + "".join(f"{cell:>22}" for cell in cells) + f"{mark:>8}")
    if first is None:
        return
    print(f"\n{'operation (' + first + ')':28}{'seen':>10}{'phrasing':>10}{'new op':>10}")
    for op, found in sorted(results[first].by_op.items()):
        shares = [found[split] for split in ("seen", "heldout_phrasing", "heldout_op")]
        cells = [f"{share.hits}/{share.total}" if share.total else "-" for share in shares]
        print(f"{op:28}" + "".join(f"{cell:>10}" for cell in cells))


def wanted_models(names: str | None) -> list[tuple[str, Path]]:
    """(label, folder) of the models to grade: the named ones, or all installed ones."""
    if names:
        folders = [find_model(name) for name in names.split(",") if name]
    else:
        folders = sorted(embedded_models())
    if not folders:
        raise FulgurError("no embedded model is installed", hint="Name folders with --models, or train one first.")
    return [(label_of(folder), folder) for folder in folders]


def label_of(folder: Path) -> str:
    """60M or 30M, by the number of parameters."""
    from fulgur.model.config import ModelConfig

    millions = ModelConfig.from_folder(folder).parameters / 1e6
    return next((f"{size}M" for size in (30, 60, 120) if 0.6 * size <= millions <= 1.4 * size), f"{millions:.0f}M")


def status_line() -> Callable[[str], None]:
    """Progress on one line of a terminal's standard error; nothing elsewhere."""
    live = sys.stderr.isatty()

    def say(text: str) -> None:
        if live:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()

    return say
